#pragma once
#include <map>
#include <memory>
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

// Who uses and who has reserved which name, for one kind of thing ("model", "dataset"). Thread-safe; pins may outlive the
// store.
class NameTable : public std::enable_shared_from_this<NameTable> {
 public:
  // kind "model", not_found_reason "MODEL".
  NameTable(std::string kind, std::string reason) : kind_(std::move(kind)), reason_(std::move(reason)) {}

  absl::Status Reserve(std::string_view name, std::string_view owner);  // AlreadyExists (NAME_TAKEN)
  void Unreserve(std::string_view name, std::string_view owner);
  bool ReservedBy(std::string_view name, std::string_view owner) const;

  std::shared_ptr<const Pin> AddPin(std::string_view name, std::string_view user);
  absl::Status CheckUnused(std::string_view name) const;  // FailedPrecondition (MODEL_IN_USE) names a user

  absl::Status Taken(std::string_view name) const;
  absl::Status NotFound(std::string_view name) const;

 private:
  const std::string kind_;
  const std::string reason_;
  mutable base::Mutex mutex_;
  std::map<std::string, std::string, std::less<>> owners_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::multiset<std::string>, std::less<>> users_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::store
