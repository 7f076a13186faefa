// Engine: one step, from planning the rows to drawing the tokens.
#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/ops/loss/log_softmax_gather.h"
#include "kernels/ops/sample/sample.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/forward.h"
#include "server/model/record.h"
#include "server/serve/sequence.h"
#include "server/text/grammar.h"

namespace nibble::serve {

namespace {

// The pool is shared: other models must not wait for all costly masks of a step. After this time they get a turn, even
// if the step has tokens left to draw.
constexpr absl::Duration kDrawTurn = absl::Milliseconds(1);

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

// Each output of a request uses its own range of the seed's random numbers; output 0 uses the same range as with n = 1.
std::uint64_t Counter(int output, std::int64_t token) {
  return static_cast<std::uint64_t>(output) << 32 | static_cast<std::uint64_t>(token);
}

// Maximum rows for one sequence when sequences of these sizes share `rows`: small ones are fed whole, the others get
// equal shares.
std::int64_t FairShare(std::vector<std::int64_t> sizes, std::int64_t rows) {
  std::sort(sizes.begin(), sizes.end());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::int64_t share = rows / static_cast<std::int64_t>(sizes.size() - i);
    if (sizes[i] > share) return std::max<std::int64_t>(1, share);
    rows -= sizes[i];
  }
  return std::numeric_limits<std::int64_t>::max();
}

// The tokens that may be next, as kernels::SampleArgs::allowed.
absl::StatusOr<std::span<const std::uint32_t>> AllowedTokens(const std::shared_ptr<const text::Grammar>& grammar,
                                                             std::int64_t vocab_size,
                                                             std::unique_ptr<text::GrammarFollower>* follower) {
  // Not before, because a follower takes memory and the request may have waited long.
  if (*follower == nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(*follower, text::GrammarFollower::Start(grammar));
  }
  return (*follower)->AllowedTokens(vocab_size);
}

}  // namespace

std::vector<std::int32_t> EndTokens(const model::ModelConfig& config, const Stopping& stopping) {
  std::vector<std::int32_t> tokens = stopping.token_ids;
  if (!stopping.ignore_eos) tokens.insert(tokens.end(), config.eos_token_ids.begin(), config.eos_token_ids.end());
  return tokens;
}

void Engine::Plan(Step* step) {
  std::int64_t prefill_left = options_.prefill_chunk;
  // A short prompt must not wait for long prompts that began before it.
  std::vector<std::int64_t> to_feed;
  for (const auto& group : running_) {
    if (group->preempted) continue;
    for (const auto& output : group->outputs) {
      const bool feeding = group->prompt_read ? output->unfed() > 1 : output->index == 0;
      if (!output->ended && feeding) to_feed.push_back(output->unfed());
    }
  }
  const std::int64_t share = FairShare(std::move(to_feed), prefill_left);
  std::int64_t score_left = options_.score_chunk;
  for (auto& owner : running_) {
    Group& group = *owner;
    const bool reading = !group.prompt_read;
    const bool score = group.request.prompt_logprobs && reading;
    if (group.preempted || ((!reading || score) && !group.sink->Ready())) continue;
    if (!Grow(group)) continue;
    for (auto& output : group.outputs) {
      if (output->ended || (reading && output->index > 0)) continue;
      std::int64_t rows = output->unfed();
      const bool feeding = reading || rows > 1;  // the prompt, or all tokens again after a preemption
      if (feeding) rows = std::min({rows, share, prefill_left, score ? score_left : prefill_left});
      if (score && group.request.score_chunk > 0) rows = std::min(rows, group.request.score_chunk);
      if (rows == 0) continue;
      if (feeding) prefill_left -= rows;
      if (score) score_left -= rows;
      const bool completes = rows == output->unfed();
      std::int64_t num_logits = completes ? 1 : 0;
      if (score) num_logits = rows;
      std::int64_t num_hidden = 0;
      if (group.request.hidden != HiddenStates::kNone) {
        num_logits = 0;
        num_hidden = group.request.hidden == HiddenStates::kAll ? rows : completes ? 1 : 0;
      }
      const Part part = {.group = &group,
                         .output = output.get(),
                         .first_row = static_cast<std::int64_t>(step->tokens.size()),
                         .num_rows = rows,
                         .first_logit = static_cast<std::int64_t>(step->logit_rows.size()),
                         .num_logits = num_logits,
                         .first_hidden = static_cast<std::int64_t>(step->hidden_rows.size()),
                         .num_hidden = num_hidden};
      for (std::int64_t r = 0; r < rows; ++r) {
        if (r >= rows - part.num_hidden) step->hidden_rows.push_back(static_cast<std::int32_t>(part.first_row + r));
        if (r >= rows - part.num_logits) step->logit_rows.push_back(static_cast<std::int32_t>(part.first_row + r));
        step->tokens.push_back(output->tokens[static_cast<std::size_t>(output->fed + r)]);
        step->position.push_back(static_cast<std::int32_t>(output->fed + r));
        step->sequence.push_back(static_cast<std::int32_t>(step->parts.size()));
      }
      step->pages_per_sequence = std::max(step->pages_per_sequence, static_cast<std::int64_t>(output->pages.size()));
      step->parts.push_back(part);
    }
  }
  step->page_tables.assign(step->parts.size() * static_cast<std::size_t>(step->pages_per_sequence), 0);
  for (std::size_t s = 0; s < step->parts.size(); ++s) {
    const auto& pages = step->parts[s].output->pages;
    std::copy(pages.begin(), pages.end(),
              step->page_tables.begin() + static_cast<std::ptrdiff_t>(s) * step->pages_per_sequence);
  }
}

