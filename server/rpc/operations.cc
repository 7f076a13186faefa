#include "server/rpc/operations.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/json.h"
#include "server/base/log.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/status.h"
#include "server/rpc/time.h"

namespace nibble::rpc {

namespace longrunning = google::longrunning;

namespace {

constexpr std::uint64_t kMaxFileBytes = 4u << 20;
constexpr absl::Duration kKept = absl::Hours(24);
constexpr char kPrefix[] = "operations/";
// A client that finds the queue full is told to wait no shorter and no longer than this.
constexpr absl::Duration kShortestRetry = absl::Seconds(1);
constexpr absl::Duration kLongestRetry = absl::Hours(1);

}  // namespace

struct OperationTable::Entry {
  OperationLane lane = OperationLane::kModels;
  longrunning::Operation operation;  // by the table's mutex_
  v1::ModelOperationMetadata metadata;  // by the table's mutex_
  RequestOwner owner;
  std::string request_id;  // by the table's mutex_; goes with `held`
  std::string request_digest;
  absl::Time ended;  // by the table's mutex_
  bool holds = false;                // by the table's mutex_; the response names files
  std::shared_ptr<const void> held;  // by the table's mutex_; those files
  absl::Duration kept;               // by the table's mutex_; how long after the end
  absl::Duration held_until;         // by the table's mutex_; monotonic
  base::CancelToken cancel;
  bool cancel_asked = false;               // by the table's mutex_; else it is the deadline that cancelled it
  absl::Duration until = absl::InfiniteDuration();  // by the table's mutex_; monotonic: the deadline of one that runs
  std::map<std::uint64_t, Done> waiting;  // by the table's mutex_
};

class OperationTable::Scope : public OperationScope {
 public:
  Scope(OperationTable& table, Entry& entry, std::string name, absl::Duration until)
      : table_(table), entry_(entry), name_(std::move(name)), until_(until) {}
  void Progress(const std::string& stage, std::int64_t done, std::int64_t total) override {
    base::MutexLock lock(table_.mutex_);
    entry_.metadata.set_stage(stage);
    entry_.metadata.set_done(done);
    entry_.metadata.set_total(total);
    entry_.operation.mutable_metadata()->PackFrom(entry_.metadata);
  }
  bool cancelled() const override { return entry_.cancel.cancelled() || late(); }
  base::CancelToken cancel() const override { return entry_.cancel; }
  OperationIdentity identity() const override { return {name_, entry_.request_digest}; }
  void Hold(std::shared_ptr<const void> handle, absl::Duration kept) override {
    base::MutexLock lock(table_.mutex_);
    entry_.held.swap(handle);  // what was held before goes after the lock
    entry_.kept = kept;
  }
  bool late() const { return table_.clock_.Monotonic() >= until_; }

 private:
  OperationTable& table_;
  Entry& entry_;
  const std::string name_;
  const absl::Duration until_;  // monotonic
};

OperationTable::OperationTable(base::FileSystem& files, base::Clock& clock, std::string directory, absl::Duration deadline)
    : files_(files), clock_(clock), directory_(std::move(directory)), deadline_(deadline) {}

OperationTable::~OperationTable() {
  base::MutexLock lock(mutex_);
  for (auto& [name, entry] : entries_) {
    entry->cancel_asked = true;
    entry->cancel.Cancel();
  }
}

absl::StatusOr<std::unique_ptr<OperationTable>> OperationTable::Open(base::FileSystem& files, base::Clock& clock,
                                                                     const std::string& directory, absl::Duration deadline,
                                                                     const Recover& recover) {
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(directory));
  std::unique_ptr<OperationTable> table(new OperationTable(files, clock, directory, deadline));
  NIBBLE_RETURN_IF_ERROR(table->Load(recover));
  return table;
}

