// The operations of a table by name, tenant, request id and time of their end, so that no call of the API walks over
// all of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "server/base/cancel_token.h"
#include "server/operations/stored_operation.h"
#include "server/registry/operation_scope.h"

namespace nibble::operations {

// Operations of one lane wait for the lane's workers (OperationTable::kWidths).
//   kModels   imports, conversions and exports, which are heavy and run one at a time
//   kReaders  verifications and publications of checkpoints, which read whole models
//   kPlans    plans, which tokenize
//   kLoads    loads, which wait for the threads of serve::ModelLoads
enum class OperationLane { kModels, kReaders, kPlans, kLoads };

// The states of an operation, in the order in which it passes them. While an operation is kBeginning or kEnding, only
// the thread that begins or ends it writes its file.
enum class OperationState {
  kBeginning,  // its beginning is being recorded; only a repeated request finds it, and waits
  kQueued,
  kRunning,
  kEnding,  // its end is being recorded
  kDone,
};

// The table's mutex guards all members except `cancel`.
struct OperationEntry {
  StoredOperation stored;
  OperationLane lane = OperationLane::kModels;
  OperationState state = OperationState::kBeginning;
  std::function<absl::StatusOr<OperationResponse>(registry::OperationScope&)> body;  // set while queued
  base::CancelToken cancel;
  bool cancel_asked = false;                        // a caller has cancelled it, not only the deadline or a shutdown
  absl::Duration began;                             // monotonic; set while running
  absl::Duration until = absl::InfiniteDuration();  // monotonic; deadline while running
  std::shared_ptr<const void> held;                 // owns the files that the response names
  absl::Duration kept;                              // how long `held` is kept after the end
  absl::Duration held_until;                        // monotonic
  std::map<std::uint64_t, std::function<void(const Operation&)>> waiting;

  const std::string& name() const { return stored.operation->name; }
  bool done() const { return state == OperationState::kDone; }
};

// Thread-compatible.
class OperationIndex {
 public:
  using Entry = std::shared_ptr<OperationEntry>;
  using Names = std::map<std::string, Entry>;
  // Limits of the ended operations that are kept for one owner: those that ran, and those that were done at once.
  static constexpr std::size_t kMaxEndedOfOwner = 1000;
  static constexpr std::size_t kMaxDoneAtOnceOfOwner = 100;

  // If two operations have the same request id, the newer one keeps it. This happens after a crash before the older
  // one's file was removed.
  void Add(const Entry& entry);
  // Call this when the state has become kDone. Afterwards only TakeFiles may change what the operation holds.
  void Ended(const Entry& entry);
  void Remove(Entry entry);
  // Takes the files from an ended operation and forgets its request id.
  std::shared_ptr<const void> TakeFiles(OperationEntry& entry);

  // The functions that return an Entry return nullptr when no operation matches.
  Entry Find(const std::string& name) const;
  Entry FindRequest(const auth::RequestOwner& owner, const std::string& request_id) const;
  // Sorted by name. "": operations of all tenants.
  const Names& OfTenant(const std::string& tenant) const;
  std::int64_t num_open(const auth::RequestOwner& owner) const;  // operations that have not ended
  // The operation to forget before another of the kind (`done_at_once`) is added: the oldest ended one, preferably
  // without files. nullptr below the limit.
  Entry Surplus(const auth::RequestOwner& owner, bool done_at_once) const;
  Entry EndedBefore(absl::Time time) const;
  Entry WithFilesDue(absl::Duration now) const;  // whose files have expired; `now` is monotonic

 private:
  using ByEnd = std::set<std::pair<absl::Time, std::string>>;
  struct Owner {
    std::int64_t num_open = 0;
    std::map<std::string, Entry> requests;
    ByEnd without_files, with_files, done_at_once;  // ended operations
    bool empty() const {
      return num_open == 0 && requests.empty() && without_files.empty() && with_files.empty() && done_at_once.empty();
    }
  };
  static ByEnd& EndsOf(Owner& owner, const OperationEntry& entry);
  static void ForgetRequest(Owner& owner, OperationEntry& entry);

  Names all_;
  std::map<std::string, Names> tenants_;
  std::map<auth::RequestOwner, Owner> owners_;
  ByEnd ended_;
  std::set<std::pair<absl::Duration, std::string>> files_;  // by held_until
};

}  // namespace nibble::operations
