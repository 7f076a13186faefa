// One request inside the engine, and its outputs. Private to the engine*.cc files.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/serve/engine.h"
#include "server/serve/stop_matcher.h"
#include "server/text/grammar.h"
#include "server/text/stream_decoder.h"

namespace nibble::serve {

// One output. Output 0 reads the prompt; the others begin with a copy of its pages. After a preemption each output
// reads its own tokens.
struct Engine::Sequence {
  Sequence(const Request& request, int number, const text::Tokenizer& tokenizer)
      : index(number),
        tokens(request.prompt),
        // A grammar counts the first blank.
        decoder(tokenizer, !request.include_special_tokens, request.shown_special_tokens, request.grammar != nullptr),
        stops(request.stopping.strings, request.stopping.include_stop) {}

  const int index;
  std::vector<std::int32_t> tokens;  // prompt, then what was generated
  std::int64_t fed = 0;              // tokens whose K and V are in the cache
  std::vector<std::int32_t> pages;
  text::StreamDecoder decoder;
  StopMatcher stops;
  std::unique_ptr<text::GrammarFollower> follower;  // with a grammar, from the first token on
  // Set if the end token is shown: the text that the decoder held back before that token. The rest of the decoder's
  // last text belongs to the end token and matches no stop string.
  std::optional<std::string> held;
  bool ended = false;

  std::int64_t unfed() const { return static_cast<std::int64_t>(tokens.size()) - fed; }
};

struct Engine::Group {
  Group(Request asked, std::shared_ptr<ResponseSink> to, const text::Tokenizer& tokenizer)
      : request(std::move(asked)), sink(std::move(to)) {
    for (int i = 0; i < request.n; ++i) outputs.push_back(std::make_unique<Sequence>(request, i, tokenizer));
  }

  Request request;
  std::shared_ptr<ResponseSink> sink;
  std::vector<std::unique_ptr<Sequence>> outputs;
  Usage usage;
  FinishReason first_reason = FinishReason::kLength;  // of output 0
  absl::Duration submitted;                           // monotonic clock
  absl::Duration started;
  absl::Duration first_token;
  std::uint64_t launches_before = 0;
  std::int64_t scored = 0;  // prompt logprobs, or hidden states, sent to the sink
  bool begun = false;
  bool prompt_read = false;  // its first tokens were drawn; stays true when it is preempted
  bool preempted = false;    // begun, but has no pages
  bool ended = false;

  std::int64_t prompt_size() const { return static_cast<std::int64_t>(request.prompt.size()); }
  std::int64_t generated(const Sequence& output) const {
    return static_cast<std::int64_t>(output.tokens.size()) - prompt_size();
  }
  bool may_end(const Sequence& output) const { return generated(output) >= request.stopping.min_tokens; }
  // The text to show after `text` was added. Stop strings are matched from the text of token number min_tokens on.
  std::string Shown(Sequence& output, std::string_view text) const {
    return may_end(output) ? output.stops.Push(text) : std::string(text);
  }
  // Pages at the request's longest.
  std::int64_t most_pages() const {
    return model::KvPool::PagesFor(prompt_size() + request.stopping.max_tokens) * request.n;
  }
  // Pages to begin with: for the prompt and the first generated token.
  std::int64_t first_pages() const {
    return model::KvPool::PagesFor(prompt_size() + std::min<std::int64_t>(1, request.stopping.max_tokens)) * request.n;
  }
};

// Tokens that end an answer: stop ids, and the model's end tokens unless they are ignored. May hold a token twice.
std::vector<std::int32_t> EndTokens(const model::ModelConfig& config, const Stopping& stopping);

// The status of requests whose step failed: ResourceExhausted as given, otherwise Internal (KERNEL_FAULT).
absl::Status StepFault(const absl::Status& status);

// Rows of one output in a step.
struct Engine::Part {
  Group* group;
  Sequence* output;
  std::int64_t first_row;  // of the step
  std::int64_t num_rows;
  std::int64_t first_logit;   // index among the logit rows
  std::int64_t num_logits;    // all rows for Score, the last row of a completed prompt or a decode row, or none
  std::int64_t first_hidden;  // index among the hidden rows
  std::int64_t num_hidden;    // of the last rows
};

// The draw of an output's next token.
struct Engine::Draw {
  Group* group;
  Sequence* output;
  const float* logits;  // [vocab]
  std::int64_t vocab;
  absl::Status status{};  // not OK: the request ends with it
  TokenLogprob token{};
};

struct Engine::Step {
  std::vector<Part> parts;
  std::vector<std::int32_t> tokens, sequence, position, page_tables, logit_rows, hidden_rows;
  std::int64_t pages_per_sequence = 0;
};

}  // namespace nibble::serve
