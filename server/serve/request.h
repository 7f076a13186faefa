// A client's request to a loaded model, and the sink for its answer.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/matrix.h"
#include "kernels/ops/sample/sample.h"
#include "server/base/cancel_token.h"
#include "server/serve/penalties.h"
#include "server/text/grammar.h"

namespace nibble::serve {

enum class FinishReason { kStop, kLength, kEos, kCancelled, kDeadline };
const char* Name(FinishReason reason);  // "stop", "length", "eos", "cancelled", "deadline"

// Hidden states of the prompt's tokens that the sink gets. With any but kNone, no token is drawn.
enum class HiddenStates { kNone, kLast, kAll };

struct Stopping {
  std::int64_t max_tokens = 0;
  std::int64_t min_tokens = 0;  // until then, end tokens and stop ids are masked, and stop strings do not match
  std::vector<std::string> strings;
  std::vector<std::int32_t> token_ids;  // in addition to the model's end tokens
  bool ignore_eos = false;
  bool include_stop = false;
};

struct Request {
  std::vector<std::int32_t> prompt;     // at least one token
  const char* prompt_field = "prompt";  // the caller's field with the prompt, named in errors; a literal
  int n = 1;                            // outputs; they share the prompt's K and V and differ by their random numbers
  kernels::SampleParams sampling;
  Penalties penalties;
  Stopping stopping;
  std::shared_ptr<const text::Grammar> grammar;    // of every output's text; null: any text
  const char* grammar_field = "constraint";        // the caller's field with it, named in errors; a literal
  bool include_special_tokens = false;             // in the text
  std::vector<std::int32_t> shown_special_tokens;  // in the text even if the other special tokens are not
  bool logprobs = false;
  std::int64_t top_logprobs = 0;  // alternatives per logprob, also of the prompt; at most the vocabulary
  bool prompt_logprobs = false;   // of prompt[1..] given the tokens before
  bool logits_digests = false;    // Score: also the digest of the logits of each prompt logprob
  HiddenStates hidden = HiddenStates::kNone;
  std::int64_t score_chunk = 0;  // prompt tokens per step, with prompt_logprobs; 0: the engine's
  int priority = 0;              // higher begins first (waiting_queue.h)
  std::string principal;         // decides turn and limits; "": a server without tokens, no limits
  absl::Duration deadline = absl::InfiniteDuration();        // monotonic clock
  absl::Duration queue_deadline = absl::InfiniteDuration();  // monotonic clock; the request must begin before it
  std::optional<absl::Duration> arrived;  // monotonic clock; Usage counts from here. Unset: time of Submit
  base::CancelToken cancel;
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
  std::vector<std::pair<std::int32_t, float>> top;
  std::string logits_digest{};  // model::RowDigest, if requested
};

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  double queue_ms = 0;                // from arrival to the first step that held the request
  double ttft_ms = 0;                 // from arrival to the first token; 0 if no token was requested
  double prefill_ms = 0;              // from the first step to the first token, or to the prompt's last logprob
  double decode_ms = 0;               // from the first token to the last
  std::uint64_t kernel_launches = 0;  // of all models that the server serves or verifies, while the request ran
};

// The normal end of one output.
struct OutputEnd {
  int index = 0;
  FinishReason reason = FinishReason::kLength;
  std::string matched_stop;
  std::string incomplete_utf8;  // bytes of a character that the last token left unfinished
};

struct Finish {
  absl::Status status;                          // if not OK, the call ends with it; the rest is the progress so far
  FinishReason reason = FinishReason::kLength;  // of output 0, or why the request ended
  Usage usage;
};

// Called from the engine's thread; must not block. OnFinish is the last call.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // Called before the request's first step; not called if the request ends while it waits.
  virtual void OnStart(double queue_ms) = 0;
  virtual void OnPromptLogprobs(std::span<const TokenLogprob> logprobs) = 0;
  // Hidden states after the final norm, [tokens, hidden_size] f32, of consecutive tokens of the prompt in their order.
  virtual void OnHidden(kernels::ConstMatrix) {}
  // Returns false while the reader is behind; the request then takes no step. Called before each step after the first
  // token, and before all steps if prompt logprobs are requested. Otherwise the first token is sent without a call.
  virtual bool Ready() { return true; }
  // `text` is complete UTF-8; it may be empty while a possible stop string or part of a character is held back.
  virtual void OnDelta(int index, std::string_view text, std::span<const TokenLogprob> tokens) = 0;
  virtual void OnOutputEnd(const OutputEnd& end) = 0;
  virtual void OnFinish(const Finish& finish) = 0;
};

}  // namespace nibble::serve
