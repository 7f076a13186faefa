#pragma once
#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/base/mutex.h"

namespace nibble::store {

// Held by whoever uses something that must not be deleted meanwhile.
class Pin {
 public:
  virtual ~Pin() = default;
};

// Of what uses or reserves a name: the tenant of the job that it is ("" where the job has none); nullopt where it is no job. Who has
// another tenant is told "a job" instead of which (SECURITY.md). Of who asks: its tenant, "" for none, who sees all; nullopt where
// that is not known (an operation), who sees the jobs without a tenant.
using JobTenant = std::optional<std::string>;

// DataLoss (ARTIFACT_CORRUPT) of what is not as it was published; kind "model".
absl::Status DamagedError(std::string_view kind, std::string_view name);

// Who uses and who has reserved which name, for one kind of thing ("model", "dataset"). Thread-safe; pins may outlive the
// store.
class NameTable : public std::enable_shared_from_this<NameTable> {
 public:
  // kind "model", not_found_reason "MODEL".
  NameTable(std::string kind, std::string reason) : kind_(std::move(kind)), reason_(std::move(reason)) {}

  // AlreadyExists (NAME_TAKEN) names who has it, unless that is a job that `viewer` does not see.
  absl::Status Reserve(std::string_view name, std::string_view owner, const JobTenant& tenant, const JobTenant& viewer);
  // AlreadyExists likewise where a job has it. Operations reserve a name when they run, behind each other: theirs is not looked at.
  absl::Status CheckNotOfAJob(std::string_view name, const JobTenant& viewer) const;
  void Unreserve(std::string_view name, std::string_view owner);

  std::shared_ptr<const Pin> AddPin(std::string_view name, std::string_view user, const JobTenant& tenant);
  // FailedPrecondition (MODEL_IN_USE) names a user, one that a caller of `tenant` ("": none, who sees all) may see if there is one.
  absl::Status CheckUnused(std::string_view name, const std::string& tenant) const;

  absl::Status CheckEtag(const std::string& etag, const std::optional<std::string>& wanted) const;  // Aborted (ETAG_MISMATCH)

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
