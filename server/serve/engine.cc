#include "server/serve/engine.h"

#include <algorithm>
#include <utility>

#include "kernels/ops/log_softmax_gather.h"
#include "kernels/ops/sample.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/forward.h"
#include "server/model/record.h"
#include "server/serve/sequence.h"

namespace nibble::serve {

namespace {

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

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
                                                model::KvPool::PagesFor(std::max(options.kv_tokens, engine->max_context_))));
  engine->load_.total_pages = engine->pool_->num_pages();
  engine->thread_ = std::thread([raw = engine.get()] { raw->Run(); });
  return engine;
}

Engine::~Engine() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::Status Engine::Submit(Request request, std::shared_ptr<ResponseSink> sink) {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt == 0) return base::FieldError("prompt", "has no tokens, wanted at least one");
  if (prompt > max_context_ || (request.stopping.max_tokens > 0 && prompt >= max_context_)) {
    return base::WithReason(
        absl::InvalidArgumentError(base::StrCat("prompt: has ", prompt, " tokens, the model takes ", max_context_)),
        "PROMPT_TOO_LONG", {{"tokens", std::to_string(prompt)}, {"max", std::to_string(max_context_)}});
  }
  for (const std::int32_t token : request.prompt) {
    if (token < 0 || token >= model_->config().vocab_size) {
      return base::FieldError("prompt", base::StrCat("token id ", token, " is not in the vocabulary of ",
                                                     model_->config().vocab_size));
    }
  }
  if (request.stopping.max_tokens < 0) {
    return base::FieldError("max_tokens", base::StrCat("is ", request.stopping.max_tokens, ", wanted 0 or more"));
  }
  for (const std::string& stop : request.stopping.strings) {
    if (stop.empty()) return base::FieldError("stop", "holds an empty string");
  }
  // A sequence never grows past what the model takes: it ends with "length" there.
  request.stopping.max_tokens = std::min(request.stopping.max_tokens, max_context_ - prompt);
  auto sequence = std::make_unique<Sequence>(std::move(request), std::move(sink), *tokenizer_);
  sequence->submitted = clock_.Monotonic();
  sequence->usage.prompt_tokens = prompt;
  std::lock_guard lock(mutex_);
  if (stop_) return absl::UnavailableError("the model is being unloaded");
  if (static_cast<std::int64_t>(waiting_.size()) >= options_.max_waiting) {
    return base::WithReason(
        absl::ResourceExhaustedError(base::StrCat(waiting_.size(), " requests wait already, the limit is ", options_.max_waiting)),
        "QUEUE_FULL");
  }
  waiting_.push_back(std::move(sequence));
  load_.waiting = static_cast<std::int64_t>(waiting_.size());
  wake_.notify_all();
  return absl::OkStatus();
}

EngineLoad Engine::load() const {
  std::lock_guard lock(mutex_);
  return load_;
}

void Engine::Run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !waiting_.empty() || !running_.empty(); });
      if (stop_) break;
    }
    Admit();
    DropEnded();
    if (!running_.empty()) {
      if (absl::Status status = RunOnce(); !status.ok()) {
        // A step that fails is a fault of ours or of memory: the requests in it end with it, the engine goes on.
        for (auto& sequence : running_) {
          if (!sequence->ended) EndSequence(*sequence, status, FinishReason::kCancelled);
        }
      }
      DropEnded();
    }
    std::lock_guard lock(mutex_);
    load_.running = static_cast<std::int64_t>(running_.size());
    load_.waiting = static_cast<std::int64_t>(waiting_.size());
    load_.used_pages = pool_->num_pages() - pool_->free_pages();
  }
  std::deque<std::unique_ptr<Sequence>> waiting;
  {
    std::lock_guard lock(mutex_);
    waiting.swap(waiting_);
  }
  const absl::Status unloaded = absl::UnavailableError("the model was unloaded");
  for (auto& sequence : running_) EndSequence(*sequence, unloaded, FinishReason::kCancelled);
  for (auto& sequence : waiting) EndSequence(*sequence, unloaded, FinishReason::kCancelled);
}

