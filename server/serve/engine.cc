#include "server/serve/engine.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serve/sequence.h"

namespace nibble::serve {

namespace {

// How often an engine checks whether slow readers have caught up.
constexpr std::chrono::milliseconds kReaderPoll(5);
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
  return base::WithReason(absl::InternalError(base::StrCat("a step failed: ", base::ToStd(status.message()))),
                          "KERNEL_FAULT");
}

Engine::Engine(std::shared_ptr<const model::LoadedModel> model, std::shared_ptr<const text::Tokenizer> tokenizer,
               const EngineOptions& options, const kernels::Stream& stream, base::Clock& clock)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      options_(options),
      stream_(stream),
      clock_(clock),
      max_context_(std::min(options.max_context, model_->max_positions())),
      grammars_(tokenizer_, model_->config().vocab_size, model_->config().eos_token_ids) {
  const auto share = [](std::int64_t own, std::int64_t all, std::int64_t quarters) {
    return own > 0 ? std::min(own, all) : std::max<std::int64_t>(1, all * quarters / 4);
  };
  const PrincipalOptions& own = options.of_principal;
  bounds_.max_waiting = share(own.max_waiting, std::max<std::int64_t>(1, options.max_waiting), /*quarters=*/1);
  bounds_.max_running = share(own.max_running, options.max_running, /*quarters=*/3);
  const std::int64_t kv_tokens = NumPages(options, max_context_) * kernels::kKvPageTokens;
  bounds_.kv_tokens = std::max(share(own.kv_tokens, kv_tokens, /*quarters=*/3), max_context_);
}

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
    return base::FieldError(
        field, base::StrCat("token id ", token, " is not in the vocabulary of ", model_->config().vocab_size));
  };
  for (const std::int32_t token : request.prompt) NIBBLE_RETURN_IF_ERROR(in_vocabulary(request.prompt_field, token));
  for (const auto& [token, bias] : request.penalties.bias)
    NIBBLE_RETURN_IF_ERROR(in_vocabulary("sampling.logit_bias", token));
  if (request.stopping.max_tokens < 0) {
    return base::FieldError("stopping.max_tokens",
                            base::StrCat("is ", request.stopping.max_tokens, ", wanted 0 or more"));
  }
  for (const std::string& stop : request.stopping.strings) {
    if (stop.empty()) return base::FieldError("stopping.stop", "holds an empty string");
  }
  if (request.grammar != nullptr) {
    // The grammar alone decides when a text may end.
    const char* field = request.stopping.min_tokens > 0 ? "stopping.min_tokens"
                        : request.stopping.ignore_eos   ? "stopping.ignore_eos"
                                                        : nullptr;
    if (field != nullptr) return base::FieldError(field, "is not allowed with a constraint on the text");
  }
  if (request.stopping.min_tokens > 0) {
    const std::int64_t vocab = model_->config().vocab_size;
    std::vector<bool> masked(static_cast<std::size_t>(vocab));
    for (const std::int32_t token : EndTokens(model_->config(), request.stopping)) {
      if (token >= 0 && token < vocab) masked[static_cast<std::size_t>(token)] = true;
    }
    if (std::find(masked.begin(), masked.end(), false) == masked.end()) {
      return base::FieldError("stopping.stop_token_ids",
                              base::StrCat("cover, with the model's end tokens, the whole vocabulary of ", vocab,
                                           " tokens, so min_tokens masks every token"));
    }
  }
  const bool shared = !request.principal.empty() && bounds_.max_running < options_.max_running;
  const std::int64_t most = shared ? bounds_.max_running : options_.max_running;
  if (request.n < 1 || request.n > most) {
    return base::FieldError("sampling.n",
                            base::StrCat("is ", request.n, ", wanted 1 to ", most,
                                         shared ? ", the limit --max_running_requests_per_principal" : ""));
  }
  return absl::OkStatus();
}

EngineLoad Engine::load() const {
  base::MutexLock lock(mutex_);
  return load_;
}

void Engine::Run() {
  bool idle = false;  // every running request waits for its reader
  while (true) {
    {
      base::MutexLock lock(mutex_);
      if (idle) {
        wake_.WaitFor(lock, kReaderPoll, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_; });
      } else {
        wake_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stop_ || !waiting_.empty() || !running_.empty();
        });
      }
      if (stop_) break;
    }
    Admit();
    DropEnded();
    idle = false;
    if (!running_.empty()) {
      const absl::StatusOr<bool> stepped = RunOnce();
      if (!stepped.ok()) {
        // A failed step ends all running requests, also those without rows in it; the engine continues.
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
  std::map<std::uint64_t, std::unique_ptr<Group>> waiting;
  {
    base::MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  const absl::Status unloaded = base::WithReason(absl::UnavailableError("the model was unloaded"), "DRAINING");
  for (auto& group : running_) EndGroup(*group, unloaded, FinishReason::kCancelled);
  for (auto& [id, group] : waiting) EndGroup(*group, unloaded, FinishReason::kCancelled);
}

void Engine::RefreshLoad() {
  load_.running = static_cast<std::int64_t>(running_.size());
  load_.waiting = static_cast<std::int64_t>(waiting_.size());
  load_.used_pages = pool_->num_pages() - pool_->free_pages();
  RefreshFreePages();
}

void Engine::RefreshFreePages() {
  const bool all_run =
      std::none_of(running_.begin(), running_.end(), [](const auto& group) { return group->preempted; });
  free_pages_ = all_run ? pool_->free_pages() : 0;
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
      // The end token may change how the decoder writes the text before it: only the part that stayed is the answer.
      const auto common =
          std::mismatch(answer.begin(), answer.end(), output.held->begin(), output.held->end()).first - answer.begin();
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
  pool_->Free(std::exchange(output.pages, {}));
  if (output.index == 0) group.first_reason = end.reason;
  group.sink->OnOutputEnd(end);
  const bool all =
      std::all_of(group.outputs.begin(), group.outputs.end(), [](const auto& other) { return other->ended; });
  if (all) EndGroup(group, absl::OkStatus(), group.first_reason);
}

void Engine::EndGroup(Group& group, absl::Status status, FinishReason reason) {
  group.ended = true;
  for (auto& output : group.outputs) {
    output->ended = true;
    pool_->Free(std::exchange(output->pages, {}));
  }
  if (group.begun) {
    if (stream_.launches != nullptr) group.usage.kernel_launches = stream_.launches->total() - group.launches_before;
    const absl::Duration service = clock_.Monotonic() - group.started;
    base::MutexLock lock(mutex_);
    // Before OnFinish, so that the client's next request finds the slot free.
    running_outputs_ -= group.request.n;
    Held& held = held_[group.request.principal];
    held.outputs -= group.request.n;
    held.pages -= group.most_pages();
    if (held.outputs == 0) held_.erase(group.request.principal);
    group.preempted = false;
    RefreshFreePages();
    // Recent requests count most, because the mix of requests changes.
    mean_service_ = mean_service_ == absl::ZeroDuration() ? service : mean_service_ * 0.8 + service * 0.2;
  }
  ++options_.totals->requests;
  group.sink->OnFinish({std::move(status), reason, group.usage});
  group.sink.reset();
}

}  // namespace nibble::serve
