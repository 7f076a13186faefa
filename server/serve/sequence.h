// One request inside the engine. Private to engine.cc.
#pragma once
#include <optional>

#include "server/serve/engine.h"
#include "server/serve/stop_matcher.h"
#include "server/text/stream_decoder.h"

namespace nibble::serve {

struct Engine::Sequence {
  Sequence(Request asked, std::shared_ptr<ResponseSink> to, const text::Tokenizer& tokenizer)
      : request(std::move(asked)),
        sink(std::move(to)),
        tokens(request.prompt),
        decoder(tokenizer, /*skip_special_tokens=*/true),
        stops(request.stopping.strings, request.stopping.include_stop) {}

  Request request;
  std::shared_ptr<ResponseSink> sink;
  std::vector<std::int32_t> tokens;    // prompt, then what was generated
  std::int64_t fed = 0;                // tokens whose K and V are in the cache
  std::vector<std::int32_t> pages;
  text::StreamDecoder decoder;
  StopMatcher stops;
  Usage usage;
  absl::Duration submitted;            // monotonic clock
  absl::Duration started;
  absl::Duration first_token;
  std::uint64_t launches_before = 0;
  bool ended = false;

  std::int64_t prompt_size() const { return static_cast<std::int64_t>(request.prompt.size()); }
  std::int64_t generated() const { return static_cast<std::int64_t>(tokens.size()) - prompt_size(); }
  std::int64_t unfed() const { return static_cast<std::int64_t>(tokens.size()) - fed; }
  std::int64_t most_tokens() const { return prompt_size() + request.stopping.max_tokens; }
};

// The rows of one step, and which of them each sequence owns.
struct Engine::Step {
  struct Part {
    Sequence* sequence;
    std::int64_t first_row;      // of this step
    std::int64_t num_rows;
    std::int64_t first_logit;    // number among the logit rows
    std::int64_t num_logits;     // all rows for Score, the last row of a completed prompt or a decode row, or none
  };
  std::vector<Part> parts;
  std::vector<std::int32_t> tokens, sequence, position, page_tables, logit_rows;
  std::int64_t pages_per_sequence = 0;
};

}  // namespace nibble::serve