// What is on the disk decides: the model is published by one rename, which may have been the last that the server did.
void OperationTable::EndAfterRestart(Entry& entry, const Recover& recover) {
  const std::string& model = entry.metadata.model();
  absl::StatusOr<std::optional<google::protobuf::Any>> made = std::optional<google::protobuf::Any>();
  if (recover) made = recover({entry.operation.name(), entry.request_digest}, model);
  entry.operation.set_done(true);
  entry.ended = clock_.Now();
  if (made.ok() && made->has_value()) {
    *entry.operation.mutable_response() = **std::move(made);
  } else {
    const std::string what = made.ok() ? "nothing was made"
                                       : base::StrCat("cannot determine whether it had made ", model, ": ", made.status().message());
    *entry.operation.mutable_error() = ToRpcStatus(
        base::WithReason(absl::AbortedError(base::StrCat("the server was stopped while the operation ran; ", what)), "SERVER_RESTARTED"));
  }
  Save(entry);
}

absl::Status OperationTable::Load(const Recover& recover) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(directory_));
  base::MutexLock lock(mutex_);
  for (const std::string& file : names) {
    const std::string path = base::JoinPath(directory_, file);
    const auto text = file.ends_with(".json") ? files_.Read(path, kMaxFileBytes) : absl::StatusOr<std::string>(std::string());
    const auto json = text.ok() ? base::ParseJson(*text) : absl::StatusOr<base::Json>(text.status());
    auto entry = std::make_shared<Entry>();
    std::string bytes;
    bool good = json.ok() && json->is_object();
    if (good) {
      const auto hex = base::GetString(*json, "operation", file);
      const auto ended = base::GetInt(*json, "ended_unix_s", file, 0);
      good = hex.ok() && ended.ok() && entry->operation.ParseFromString(absl::HexStringToBytes(*hex));
      if (good) {
        entry->request_id = base::GetString(*json, "request_id", file, "").value_or("");
        entry->request_digest = base::GetString(*json, "request_digest", file, "").value_or("");
        entry->owner.tenant = base::GetString(*json, "tenant", file, "").value_or("");
        entry->owner.name = base::GetString(*json, "principal", file, kNobody).value_or(kNobody);
        // The files went with the start, which empties uploads/: the id goes too.
        if (base::GetBool(*json, "holds_files", file, false).value_or(false)) entry->request_id.clear();
        entry->ended = absl::FromUnixSeconds(*ended);
        entry->operation.metadata().UnpackTo(&entry->metadata);
      }
    }
    if (!good || (entry->operation.done() && clock_.Now() - entry->ended > kKept)) {
      NIBBLE_RETURN_IF_ERROR(files_.RemoveAll(path));
      continue;
    }
    if (!entry->operation.done()) EndAfterRestart(*entry, recover);
    entries_[entry->operation.name()] = std::move(entry);
  }
  return absl::OkStatus();
}

// A file that cannot be written costs the memory of the operation after a restart, not the operation.
void OperationTable::Save(const Entry& entry) {
  base::Json json = base::Json::object();
  json["request_id"] = entry.request_id;
  json["request_digest"] = entry.request_digest;
  json["tenant"] = entry.owner.tenant;
  json["principal"] = entry.owner.name;
  json["holds_files"] = entry.holds;
  json["ended_unix_s"] = entry.operation.done() ? absl::ToUnixSeconds(entry.ended) : 0;
  json["operation"] = absl::BytesToHexString(entry.operation.SerializeAsString());
  const absl::Status status = base::WriteFileAtomically(files_, PathOf(entry.operation.name()), base::Dump(json));
  if (!status.ok()) base::LogWarning("operation not saved", {{"name", entry.operation.name()}, {"error", status.ToString()}});
}

std::string OperationTable::PathOf(const std::string& name) const {
  return base::JoinPath(directory_, name.substr(sizeof kPrefix - 1) + ".json");
}

