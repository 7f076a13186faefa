// What a client asks of a loaded model, and where the answer goes.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/ops/sample.h"
#include "server/base/cancel_token.h"
#include "server/serve/penalties.h"

namespace nibble::serve {

enum class FinishReason { kStop, kLength, kEos, kCancelled, kDeadline };
const char* Name(FinishReason reason);  // "stop", "length", "eos", "cancelled", "deadline"

struct Stopping {
  std::int64_t max_tokens = 0;
  std::int64_t min_tokens = 0;                  // until then, end tokens and stop ids are masked, and stop strings do not match
  std::vector<std::string> strings;
  std::vector<std::int32_t> token_ids;          // beside the model's own end tokens
  bool ignore_eos = false;
  bool include_stop = false;
};

struct Request {
  std::vector<std::int32_t> prompt;             // at least one token
  const char* prompt_field = "prompt";          // the caller's own that it came of: what a refusal names; a literal
  int n = 1;                                    // outputs; they share the prompt's K and V and differ by their random numbers
  kernels::SampleParams sampling;
  Penalties penalties;
  Stopping stopping;
  bool include_special_tokens = false;          // in the text
  bool logprobs = false;
  std::int64_t top_logprobs = 0;                // alternatives a token, when logprobs; at most the vocabulary
  bool prompt_logprobs = false;                 // of prompt[1..] given what is before
  bool logits_digests = false;                  // Score: of the logits behind each of them
  std::int64_t score_chunk = 0;                 // prompt tokens a step, with prompt_logprobs; 0: the engine's
  int priority = 0;                             // higher begins first (waiting_queue.h)
  std::string principal;                        // whose turn and bounds they are; "": of a server without tokens, which has no bounds
  absl::Duration deadline = absl::InfiniteDuration();        // monotonic clock
  absl::Duration queue_deadline = absl::InfiniteDuration();  // the same; to have begun by
  std::optional<absl::Duration> arrived;        // the same; what Usage counts from. Unset: when it is submitted
  base::CancelToken cancel;
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
  std::vector<std::pair<std::int32_t, float>> top;
  std::string logits_digest{};  // model::RowDigest, where asked for
};

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  double queue_ms = 0;     // from arrival to the first step that held the request
  double ttft_ms = 0;      // from arrival to the first token; 0 when none was asked for
  double prefill_ms = 0;   // from the first step to the first token, or to the prompt's last logprob
  double decode_ms = 0;    // from the first token to the last
  std::uint64_t kernel_launches = 0;  // of the engine while the request ran; shared with requests beside it
};

// One output ended as it should.
struct OutputEnd {
  int index = 0;
  FinishReason reason = FinishReason::kLength;
  std::string matched_stop;
  std::string incomplete_utf8;          // bytes of a character that the last token left unfinished
};

struct Finish {
  absl::Status status;                  // not OK: the call ends with it; the rest is then what was reached
  FinishReason reason = FinishReason::kLength;  // of output 0, or what ended the request
  Usage usage;
};

// Called from the engine's thread; must not block. After OnFinish nothing more comes.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // The request's first step comes next; not called for one that ends while it waits.
  virtual void OnStart(double queue_ms) = 0;
  virtual void OnPromptLogprobs(std::span<const TokenLogprob> logprobs) = 0;
  // False while the reader is behind: the request then takes no step. Asked before every step that tells
  // something: those after the first token, and all where the prompt's logprobs are wanted.
  virtual bool Ready() { return true; }
  // Text is whole UTF-8 and may be empty while a stop string or a character is held back.
  virtual void OnDelta(int index, std::string_view text, std::span<const TokenLogprob> tokens) = 0;
  virtual void OnOutputEnd(const OutputEnd& end) = 0;
  virtual void OnFinish(const Finish& finish) = 0;
};

}  // namespace nibble::serve