void Engine::Admit() {
  std::vector<std::unique_ptr<Sequence>> gone;  // ended while they waited
  std::size_t admitted = 0;
  {
    std::lock_guard lock(mutex_);
    const absl::Duration now = clock_.Monotonic();
    std::erase_if(waiting_, [&](std::unique_ptr<Sequence>& sequence) {
      if (!sequence->request.cancel.cancelled() && now < sequence->request.deadline) return false;
      gone.push_back(std::move(sequence));
      return true;
    });
    // First come, first served: a request that does not fit yet is not overtaken. Its pages are taken at once for as far as
    // it may grow, so that a running request never waits for memory.
    while (!waiting_.empty() && static_cast<std::int64_t>(running_.size()) < options_.max_running) {
      Sequence& next = *waiting_.front();
      if (!pool_->Take(model::KvPool::PagesFor(next.most_tokens()), &next.pages)) break;
      next.started = now;
      next.usage.queue_ms = Milliseconds(now - next.submitted);
      next.launches_before = stream_.launches != nullptr ? stream_.launches->total() : 0;
      running_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      ++admitted;
    }
  }
  for (std::size_t i = running_.size() - admitted; i < running_.size(); ++i) {
    running_[i]->sink->OnStart(running_[i]->usage.queue_ms);
  }
  for (auto& sequence : gone) {
    const bool cancelled = sequence->request.cancel.cancelled();
    EndSequence(*sequence,
                cancelled ? absl::CancelledError("cancelled while it waited")
                          : absl::DeadlineExceededError("the deadline passed while it waited"),
                cancelled ? FinishReason::kCancelled : FinishReason::kDeadline);
  }
}

void Engine::DropEnded() {
  const absl::Duration now = clock_.Monotonic();
  for (auto& sequence : running_) {
    if (sequence->ended) continue;
    if (sequence->request.cancel.cancelled()) {
      EndSequence(*sequence, absl::CancelledError("cancelled"), FinishReason::kCancelled);
    } else if (now >= sequence->request.deadline) {
      EndSequence(*sequence, absl::DeadlineExceededError("the deadline passed"), FinishReason::kDeadline);
    }
  }
  std::erase_if(running_, [](const auto& sequence) { return sequence->ended; });
}

void Engine::Plan(Step* step) {
  std::int64_t prefill_left = options_.prefill_chunk;
  std::int64_t score_left = options_.score_chunk;
  for (auto& owner : running_) {
    Sequence& sequence = *owner;
    const bool decoding = sequence.generated() > 0;
    const bool score = sequence.request.prompt_logprobs && !decoding;
    std::int64_t rows = sequence.unfed();
    if (!decoding) rows = std::min(rows, score ? std::min(prefill_left, score_left) : prefill_left);
    if (score && sequence.request.score_chunk > 0) rows = std::min(rows, sequence.request.score_chunk);
    if (rows == 0) continue;
    if (!decoding) prefill_left -= rows;
    if (score) score_left -= rows;
    const bool completes = rows == sequence.unfed();
    Step::Part part = {&sequence, static_cast<std::int64_t>(step->tokens.size()), rows,
                       static_cast<std::int64_t>(step->logit_rows.size()), score ? rows : completes ? 1 : 0};
    for (std::int64_t r = 0; r < rows; ++r) {
      if (r >= rows - part.num_logits) step->logit_rows.push_back(static_cast<std::int32_t>(part.first_row + r));
      step->tokens.push_back(sequence.tokens[static_cast<std::size_t>(sequence.fed + r)]);
      step->position.push_back(static_cast<std::int32_t>(sequence.fed + r));
      step->sequence.push_back(static_cast<std::int32_t>(step->parts.size()));
    }
    step->pages_per_sequence = std::max(step->pages_per_sequence, static_cast<std::int64_t>(sequence.pages.size()));
    step->parts.push_back(part);
  }
  step->page_tables.assign(step->parts.size() * static_cast<std::size_t>(step->pages_per_sequence), 0);
  for (std::size_t s = 0; s < step->parts.size(); ++s) {
    const auto& pages = step->parts[s].sequence->pages;
    std::copy(pages.begin(), pages.end(),
              step->page_tables.begin() + static_cast<std::ptrdiff_t>(s) * step->pages_per_sequence);
  }
}

