#include "server/store/database_pair.h"

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::store {

using base::JoinPath;
using base::StrCat;

namespace {

constexpr std::uint64_t kMaxIdBytes = 128;

// The id in a directory; "" if there is none.
absl::StatusOr<std::string> ReadId(base::FileSystem& files, const std::string& directory) {
  auto id = files.Read(JoinPath(directory, kDatabasePairFile), kMaxIdBytes);
  if (absl::IsNotFound(id.status())) return std::string();
  return id;
}

absl::Status Refuse(std::string_view why, std::string_view remedy) {
  return absl::FailedPreconditionError(StrCat("--database_dir: ", why, ": ", remedy));
}

absl::StatusOr<bool> HasJobs(base::FileSystem& files, const StatePaths& paths) {
  if (!files.Exists(paths.jobs())) return false;
  NIBBLE_ASSIGN_OR_RETURN(const auto names, files.List(paths.jobs()));
  return !names.empty();
}

}  // namespace

absl::Status CheckDatabasePair(base::FileSystem& files, const StatePaths& paths) {
  const std::string &state = paths.root(), &own = paths.database_root();
  NIBBLE_ASSIGN_OR_RETURN(const std::string state_id, ReadId(files, state));
  if (own == state) {
    if (state_id.empty()) return absl::OkStatus();
    return Refuse(StrCat("is not set, but the database of ", state, " is in another directory"),
                  StrCat("name that directory, or move nibble.db and nibble.db-wal from there to ", state,
                         " and remove ", JoinPath(state, kDatabasePairFile)));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string own_id, ReadId(files, own));
  const std::string single = StatePaths(state).database();
  if (files.Exists(single)) {
    return Refuse(StrCat(single, " exists"), StrCat("move nibble.db and nibble.db-wal from there to ", own));
  }
  const bool database = files.Exists(paths.database());
  NIBBLE_ASSIGN_OR_RETURN(const bool jobs, HasJobs(files, paths));
  if ((!state_id.empty() && !own_id.empty() && state_id != own_id) ||
      (state_id.empty() && !own_id.empty() && database)) {
    return Refuse(StrCat(own, " has the database of another state directory than ", state),
                  "name the two directories that belong together");
  }
  if (jobs && !database) {
    return Refuse(StrCat(state, " has jobs, but ", own, " has no database"),
                  "name the directory of their database, or restore nibble.db there");
  }
  std::string id = state_id.empty() ? own_id : state_id;
  if (id.empty()) id = base::NewId("pair");
  if (state_id.empty()) {
    NIBBLE_RETURN_IF_ERROR(base::WriteFileAtomically(files, JoinPath(state, kDatabasePairFile), id));
  }
  if (own_id.empty()) {
    NIBBLE_RETURN_IF_ERROR(base::WriteFileAtomically(files, JoinPath(own, kDatabasePairFile), id));
  }
  return absl::OkStatus();
}

}  // namespace nibble::store