absl::StatusOr<bool> Engine::RunOnce() {
  Step step;
  Plan(&step);
  if (step.parts.empty()) return false;
  arena_.Release({});
  const model::StepRows rows = {.tokens = step.tokens,
                                .kv = {.num_rows = static_cast<std::int64_t>(step.tokens.size()),
                                       .sequence = step.sequence.data(),
                                       .position = step.position.data(),
                                       .page_tables = step.page_tables.data(),
                                       .num_sequences = static_cast<std::int64_t>(step.parts.size()),
                                       .pages_per_sequence = step.pages_per_sequence},
                                .logit_rows = step.logit_rows,
                                .hidden_rows = step.hidden_rows};
  kernels::Matrix hidden;
  NIBBLE_ASSIGN_OR_RETURN(const kernels::Matrix logits, model::RunStep(model_->config(), model_->weights(),
                                                                       pool_->view(), rows, arena_, stream_, &hidden));
  std::vector<Draw> draws;
  for (const Part& part : step.parts) {
    // One request's failure must not affect the others.
    if (const absl::Status status = ConsumeLogits(part, logits, hidden, &draws); !status.ok()) {
      EndGroup(*part.group, StepFault(status), FinishReason::kCancelled);
    }
  }
  DrawTokens(draws);
  for (const Draw& draw : draws) {
    if (draw.group->ended) continue;  // ended by another of its outputs
    if (draw.status.ok()) {
      ++options_.totals->generated_tokens;
      TakeToken(*draw.group, *draw.output, draw.token);
    } else {
      EndGroup(*draw.group, draw.status, FinishReason::kCancelled);
    }
  }
  return true;
}

absl::Status Engine::Logprobs(kernels::ConstMatrix rows, std::span<const std::int32_t> targets, std::int64_t top_n,
                              const kernels::Stream& stream, std::vector<TokenLogprob>* out) {
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
                                                   stream));
  for (std::size_t i = 0; i < n; ++i) {
    TokenLogprob entry = {targets[i], values[i], {}};
    for (std::size_t t = i * tops; t < (i + 1) * tops; ++t) entry.top.emplace_back(top_ids[t], top_values[t]);
    out->push_back(std::move(entry));
  }
  return absl::OkStatus();
}

absl::Status Engine::Score(const Part& part, std::int64_t first_position, const kernels::Matrix& logits) {
  const Request& request = part.group->request;
  // Row r predicts the token after it. The prompt's last row predicts the first generated token, and may be the only
  // row.
  const std::int64_t predicting = std::min(part.num_rows, part.group->prompt_size() - 1 - first_position);
  std::vector<TokenLogprob> scored;
  if (predicting > 0) {
    NIBBLE_RETURN_IF_ERROR(Logprobs(
        kernels::MakeConstMatrix(logits.Row<float>(part.first_logit), kernels::DType::kF32, predicting, logits.cols),
        std::span(request.prompt)
            .subspan(static_cast<std::size_t>(first_position + 1), static_cast<std::size_t>(predicting)),
        request.top_logprobs, stream_, &scored));
  }
  for (std::size_t i = 0; request.logits_digests && i < scored.size(); ++i) {
    const std::int64_t row = part.first_logit + static_cast<std::int64_t>(i);
    scored[i].logits_digest = model::RowDigest(logits.Row<float>(row), logits.cols);
  }
  // Logprobs sent before a preemption are not sent again.
  const auto num_sent =
      std::clamp<std::int64_t>(part.group->scored - first_position, 0, static_cast<std::int64_t>(scored.size()));
  part.group->scored = std::max(part.group->scored, first_position + static_cast<std::int64_t>(scored.size()));
  part.group->sink->OnPromptLogprobs(std::span(scored).subspan(static_cast<std::size_t>(num_sent)));
  return absl::OkStatus();
}

