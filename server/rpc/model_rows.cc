#include "server/rpc/model_rows.h"

#include <utility>

#include "server/base/status_macros.h"
#include "server/rpc/model_proto.h"

namespace nibble::rpc {

absl::StatusOr<v1::Model> ModelRows::Get(const store::StoredModel& stored, bool loaded) {
  const std::string etag = store::Etag(stored);
  {
    base::MutexLock lock(mutex_);
    if (const auto it = rows_.find(stored.name); it != rows_.end() && it->second.etag == etag && it->second.created == stored.created) {
      v1::Model model = it->second.model;
      model.set_loaded(loaded);
      return model;
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(v1::Model model, ToProto(stored, loaded, /*detailed=*/false));
  base::MutexLock lock(mutex_);
  if (rows_.size() >= kMaxRows) rows_.clear();
  rows_[stored.name] = Row{etag, stored.created, model};
  return model;
}

std::size_t ModelRows::size() const {
  base::MutexLock lock(mutex_);
  return rows_.size();
}

}  // namespace nibble::rpc
