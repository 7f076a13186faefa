// Cache of the tokenizers and chat templates of stored models.
#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/model/model_config.h"
#include "server/model/text_assets.h"
#include "server/store/model_store.h"

namespace nibble::registry {

// The parts of a model that need no weights.
struct ModelText {
  model::ModelConfig config;
  model::TextAssets assets;
};

// A model's configuration, and the digest of the files that determine how its texts become tokens.
struct TextFacts {
  model::ModelConfig config;
  std::string digest;  // model::TextAssets::digest
};

struct TextCacheOptions {
  // Maximum total size of the tokenizer.json files whose tokenizers are kept. The tokenizers take kTokenizerFactor
  // times as much memory. The last one used is always kept.
  std::uint64_t max_bytes = std::uint64_t{32} << 20;
  std::size_t max_entries = 64;
  // Reads a model's directory; empty: model::LoadTextAssets.
  std::function<absl::StatusOr<model::TextAssets>(const std::string& directory)> read = {};
};

// Tokenizers and templates for calls that need no loaded model: tokenize, preview, the check of a job. Reading a
// tokenizer takes a tenth of a second, so the cache keeps the last few; models with the same files share one.
// Thread-safe; calls read the disk.
class TextCache {
 public:
  // Memory of a loaded tokenizer per byte of its file. Measured: 6.6 for SmolLM2.
  static constexpr std::int64_t kTokenizerFactor = 8;

  explicit TextCache(const store::ModelStore& models, TextCacheOptions options = {});

  // Concurrent calls for the same files share one read. Errors: NotFound (MODEL); DataLoss (ARTIFACT_CORRUPT): a file
  // has changed since publication; those of model::LoadTextAssets for unchanged files.
  absl::StatusOr<std::shared_ptr<const ModelText>> Get(const std::string& name);
  // Reads no tokenizer: the digest follows from the model's manifest. Errors: like Get, for the manifest and
  // config.json.
  absl::StatusOr<TextFacts> Facts(const std::string& name);

 private:
  using Assets = absl::StatusOr<model::TextAssets>;
  struct Entry {
    std::string digest;
    std::uint64_t bytes = 0;
    model::TextAssets assets;
  };
  struct Reading {
    std::string directory;
    std::optional<Assets> assets;  // set when they have been read
  };

  absl::StatusOr<TextFacts> FactsOf(const store::StoredModel& stored);
  // Waits if another call reads the same files.
  Assets AssetsOf(const store::StoredModel& stored, const std::string& digest);
  void Keep(Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const store::ModelStore& models_;
  const TextCacheOptions options_;
  base::Mutex mutex_;
  base::Condition read_;
  std::map<std::string, std::shared_ptr<Reading>> reading_ ABSL_GUARDED_BY(mutex_);  // by digest
  std::map<std::string, TextFacts> facts_ ABSL_GUARDED_BY(mutex_);                   // by digest of the manifest
  std::uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;                                  // of entries_
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);                                 // newest first
};

}  // namespace nibble::registry
