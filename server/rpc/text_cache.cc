#include "server/rpc/text_cache.h"

#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"

namespace nibble::rpc {

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
  auto text = std::make_shared<ModelText>();
  NIBBLE_ASSIGN_OR_RETURN(text->assets, model::LoadTextAssets(stored.directory));
  NIBBLE_ASSIGN_OR_RETURN(const std::string config_text,
                          base::RealFileSystem().Read(base::JoinPath(stored.directory, "config.json"), model::kMaxConfigJsonBytes));
  NIBBLE_ASSIGN_OR_RETURN(const base::Json config, base::ParseJson(config_text));
  NIBBLE_ASSIGN_OR_RETURN(text->config, model::ParseHfConfig(config));
  base::MutexLock lock(mutex_);
  entries_.emplace_front(stored.manifest_digest, text);
  if (entries_.size() > kMaxEntries) entries_.pop_back();
  return std::shared_ptr<const ModelText>(text);
}

}  // namespace nibble::rpc
