#include "server/operations/operation_index.h"

#include <tuple>
#include <utility>

namespace nibble::operations {

namespace {

bool IsNewer(const OperationEntry& one, const OperationEntry& other) {
  const auto key = [](const OperationEntry& entry) {
    return std::tuple(entry.stored.operation->metadata.created, entry.name());
  };
  return key(one) > key(other);
}

}  // namespace

OperationIndex::ByEnd& OperationIndex::EndsOf(Owner& owner, const OperationEntry& entry) {
  if (entry.stored.done_at_once) return owner.done_at_once;
  return entry.held != nullptr ? owner.with_files : owner.without_files;
}

void OperationIndex::ForgetRequest(Owner& owner, OperationEntry& entry) {
  const auto it = owner.requests.find(entry.stored.request_id);
  if (it != owner.requests.end() && it->second.get() == &entry) owner.requests.erase(it);
  entry.stored.request_id.clear();
}

void OperationIndex::Add(const Entry& entry) {
  all_[entry->name()] = entry;
  tenants_[entry->stored.owner.tenant][entry->name()] = entry;
  Owner& owner = owners_[entry->stored.owner];
  ++owner.num_open;
  if (!entry->stored.request_id.empty()) {
    Entry& known = owner.requests[entry->stored.request_id];
    if (known == nullptr || IsNewer(*entry, *known)) {
      if (known != nullptr) known->stored.request_id.clear();
      known = entry;
    } else {
      entry->stored.request_id.clear();
    }
  }
  if (entry->done()) Ended(entry);
}

void OperationIndex::Ended(const Entry& entry) {
  Owner& owner = owners_[entry->stored.owner];
  --owner.num_open;
  EndsOf(owner, *entry).emplace(entry->stored.ended, entry->name());
  ended_.emplace(entry->stored.ended, entry->name());
  if (entry->held != nullptr) files_.emplace(entry->held_until, entry->name());
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): a reference could be an element of a table that this changes.
void OperationIndex::Remove(Entry entry) {
  const auto owner = owners_.find(entry->stored.owner);
  if (entry->done()) {
    EndsOf(owner->second, *entry).erase({entry->stored.ended, entry->name()});
    ended_.erase({entry->stored.ended, entry->name()});
    files_.erase({entry->held_until, entry->name()});
  } else {
    --owner->second.num_open;
  }
  ForgetRequest(owner->second, *entry);
  if (owner->second.empty()) owners_.erase(owner);
  const auto tenant = tenants_.find(entry->stored.owner.tenant);
  tenant->second.erase(entry->name());
  if (tenant->second.empty()) tenants_.erase(tenant);
  all_.erase(entry->name());
}

std::shared_ptr<const void> OperationIndex::TakeFiles(OperationEntry& entry) {
  Owner& owner = owners_[entry.stored.owner];
  EndsOf(owner, entry).erase({entry.stored.ended, entry.name()});
  files_.erase({entry.held_until, entry.name()});
  ForgetRequest(owner, entry);
  std::shared_ptr<const void> held = std::exchange(entry.held, nullptr);
  EndsOf(owner, entry).emplace(entry.stored.ended, entry.name());
  return held;
}

OperationIndex::Entry OperationIndex::Find(const std::string& name) const {
  const auto it = all_.find(name);
  return it == all_.end() ? nullptr : it->second;
}

OperationIndex::Entry OperationIndex::FindRequest(const auth::RequestOwner& owner,
                                                  const std::string& request_id) const {
  const auto it = owners_.find(owner);
  if (it == owners_.end()) return nullptr;
  const auto request = it->second.requests.find(request_id);
  return request == it->second.requests.end() ? nullptr : request->second;
}

const OperationIndex::Names& OperationIndex::OfTenant(const std::string& tenant) const {
  static const Names none;
  if (tenant.empty()) return all_;
  const auto it = tenants_.find(tenant);
  return it == tenants_.end() ? none : it->second;
}

std::int64_t OperationIndex::num_open(const auth::RequestOwner& owner) const {
  const auto it = owners_.find(owner);
  return it == owners_.end() ? 0 : it->second.num_open;
}

OperationIndex::Entry OperationIndex::Surplus(const auth::RequestOwner& owner, bool done_at_once) const {
  const auto it = owners_.find(owner);
  if (it == owners_.end()) return nullptr;
  const auto& [num_open, requests, without_files, with_files, at_once] = it->second;
  if (done_at_once) return at_once.size() < kMaxDoneAtOnceOfOwner ? nullptr : Find(at_once.begin()->second);
  if (without_files.size() + with_files.size() < kMaxEndedOfOwner) return nullptr;
  return Find((without_files.empty() ? with_files : without_files).begin()->second);
}

OperationIndex::Entry OperationIndex::EndedBefore(absl::Time time) const {
  return ended_.empty() || ended_.begin()->first >= time ? nullptr : Find(ended_.begin()->second);
}

OperationIndex::Entry OperationIndex::WithFilesDue(absl::Duration now) const {
  return files_.empty() || files_.begin()->first > now ? nullptr : Find(files_.begin()->second);
}

}  // namespace nibble::operations