std::vector<std::shared_ptr<const void>> OperationTable::TakeOld() {
  std::vector<std::shared_ptr<const void>> dropped;
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = *it->second;
    const bool done = entry.operation.done();
    if (done && clock_.Now() - entry.ended > kKept) {
      if (!files_.RemoveAll(PathOf(it->first)).ok()) base::LogWarning("old operation not removed", {{"name", it->first}});
      dropped.push_back(std::move(entry.held));
      it = entries_.erase(it);
      continue;
    }
    if (done && entry.held != nullptr && clock_.Monotonic() >= entry.held_until) {
      dropped.push_back(std::exchange(entry.held, nullptr));
      entry.request_id.clear();
      Save(entry);
    }
    ++it;
  }
  return dropped;
}

void OperationTable::DropOld() {
  std::vector<std::shared_ptr<const void>> dropped;  // after the lock
  base::MutexLock lock(mutex_);
  dropped = TakeOld();
  const absl::Duration now = clock_.Monotonic();
  for (auto& [name, entry] : entries_) {
    if (!entry->operation.done() && now >= entry->until) entry->cancel.Cancel();
  }
}

std::shared_ptr<const void> OperationTable::DropOldestOf(const RequestOwner& owner) {
  std::size_t ended = 0;
  auto oldest = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->second->owner != owner || !it->second->operation.done()) continue;
    ++ended;
    if (oldest == entries_.end() || it->second->ended < oldest->second->ended) oldest = it;
  }
  if (ended < kMaxEndedOfOwner) return nullptr;
  if (!files_.RemoveAll(PathOf(oldest->first)).ok()) base::LogWarning("old operation not removed", {{"name", oldest->first}});
  std::shared_ptr<const void> held = std::move(oldest->second->held);
  entries_.erase(oldest);
  return held;
}

absl::StatusOr<const OperationTable::Entry*> OperationTable::FindEntry(const OperationStart& start) const {
  if (start.request_id.empty()) return nullptr;
  for (const auto& [name, entry] : entries_) {
    if (entry->request_id != start.request_id || entry->owner != start.owner) continue;
    if (entry->request_digest == start.digest) return entry.get();
    return base::WithReason(absl::AlreadyExistsError("request_id: was used for another request"), "IDEMPOTENCY_CONFLICT",
                            {{"kind", "operation"}, {"name", name}});
  }
  return nullptr;
}

absl::StatusOr<std::optional<longrunning::Operation>> OperationTable::Find(const OperationStart& start) {
  std::vector<std::shared_ptr<const void>> dropped;  // after the lock
  base::MutexLock lock(mutex_);
  dropped = TakeOld();
  NIBBLE_ASSIGN_OR_RETURN(const Entry* const entry, FindEntry(start));
  if (entry == nullptr) return std::optional<longrunning::Operation>();
  return entry->operation;
}

absl::StatusOr<longrunning::Operation> OperationTable::Start(const OperationStart& start, Body body,
                                                             std::optional<google::protobuf::Any> response) {
  NIBBLE_RETURN_IF_ERROR(base::CheckRequestId(start.request_id));
  auto entry = std::make_shared<Entry>();
  std::vector<std::shared_ptr<const void>> dropped;  // after the lock
  base::MutexLock lock(mutex_);
  dropped = TakeOld();
  NIBBLE_ASSIGN_OR_RETURN(const Entry* const known, FindEntry(start));
  if (known != nullptr) return known->operation;
  const auto open = std::count_if(entries_.begin(), entries_.end(), [&](const auto& one) {
    return one.second->owner == start.owner && !one.second->operation.done();
  });
  const auto full = [&](const std::string& message, std::map<std::string, std::string> metadata) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    metadata["retry_ms"] = std::to_string(absl::ToInt64Milliseconds(UntilNextEnd(start.lane)));
    return base::WithReason(absl::ResourceExhaustedError(message), "QUEUE_FULL", metadata);
  };
  if (!response.has_value() && max_of_owner_ > 0 && start.owner.name != kNobody && open >= max_of_owner_) {
    return full(base::StrCat(open, " operations of ", start.owner.name,
                             " have not ended, which is the limit --max_operations_per_principal"),
                {{"flag", "--max_operations_per_principal"}, {"max", std::to_string(max_of_owner_)}});
  }
  entry->lane = start.lane;
  entry->operation.set_name(kPrefix + base::NewId("op"));
  entry->owner = start.owner;
  entry->request_id = start.request_id;
  entry->request_digest = start.digest;
  entry->metadata.set_model(start.model);
  entry->metadata.set_stage("queue");
  *entry->metadata.mutable_create_time() = ToProto(clock_.Now());
  entry->operation.mutable_metadata()->PackFrom(entry->metadata);
  if (response.has_value()) {
    *entry->operation.mutable_response() = *std::move(response);
    entry->operation.set_done(true);
    entry->ended = clock_.Now();
  } else if (!workers_[static_cast<int>(start.lane)].TryRun([this, entry, body = std::move(body)]() mutable {
               Run(entry, std::exchange(body, {}));
             })) {  // it is taken or refused before another request can find it
    return full("too many operations wait already", {});
  }
  dropped.push_back(DropOldestOf(start.owner));
  entries_[entry->operation.name()] = entry;
  Save(*entry);
  return entry->operation;
}

