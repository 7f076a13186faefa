#include "server/operations/operation_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::operations {

namespace {

constexpr std::uint64_t kMaxFileBytes = 4u << 20;
constexpr absl::Duration kKept = absl::Hours(24);
constexpr char kPrefix[] = "operations/";
// Limits of the retry time that a client gets when the queue is full.
constexpr absl::Duration kShortestRetry = absl::Seconds(1);
constexpr absl::Duration kLongestRetry = absl::Hours(1);

std::size_t IndexOf(OperationLane lane) { return static_cast<std::size_t>(lane); }

absl::Status CutOff(const std::string& what) {
  return base::WithReason(absl::AbortedError(base::StrCat("the server was stopped before the operation ended; ", what)),
                          "SERVER_RESTARTED");
}

// A copy of the stored operation, changed by `change`.
template <typename Change>
std::shared_ptr<const Operation> Changed(const StoredOperation& stored, Change change) {
  auto operation = std::make_shared<Operation>(*stored.operation);
  change(*operation);
  return operation;
}

}  // namespace

class OperationTable::Scope : public registry::OperationScope {
 public:
  Scope(OperationTable& table, OperationEntry& entry)
      : table_(table), entry_(entry), name_(entry.name()), digest_(entry.stored.request_digest), until_(entry.until) {}
  void Progress(const std::string& stage, std::int64_t done, std::int64_t total) override {
    base::MutexLock lock(table_.mutex_);
    entry_.stored.operation = Changed(entry_.stored, [&](Operation& operation) {
      operation.metadata.stage = stage;
      operation.metadata.done = done;
      operation.metadata.total = total;
    });
  }
  bool cancelled() const override { return entry_.cancel.cancelled() || table_.clock_.Monotonic() >= until_; }
  base::CancelToken cancel() const override { return entry_.cancel; }
  registry::OperationIdentity identity() const override { return {name_, digest_}; }
  void Hold(std::shared_ptr<const void> handle, absl::Duration kept) override {
    base::MutexLock lock(table_.mutex_);
    entry_.held.swap(handle);  // the previous handle is destroyed after the lock is released
    entry_.kept = kept;
  }

 private:
  OperationTable& table_;
  OperationEntry& entry_;
  const std::string name_;
  const std::string digest_;
  const absl::Duration until_;  // monotonic
};

// Files of forgotten operations. The destructor removes the files. Declare a Garbage before the lock, so that the mutex
// is free while files are removed.
class OperationTable::Garbage {
 public:
  explicit Garbage(OperationTable& table) : table_(table) {}
  ~Garbage() {
    held_.clear();
    for (const std::string& name : forgotten_) {
      const absl::Status removed = table_.files_.RemoveAll(table_.PathOf(name));
      if (!removed.ok()) base::LogWarning("old operation not removed", {{"name", name}, {"error", removed.ToString()}});
    }
  }
  Garbage(const Garbage&) = delete;
  Garbage& operator=(const Garbage&) = delete;

  void AddRecord(const std::string& name) { forgotten_.push_back(name); }
  void AddFiles(std::shared_ptr<const void> held) { held_.push_back(std::move(held)); }

 private:
  OperationTable& table_;
  std::vector<std::string> forgotten_;
  std::vector<std::shared_ptr<const void>> held_;
};

OperationTable::OperationTable(base::FileSystem& files, base::Clock& clock, std::string directory,
                               absl::Duration deadline)
    : files_(files), clock_(clock), directory_(std::move(directory)), deadline_(deadline) {}

OperationTable::~OperationTable() {
  std::vector<Entry> queued;
  {
    base::MutexLock lock(mutex_);
    stopping_ = true;
    for (Lane& lane : lanes_) {
      for (const Entry& entry : lane.running) entry->cancel.Cancel();
      for (const Entry& entry : lane.queue) entry->state = OperationState::kEnding;
      queued.insert(queued.end(), lane.queue.begin(), lane.queue.end());
      lane.queue.clear();
    }
  }
  for (const Entry& entry : queued) {
    entry->body = {};
    End(entry, absl::CancelledError("cancelled before the operation began"));
  }
}

