// Continuous batching: one thread runs a loaded model over all current requests. Requests join and leave between steps;
// long prompts are fed in chunks while others decode. A sequence takes pages of the KV cache as it grows. When no page
// is left, the request that began last is preempted: it gives up its pages, and its tokens are fed again later.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/model/arena.h"
#include "server/model/kv_pool.h"
#include "server/model/loaded_model.h"
#include "server/serve/request.h"
#include "server/serve/waiting_queue.h"
#include "server/text/grammar.h"
#include "server/text/tokenizer.h"

namespace nibble::serve {

// Totals of all engines of a server, including those of unloaded models. Thread-safe.
struct EngineTotals {
  std::atomic<std::uint64_t> requests{0};  // ended, for any reason
  std::atomic<std::uint64_t> prompt_tokens{0};
  std::atomic<std::uint64_t> generated_tokens{0};
  std::atomic<std::uint64_t> preemptions{0};
};

// Limits of one principal's requests to a model. A server without tokens has no principals. 0 means three quarters of
// the value in EngineOptions; for max_waiting, one quarter.
struct PrincipalOptions {
  std::int64_t max_waiting = 0;
  std::int64_t max_running = 0;  // outputs
  std::int64_t kv_tokens = 0;    // of its running requests at their longest; at least max_context
};

struct EngineOptions {
  std::int64_t max_waiting = 64;              // requests without a free slot; beyond it: RESOURCE_EXHAUSTED, QUEUE_FULL
  std::int64_t max_waiting_tokens = 1 << 20;  // sum of their prompts' tokens; beyond it: the same error
  std::int64_t max_running = 16;              // outputs, over all requests
  std::int64_t max_context = 8192;            // tokens of one sequence, prompt and completion
  std::int64_t kv_tokens = 32768;             // capacity of the paged cache
  std::int64_t prefill_chunk = 256;           // prompt tokens per step, over all sequences
  std::int64_t score_chunk = 64;              // the same for requests that need every row's logits
  PrincipalOptions of_principal = {};
  std::shared_ptr<EngineTotals> totals = std::make_shared<EngineTotals>();  // shared by all engines with these options
};

struct EngineLoad {
  std::int64_t waiting = 0;
  std::int64_t running = 0;  // requests, not outputs as in EngineOptions
  std::int64_t used_pages = 0;
  std::int64_t total_pages = 0;
};

// Thread-safe. Destruction ends all running and waiting requests with Unavailable (DRAINING).
class Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Start(std::shared_ptr<const model::LoadedModel> model,
                                                       std::shared_ptr<const text::Tokenizer> tokenizer,
                                                       const EngineOptions& options, const kernels::Stream& stream,
                                                       base::Clock& clock);
  ~Engine();

  // Accepts or refuses the request immediately. Errors: InvalidArgument (PROMPT_TOO_LONG; FIELD_VIOLATION with the
  // field's path in a GenerateRequest, or Request::prompt_field for the prompt), ResourceExhausted (KV_FULL;
  // QUEUE_FULL, for a principal's limit with metadata "flag" and "max"), Unavailable (DRAINING). The engine's thread
  // calls the sink until OnFinish.
  absl::Status Submit(Request request, std::shared_ptr<ResponseSink> sink);

