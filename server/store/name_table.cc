#include "server/store/name_table.h"

#include <functional>
#include <utility>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::store {

using base::StrCat;

namespace {

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

absl::Status NameTable::Reserve(std::string_view name, std::string_view owner) {
  base::MutexLock lock(mutex_);
  const auto [it, added] = owners_.emplace(name, owner);
  if (!added && it->second != owner) {
    return base::WithReason(
        absl::AlreadyExistsError(StrCat("the ", kind_, " name \"", name, "\" is taken by ", it->second, ", which is not done")),
        "NAME_TAKEN", {{"kind", kind_}, {"name", std::string(name)}});
  }
  return absl::OkStatus();
}

void NameTable::Unreserve(std::string_view name, std::string_view owner) {
  base::MutexLock lock(mutex_);
  const auto it = owners_.find(name);
  if (it != owners_.end() && it->second == owner) owners_.erase(it);
}

bool NameTable::ReservedBy(std::string_view name, std::string_view owner) const {
  base::MutexLock lock(mutex_);
  const auto it = owners_.find(name);
  return it != owners_.end() && it->second == owner;
}

std::shared_ptr<const Pin> NameTable::AddPin(std::string_view name, std::string_view user) {
  base::MutexLock lock(mutex_);
  users_[std::string(name)].insert(std::string(user));
  return std::make_shared<CallOnDrop>([table = shared_from_this(), name = std::string(name), user = std::string(user)] {
    base::MutexLock lock(table->mutex_);
    const auto it = table->users_.find(name);
    it->second.erase(it->second.find(user));
    if (it->second.empty()) table->users_.erase(it);
  });
}

absl::Status NameTable::CheckUnused(std::string_view name) const {
  base::MutexLock lock(mutex_);
  const auto it = users_.find(name);
  if (it == users_.end()) return absl::OkStatus();
  return base::WithReason(
      absl::FailedPreconditionError(StrCat("the ", kind_, " \"", name, "\" is in use (", *it->second.begin(), ")")),
      StrCat(reason_, "_IN_USE"), {{"name", std::string(name)}, {"user", *it->second.begin()}});
}

}  // namespace nibble::store
