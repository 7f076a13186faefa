#include "server/rpc/model_rows.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/model_proto.h"

namespace nibble::rpc {

namespace {

// Cache key: changes with the model and with the name, size or time of any of its files. Empty if the directory cannot
// be read. Asks for a file's state once: std::filesystem does so for each of its properties.
std::string KeyOf(const store::StoredModel& stored) {
  std::error_code error;
  std::vector<std::string> files;
  for (std::filesystem::directory_iterator it(stored.directory, error), end; !error && it != end; it.increment(error)) {
    struct stat info;
    if (::stat(it->path().c_str(), &info) != 0) return "";
    files.push_back(base::StrCat(it->path().filename().string(), " ", info.st_size, " ", info.st_mtim.tv_sec, " ",
                                 info.st_mtim.tv_nsec, "\n"));
  }
  if (error || files.empty()) return "";
  std::sort(files.begin(), files.end());
  std::string key = base::StrCat(store::Etag(stored), " ", absl::ToUnixNanos(stored.created), "\n");
  for (const std::string& file : files) key += file;
  return key;
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