absl::Status Engine::RunOnce() {
  Step step;
  Plan(&step);
  arena_.Release({});
  const model::StepRows rows = {.tokens = step.tokens,
                                .kv = {.num_rows = static_cast<std::int64_t>(step.tokens.size()),
                                       .sequence = step.sequence.data(),
                                       .position = step.position.data(),
                                       .page_tables = step.page_tables.data(),
                                       .num_sequences = static_cast<std::int64_t>(step.parts.size()),
                                       .pages_per_sequence = step.pages_per_sequence},
                                .logit_rows = step.logit_rows};
  NIBBLE_ASSIGN_OR_RETURN(const kernels::Matrix logits, model::RunStep(model_->config(), model_->weights(), pool_->view(),
                                                                       rows, arena_, stream_));
  return Digest(step, logits);
}

absl::Status Engine::Digest(const Step& step, const kernels::Matrix& logits) {
  for (const Step::Part& part : step.parts) {
    Sequence& sequence = *part.sequence;
    const Request& request = sequence.request;
    const std::int64_t first_position = sequence.fed;
    sequence.fed += part.num_rows;
    if (sequence.generated() == 0) options_.totals->prompt_tokens += static_cast<std::uint64_t>(part.num_rows);
    if (part.num_logits == 0) continue;
    const auto slice = [&](std::int64_t first, std::int64_t count) {
      return kernels::MakeConstMatrix(logits.Row<float>(part.first_logit + first), kernels::DType::kF32, count, logits.cols);
    };
    const auto logprobs = [&](kernels::ConstMatrix rows, std::span<const std::int32_t> targets, std::int64_t top_n,
                              std::vector<TokenLogprob>* out) -> absl::Status {
      const auto n = static_cast<std::size_t>(rows.rows);
      const auto tops = static_cast<std::size_t>(top_n);
      std::vector<float> values(n), top_values(n * tops);
      std::vector<std::int32_t> top_ids(n * tops);
      NIBBLE_RETURN_IF_ERROR(kernels::LogSoftmaxGather({.logits = rows,
                                                        .target = targets.data(),
                                                        .logprob = values.data(),
                                                        .top_n = top_n,
                                                        .top_id = top_ids.data(),
                                                        .top_logprob = top_values.data()},
                                                       stream_));
      for (std::size_t i = 0; i < n; ++i) {
        TokenLogprob entry = {targets[i], values[i], {}};
        for (std::size_t t = i * tops; t < (i + 1) * tops; ++t) entry.top.emplace_back(top_ids[t], top_values[t]);
        out->push_back(std::move(entry));
      }
      return absl::OkStatus();
    };
    if (request.prompt_logprobs && sequence.generated() == 0) {
      // Row r predicts the token after it; the last row of the prompt predicts what would be generated.
      const std::int64_t predicting = std::min(part.num_rows, sequence.prompt_size() - 1 - first_position);
      std::vector<TokenLogprob> scored;
      // The last row of the prompt may come alone: it predicts none of the prompt's tokens.
      if (predicting > 0) {
        NIBBLE_RETURN_IF_ERROR(logprobs(
            slice(0, predicting),
            std::span(sequence.tokens).subspan(static_cast<std::size_t>(first_position + 1), static_cast<std::size_t>(predicting)),
            request.top_logprobs, &scored));
      }
      for (std::size_t i = 0; request.logits_digests && i < scored.size(); ++i) {
        const std::int64_t row = part.first_logit + static_cast<std::int64_t>(i);
        scored[i].logits_digest = model::RowDigest(logits.Row<float>(row), logits.cols);
      }
      sequence.sink->OnPromptLogprobs(scored);
    }
    if (sequence.unfed() > 0) continue;
    if (request.stopping.max_tokens == 0) {
      sequence.usage.prefill_ms = Milliseconds(clock_.Monotonic() - sequence.started);
      EndSequence(sequence, absl::OkStatus(), FinishReason::kLength);
      continue;
    }
    const kernels::ConstMatrix last = slice(part.num_logits - 1, 1);
    kernels::SampleParams params = request.sampling;
    params.counter = static_cast<std::uint64_t>(sequence.generated());
    std::int32_t token = 0;
    NIBBLE_RETURN_IF_ERROR(kernels::Sample({.logits = last, .params = &params, .token = &token}, stream_));
    std::vector<TokenLogprob> sampled;
    if (request.logprobs) {
      NIBBLE_RETURN_IF_ERROR(logprobs(last, {&token, 1}, request.top_logprobs, &sampled));
    } else {
      sampled.push_back({token, 0, {}});
    }
    ++options_.totals->generated_tokens;
    TakeToken(sequence, std::move(sampled.front()));
  }
  return absl::OkStatus();
}