// A place comes free when the one that has run longest ends: the mean of those that ended lately, less what it has run already.
absl::Duration OperationTable::UntilNextEnd(OperationLane lane) const {
  const auto& running = running_since_[static_cast<int>(lane)];
  const absl::Duration run = running.empty() ? absl::ZeroDuration() : clock_.Monotonic() - *running.begin();
  return std::clamp(mean_run_[static_cast<int>(lane)] - run, kShortestRetry, kLongestRetry);
}

void OperationTable::Run(const std::shared_ptr<Entry>& entry, Body body) {
  const auto lane = static_cast<std::size_t>(entry->lane);
  const absl::Duration began = clock_.Monotonic();
  std::string name;
  {
    base::MutexLock lock(mutex_);
    running_since_[lane].insert(began);
    entry->until = began + deadline_;
    name = entry->operation.name();
  }
  Scope scope(*this, *entry, name, began + deadline_);
  absl::StatusOr<google::protobuf::Any> result =
      entry->cancel.cancelled() ? absl::StatusOr<google::protobuf::Any>(absl::CancelledError("cancelled before it began"))
                                : body(scope);
  body = {};  // what it holds goes before anybody hears of the end
  absl::Status status;
  std::map<std::uint64_t, Done> waiting;
  longrunning::Operation operation;
  std::shared_ptr<const void> dropped;  // after the lock
  {
    base::MutexLock lock(mutex_);
    running_since_[lane].erase(running_since_[lane].find(began));
    const absl::Duration run = clock_.Monotonic() - began;
    absl::Duration& mean = mean_run_[lane];
    mean = mean == absl::ZeroDuration() ? run : mean * 0.8 + run * 0.2;  // the last few count most
    // One that came to its end is done, however late it was.
    if (absl::IsCancelled(result.status()) && !entry->cancel_asked && scope.late()) {
      result = absl::DeadlineExceededError(base::StrCat("it ran for longer than ", absl::FormatDuration(deadline_)));
    }
    status = result.status();
    if (status.ok()) {
      *entry->operation.mutable_response() = *std::move(result);
      entry->holds = entry->held != nullptr;
      entry->held_until = clock_.Monotonic() + entry->kept;
    } else {
      dropped.swap(entry->held);
      *entry->operation.mutable_error() = ToRpcStatus(status);
    }
    entry->operation.set_done(true);
    entry->ended = clock_.Now();
    Save(*entry);
    waiting.swap(entry->waiting);
    operation = entry->operation;
  }
  dropped.reset();  // before anyone hears of the end
  base::LogInfo("operation ended", {{"name", operation.name()},
                                    {"model", entry->metadata.model()},
                                    {"code", CodeName(status.code())},
                                    {"error", std::string(status.message())}});
  for (auto& [handle, done] : waiting) done(operation);
}