  EngineLoad load() const;
  const model::LoadedModel& model() const { return *model_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  std::int64_t max_context() const { return max_context_; }
  // Compiles Request::grammar.
  text::GrammarCompiler& grammars() { return grammars_; }
  // Pages of the cache of an engine whose sequences have up to max_context tokens.
  static std::int64_t NumPages(const EngineOptions& options, std::int64_t max_context) {
    return model::KvPool::PagesFor(std::max(options.kv_tokens, max_context));
  }

 private:
  struct Sequence;
  struct Group;
  struct Part;
  struct Step;
  struct Draw;
  Engine(std::shared_ptr<const model::LoadedModel> model, std::shared_ptr<const text::Tokenizer> tokenizer,
         const EngineOptions& options, const kernels::Stream& stream, base::Clock& clock);

  absl::Status Check(const Request& request) const;
  // The queue as a new request sees it. at_once: the new request begins with the next step. The other members are
  // totals of the waiting requests that do not begin with the next step.
  struct Queue {
    bool at_once = false;
    std::int64_t requests = 0;
    std::int64_t own = 0;  // of its principal
    std::int64_t tokens = 0;
  };
  // engine_queue.cc.
  Queue QueueBefore(const Group& group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Totals of a principal's running requests.
  struct Held {
    std::int64_t outputs = 0;
    std::int64_t pages = 0;  // at their longest
  };
  bool WithinBounds(const std::string& principal, const Held& held, const Group& group) const;
  std::int64_t Headroom() const;
  absl::Duration EstimatedWait(std::int64_t queued) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The engine's thread.
  void Run();
  void Admit();
  void RefreshLoad() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RefreshFreePages() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Begin(std::unique_ptr<Group> group, absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropEnded();
  // engine_pages.cc. Takes pages for the tokens of all the group's outputs and for the next token of each; returns
  // false and takes none if too few are free.
  bool Take(Group& group);
  // Takes the pages for the group's next rows. While too few are free, preempts the request that began last. Returns
  // false if that was the group itself.
  bool Grow(Group& group);
  void Preempt(Group& group);
  // Resumes preempted requests for which there is room, oldest first. Returns false if one stays preempted.
  bool Resume();
  void EndOutput(Group& group, Sequence& output, FinishReason reason);
  void EndGroup(Group& group, absl::Status status, FinishReason reason);
  // engine_step.cc. False when every request waits for its reader.
  absl::StatusOr<bool> RunOnce();
  void Plan(Step* step);
  // Takes the part's rows of the step's logits and hidden states. Adds the tokens to draw from the logits to `draws`.
  absl::Status ConsumeLogits(const Part& part, const kernels::Matrix& logits, const kernels::Matrix& hidden,
                             std::vector<Draw>* draws);
  void SendHidden(const Part& part, std::int64_t first_position, const kernels::Matrix& hidden);
  absl::Status Score(const Part& part, std::int64_t first_position, const kernels::Matrix& logits);
  static absl::Status Logprobs(kernels::ConstMatrix rows, std::span<const std::int32_t> targets, std::int64_t top_n,
                               const kernels::Stream& stream, std::vector<TokenLogprob>* out);
  // Draws all tokens on all threads.
  void DrawTokens(std::span<Draw> draws) const;
  // Draws the token and advances the output's grammar. Runs in parallel for the outputs of a step: changes only `draw`
  // and the output's follower.
  void DrawToken(Draw* draw) const;
  void TakeToken(Group& group, Sequence& output, const TokenLogprob& token);

  const std::shared_ptr<const model::LoadedModel> model_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const EngineOptions options_;
  const kernels::Stream stream_;
  base::Clock& clock_;
  std::int64_t max_context_ = 0;
  text::GrammarCompiler grammars_;
  PrincipalOptions bounds_;
  std::unique_ptr<model::KvPool> pool_;  // for the engine's thread only, except its constant sizes
  model::Arena arena_;
  std::vector<std::unique_ptr<Group>> running_;

  mutable base::Mutex mutex_;
  base::Condition wake_;
  WaitingQueue queue_ ABSL_GUARDED_BY(mutex_);  // the order of waiting_
  std::map<std::uint64_t, std::unique_ptr<Group>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Held> held_ ABSL_GUARDED_BY(mutex_);  // of principals with requests in running_
  std::int64_t waiting_tokens_ ABSL_GUARDED_BY(mutex_) = 0;   // prompt tokens of waiting_
  std::int64_t running_outputs_ ABSL_GUARDED_BY(mutex_) = 0;  // of running_
  // Free pages of pool_, for threads that may not read it; 0 while a request is preempted.
  std::int64_t free_pages_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration mean_service_ ABSL_GUARDED_BY(mutex_);  // of requests that ended recently

  EngineLoad load_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace nibble::serve
