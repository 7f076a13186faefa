#include "server/serve/engine.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serve/sequence.h"

namespace nibble::serve {

namespace {

// How soon an engine looks again whether readers that were behind have caught up.
constexpr std::chrono::milliseconds kReaderPoll(5);
// The longest that a client is told to wait before it tries again.
constexpr absl::Duration kLongestRetry = absl::Minutes(1);

std::map<std::string, std::string> RetryAfter(absl::Duration wait) {
  const absl::Duration retry = std::clamp(wait, absl::Milliseconds(100), kLongestRetry);
  return {{"retry_ms", std::to_string(absl::ToInt64Milliseconds(retry))}};
}

}  // namespace

const char* Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kEos: return "eos";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kDeadline: return "deadline";
  }
  return "unknown";
}

absl::Status StepFault(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return status;
  return base::WithReason(absl::InternalError(base::StrCat("a step failed: ", base::ToStd(status.message()))), "KERNEL_FAULT");
}

Engine::Engine(std::shared_ptr<const model::LoadedModel> model, std::shared_ptr<const text::Tokenizer> tokenizer,
               const EngineOptions& options, const kernels::Stream& stream, base::Clock& clock)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      options_(options),
      stream_(stream),
      clock_(clock),
      max_context_(std::min(options.max_context, model_->max_positions())) {}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Start(std::shared_ptr<const model::LoadedModel> model,
                                                      std::shared_ptr<const text::Tokenizer> tokenizer,
                                                      const EngineOptions& options, const kernels::Stream& stream,
                                                      base::Clock& clock) {
  std::unique_ptr<Engine> engine(new Engine(std::move(model), std::move(tokenizer), options, stream, clock));
  NIBBLE_ASSIGN_OR_RETURN(engine->pool_,
                          model::KvPool::Create(engine->model_->config(), engine->model_->weights().kv_dtype,
                                                NumPages(options, engine->max_context_)));
  {
    base::MutexLock lock(engine->mutex_);
    engine->load_.total_pages = engine->free_pages_ = engine->pool_->num_pages();
  }
  engine->thread_ = std::thread([raw = engine.get()] { raw->Run(); });
  return engine;
}

