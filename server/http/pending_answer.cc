#include "server/http/pending_answer.h"

#include <utility>

namespace nibble::http {

void PendingAnswer::Changed() {
  std::function<void()> wake;
  {
    base::MutexLock lock(mutex_);
    wake = wake_;
  }
  if (wake) wake();
}

void PendingAnswer::ReadBody(OnPiece on_piece) {
  {
    base::MutexLock lock(mutex_);
    if (gone_ || ended_) return;
    on_piece_ = std::move(on_piece);
  }
  Changed();
}

void PendingAnswer::Piece(std::string bytes, bool last) {
  OnPiece on_piece;
  {
    base::MutexLock lock(mutex_);
    reading_ = false;
    on_piece.swap(on_piece_);
  }
  if (on_piece) on_piece(std::move(bytes), last);
}

void PendingAnswer::Answer(Reply reply) {
  {
    base::MutexLock lock(mutex_);
    if (whole_ || streaming_) return;
    whole_ = ended_ = true;
    reply_ = std::move(reply);
  }
  Changed();
}

void PendingAnswer::Stream(Fields fields, std::string comment) {
  {
    base::MutexLock lock(mutex_);
    if (whole_ || streaming_) return;
    streaming_ = true;
    reply_.fields = std::move(fields);
    comment_ = std::move(comment);
  }
  Changed();  // the session begins to count the silence
}

bool PendingAnswer::Write(std::string_view bytes) {
  bool more, wakes;
  {
    base::MutexLock lock(mutex_);
    if (!streaming_ || ended_ || gone_) return true;
    wakes = reply_.body.empty() && !bytes.empty();  // otherwise the session has been woken and has not looked yet
    reply_.body += bytes;
    more = reply_.body.size() < max_waiting_bytes_;
    full_ = full_ || !more;
  }
  if (wakes) Changed();
  return more;
}

void PendingAnswer::End() {
  {
    base::MutexLock lock(mutex_);
    if (!streaming_) return;
    ended_ = true;
  }
  Changed();
}

void PendingAnswer::Fail(Reply reply, std::optional<std::string_view> tail) {
  {
    base::MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    if (begun_ && tail.has_value()) {
      reply_.body += *tail;
    } else if (begun_) {
      cut_ = true;
    } else {
      streaming_ = false;
      whole_ = true;
      reply_ = std::move(reply);
    }
  }
  Changed();
}

void PendingAnswer::Watch(std::function<void()> on_space, std::function<void()> on_gone) {
  {
    base::MutexLock lock(mutex_);
    if (!gone_) {
      on_space_ = std::move(on_space);
      on_gone_ = std::move(on_gone);
      return;
    }
  }
  on_gone();
}

PendingAnswer::Step PendingAnswer::Next() {
  base::MutexLock lock(mutex_);
  using Kind = Step::Kind;
  if (whole_) return {Kind::kWhole, std::move(reply_), /*last=*/true};
  if (cut_) return {Kind::kCut, {}, /*last=*/true};
  if (on_piece_ != nullptr && !std::exchange(reading_, true)) return {Kind::kRead, {}, /*last=*/false};
  if (!streaming_ || (reply_.body.empty() && !ended_)) return {};
  Step step;
  step.kind = std::exchange(begun_, true) ? Kind::kPiece : Kind::kBegin;
  step.reply = std::exchange(reply_, {});
  step.last = ended_;
  return step;
}

void PendingAnswer::Silence() {
  base::MutexLock lock(mutex_);
  if (streaming_ && !ended_) reply_.body += comment_;
}

void PendingAnswer::Taken() {
  std::function<void()> on_space;
  {
    base::MutexLock lock(mutex_);
    if (!full_ || reply_.body.size() >= max_waiting_bytes_) return;
    full_ = false;
    on_space = on_space_;
  }
  if (on_space) on_space();
}

void PendingAnswer::Gone() {
  std::function<void()> on_gone;
  {
    base::MutexLock lock(mutex_);
    if (std::exchange(gone_, true)) return;
    on_gone = std::move(on_gone_);
  }
  if (on_gone) on_gone();
}

void PendingAnswer::Detach() {
  // Destroyed without the lock: they may own this object's last reference.
  std::function<void()> wake, on_space, on_gone;
  OnPiece on_piece;
  base::MutexLock lock(mutex_);
  ended_ = gone_ = true;
  wake.swap(wake_);
  on_space.swap(on_space_);
  on_gone.swap(on_gone_);
  on_piece.swap(on_piece_);
}

}  // namespace nibble::http
