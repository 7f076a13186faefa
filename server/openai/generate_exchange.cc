#include "server/openai/generate_exchange.h"

#include <atomic>
#include <list>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/base/error.h"
#include "server/base/mutex.h"
#include "server/base/strings.h"
#include "server/openai/api_error.h"
#include "server/openai/generate_answer.h"
#include "server/openai/tool_fields.h"
#include "server/openai/unary_exchange.h"

namespace nibble::openai {

namespace {

using base::StrCat;

// Prompts of one request that run at a time. More would take the slots of other clients of a server without tokens.
constexpr std::size_t kMaxRunning = 8;
constexpr char kSilence[] = ": the server is working\n\n";  // a comment of server-sent events

class GenerateExchange;

// The stream of one prompt. gRPC calls the functions of a reactor one after another; it lives until OnDone.
class PromptStream final : public grpc::ClientReadReactor<v1::GenerateReply> {
 public:
  PromptStream(std::shared_ptr<GenerateExchange> owner, std::size_t prompt)
      : owner_(std::move(owner)), prompt_(prompt) {}
  void Begin();
  void Cancel() {
    context_.TryCancel();
    if (paused_.exchange(false)) RemoveHold();
  }
  // The client has taken the bytes that waited.
  void Resume() {
    if (!paused_.exchange(false)) return;
    StartRead(&reply_);
    RemoveHold();
  }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const std::shared_ptr<GenerateExchange> owner_;
  const std::size_t prompt_;
  grpc::ClientContext context_;
  v1::GenerateStreamRequest generate_;
  v1::ChatStreamRequest chat_;
  v1::GenerateReply reply_;
  std::atomic<bool> paused_{false};  // a hold keeps the call, because no operation of gRPC is in progress
};

// Thread-safe. Lives until the last stream has ended.
class GenerateExchange : public std::enable_shared_from_this<GenerateExchange> {
 public:
  GenerateExchange(std::shared_ptr<Incoming> incoming, GenerateCall call, const Stubs& stubs,
                   std::size_t max_answer_bytes, std::unique_ptr<AnswerForm> form)
      : incoming_(std::move(incoming)),
        call_(std::move(call)),
        stubs_(stubs),
        max_answer_bytes_(max_answer_bytes),
        answer_(form != nullptr
                    ? std::move(form)
                    : std::make_unique<GenerateAnswer>(call_, incoming_->exchange->head().request_id, absl::Now())) {}

  void Begin() {
    if (call_.stream) {
      exchange().Stream({{"Content-Type", "text/event-stream; charset=utf-8"},
                         {"Cache-Control", "no-store"},
                         {"X-Accel-Buffering", "no"}},
                        kSilence);
    }
    exchange().Watch(
        [weak = weak_from_this()] {
          if (const auto self = weak.lock()) self->ForEachStream(&PromptStream::Resume);
        },
        [weak = weak_from_this()] {
          if (const auto self = weak.lock()) self->ClientGone();
        });
    BeginMore();
  }

  const GenerateCall& call() const { return call_; }
  const Incoming& incoming() const { return *incoming_; }
  v1::InferenceService::Stub& stub() const { return *stubs_.inference; }
  v1::GenerateRequest TakePrompt(std::size_t prompt) { return std::move(call_.prompts[prompt]); }

  // False: the client has not taken enough bytes; wait for Resume().
  bool Take(std::size_t prompt, const v1::GenerateReply& reply) {
    bool too_large;
    std::string events;
    bool more = true;
    {
      base::MutexLock lock(mutex_);
      if (failed_) return true;
      events = answer_->Take(prompt, reply);
      too_large = answer_->num_bytes() > max_answer_bytes_;
      if (!events.empty()) more = exchange().Write(events);  // under the lock: the order of events is that of replies
    }
    if (too_large) {
      Fail(
          FromStatus(base::WithReason(absl::ResourceExhaustedError(StrCat(
                                          "the answer has more than ", max_answer_bytes_, " bytes (--max_send_bytes); ",
                                          call_.stream ? "" : "use stream, or ", "request less")),
                                      "MESSAGE_TOO_LARGE")));
    }
    return more;
  }

  bool HasSpace() const { return exchange().Write(""); }