void Engine::SendHidden(const Part& part, std::int64_t first_position, const kernels::Matrix& hidden) {
  Group& group = *part.group;
  // Rows sent before a preemption are not sent again.
  const std::int64_t first = first_position + part.num_rows - part.num_hidden;
  const std::int64_t num_sent = std::clamp<std::int64_t>(group.scored - first, 0, part.num_hidden);
  const std::int64_t count = part.num_hidden - num_sent;
  if (count == 0) return;
  group.scored = first + part.num_hidden;
  group.sink->OnHidden(kernels::MakeConstMatrix(hidden.Row<float>(part.first_hidden + num_sent), kernels::DType::kF32,
                                                count, hidden.cols));
}

absl::Status Engine::ConsumeLogits(const Part& part, const kernels::Matrix& logits, const kernels::Matrix& hidden,
                                   std::vector<Draw>* draws) {
  Group& group = *part.group;
  Sequence& output = *part.output;
  if (group.ended) return absl::OkStatus();  // ended by another of its outputs
  const bool reading = !group.prompt_read;
  const std::int64_t first_position = output.fed;
  output.fed += part.num_rows;
  if (reading) options_.totals->prompt_tokens += static_cast<std::uint64_t>(part.num_rows);
  if (part.num_hidden > 0) SendHidden(part, first_position, hidden);
  const bool wants_hidden = group.request.hidden != HiddenStates::kNone;
  if (part.num_logits == 0 && !(wants_hidden && output.unfed() == 0)) return absl::OkStatus();
  if (group.request.prompt_logprobs && reading) NIBBLE_RETURN_IF_ERROR(Score(part, first_position, logits));
  if (output.unfed() > 0) return absl::OkStatus();
  if (wants_hidden || group.request.stopping.max_tokens == 0) {
    group.usage.prefill_ms = Milliseconds(clock_.Monotonic() - group.started);
    EndOutput(group, output, FinishReason::kLength);
    return absl::OkStatus();
  }
  const float* last = logits.Row<float>(part.first_logit + part.num_logits - 1);
  const auto draw = [&](Sequence& from) {
    draws->push_back({.group = &group, .output = &from, .logits = last, .vocab = logits.cols});
  };
  if (!reading) {
    draw(output);
    return absl::OkStatus();
  }
  group.prompt_read = true;
  // The prompt is read only once: every output starts from its K and V and its last row of logits.
  for (auto& other : group.outputs) {
    if (other->index == 0) continue;
    pool_->Copy(output.pages, other->pages, model::KvPool::PagesFor(group.prompt_size()));
    other->fed = output.fed;
  }
  for (auto& each : group.outputs) draw(*each);
  return absl::OkStatus();
}

void Engine::DrawTokens(std::span<Draw> draws) const {
  const auto num_threads = static_cast<std::size_t>(stream_.pool == nullptr ? 1 : stream_.pool->num_threads());
  std::atomic<std::size_t> next = 0;
  while (next < draws.size()) {
    const absl::Duration end = clock_.Monotonic() + kDrawTurn;
    const std::size_t at_once = std::min(num_threads, draws.size() - next);
    stream_.ParallelFor(static_cast<std::int64_t>(at_once), 1, [&](std::int64_t begin, std::int64_t range_end) {
      for (std::int64_t i = begin; i < range_end; ++i) {
        for (std::size_t at; (at = next++) < draws.size();) {
          DrawToken(&draws[at]);
          if (clock_.Monotonic() > end) break;
        }
      }
    });
  }
}