absl::StatusOr<std::unique_ptr<OperationTable>> OperationTable::Open(base::FileSystem& files, base::Clock& clock,
                                                                     const std::string& directory,
                                                                     absl::Duration deadline, const Recover& recover,
                                                                     const OperationParser& parse_v1) {
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(directory));
  std::unique_ptr<OperationTable> table(new OperationTable(files, clock, directory, deadline));
  NIBBLE_RETURN_IF_ERROR(table->Load(recover, parse_v1));
  return table;
}

// The disk decides whether the operation succeeded: one rename publishes the model, and may have been the server's last
// act.
void OperationTable::EndAfterRestart(OperationEntry& entry, const Recover& recover) {
  const std::string model = entry.stored.operation->metadata.model;
  absl::StatusOr<std::optional<OperationResponse>> made = std::optional<OperationResponse>();
  if (recover) made = recover({entry.name(), entry.stored.request_digest}, model);
  entry.stored.operation = Changed(entry.stored, [&](Operation& operation) {
    operation.done = true;
    if (made.ok() && made->has_value()) {
      operation.response = *std::move(made);
    } else {
      operation.error = CutOff(
          made.ok() ? "nothing was made"
                    : base::StrCat("cannot determine whether it had made ", model, ": ", made.status().message()));
    }
  });
  entry.stored.ended = clock_.Now();
  Save(entry.stored);
}

absl::Status OperationTable::Load(const Recover& recover, const OperationParser& parse_v1) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(directory_));
  for (const std::string& file : names) {
    const std::string path = base::JoinPath(directory_, file);
    const auto text =
        file.ends_with(".json") ? files_.Read(path, kMaxFileBytes) : absl::StatusOr<std::string>(std::string());
    auto stored =
        text.ok() ? ParseStoredOperation(*text, file, parse_v1) : absl::StatusOr<StoredOperation>(text.status());
    if (!stored.ok() || (stored->operation->done && clock_.Now() - stored->ended > kKept)) {
      NIBBLE_RETURN_IF_ERROR(files_.RemoveAll(path));
      continue;
    }
    const auto entry = std::make_shared<OperationEntry>();
    entry->stored = *std::move(stored);
    // The files are gone, because a start empties uploads/. Forget the request id, so that a repeated request makes new
    // files.
    if (entry->stored.holds_files) entry->stored.request_id.clear();
    if (!entry->stored.operation->done) EndAfterRestart(*entry, recover);
    entry->state = OperationState::kDone;
    base::MutexLock lock(mutex_);
    index_.Add(entry);
  }
  return absl::OkStatus();
}

// A write error is only logged: the operation continues, but is forgotten at a restart.
void OperationTable::Save(const StoredOperation& stored) {
  const std::string& name = stored.operation->name;
  const absl::Status status = base::WriteFileAtomically(files_, PathOf(name), Serialized(stored));
  if (!status.ok()) base::LogWarning("operation not saved", {{"name", name}, {"error", status.ToString()}});
}

std::string OperationTable::PathOf(const std::string& name) const {
  return base::JoinPath(directory_, name.substr(sizeof kPrefix - 1) + ".json");
}

void OperationTable::Forget(const Entry& entry, Garbage& garbage) {
  garbage.AddRecord(entry->name());
  index_.Remove(entry);
  garbage.AddFiles(std::move(entry->held));  // the thread that ran the operation may still hold the entry
}

void OperationTable::TakeOld(Garbage& garbage) {
  while (const Entry entry = index_.EndedBefore(clock_.Now() - kKept)) Forget(entry, garbage);
  // A restart forgets these request ids too, so this need not be recorded.
  while (const Entry entry = index_.WithFilesDue(clock_.Monotonic())) garbage.AddFiles(index_.TakeFiles(*entry));
}

void OperationTable::DropOld() {
  Garbage garbage(*this);
  base::MutexLock lock(mutex_);
  TakeOld(garbage);
  const absl::Duration now = clock_.Monotonic();
  for (Lane& lane : lanes_) {
    for (const Entry& entry : lane.running) {
      if (now >= entry->until) entry->cancel.Cancel();
    }
  }
}

absl::StatusOr<OperationTable::Entry> OperationTable::FindRequest(const OperationStart& start, base::MutexLock& lock) {
  if (start.request_id.empty()) return nullptr;
  Entry entry = index_.FindRequest(start.owner, start.request_id);
  if (entry == nullptr) return nullptr;
  if (entry->stored.request_digest != start.digest) {
    return base::WithReason(absl::AlreadyExistsError("request_id: was used for another request"),
                            "IDEMPOTENCY_CONFLICT", {{"kind", "operation"}, {"name", entry->name()}});
  }
  recorded_.Wait(lock, [&] { return entry->state != OperationState::kBeginning; });
  return entry;
}

