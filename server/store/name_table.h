// Bookkeeping of names that ModelStore and DatasetStore share: who reserves a name and who uses it.
#pragma once
#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "server/base/mutex.h"

namespace nibble::store {

// While a pin exists, the pinned model or dataset cannot be deleted.
class Pin {
 public:
  virtual ~Pin() = default;
};

// The tenant of a holder or of a viewer.
// A holder uses or reserves a name. Its value is the tenant of its job, "" if the job has none, and nullopt if the
// holder is not a job. Callers of other tenants see "a job" instead of the job's id (SECURITY.md).
// A viewer is a caller. Its value is the caller's tenant; "" (no tenant) sees all jobs; nullopt (unknown, as for an
// operation) sees only the jobs without a tenant.
using JobTenant = std::optional<std::string>;

// DataLoss (ARTIFACT_CORRUPT) for a model or dataset that does not match its manifest. `kind`: "model" or "dataset".
absl::Status DamagedError(std::string_view kind, std::string_view name);

// Users and reservations of the names of models, or of datasets. Thread-safe; pins may outlive the store.
class NameTable : public std::enable_shared_from_this<NameTable> {
 public:
  // For example kind "model", reason "MODEL".
  NameTable(std::string kind, std::string reason) : kind_(std::move(kind)), reason_(std::move(reason)) {}

  // AlreadyExists (NAME_TAKEN) names the holder, unless it is a job that `viewer` may not see.
  absl::Status Reserve(std::string_view name, std::string_view owner, const JobTenant& tenant, const JobTenant& viewer);
  // The same AlreadyExists if a job holds the name. Ignores reservations of operations, which may end before the
  // caller's own operation runs and reserves the name.
  absl::Status CheckNotOfAJob(std::string_view name, const JobTenant& viewer) const;
  void Unreserve(std::string_view name, std::string_view owner);

  std::shared_ptr<const Pin> AddPin(std::string_view name, std::string_view user, const JobTenant& tenant);
  // FailedPrecondition (the table's reason with _IN_USE, such as MODEL_IN_USE) names a user, if possible one that a
  // caller of `tenant` ("": no tenant, sees all) may see.
  absl::Status CheckUnused(std::string_view name, const std::string& tenant) const;

  absl::Status CheckEtag(const std::string& etag,
                         const std::optional<std::string>& wanted) const;  // Aborted (ETAG_MISMATCH)

  absl::Status Taken(std::string_view name) const;
  absl::Status NotFound(std::string_view name) const;
  absl::Status Damaged(std::string_view name) const { return DamagedError(kind_, name); }

 private:
  struct Holder {
    std::string who;
    JobTenant tenant;
    auto operator<=>(const Holder&) const = default;
  };
  static bool MaySee(const JobTenant& viewer, const Holder& holder);
  absl::Status Held(std::string_view name, const Holder& holder, const JobTenant& viewer) const;

  const std::string kind_;
  const std::string reason_;
  mutable base::Mutex mutex_;
  std::map<std::string, Holder, std::less<>> owners_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::multiset<Holder>, std::less<>> users_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::store