Engine::~Engine() {
  {
    base::MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

absl::Status Engine::Check(const Request& request) const {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt == 0) return base::FieldError(request.prompt_field, "has no tokens, wanted at least one");
  if (prompt > max_context_ || (request.stopping.max_tokens > 0 && prompt >= max_context_)) {
    return base::WithReason(
        absl::InvalidArgumentError(base::StrCat(request.prompt_field, ": has ", prompt, " tokens, the model takes ",
                                                model_->config().limit_text(max_context_))),
        "PROMPT_TOO_LONG", {{"tokens", std::to_string(prompt)}, {"max", std::to_string(max_context_)}});
  }
  const auto in_vocabulary = [&](const char* field, std::int32_t token) -> absl::Status {
    if (token >= 0 && token < model_->config().vocab_size) return absl::OkStatus();
    return base::FieldError(field, base::StrCat("token id ", token, " is not in the vocabulary of ", model_->config().vocab_size));
  };
  for (const std::int32_t token : request.prompt) NIBBLE_RETURN_IF_ERROR(in_vocabulary(request.prompt_field, token));
  for (const auto& [token, bias] : request.penalties.bias) NIBBLE_RETURN_IF_ERROR(in_vocabulary("sampling.logit_bias", token));
  if (request.stopping.max_tokens < 0) {
    return base::FieldError("stopping.max_tokens", base::StrCat("is ", request.stopping.max_tokens, ", wanted 0 or more"));
  }
  for (const std::string& stop : request.stopping.strings) {
    if (stop.empty()) return base::FieldError("stopping.stop", "holds an empty string");
  }
  if (request.n < 1 || request.n > options_.max_running) {
    return base::FieldError("sampling.n", base::StrCat("is ", request.n, ", wanted 1 to ", options_.max_running));
  }
  return absl::OkStatus();
}

absl::Status Engine::Submit(Request request, std::shared_ptr<ResponseSink> sink) {
  NIBBLE_RETURN_IF_ERROR(Check(request));
  // A sequence never grows past what the model takes: it ends with "length" there.
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  request.stopping.max_tokens = std::min(request.stopping.max_tokens, max_context_ - prompt);
  request.top_logprobs = std::min(request.top_logprobs, model_->config().vocab_size);  // all that there are
  auto group = std::make_unique<Group>(std::move(request), std::move(sink), *tokenizer_);
  const std::int64_t pages = group->pages_each() * group->request.n;
  if (pages > pool_->num_pages()) {
    return base::WithReason(absl::ResourceExhaustedError(base::StrCat("the request needs ", pages, " blocks of the KV cache, which has ",
                                                                      pool_->num_pages(), ": ask for fewer tokens or outputs")),
                            "KV_FULL", {{"need", std::to_string(pages)}, {"have", std::to_string(pool_->num_pages())}});
  }
  const absl::Duration now = clock_.Monotonic();
  group->submitted = group->request.arrived.value_or(now);
  group->usage.prompt_tokens = prompt;
  base::MutexLock lock(mutex_);
  if (stop_) return base::WithReason(absl::UnavailableError("the model is being unloaded"), "DRAINING");
  const Queue queue = QueueBefore(group->request.n, pages);
  const absl::Duration wait = EstimatedWait(queue.requests);
  const auto full = [&](const std::string& why) {
    return base::WithReason(absl::ResourceExhaustedError(why), "QUEUE_FULL", RetryAfter(wait));
  };
  if (!queue.at_once && queue.requests >= options_.max_waiting) {
    return full(base::StrCat(queue.requests, " requests wait already, the limit is ", options_.max_waiting));
  }
  if (queue.requests > 0 && queue.tokens + prompt > options_.max_waiting_tokens) {
    return full(base::StrCat("prompts of ", queue.tokens, " tokens wait already, the limit is ", options_.max_waiting_tokens));
  }
  const absl::Duration limit = std::min(group->request.deadline, group->request.queue_deadline);
  if (!queue.at_once && now + wait > limit) {
    return full(base::StrCat("the wait would be about ", absl::ToInt64Milliseconds(wait), " ms, longer than the request has"));
  }
  waiting_tokens_ += prompt;
  const auto behind = std::find_if(waiting_.begin(), waiting_.end(), [&](const std::unique_ptr<Group>& other) {
    return other->request.priority < group->request.priority;
  });
  waiting_.insert(behind, std::move(group));
  load_.waiting = static_cast<std::int64_t>(waiting_.size());
  wake_.NotifyAll();
  return absl::OkStatus();
}

// What fits beside those that run waits for the end of a step alone: that is no queue. At most max_running are looked at.
Engine::Queue Engine::QueueBefore(std::int64_t outputs, std::int64_t pages) const {
  std::int64_t slots = options_.max_running - running_outputs_;
  std::int64_t free_pages = free_pages_;
  Queue queue = {.requests = static_cast<std::int64_t>(waiting_.size()), .tokens = waiting_tokens_};
  for (const auto& other : waiting_) {
    const std::int64_t its_pages = other->pages_each() * other->request.n;
    if (other->request.n > slots || its_pages > free_pages) break;
    slots -= other->request.n;
    free_pages -= its_pages;
    --queue.requests;
    queue.tokens -= other->prompt_size();
  }
  queue.at_once = queue.requests == 0 && outputs <= slots && pages <= free_pages;
  return queue;
}

// Requests before a new one, each at the pace of those that ended lately, as many at once as may run.
absl::Duration Engine::EstimatedWait(std::int64_t queued) const {
  return mean_service_ * static_cast<double>(queued + 1) / static_cast<double>(options_.max_running);
}

EngineLoad Engine::load() const {
  base::MutexLock lock(mutex_);
  return load_;
}

void Engine::Run() {
  bool idle = false;  // every request that runs waits for its reader
  while (true) {
    {
      base::MutexLock lock(mutex_);
      if (idle) {
        wake_.WaitFor(lock, kReaderPoll, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_; });
      } else {
        wake_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !waiting_.empty() || !running_.empty(); });
      }
      if (stop_) break;
    }
    Admit();
    DropEnded();
    idle = false;
    if (!running_.empty()) {
      const absl::StatusOr<bool> stepped = RunOnce();
      if (!stepped.ok()) {
        // The requests in a step that fails end with it, the engine goes on.
        const absl::Status fault = StepFault(stepped.status());
        for (auto& group : running_) {
          if (!group->ended) EndGroup(*group, fault, FinishReason::kCancelled);
        }
      } else {
        idle = !*stepped;
      }
      DropEnded();
    }
    base::MutexLock lock(mutex_);
    RefreshLoad();
  }
  std::deque<std::unique_ptr<Group>> waiting;
  {
    base::MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  const absl::Status unloaded = base::WithReason(absl::UnavailableError("the model was unloaded"), "DRAINING");
  for (auto& group : running_) EndGroup(*group, unloaded, FinishReason::kCancelled);
  for (auto& group : waiting) EndGroup(*group, unloaded, FinishReason::kCancelled);
}

void Engine::RefreshLoad() {
  load_.running = static_cast<std::int64_t>(running_.size());
  load_.waiting = static_cast<std::int64_t>(waiting_.size());
  free_pages_ = pool_->free_pages();
  load_.used_pages = pool_->num_pages() - free_pages_;
}

bool Engine::Take(Group& group) {
  std::int64_t outputs = 0;
  for (const auto& other : running_) outputs += other->request.n;
  if (outputs + group.request.n > options_.max_running) return false;
  if (group.pages_each() * group.request.n > pool_->free_pages()) return false;
  for (auto& output : group.outputs) pool_->Take(group.pages_each(), &output->pages);
  return true;
}