void Engine::DrawToken(Draw* draw) const {
  const Group& group = *draw->group;
  const Request& request = group.request;
  Sequence& output = *draw->output;
  kernels::Stream here = stream_;
  here.pool = nullptr;  // this runs on the pool
  const auto of_step = [](const absl::Status& status) { return status.ok() ? status : StepFault(status); };
  const auto of_grammar = [&](const absl::Status& status) {
    if (!absl::IsInvalidArgument(status)) return of_step(status);
    return base::FieldError(request.grammar_field, base::ToStd(status.message()));
  };
  const kernels::ConstMatrix row = kernels::MakeConstMatrix(draw->logits, kernels::DType::kF32, 1, draw->vocab);
  kernels::SampleParams params = request.sampling;
  params.counter = Counter(output.index, group.generated(output));
  std::vector<float> changed;
  kernels::ConstMatrix drawn = row;
  const bool masked = group.generated(output) < request.stopping.min_tokens;
  if (request.penalties.any() || masked) {
    changed.assign(draw->logits, draw->logits + draw->vocab);
    Apply(request.penalties, request.prompt, std::span(output.tokens).subspan(request.prompt.size()), changed);
    // After the penalties, so that no bias lifts a masked token.
    if (masked) MaskTokens(EndTokens(model_->config(), request.stopping), changed);
    drawn = kernels::MakeConstMatrix(changed.data(), kernels::DType::kF32, 1, draw->vocab);
  }
  const std::uint32_t* allowed = nullptr;
  if (request.grammar != nullptr) {
    const auto tokens = AllowedTokens(request.grammar, draw->vocab, &output.follower);
    draw->status = of_grammar(tokens.status());
    if (!draw->status.ok()) return;
    allowed = tokens->data();
  }
  std::int32_t token = 0;
  draw->status =
      of_step(kernels::Sample({.logits = drawn, .params = &params, .token = &token, .allowed = allowed}, here));
  if (!draw->status.ok()) return;
  draw->token.token = token;
  if (request.logprobs) {
    std::vector<TokenLogprob> sampled;
    draw->status = of_step(Logprobs(row, {&token, 1}, request.top_logprobs, here, &sampled));
    if (!draw->status.ok()) return;
    draw->token = std::move(sampled.front());
  }
  if (output.follower != nullptr) draw->status = of_grammar(output.follower->Accept(token));
}

void Engine::TakeToken(Group& group, Sequence& output, const TokenLogprob& token) {
  const absl::Duration now = clock_.Monotonic();
  const Stopping& stopping = group.request.stopping;
  if (group.usage.completion_tokens == 0) {
    group.first_token = now;
    group.usage.ttft_ms = Milliseconds(now - group.submitted);
    group.usage.prefill_ms = Milliseconds(now - group.started);
  }
  group.usage.decode_ms = Milliseconds(now - group.first_token);
  const std::int32_t id = token.token;
  output.tokens.push_back(id);
  ++group.usage.completion_tokens;

  const auto& ends = model_->config().eos_token_ids;
  // DrawToken() masks all these tokens until min_tokens.
  const bool eos = !stopping.ignore_eos && std::find(ends.begin(), ends.end(), id) != ends.end();
  const bool stop_id = std::find(stopping.token_ids.begin(), stopping.token_ids.end(), id) != stopping.token_ids.end();
  std::string shown;
  // The text leaves out the model's end tokens, even if they are not special in the tokenizer, and, without
  // include_stop, the stop ids. With include_special_tokens it has both.
  if (group.request.include_special_tokens || (!eos && !(stop_id && !stopping.include_stop))) {
    if (eos) {  // EndOutput separates the end token's text from the text before it (Sequence::held)
      auto held = output.decoder.Held();
      if (!held.ok()) return EndGroup(group, held.status(), FinishReason::kCancelled);
      output.held = *std::move(held);
    }
    auto text = output.decoder.Append(id);
    if (!text.ok()) {
      EndGroup(group, text.status(), FinishReason::kCancelled);
      return;
    }
    // An end token's text never matches a stop string. Text that was held back for a possible match is shown before
    // it.
    shown = eos ? output.stops.Flush() + *text : group.Shown(output, *text);
  }
  group.sink->OnDelta(output.index, shown, {&token, 1});
  if (eos) {
    EndOutput(group, output, FinishReason::kEos);
  } else if (stop_id || output.stops.matched()) {
    EndOutput(group, output, FinishReason::kStop);
  } else if (group.generated(output) >= stopping.max_tokens) {
    EndOutput(group, output, FinishReason::kLength);
  }
}

}  // namespace nibble::serve