absl::StatusOr<std::shared_ptr<OperationTable::Entry>> OperationTable::Seen(const std::string& name,
                                                                            const OperationViewer& viewer) const {
  const auto it = entries_.find(name);
  if (it == entries_.end() || (!viewer.tenant.empty() && viewer.tenant != it->second->owner.tenant)) {
    return base::WithReason(absl::NotFoundError(base::StrCat("there is no operation \"", name.substr(0, 128), "\"")),
                            "OPERATION", {{"name", name}});
  }
  return it->second;
}

absl::StatusOr<longrunning::Operation> OperationTable::Get(const std::string& name, const OperationViewer& viewer) const {
  base::MutexLock lock(mutex_);
  NIBBLE_ASSIGN_OR_RETURN(const std::shared_ptr<Entry> entry, Seen(name, viewer));
  return entry->operation;
}

std::vector<longrunning::Operation> OperationTable::List(const OperationViewer& viewer) const {
  base::MutexLock lock(mutex_);
  std::vector<longrunning::Operation> result;
  for (const auto& [name, entry] : entries_) {
    if (viewer.tenant.empty() || viewer.tenant == entry->owner.tenant) result.push_back(entry->operation);
  }
  return result;
}

absl::Status OperationTable::Cancel(const std::string& name, const OperationViewer& viewer) {
  base::MutexLock lock(mutex_);
  NIBBLE_ASSIGN_OR_RETURN(const std::shared_ptr<Entry> entry, Seen(name, viewer));
  if (viewer.only_own.has_value() && *viewer.only_own != entry->owner) {
    return base::WithReason(absl::PermissionDeniedError(base::StrCat(name, " is another's: to cancel it wants the role ",
                                                                     Name(Role::kTrain))),
                            "ROLE", {{"needed", Name(Role::kTrain)}, {"principal", viewer.only_own->name}});
  }
  entry->cancel_asked = true;
  entry->cancel.Cancel();
  return absl::OkStatus();
}

absl::Status OperationTable::Delete(const std::string& name, const OperationViewer& viewer) {
  std::shared_ptr<const void> dropped;  // after the lock; the thread that ran the operation may still hold its entry
  base::MutexLock lock(mutex_);
  NIBBLE_RETURN_IF_ERROR(Seen(name, viewer).status());
  const auto it = entries_.find(name);
  if (!it->second->operation.done()) {
    return base::WithReason(absl::FailedPreconditionError(base::StrCat(name, " has not ended")), "ILLEGAL_STATE", {{"name", name}});
  }
  dropped.swap(it->second->held);
  entries_.erase(it);
  return files_.RemoveAll(PathOf(name));
}

absl::StatusOr<std::uint64_t> OperationTable::OnEnd(const std::string& name, Done done, const OperationViewer& viewer) {
  longrunning::Operation operation;
  {
    base::MutexLock lock(mutex_);
    NIBBLE_ASSIGN_OR_RETURN(const std::shared_ptr<Entry> entry, Seen(name, viewer));
    if (!entry->operation.done()) {
      entry->waiting[next_handle_] = std::move(done);
      return next_handle_++;
    }
    operation = entry->operation;
  }
  done(operation);
  return 0;
}

void OperationTable::ForgetOnEnd(const std::string& name, std::uint64_t handle) {
  Done dropped;  // what it holds may be the last of its owner: it goes after the lock
  base::MutexLock lock(mutex_);
  const auto it = entries_.find(name);
  if (it == entries_.end()) return;
  auto& waiting = it->second->waiting;
  if (const auto wish = waiting.find(handle); wish != waiting.end()) {
    dropped = std::move(wish->second);
    waiting.erase(wish);
  }
}

std::size_t OperationTable::num_waiting() const {
  base::MutexLock lock(mutex_);
  std::size_t waiting = 0;
  for (const auto& [name, entry] : entries_) waiting += entry->waiting.size();
  return waiting;
}

}  // namespace nibble::rpc