void Engine::Admit() {
  std::vector<std::unique_ptr<Group>> gone;  // ended while they waited
  std::size_t admitted = 0;
  absl::Duration wait;  // of one that comes now
  const absl::Duration now = clock_.Monotonic();
  {
    base::MutexLock lock(mutex_);
    std::erase_if(waiting_, [&](std::unique_ptr<Group>& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const Request& request = group->request;
      if (!request.cancel.cancelled() && now < request.deadline && now < request.queue_deadline) return false;
      waiting_tokens_ -= group->prompt_size();
      gone.push_back(std::move(group));
      return true;
    });
    // First come, first served within a priority: a request that does not fit yet is not overtaken. Its pages are taken at
    // once for as far as it may grow, so that a running request never waits for memory.
    while (!waiting_.empty() && Take(*waiting_.front())) {
      Group& next = *waiting_.front();
      next.begun = true;
      next.started = now;
      next.usage.queue_ms = absl::ToDoubleMilliseconds(now - next.submitted);
      next.launches_before = stream_.launches != nullptr ? stream_.launches->total() : 0;
      waiting_tokens_ -= next.prompt_size();
      running_outputs_ += next.request.n;
      running_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      ++admitted;
    }
    RefreshLoad();  // not only after the step: a long prompt runs for seconds before its first word
    wait = EstimatedWait(static_cast<std::int64_t>(waiting_.size()));
  }
  for (std::size_t i = running_.size() - admitted; i < running_.size(); ++i) {
    running_[i]->sink->OnStart(running_[i]->usage.queue_ms);
  }
  for (auto& group : gone) {
    if (now >= group->request.deadline) {  // before the cancel: a client whose deadline has passed cancels too
      EndGroup(*group, absl::DeadlineExceededError("the deadline passed while it waited"), FinishReason::kDeadline);
    } else if (group->request.cancel.cancelled()) {
      EndGroup(*group, absl::CancelledError("cancelled while it waited"), FinishReason::kCancelled);
    } else {
      EndGroup(*group,
               base::WithReason(absl::ResourceExhaustedError("queue_timeout passed while it waited"), "QUEUE_FULL", RetryAfter(wait)),
               FinishReason::kDeadline);
    }
  }
}

void Engine::DropEnded() {
  const absl::Duration now = clock_.Monotonic();
  for (auto& group : running_) {
    if (group->ended) continue;
    if (now >= group->request.deadline) {
      EndGroup(*group, absl::DeadlineExceededError("the deadline passed"), FinishReason::kDeadline);
    } else if (group->request.cancel.cancelled()) {
      EndGroup(*group, absl::CancelledError("cancelled"), FinishReason::kCancelled);
    }
  }
  std::erase_if(running_, [](const auto& group) { return group->ended; });
}

void Engine::EndOutput(Group& group, Sequence& output, FinishReason reason) {
  OutputEnd end = {output.index, reason, output.stops.matched_stop(), ""};
  if (auto tail = output.decoder.Finish(); tail.ok() && !output.stops.matched()) {
    end.incomplete_utf8 = tail->incomplete_utf8;
    std::string_view answer = tail->text, end_token;
    if (output.held.has_value()) {
      const auto common = std::mismatch(answer.begin(), answer.end(), output.held->begin(), output.held->end()).first - answer.begin();
      end_token = answer.substr(static_cast<std::size_t>(common));
      answer = answer.substr(0, static_cast<std::size_t>(common));
    }
    std::string rest = group.Shown(output, answer);
    if (output.stops.matched()) {
      end.reason = FinishReason::kStop;
      end.matched_stop = output.stops.matched_stop();
    } else {
      rest += output.stops.Flush();
      rest += end_token;
    }
    if (!rest.empty()) group.sink->OnDelta(output.index, rest, {});
  }
  output.ended = true;
  pool_->Give(std::exchange(output.pages, {}));
  if (output.index == 0) group.first_reason = end.reason;
  group.sink->OnOutputEnd(end);
  const bool all = std::all_of(group.outputs.begin(), group.outputs.end(), [](const auto& other) { return other->ended; });
  if (all) EndGroup(group, absl::OkStatus(), group.first_reason);
}

void Engine::EndGroup(Group& group, absl::Status status, FinishReason reason) {
  group.ended = true;
  for (auto& output : group.outputs) {
    output->ended = true;
    pool_->Give(std::exchange(output->pages, {}));
  }
  if (group.begun) {
    if (stream_.launches != nullptr) group.usage.kernel_launches = stream_.launches->total() - group.launches_before;
    const absl::Duration service = clock_.Monotonic() - group.started;
    base::MutexLock lock(mutex_);
    // Before the client hears of the end: its next request finds the slot.
    running_outputs_ -= group.request.n;
    free_pages_ = pool_->free_pages();
    // The last few count most: what runs changes.
    mean_service_ = mean_service_ == absl::ZeroDuration() ? service : mean_service_ * 0.8 + service * 0.2;
  }
  ++options_.totals->requests;
  group.sink->OnFinish({std::move(status), reason, group.usage});
  group.sink.reset();
}

}  // namespace nibble::serve
