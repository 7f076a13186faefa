#include "server/rpc/text_cache.h"

#include <algorithm>
#include <iterator>

#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/store/name_table.h"
#include "server/store/published_directory.h"

namespace nibble::rpc {

namespace {

constexpr const char* kFiles[] = {"chat_template.jinja", "config.json", "tokenizer.json", "tokenizer_config.json"};

absl::StatusOr<std::shared_ptr<const ModelText>> Read(const std::string& directory) {
  auto text = std::make_shared<ModelText>();
  NIBBLE_ASSIGN_OR_RETURN(text->assets, model::LoadTextAssets(directory));
  NIBBLE_ASSIGN_OR_RETURN(const std::string config_text,
                          base::RealFileSystem().Read(base::JoinPath(directory, "config.json"), model::kMaxConfigJsonBytes));
  NIBBLE_ASSIGN_OR_RETURN(const base::Json config, base::ParseJson(config_text));
  NIBBLE_ASSIGN_OR_RETURN(text->config, model::ParseHfConfig(config));
  return std::shared_ptr<const ModelText>(text);
}

// Whether the files that Read reads are not those that were published: a template that never compiled is no damage.
bool Altered(const std::string& directory) {
  const auto manifest = store::CheckSizes(base::RealFileSystem(), directory);
  if (!manifest.ok()) return store::SaysDamaged(manifest.status());
  return std::any_of(manifest->files.begin(), manifest->files.end(), [&](const store::ManifestEntry& file) {
    if (std::find(std::begin(kFiles), std::end(kFiles), file.name) == std::end(kFiles)) return false;
    const auto found = store::HashFile(base::JoinPath(directory, file.name));
    return found.ok() ? found->sha256 != file.sha256 : store::SaysDamaged(found.status());
  });
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ModelText>> TextCache::Get(const std::string& name) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, models_.Get(name));
  {
    base::MutexLock lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->first != stored.manifest_digest) continue;
      entries_.splice(entries_.begin(), entries_, it);
      return entries_.front().second;
    }
  }
  auto text = Read(stored.directory);
  if (!text.ok()) {
    NIBBLE_RETURN_IF_ERROR(models_.Get(name).status());  // it may have been deleted since
    return Altered(stored.directory) ? store::DamagedError("model", name) : text.status();
  }
  base::MutexLock lock(mutex_);
  entries_.emplace_front(stored.manifest_digest, *text);
  if (entries_.size() > kMaxEntries) entries_.pop_back();
  return text;
}

}  // namespace nibble::rpc
