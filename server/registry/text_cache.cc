#include "server/registry/text_cache.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/process_memory.h"
#include "server/base/status_macros.h"
#include "server/model/file_names.h"
#include "server/model/text_digest.h"
#include "server/store/name_table.h"
#include "server/store/published_directory.h"

namespace nibble::registry {

namespace {

constexpr std::size_t kMaxFacts = 256;  // a few KiB each

constexpr const char* kFiles[] = {model::kChatTemplateFile, model::kConfigFile, model::kTokenizerFile,
                                  model::kTokenizerConfigFile};

absl::StatusOr<model::ModelConfig> ReadConfig(const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(
      const std::string text,
      base::RealFileSystem().Read(base::JoinPath(directory, model::kConfigFile), model::kMaxConfigJsonBytes));
  NIBBLE_ASSIGN_OR_RETURN(const base::Json config, base::ParseJson(text));
  return model::ParseHfConfig(config);
}

// Whether the model is damaged: an invalid manifest, any file of the wrong size, or changed content in a file that
// TextCache reads. An unchanged file that cannot be loaded, such as a template that does not compile, is not damage.
bool Altered(const std::string& directory) {
  const auto manifest = store::CheckSizes(base::RealFileSystem(), directory);
  if (!manifest.ok()) return store::SaysDamaged(manifest.status());
  return std::any_of(manifest->files.begin(), manifest->files.end(), [&](const store::ManifestEntry& file) {
    if (std::find(std::begin(kFiles), std::end(kFiles), file.name) == std::end(kFiles)) return false;
    const auto found = store::HashFile(base::JoinPath(directory, file.name));
    return found.ok() ? found->sha256 != file.sha256 : store::SaysDamaged(found.status());
  });
}

// The error of a read that ended with `status`: a model that was deleted or damaged is reported as such.
absl::Status WhyOf(const store::ModelStore& models, const std::string& name, const std::string& directory,
                   const absl::Status& status) {
  NIBBLE_RETURN_IF_ERROR(models.Get(name).status());  // the model may have been deleted since
  return Altered(directory) ? store::DamagedError("model", name) : status;
}

}  // namespace

TextCache::TextCache(const store::ModelStore& models, TextCacheOptions options)
    : models_(models), options_(std::move(options)) {}

void TextCache::Keep(Entry entry) {
  bytes_ += entry.bytes;
  entries_.push_front(std::move(entry));
  while (entries_.size() > 1 && (bytes_ > options_.max_bytes || entries_.size() > options_.max_entries)) {
    bytes_ -= entries_.back().bytes;
    entries_.pop_back();
  }
}

absl::StatusOr<TextFacts> TextCache::FactsOf(const store::StoredModel& stored) {
  {
    base::MutexLock lock(mutex_);
    if (const auto at = facts_.find(stored.manifest_digest); at != facts_.end()) return at->second;
  }
  NIBBLE_ASSIGN_OR_RETURN(const store::Manifest manifest,
                          store::ReadManifest(base::RealFileSystem(), stored.directory));
  const auto sha256_of = [&](std::string_view file) {
    const auto at = std::find_if(manifest.files.begin(), manifest.files.end(),
                                 [&](const auto& entry) { return entry.name == file; });
    return at == manifest.files.end() ? std::string() : at->sha256;
  };
  TextFacts facts;
  facts.digest = model::TextDigest(sha256_of(model::kTokenizerFile), sha256_of(model::kTokenizerConfigFile),
                                   sha256_of(model::kChatTemplateFile));
  NIBBLE_ASSIGN_OR_RETURN(facts.config, ReadConfig(stored.directory));
  return facts;
}

TextCache::Assets TextCache::AssetsOf(const store::StoredModel& stored, const std::string& digest) {
  std::shared_ptr<Reading> reading;  // set: this call must read the files
  while (reading == nullptr) {
    base::MutexLock lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->digest != digest) continue;
      entries_.splice(entries_.begin(), entries_, it);
      return entries_.front().assets;
    }
    const auto [at, first] = reading_.try_emplace(digest);
    if (first) {
      reading = at->second = std::make_shared<Reading>(Reading{stored.directory, std::nullopt});
      break;
    }
    const std::shared_ptr<Reading> other = at->second;
    read_.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return other->assets.has_value(); });
    // A failure of another model's files says nothing about the files of this model.
    if (other->assets->ok() || other->directory == stored.directory) return *other->assets;
  }
  Assets assets = options_.read ? options_.read(stored.directory) : model::LoadTextAssets(stored.directory);
  base::ReturnFreeMemory();  // a load takes several times the memory that the tokenizer keeps
  // Altered files must not serve other models that share the published ones.
  if (assets.ok() && assets->digest != digest) {
    assets = absl::DataLossError("the tokenizer files have changed since publication");
  }
  const auto bytes = base::RealFileSystem().Size(base::JoinPath(stored.directory, model::kTokenizerFile));
  base::MutexLock lock(mutex_);
  reading_.erase(digest);
  reading->assets = assets;
  if (assets.ok()) Keep({digest, bytes.value_or(0), *assets});
  read_.NotifyAll();
  return assets;
}

absl::StatusOr<std::shared_ptr<const ModelText>> TextCache::Get(const std::string& name) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, models_.Get(name));
  absl::StatusOr<TextFacts> facts = FactsOf(stored);
  if (!facts.ok()) return WhyOf(models_, name, stored.directory, facts.status());
  Assets assets = AssetsOf(stored, facts->digest);
  if (!assets.ok()) return WhyOf(models_, name, stored.directory, assets.status());
  {
    base::MutexLock lock(mutex_);
    if (facts_.size() >= kMaxFacts && !facts_.contains(stored.manifest_digest)) facts_.clear();
    facts_.emplace(stored.manifest_digest, *facts);
  }
  return std::make_shared<const ModelText>(ModelText{std::move(facts->config), *std::move(assets)});
}

absl::StatusOr<TextFacts> TextCache::Facts(const std::string& name) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, models_.Get(name));
  absl::StatusOr<TextFacts> facts = FactsOf(stored);
  if (!facts.ok()) return WhyOf(models_, name, stored.directory, facts.status());
  return facts;
}

}  // namespace nibble::registry
