#include "server/store/name_table.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::store {

using base::StrCat;

namespace {

constexpr char kSomeJob[] = "a job";

class CallOnDrop : public Pin {
 public:
  explicit CallOnDrop(std::function<void()> call) : call_(std::move(call)) {}
  ~CallOnDrop() override { call_(); }

 private:
  std::function<void()> call_;
};

}  // namespace

absl::Status NameTable::Taken(std::string_view name) const {
  return base::WithReason(absl::AlreadyExistsError(StrCat("there is a ", kind_, " named \"", name, "\" already")),
                          "NAME_TAKEN", {{"kind", kind_}, {"name", std::string(name)}});
}

absl::Status NameTable::NotFound(std::string_view name) const {
  return base::WithReason(absl::NotFoundError(StrCat("there is no ", kind_, " named \"", name, "\"")), reason_,
                          {{"name", std::string(name)}});
}

absl::Status DamagedError(std::string_view kind, std::string_view name) {
  return base::WithReason(
      absl::DataLossError(StrCat(kind, " \"", name, "\" is damaged: its files do not match its manifest")),
      "ARTIFACT_CORRUPT", {{std::string(kind), std::string(name)}});
}

bool NameTable::MaySee(const JobTenant& viewer, const Holder& holder) {
  if (!holder.tenant.has_value()) return true;
  return viewer.has_value() ? viewer->empty() || *viewer == *holder.tenant : holder.tenant->empty();
}

absl::Status NameTable::CheckEtag(const std::string& etag, const std::optional<std::string>& wanted) const {
  if (!wanted.has_value() || *wanted == etag) return absl::OkStatus();
  return base::WithReason(absl::AbortedError(StrCat("etag: the ", kind_, " has ", etag)), "ETAG_MISMATCH",
                          {{"etag", etag}});
}

absl::Status NameTable::Held(std::string_view name, const Holder& holder, const JobTenant& viewer) const {
  const std::string who = MaySee(viewer, holder) ? holder.who : kSomeJob;
  return base::WithReason(absl::AlreadyExistsError(StrCat("the ", kind_, " name \"", name, "\" is taken by ", who,
                                                          ", which is not finished")),
                          "NAME_TAKEN", {{"kind", kind_}, {"name", std::string(name)}});
}

absl::Status NameTable::Reserve(std::string_view name, std::string_view owner, const JobTenant& tenant,
                                const JobTenant& viewer) {
  base::MutexLock lock(mutex_);
  const auto [it, added] = owners_.emplace(name, Holder{std::string(owner), tenant});
  return added || it->second.who == owner ? absl::OkStatus() : Held(name, it->second, viewer);
}

absl::Status NameTable::CheckNotOfAJob(std::string_view name, const JobTenant& viewer) const {
  base::MutexLock lock(mutex_);
  const auto it = owners_.find(name);
  return it == owners_.end() || !it->second.tenant.has_value() ? absl::OkStatus() : Held(name, it->second, viewer);
}

void NameTable::Unreserve(std::string_view name, std::string_view owner) {
  base::MutexLock lock(mutex_);
  const auto it = owners_.find(name);
  if (it != owners_.end() && it->second.who == owner) owners_.erase(it);
}

std::shared_ptr<const Pin> NameTable::AddPin(std::string_view name, std::string_view user, const JobTenant& tenant) {
  base::MutexLock lock(mutex_);
  const Holder holder{std::string(user), tenant};
  users_[std::string(name)].insert(holder);
  return std::make_shared<CallOnDrop>([table = shared_from_this(), name = std::string(name), holder] {
    base::MutexLock lock(table->mutex_);
    const auto it = table->users_.find(name);
    it->second.erase(it->second.find(holder));
    if (it->second.empty()) table->users_.erase(it);
  });
}

absl::Status NameTable::CheckUnused(std::string_view name, const std::string& tenant) const {
  base::MutexLock lock(mutex_);
  const auto it = users_.find(name);
  if (it == users_.end()) return absl::OkStatus();
  const std::multiset<Holder>& users = it->second;
  const auto known = std::find_if(users.begin(), users.end(), [&](const Holder& one) { return MaySee(tenant, one); });
  const std::string user = known == users.end() ? kSomeJob : known->who;
  return base::WithReason(
      absl::FailedPreconditionError(StrCat("the ", kind_, " \"", name, "\" is in use (", user, ")")),
      StrCat(reason_, "_IN_USE"), {{"name", std::string(name)}, {"user", user}});
}

}  // namespace nibble::store
