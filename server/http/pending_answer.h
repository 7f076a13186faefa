// The answer of one exchange between its handler's threads and the connection's thread.
#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "server/base/mutex.h"
#include "server/http/exchange.h"

namespace nibble::http {

// The handler calls the functions of Exchange, the session all others. Thread-safe.
class PendingAnswer final : public Exchange {
 public:
  // `wake` makes the session look for the next step; called from any thread until Detach().
  PendingAnswer(RequestHead head, std::string body, std::size_t max_waiting_bytes, std::function<void()> wake)
      : head_(std::move(head)), body_(std::move(body)), max_waiting_bytes_(max_waiting_bytes), wake_(std::move(wake)) {}

  const RequestHead& head() const override { return head_; }
  std::string TakeBody() override { return std::move(body_); }
  void ReadBody(OnPiece on_piece) override;
  void Answer(Reply reply) override;
  void Stream(Fields fields, std::string comment) override;
  bool Write(std::string_view bytes) override;
  void End() override;
  void Fail(Reply reply, std::optional<std::string_view> tail) override;
  void Watch(std::function<void()> on_space, std::function<void()> on_gone) override;

  // What the session does next.
  struct Step {
    enum class Kind {
      kWait,   // nothing to do
      kRead,   // read the next piece of the body, then call Piece()
      kWhole,  // `reply` is the whole answer
      kBegin,  // reply.fields begin a stream, whose first bytes are reply.body
      kPiece,  // reply.body are bytes of the stream
      kCut     // close the connection
    } kind = Kind::kWait;
    Reply reply;
    bool last = false;  // the stream ends after these bytes
  };
  Step Next();
  // The piece that the last step asked for.
  void Piece(std::string bytes, bool last);
  // A silence has passed: the next step contains the comment, if the answer is a stream.
  void Silence();
  // The client has taken the bytes of the last step.
  void Taken();
  // The client has gone.
  void Gone();
  // The answer has ended; releases the callbacks.
  void Detach();

 private:
  void Changed();

  const RequestHead head_;
  std::string body_;
  const std::size_t max_waiting_bytes_;

  base::Mutex mutex_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_space_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_gone_ ABSL_GUARDED_BY(mutex_);
  OnPiece on_piece_ ABSL_GUARDED_BY(mutex_);        // set: the handler waits for a piece
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;    // the session reads that piece
  bool whole_ ABSL_GUARDED_BY(mutex_) = false;      // reply_ is the whole answer
  bool streaming_ ABSL_GUARDED_BY(mutex_) = false;  // reply_.body holds the bytes that wait
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;      // the header was sent
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;      // no call adds bytes any more
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;        // the connection must be closed
  bool full_ ABSL_GUARDED_BY(mutex_) = false;       // Write() returned false and on_space_ has not been called since
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  Reply reply_ ABSL_GUARDED_BY(mutex_);
  std::string comment_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::http
