// The operations of a table by name, tenant, request id and time of their end, so that no call walks over all of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "nibble/v1/model_service.pb.h"
#include "server/base/cancel_token.h"
#include "server/rpc/operation_record.h"
#include "server/rpc/operation_scope.h"

namespace nibble::rpc {

// Operations of one lane wait for each other. Imports, conversions and exports are heavy and run one at a time; verifications and
// publications of checkpoints read whole models; plans tokenise; loads wait for the threads of ModelLoads.
enum class OperationLane { kModels, kReaders, kPlans, kLoads };

// In this order. Only one thread writes the record of an operation at a time: the one that moved it to kBeginning or kEnding.
enum class OperationState {
  kBeginning,  // its beginning is being recorded; until then only a repeated request finds it, and waits
  kQueued,
  kRunning,
  kEnding,  // its end is being recorded
  kDone,
};

// All but `cancel` by the mutex of the table.
struct OperationEntry {
  OperationRecord record;
  OperationLane lane = OperationLane::kModels;
  OperationState state = OperationState::kBeginning;
  nibble::v1::ModelOperationMetadata metadata;
  std::function<absl::StatusOr<google::protobuf::Any>(OperationScope&)> body;  // while it is queued
  base::CancelToken cancel;
  bool cancel_asked = false;                        // by a caller; otherwise the deadline or the end of the server cancelled it
  absl::Duration began;                             // monotonic; of one that runs
  absl::Duration until = absl::InfiniteDuration();  // monotonic; the deadline of one that runs
  std::shared_ptr<const void> held;                 // the files that the response names
  absl::Duration kept;                              // how long after the end
  absl::Duration held_until;                        // monotonic
  std::map<std::uint64_t, std::function<void(const google::longrunning::Operation&)>> waiting;

  const std::string& name() const { return record.operation->name(); }
  bool done() const { return state == OperationState::kDone; }
};

// Thread-compatible.
class OperationIndex {
 public:
  using Entry = std::shared_ptr<OperationEntry>;
  using Names = std::map<std::string, Entry>;
  // Operations of one owner that have ended and are kept: those with something to run, and those that were done at once.
  static constexpr std::size_t kMaxEndedOfOwner = 1000;
  static constexpr std::size_t kMaxDoneAtOnceOfOwner = 100;

  // Where two have the same request id, as after a crash before the older one's file was removed, it becomes that of the newer one.
  void Add(const Entry& entry);
  // Its state has become kDone, and what it holds does not change any more but by TakeFiles.
  void Ended(const Entry& entry);
  void Remove(Entry entry);
  // The files of an operation that has ended, and its request id goes with them.
  std::shared_ptr<const void> TakeFiles(OperationEntry& entry);

  // This and the functions below return nullptr when no operation matches.
  Entry Find(const std::string& name) const;
  Entry FindRequest(const RequestOwner& owner, const std::string& request_id) const;
  // By name. "": of all tenants.
  const Names& OfTenant(const std::string& tenant) const;
  std::int64_t num_open(const RequestOwner& owner) const;  // that have not ended
  // The operation to forget before one more of the kind is added: the oldest that has ended, preferably one without files.
  Entry Surplus(const RequestOwner& owner, bool done_at_once) const;
  Entry EndedBefore(absl::Time time) const;
  Entry WithFilesDue(absl::Duration now) const;  // monotonic

 private:
  using ByEnd = std::set<std::pair<absl::Time, std::string>>;
  struct Owner {
    std::int64_t num_open = 0;
    std::map<std::string, Entry> requests;
    ByEnd without_files, with_files, done_at_once;  // that have ended
    bool empty() const {
      return num_open == 0 && requests.empty() && without_files.empty() && with_files.empty() && done_at_once.empty();
    }
  };
  static ByEnd& EndsOf(Owner& owner, const OperationEntry& entry);
  static void ForgetRequest(Owner& owner, OperationEntry& entry);

  Names all_;
  std::map<std::string, Names> tenants_;
  std::map<RequestOwner, Owner> owners_;
  ByEnd ended_;
  std::set<std::pair<absl::Duration, std::string>> files_;  // by held_until
};

}  // namespace nibble::rpc
