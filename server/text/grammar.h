// Constraints on the text of an output: JSON schemas, regular expressions, lists of texts and grammars.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/text/tokenizer.h"

struct NibbleCompiler;
struct NibbleFollower;
struct NibbleGrammar;

namespace nibble::text {

enum class GrammarKind {
  kJsonSchema,  // texts are compact: no blanks between values, properties in the schema's order
  kRegex,       // the whole text matches
  kChoice,      // the source is a JSON list of texts
  kLark,        // llguidance's dialect of Lark
  kTools,       // a ToolGrammar, whose schemas have blanks after commas and colons, as chat templates write JSON
};

struct GrammarSource {
  static constexpr std::size_t kMaxBytes = 256 << 10;

  GrammarKind kind;
  std::string text;
};

// A compiled constraint. Thread-safe.
class Grammar {
 public:
  // Called by GrammarCompiler. Takes ownership of `handle`, and counts its memory in `live_bytes`.
  Grammar(NibbleGrammar* handle, std::shared_ptr<const Tokenizer> tokenizer,
          std::shared_ptr<std::atomic<std::int64_t>> live_bytes);
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;
  ~Grammar();

  std::int64_t bytes() const;  // its memory, without its followers

 private:
  friend class GrammarFollower;
  NibbleGrammar* const handle_;
  const std::shared_ptr<const Tokenizer> tokenizer_;  // the grammar refers to it
  const std::shared_ptr<std::atomic<std::int64_t>> live_bytes_;
};

// Follows the text of one output, in at most 64 MiB. Thread-compatible.
class GrammarFollower {
 public:
  // Errors: Internal.
  static absl::StatusOr<std::unique_ptr<GrammarFollower>> Start(std::shared_ptr<const Grammar> grammar);
  GrammarFollower(const GrammarFollower&) = delete;
  GrammarFollower& operator=(const GrammarFollower&) = delete;
  ~GrammarFollower();

  // One bit per token, from the lowest bit of the first word on: the token may be next. When the text is complete, only
  // end tokens may. Valid until the next call.
  //   result  [ceil(vocab_size / 32)]
  // Errors: InvalidArgument (the constraint needs too much time or memory here).
  absl::StatusOr<std::span<const std::uint32_t>> AllowedTokens(std::int64_t vocab_size);
  // Adds a token that may be next to the text. Errors: as AllowedTokens.
  absl::Status Accept(std::int32_t token);

 private:
  GrammarFollower(NibbleFollower* handle, std::shared_ptr<const Grammar> grammar)
      : handle_(handle), grammar_(std::move(grammar)) {}

  NibbleFollower* const handle_;
  const std::shared_ptr<const Grammar> grammar_;
  std::vector<std::uint32_t> allowed_;
};

// Compiles constraints for one model, and keeps the last ones. Thread-safe.
class GrammarCompiler {
 public:
  // Limits of the grammars that are kept, and of those that exist, also in requests.
  static constexpr std::size_t kMaxKept = 32;
  static constexpr std::int64_t kMaxKeptBytes = std::int64_t{64} << 20;
  static constexpr std::int64_t kMaxLiveBytes = std::int64_t{256} << 20;

  // vocab_size: of the model's logits. end_tokens: the model's.
  GrammarCompiler(std::shared_ptr<const Tokenizer> tokenizer, std::int64_t vocab_size,
                  std::vector<std::int32_t> end_tokens);
  ~GrammarCompiler();

  // Takes up to 3 s of processor time and 192 MiB; the first call also prepares the vocabulary, a second for the
  // largest. `field`: the caller's name of the constraint, in errors. Errors: InvalidArgument (FIELD_VIOLATION): the
  // source has an error, cannot be enforced, or needs more time or memory; the model has no end token; its tokenizer
  // only decodes whole texts. ResourceExhausted (QUEUE_FULL): the grammars of other requests take kMaxLiveBytes.
  absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const GrammarSource& source, const char* field);
  // The grammar if it is kept, otherwise null.
  std::shared_ptr<const Grammar> Kept(const GrammarSource& source);

 private:
  using Key = std::pair<GrammarKind, std::string>;
  struct Entry {
    std::shared_ptr<const Grammar> grammar;
    std::list<Key>::iterator used;
  };

  std::shared_ptr<const Grammar> Find(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(const Key& key, std::shared_ptr<const Grammar> grammar) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the compiler if there is none yet.
  absl::StatusOr<const NibbleCompiler*> Prepare();

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::int64_t vocab_size_;
  const std::vector<std::int32_t> end_tokens_;
  const std::shared_ptr<std::atomic<std::int64_t>> live_bytes_ = std::make_shared<std::atomic<std::int64_t>>(0);
  base::Mutex prepare_mutex_;
  NibbleCompiler* handle_ ABSL_GUARDED_BY(prepare_mutex_) = nullptr;  // set once
  base::Mutex mutex_;
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::list<Key> used_ ABSL_GUARDED_BY(mutex_);  // the last used first
};

}  // namespace nibble::text