absl::StatusOr<std::optional<Operation>> OperationTable::Find(const OperationStart& start) {
  Garbage garbage(*this);
  base::MutexLock lock(mutex_);
  TakeOld(garbage);
  NIBBLE_ASSIGN_OR_RETURN(const Entry entry, FindRequest(start, lock));
  if (entry == nullptr) return std::optional<Operation>();
  return *entry->stored.operation;
}

absl::StatusOr<Operation> OperationTable::Start(const OperationStart& start, Body body,
                                                std::optional<OperationResponse> response) {
  NIBBLE_RETURN_IF_ERROR(base::CheckRequestId(start.request_id));
  Garbage garbage(*this);
  base::MutexLock lock(mutex_);
  TakeOld(garbage);
  NIBBLE_ASSIGN_OR_RETURN(const Entry known, FindRequest(start, lock));
  if (known != nullptr) return *known->stored.operation;
  const auto full = [&](const std::string& message, std::map<std::string, std::string> metadata)
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                          metadata["retry_ms"] = std::to_string(absl::ToInt64Milliseconds(UntilNextEnd(start.lane)));
                          return base::WithReason(absl::ResourceExhaustedError(message), "QUEUE_FULL", metadata);
                        };
  const std::int64_t open = index_.num_open(start.owner);
  if (!response.has_value() && max_of_owner_ > 0 && start.owner.name != base::kUnnamedCaller && open >= max_of_owner_) {
    return full(base::StrCat(start.owner.name, " already has ", open,
                             " unfinished operations, the limit of --max_operations_per_principal"),
                {{"flag", "--max_operations_per_principal"}, {"max", std::to_string(max_of_owner_)}});
  }
  Lane& lane = lanes_[IndexOf(start.lane)];
  if (!response.has_value() && lane.queue.size() + lane.num_beginning >= kMaxWaiting) {
    return full("too many operations are waiting", {});
  }
  while (const Entry surplus = index_.Surplus(start.owner, response.has_value())) Forget(surplus, garbage);
  const auto entry = std::make_shared<OperationEntry>();
  entry->lane = start.lane;
  auto operation = std::make_shared<Operation>();
  operation->name = kPrefix + base::NewId("op");
  operation->metadata = {.model = start.model, .kind = start.kind, .stage = "queue", .created = clock_.Now()};
  if (response.has_value()) {
    operation->response = std::move(response);
    operation->done = true;
    entry->stored.ended = clock_.Now();
    entry->stored.done_at_once = true;
  } else {
    entry->body = std::move(body);
    ++lane.num_beginning;
  }
  entry->stored.operation = std::move(operation);
  entry->stored.owner = start.owner;
  entry->stored.request_id = start.request_id;
  entry->stored.request_digest = start.digest;
  index_.Add(entry);
  const StoredOperation stored = entry->stored;
  lock.Unlock();
  Save(stored);
  lock.Lock();
  if (stored.done_at_once) {
    entry->state = OperationState::kDone;
    index_.Ended(entry);
  } else {
    --lane.num_beginning;
    Enqueue(entry);
  }
  recorded_.NotifyAll();
  return *stored.operation;
}

void OperationTable::Enqueue(const Entry& entry) {
  const std::size_t index = IndexOf(entry->lane);
  Lane& lane = lanes_[index];
  entry->state = OperationState::kQueued;
  lane.queue.push_back(entry);
  if (lane.num_busy == kWidths[index]) return;
  ++lane.num_busy;
  workers_[index].Run([this, index] { RunLane(index); });
}

// Estimates when the operation that has run longest will end: the mean run time of recent operations, less the time it
// has already run.
absl::Duration OperationTable::UntilNextEnd(OperationLane lane) const {
  const Lane& one = lanes_[IndexOf(lane)];
  const absl::Duration now = clock_.Monotonic();
  absl::Duration began = now;
  for (const Entry& entry : one.running) began = std::min(began, entry->began);
  return std::clamp(one.mean_run - (now - began), kShortestRetry, kLongestRetry);
}

absl::Duration OperationTable::RetryAfter(OperationLane lane) const {
  base::MutexLock lock(mutex_);
  return UntilNextEnd(lane);
}

