#include "server/rpc/model_rows.h"

#include <iterator>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/model_proto.h"
#include "server/store/files_key.h"

namespace nibble::rpc {

namespace {

// Cache key: changes with the model and with any of its files. Empty if they cannot be read.
std::string KeyOf(const store::StoredModel& stored) {
  const auto files = store::FilesKey(stored.directory);
  if (!files.has_value() || files->empty()) return "";
  return base::StrCat(store::Etag(stored), " ", absl::ToUnixNanos(stored.created), "\n", *files);
}

}  // namespace

absl::StatusOr<v1::Model> ModelRows::Get(const store::StoredModel& stored, bool loaded) {
  std::string key = KeyOf(stored);
  if (!key.empty()) {
    base::MutexLock lock(mutex_);
    if (const auto it = rows_.find(stored.name); it != rows_.end() && it->second.key == key) {
      v1::Model model = it->second.model;
      model.set_loaded(loaded);
      return model;
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(v1::Model model, ToProto(stored, loaded, /*detailed=*/false));
  if (key.empty()) return model;
  base::MutexLock lock(mutex_);
  if (rows_.size() >= kMaxRows) rows_.clear();
  rows_[stored.name] = Row{std::move(key), model};
  return model;
}

void ModelRows::Warm(const std::vector<store::StoredModel>& all) {
  for (const store::StoredModel& stored : all) {
    if (size() == kMaxRows) return;
    if (!stored.damaged) Get(stored, /*loaded=*/false).IgnoreError();  // ListModels reports the error
  }
}

void ModelRows::Keep(const std::vector<store::StoredModel>& all) {
  base::MutexLock lock(mutex_);
  auto stored = all.begin();
  for (auto row = rows_.begin(); row != rows_.end();) {
    while (stored != all.end() && stored->name < row->first) ++stored;
    row = stored != all.end() && stored->name == row->first ? std::next(row) : rows_.erase(row);
  }
}

std::size_t ModelRows::size() const {
  base::MutexLock lock(mutex_);
  return rows_.size();
}

}  // namespace nibble::rpc