void Engine::TakeToken(Sequence& sequence, TokenLogprob token) {
  const absl::Duration now = clock_.Monotonic();
  const Stopping& stopping = sequence.request.stopping;
  if (sequence.generated() == 0) {
    sequence.first_token = now;
    sequence.usage.ttft_ms = Milliseconds(now - sequence.submitted);
    sequence.usage.prefill_ms = Milliseconds(now - sequence.started);
  }
  sequence.usage.decode_ms = Milliseconds(now - sequence.first_token);
  const std::int32_t id = token.token;
  sequence.tokens.push_back(id);
  ++sequence.usage.completion_tokens;

  const auto& ends = model_->config().eos_token_ids;
  const bool may_end = sequence.generated() >= stopping.min_tokens;
  const bool eos = may_end && !stopping.ignore_eos && std::find(ends.begin(), ends.end(), id) != ends.end();
  const bool stop_id = may_end && std::find(stopping.token_ids.begin(), stopping.token_ids.end(), id) != stopping.token_ids.end();
  std::string shown;
  // An end token is no text, whether the tokenizer calls it special or not.
  if (!eos && !(stop_id && !stopping.include_stop)) {
    auto text = sequence.decoder.Append(id);
    if (!text.ok()) {
      EndSequence(sequence, text.status(), FinishReason::kCancelled);
      return;
    }
    shown = sequence.stops.Push(*text);
  }
  sequence.sink->OnDelta(shown, {&token, 1});
  if (eos) {
    EndSequence(sequence, absl::OkStatus(), FinishReason::kEos);
  } else if (stop_id || sequence.stops.matched()) {
    EndSequence(sequence, absl::OkStatus(), FinishReason::kStop);
  } else if (sequence.generated() >= stopping.max_tokens) {
    EndSequence(sequence, absl::OkStatus(), FinishReason::kLength);
  }
}

void Engine::EndSequence(Sequence& sequence, absl::Status status, FinishReason reason) {
  sequence.ended = true;
  pool_->Give(std::exchange(sequence.pages, {}));
  Finish finish = {std::move(status), reason, sequence.stops.matched_stop(), "", sequence.usage};
  if (stream_.launches != nullptr && sequence.started != absl::ZeroDuration()) {
    finish.usage.kernel_launches = stream_.launches->total() - sequence.launches_before;
  }
  if (auto tail = sequence.decoder.Finish(); tail.ok() && !sequence.stops.matched()) {
    finish.incomplete_utf8 = tail->incomplete_utf8;
    std::string rest = sequence.stops.Push(tail->text);
    finish.matched_stop = sequence.stops.matched_stop();
    if (sequence.stops.matched()) finish.reason = FinishReason::kStop;
    rest += sequence.stops.Flush();
    if (!rest.empty()) sequence.sink->OnDelta(rest, {});
  }
  ++options_.totals->requests;
  sequence.sink->OnFinish(finish);
  sequence.sink.reset();
}

}  // namespace nibble::serve