  void Ended(PromptStream* stream, const grpc::Status& status) {
    bool last;
    {
      base::MutexLock lock(mutex_);
      running_.remove(stream);
      ++num_ended_;
      last = !failed_ && status.ok() && num_ended_ == call_.prompts.size();
    }
    if (!status.ok()) return Fail(FromStatus(status, [this](std::string_view field) { return Rename(field); }));
    if (!last) return BeginMore();
    base::MutexLock lock(mutex_);
    if (call_.stream) {
      exchange().Write(answer_->LastEvents());
      exchange().End();
    } else {
      exchange().Answer(JsonReply(answer_->Whole()));
    }
  }

 private:
  http::Exchange& exchange() const { return *incoming_->exchange; }

  std::string Rename(std::string_view field) const {
    if (field == "stopping.max_tokens") return call_.max_tokens_field;
    const auto is = [field](const char* constraint) { return field == constraint; };
    if (is("json_schema") || is("regex") || is("choice") || is("lark")) return call_.constraint_field;
    if (field == "output.logprobs" || field == "output.prompt_logprobs")
      return call_.chat ? "top_logprobs" : "logprobs";
    if (field == "required_tool") return "tool_choice";
    const std::string name = PlainField(field);
    // An index would be that of another message in a field with another name.
    if (name.starts_with("messages") && call_.messages_field != "messages") return call_.messages_field;
    return call_.messages_field == "messages" ? FunctionField(name) : name;
  }

  void BeginMore() {
    while (true) {
      PromptStream* stream;
      {
        base::MutexLock lock(mutex_);
        if (failed_ || next_ == call_.prompts.size() || running_.size() == kMaxRunning) return;
        stream = new PromptStream(shared_from_this(), next_++);  // deletes itself in OnDone
        running_.push_back(stream);
      }
      stream->Begin();
    }
  }

  void ForEachStream(void (PromptStream::*act)()) {
    base::MutexLock lock(mutex_);  // a stream in the list has not been deleted
    for (PromptStream* stream : running_) (stream->*act)();
  }

  void ClientGone() {
    {
      base::MutexLock lock(mutex_);
      failed_ = true;
    }
    ForEachStream(&PromptStream::Cancel);
  }

  void Fail(const ApiError& error) {
    std::string events;
    {
      base::MutexLock lock(mutex_);
      if (std::exchange(failed_, true)) return;
      if (call_.stream) events = answer_->ErrorEvents(error);
    }
    http::Reply reply = ToReply(error);
    if (call_.stream) {
      exchange().Fail(std::move(reply), events);
    } else {
      exchange().Answer(std::move(reply));
    }
    ForEachStream(&PromptStream::Cancel);
  }

  const std::shared_ptr<Incoming> incoming_;
  GenerateCall call_;
  const Stubs& stubs_;
  const std::size_t max_answer_bytes_;

  base::Mutex mutex_;
  const std::unique_ptr<AnswerForm> answer_ ABSL_PT_GUARDED_BY(mutex_);
  std::list<PromptStream*> running_ ABSL_GUARDED_BY(mutex_);
  std::size_t next_ ABSL_GUARDED_BY(mutex_) = 0;  // prompt to begin next
  std::size_t num_ended_ ABSL_GUARDED_BY(mutex_) = 0;
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;  // no further replies are sent
};

void PromptStream::Begin() {
  owner_->incoming().identity.AddTo(context_);
  if (owner_->call().chat) {
    *chat_.mutable_request() = owner_->TakePrompt(prompt_);
    owner_->stub().async()->ChatStream(&context_, &chat_, this);
  } else {
    *generate_.mutable_request() = owner_->TakePrompt(prompt_);
    owner_->stub().async()->GenerateStream(&context_, &generate_, this);
  }
  StartRead(&reply_);
  StartCall();
}

void PromptStream::OnReadDone(bool ok) {
  if (!ok) return;
  if (owner_->Take(prompt_, reply_)) return StartRead(&reply_);
  AddHold();
  paused_ = true;
  if (owner_->HasSpace()) Resume();  // the client took the bytes meanwhile
}

void PromptStream::OnDone(const grpc::Status& status) {
  owner_->Ended(this, status);
  delete this;
}

}  // namespace

void RunGenerate(std::shared_ptr<Incoming> incoming, GenerateCall call, const Stubs& stubs,
                 std::size_t max_answer_bytes, std::unique_ptr<AnswerForm> form) {
  std::make_shared<GenerateExchange>(std::move(incoming), std::move(call), stubs, max_answer_bytes, std::move(form))
      ->Begin();
}

}  // namespace nibble::openai