std::deque<OperationTable::Entry>::iterator OperationTable::NextOf(Lane& lane, int width) {
  const auto num_running = [&lane](const Entry& entry) {
    return std::count_if(lane.running.begin(), lane.running.end(),
                         [&entry](const Entry& running) { return running->stored.owner == entry->stored.owner; });
  };
  const auto next = std::min_element(lane.queue.begin(), lane.queue.end(),
                                     [&](const Entry& a, const Entry& b) { return num_running(a) < num_running(b); });
  if (next == lane.queue.end() || (*next)->stored.owner.name == base::kUnnamedCaller) return next;
  return num_running(*next) < std::max(1, width - 1) ? next : lane.queue.end();
}

void OperationTable::RunLane(std::size_t index) {
  while (true) {
    Entry entry;
    Body body;
    std::optional<Scope> scope;
    const absl::Duration began = clock_.Monotonic();
    {
      base::MutexLock lock(mutex_);
      Lane& lane = lanes_[index];
      const auto next = NextOf(lane, kWidths[index]);
      if (next == lane.queue.end()) {
        --lane.num_busy;
        return;
      }
      entry = std::move(*next);
      lane.queue.erase(next);
      lane.running.push_back(entry);
      entry->state = OperationState::kRunning;
      entry->began = began;
      entry->until = began + deadline_;
      body.swap(entry->body);
      scope.emplace(*this, *entry);
    }
    absl::StatusOr<OperationResponse> result = body(*scope);
    body = {};  // releases what it holds before callers see the end
    {
      base::MutexLock lock(mutex_);
      Lane& lane = lanes_[index];
      std::erase(lane.running, entry);
      const absl::Duration run = clock_.Monotonic() - began;
      // Recent runs count most.
      lane.mean_run = lane.mean_run == absl::ZeroDuration() ? run : lane.mean_run * 0.8 + run * 0.2;
    }
    End(entry, std::move(result));
  }
}

void OperationTable::End(const Entry& entry, absl::StatusOr<OperationResponse> result) {
  StoredOperation stored;
  std::shared_ptr<const void> dropped;
  {
    base::MutexLock lock(mutex_);
    // An operation that completed is done, even after its deadline.
    if (absl::IsCancelled(result.status()) && !entry->cancel_asked) {
      if (clock_.Monotonic() >= entry->until) {
        result = absl::DeadlineExceededError(
            base::StrCat("the operation ran longer than ", absl::FormatDuration(deadline_)));
      } else if (stopping_) {
        result = CutOff("nothing was made");
      }
    }
    entry->state = OperationState::kEnding;
    if (!result.ok()) dropped.swap(entry->held);
    stored = entry->stored;
    stored.ended = clock_.Now();
    stored.holds_files = entry->held != nullptr;
  }
  const absl::Status status = result.status();
  stored.operation = Changed(stored, [&](Operation& operation) {
    operation.done = true;
    if (status.ok()) {
      operation.metadata.done = operation.metadata.total;
      operation.response = *std::move(result);
    } else {
      operation.error = status;
    }
  });
  dropped.reset();  // before callers see the end
  Save(stored);
  std::map<std::uint64_t, Done> waiting;
  {
    base::MutexLock lock(mutex_);
    entry->stored = stored;
    entry->held_until = clock_.Monotonic() + entry->kept;
    entry->state = OperationState::kDone;
    index_.Ended(entry);
    waiting.swap(entry->waiting);
  }
  base::LogInfo("operation ended", {{"name", stored.operation->name},
                                    {"model", stored.operation->metadata.model},
                                    {"code", absl::StatusCodeToString(status.code())},
                                    {"error", std::string(status.message())}});
  for (auto& [handle, done] : waiting) done(*stored.operation);
}

absl::StatusOr<OperationTable::Entry> OperationTable::Seen(const std::string& name,
                                                           const OperationViewer& viewer) const {
  Entry entry = index_.Find(name);
  const bool seen = entry != nullptr && entry->state != OperationState::kBeginning &&
                    (viewer.tenant.empty() || viewer.tenant == entry->stored.owner.tenant);
  if (seen) return entry;
  return base::WithReason(absl::NotFoundError(base::StrCat("there is no operation \"", name.substr(0, 128), "\"")),
                          "OPERATION", {{"name", name}});
}

