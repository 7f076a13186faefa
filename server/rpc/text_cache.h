#pragma once
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/model/model_config.h"
#include "server/model/text_assets.h"
#include "server/store/model_store.h"

namespace nibble::rpc {

// What is known of a model without its weights.
struct ModelText {
  model::ModelConfig config;
  model::TextAssets assets;
};

// Tokenizers and templates of models that need not be loaded: tokenize, preview, the check of a job. Keeps the last few: a
// tokenizer takes a tenth of a second to read. Thread-safe; calls read the disk.
class TextCache {
 public:
  explicit TextCache(const store::ModelStore& models) : models_(models) {}

  // NotFound (MODEL); DataLoss (ARTIFACT_CORRUPT) where a file is not as it was published; of what was published so, the errors of
  // model::LoadTextAssets.
  absl::StatusOr<std::shared_ptr<const ModelText>> Get(const std::string& name);

 private:
  static constexpr std::size_t kMaxEntries = 4;
  const store::ModelStore& models_;
  base::Mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<const ModelText>>> entries_ ABSL_GUARDED_BY(mutex_);  // manifest digest, newest first
};

}  // namespace nibble::rpc