absl::StatusOr<Operation> OperationTable::Get(const std::string& name, const OperationViewer& viewer) const {
  Snapshot operation;
  {
    base::MutexLock lock(mutex_);
    NIBBLE_ASSIGN_OR_RETURN(const Entry entry, Seen(name, viewer));
    operation = entry->stored.operation;
  }
  return *operation;
}

std::vector<OperationTable::Snapshot> OperationTable::List(const OperationViewer& viewer, const std::string& after,
                                                           std::size_t max) const {
  std::vector<Snapshot> result;
  base::MutexLock lock(mutex_);
  const OperationIndex::Names& names = index_.OfTenant(viewer.tenant);
  for (auto it = names.upper_bound(after); it != names.end() && result.size() < max; ++it) {
    if (it->second->state != OperationState::kBeginning) result.push_back(it->second->stored.operation);
  }
  return result;
}

absl::Status OperationTable::Cancel(const std::string& name, const OperationViewer& viewer) {
  base::MutexLock lock(mutex_);
  NIBBLE_ASSIGN_OR_RETURN(const Entry entry, Seen(name, viewer));
  if (viewer.only_own.has_value() && *viewer.only_own != entry->stored.owner) {
    return base::WithReason(
        absl::PermissionDeniedError(base::StrCat(name, " belongs to another caller: cancelling it requires the role ",
                                                 Name(auth::Role::kTrain))),
        "ROLE", {{"needed", Name(auth::Role::kTrain)}, {"principal", viewer.only_own->name}});
  }
  entry->cancel_asked = true;
  entry->cancel.Cancel();
  if (entry->state != OperationState::kQueued) return absl::OkStatus();
  entry->state = OperationState::kEnding;
  std::erase(lanes_[IndexOf(entry->lane)].queue, entry);
  enders_.Run([this, entry, body = std::exchange(entry->body, {})]() mutable {
    body = {};
    End(entry, absl::CancelledError("cancelled before the operation began"));
  });
  return absl::OkStatus();
}

absl::Status OperationTable::Delete(const std::string& name, const OperationViewer& viewer) {
  {
    base::MutexLock lock(mutex_);
    NIBBLE_ASSIGN_OR_RETURN(const Entry entry, Seen(name, viewer));
    if (!entry->done()) {
      return base::WithReason(absl::FailedPreconditionError(base::StrCat(name, " has not ended")), "ILLEGAL_STATE",
                              {{"name", name}});
    }
  }
  // The file goes first, so that a caller can try again after an error.
  NIBBLE_RETURN_IF_ERROR(files_.RemoveAll(PathOf(name)));
  // Destroyed after the lock is released. The thread that ran the operation may still hold the entry.
  std::shared_ptr<const void> dropped;
  base::MutexLock lock(mutex_);
  const auto entry = Seen(name, viewer);
  if (!entry.ok()) return absl::OkStatus();  // another call has deleted or forgotten it meanwhile
  index_.Remove(*entry);
  dropped.swap((*entry)->held);
  return absl::OkStatus();
}

absl::StatusOr<std::uint64_t> OperationTable::OnEnd(const std::string& name, Done done, const OperationViewer& viewer) {
  Snapshot operation;
  {
    base::MutexLock lock(mutex_);
    NIBBLE_ASSIGN_OR_RETURN(const Entry entry, Seen(name, viewer));
    if (!entry->done()) {
      entry->waiting[next_handle_] = std::move(done);
      return next_handle_++;
    }
    operation = entry->stored.operation;
  }
  done(*operation);
  return 0;
}

void OperationTable::ForgetOnEnd(const std::string& name, std::uint64_t handle) {
  Done dropped;  // destroyed after the lock is released: it may hold the last reference to its owner
  base::MutexLock lock(mutex_);
  const Entry entry = index_.Find(name);
  if (entry == nullptr) return;
  if (const auto waiter = entry->waiting.find(handle); waiter != entry->waiting.end()) {
    dropped = std::move(waiter->second);
    entry->waiting.erase(waiter);
  }
}

std::size_t OperationTable::num_waiting() const {
  base::MutexLock lock(mutex_);
  std::size_t waiting = 0;
  for (const auto& [name, entry] : index_.OfTenant("")) waiting += entry->waiting.size();
  return waiting;
}

}  // namespace nibble::operations
