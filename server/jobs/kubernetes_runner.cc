#include "server/jobs/kubernetes_runner.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "server/base/files.h"
#include "server/base/log.h"
#include "server/base/mutex.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/attempt.h"
#include "server/jobs/attempt_claim.h"
#include "server/jobs/kubernetes_view.h"
#include "server/jobs/stray_processes.h"
#include "server/jobs/trainer_handle.h"
#include "server/kube/api_client.h"
#include "server/kube/backoff.h"
#include "server/kube/fields.h"
#include "server/kube/jobs_api.h"
#include "server/kube/object_cache.h"
#include "server/store/layout.h"

namespace nibble::jobs {

namespace {

using base::Json;
using base::StrCat;
using Cause = TrainerEnd::Cause;
using State = TrainerState::Phase;
using View = ClusterView::Phase;
using Object = kube::ObjectCache::Object;

constexpr absl::Duration kLookForEvents = absl::Seconds(10);  // between two reads of an object's events
constexpr char kMe[] = "nibbled";                             // holder of the claims that a server takes
// A watch that was silent for longer may be dead: the API server sends a bookmark about once a minute.
constexpr absl::Duration kFresh = absl::Seconds(90);
constexpr absl::Duration kDeletePodAgain = absl::Seconds(5);  // between two deletions of a pod
// A created Job that the watch has not shown after this time is read by name: it may have been deleted meanwhile.
constexpr absl::Duration kLookForJob = absl::Seconds(5);

// The name of the Job to which a pod belongs.
std::string JobOf(const Json& pod) {
  return TrainerJobName(kube::TextAt(pod, {"metadata", "labels", kJobLabel}),
                        kube::TextAt(pod, {"metadata", "labels", kAttemptLabel}));
}

// Keeps what ViewOf and the runner read: thousands of objects stay in memory.
void Trim(Json& object) {
  if (object.contains("metadata")) object["metadata"].erase("managedFields");
  if (!object.contains("spec") || !object["spec"].is_object()) return;
  const Json suspend = object["spec"].value("suspend", Json());
  object["spec"] = Json::object();
  if (!suspend.is_null()) object["spec"]["suspend"] = suspend;
}

bool IsLeaving(const Json& object) { return !kube::At(object, {"metadata", "deletionTimestamp"}).is_null(); }

// The request cannot succeed until somebody changes the template or the rights of the server.
bool IsRefused(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsInvalidArgument(status);
}

struct Attempt {
  TrainerRequest request;
  std::string name;  // of its Job
  kube::Backoff backoff;
  bool adopted = false;                    // started by an earlier server
  bool posted = false;                     // the API server may have the Job: a POST was not refused
  bool created = false;                    // the API server has, or had, the Job
  bool seen = false;                       // the Job was in the cache
  bool calling = false;                    // a call for this attempt is in progress
  bool has_begun = false;                  // a pod has run
  bool was_lost = false;                   // the cluster said that its node does not answer
  bool orphaned = false;                   // the Job is gone, and its pod is there
  bool restarted = false;                  // the Job was started again after the trainer's pod had ended
  bool stop = false;                       // kTerminate was sent
  bool kill = false;                       // kKill was sent
  bool killed = false;                     // the pod's deletion was requested with the least grace
  bool deleting = false;                   // the API server accepted this server's deletion of the Job
  bool forgotten = false;                  // its end is recorded
  std::string uid = {};                    // of the Job
  std::string trainer_uid = {};            // of the pod whose trainer holds the attempt; "" while unknown
  std::string events_of = {};              // UID of the object whose events may say why the trainer waits
  TrainerState state = {};                 // as Poll returns it
  std::string trouble = {};                // why the Job could not be created so far
  std::vector<std::string> refusals = {};  // RefusalsIn events of the Job
  std::string pod_warning = {};            // WarningIn events of the pod
  absl::Duration started = {};             // monotonic, as all below
  absl::Duration not_before = -absl::InfiniteDuration();  // of the next call
  std::optional<absl::Duration> broken_since = {}, lost_since = {};
  absl::Duration stopped = {}, grace = {};  // when kTerminate was sent, and the time from it to kKill
  // When the API server accepted the deletion of the Job, or a pod was seen being deleted, whichever is later.
  absl::Duration deleted = -absl::InfiniteDuration();
  bool terminating = false;  // a pod was seen being deleted
  // Earliest times of the next look for the Job by name, look for events, and deletion of a pod.
  absl::Duration look_for_job_at = {}, look_for_events_at = {}, delete_pod_at = {};
};

class KubernetesRunner : public Runner {
 public:
  explicit KubernetesRunner(KubernetesRunnerOptions options)
      : options_(std::move(options)), client_(options_.access), api_(client_) {}

  absl::Status Open() {
    const kube::Labels ours = {{kServerLabel, options_.jobs.server}};
    NIBBLE_ASSIGN_OR_RETURN(const std::string jobs, api_.JobsTarget(ours));
    NIBBLE_ASSIGN_OR_RETURN(const std::string pods, api_.PodsTarget(ours));
    jobs_ = MakeCache(jobs);
    pods_ = MakeCache(pods);
    base::MutexLock lock(mutex_);
    open_ = true;
    Wake();
    return absl::OkStatus();
  }

  ~KubernetesRunner() override {
    base::MutexLock lock(mutex_);
    open_ = false;  // No Reconcile reads the caches from here on.
  }

  void Start(const TrainerRequest& request) override { Add(request, /*adopted=*/false); }

  absl::StatusOr<bool> Adopt(const TrainerRequest& request, const std::string& recorded) override {
    // Without an order there never was a Job: the server died before it wrote one.
    if (!Exists(request, store::kAttemptFile)) return false;
    if (!recorded.empty() && !recorded.starts_with(TrainerJobName(request) + "/")) {
      return HandleOfOtherRunner(request.directory, recorded);
    }
    Add(request, /*adopted=*/true, recorded);
    return true;
  }

  TrainerState Poll(const std::string& directory) override {
    base::MutexLock lock(mutex_);
    const auto found = attempts_.find(directory);
    if (found == attempts_.end()) return {.phase = State::kEnded};
    return found->second.state;
  }

  void Send(const std::string& directory, Signal signal) override {
    base::MutexLock lock(mutex_);
    const auto found = attempts_.find(directory);
    if (found == attempts_.end()) return;
    Attempt& attempt = found->second;
    if (!std::exchange(attempt.stop, true)) attempt.stopped = Now();
    if (signal == Signal::kKill && !std::exchange(attempt.kill, true)) {
      attempt.grace = Now() - attempt.stopped;
      attempt.delete_pod_at = {};
    }
    Wake();
  }

  void Forget(const std::string& directory) override {
    base::MutexLock lock(mutex_);
    const auto found = attempts_.find(directory);
    if (found == attempts_.end()) return;
    found->second.forgotten = true;
    Wake();
  }

  bool outlives_server() const override { return true; }

  void Recovered() override {
    base::MutexLock lock(mutex_);
    recovered_ = true;
    Wake();
  }

  void ReapStrays() override { ReapStrayChildren({}); }  // no trainer is a child

 private:
  // Pods by the name of their Job.
  using Pods = std::map<std::string, std::vector<Object>>;

  std::unique_ptr<kube::ObjectCache> MakeCache(const std::string& target) {
    return std::make_unique<kube::ObjectCache>(client_,
                                               kube::ObjectCacheOptions{.target = target,
                                                                        .trim = Trim,
                                                                        .on_change = [this] { WakeUnlocked(); },
                                                                        .min_pause = options_.min_pause,
                                                                        .max_pause = options_.max_pause,
                                                                        .clock = options_.clock});
  }

  static bool ClaimedByTrainer(const std::string& directory) {
    const std::string holder = ClaimHolder(directory);
    return !holder.empty() && holder != kMe;
  }
  static bool Exists(const TrainerRequest& request, const char* file) {
    return base::RealFileSystem().Exists(base::JoinPath(request.directory, file));
  }
  absl::Duration Now() const { return options_.clock->Monotonic(); }

  void Add(const TrainerRequest& request, bool adopted, const std::string& handle = "") {
    const std::string name = TrainerJobName(request);
    // Each attempt has pauses of its own.
    const std::uint64_t seed = std::stoull(base::Sha256Hex(name).substr(0, 16), nullptr, 16);
    Attempt attempt{.request = request,
                    .name = name,
                    .backoff = kube::Backoff(options_.min_pause, options_.max_pause, seed),
                    .adopted = adopted,
                    .has_begun = adopted && ClaimedByTrainer(request.directory)};
    if (attempt.has_begun) attempt.trainer_uid = ClaimHolder(request.directory);
    attempt.state.handle = handle;
    attempt.started = Now();
    attempt.look_for_events_at = attempt.started + options_.quiet_start;
    base::MutexLock lock(mutex_);
    attempts_.erase(request.directory);
    attempts_.emplace(request.directory, std::move(attempt));
    Wake();
  }

  void WakeUnlocked() {
    base::MutexLock lock(mutex_);
    Wake();
  }
  // Calls Reconcile soon, on the client's thread.
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (std::exchange(woken_, true)) return;
    client_.RunAfter(absl::ZeroDuration(), [this] {
      base::MutexLock lock(mutex_);
      woken_ = false;
      Reconcile();
    });
  }
  // Calls Reconcile at this time. Each round asks again for the times that it waits for, so one timer, for the earliest
  // of them, is enough.
  void WakeAt(absl::Duration when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (wakes_at_ <= when) return;
    wakes_at_ = when;
    client_.RunAfter(std::max(absl::ZeroDuration(), when - Now()), [this, when] {
      base::MutexLock lock(mutex_);
      if (wakes_at_ == when) wakes_at_ = absl::InfiniteDuration();
      Reconcile();
    });
  }

  // Compares what the cluster has with what it should have, and begins the calls that are needed. Any change of either
  // leads here, so a call that was lost is repeated.
  void Reconcile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!open_) return;
    Pods pods;
    for (const Object& pod : pods_->Snapshot()) pods[JobOf(*pod)].push_back(pod);
    // With only one of the collections, a trainer that runs could look ended, or an end could have another cause.
    const bool synced = jobs_->synced() && pods_->synced();
    std::set<std::string> names;
    for (auto it = attempts_.begin(); it != attempts_.end();) {
      Attempt& attempt = it->second;
      names.insert(attempt.name);
      Object job = jobs_->Find(attempt.name);
      if (synced) Observe(attempt, job, pods[attempt.name]);
      if (job != nullptr && !IsOurs(attempt, *job)) job = nullptr;  // never touched
      const bool done = attempt.forgotten && job == nullptr && !attempt.calling && synced;
      if (!done) Act(attempt, job, pods[attempt.name]);
      it = done ? attempts_.erase(it) : std::next(it);
    }
    if (recovered_ && synced) Sweep(names);
  }

  // Updates what Poll returns.
  void Observe(Attempt& attempt, const Object& job, const std::vector<Object>& pods)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (attempt.state.phase == State::kEnded) return;
    if (job != nullptr && !attempt.seen) {
      if (!IsOurs(attempt, *job)) return EndBecauseOfStranger(attempt);
      attempt.seen = attempt.created = attempt.posted = true;
      attempt.look_for_job_at = Now();
      attempt.uid = kube::TextAt(*job, {"metadata", "uid"});
      attempt.state.handle = StrCat(attempt.name, "/", attempt.uid);
    }
    ClusterObjects objects{.job = job.get(),
                           .refusals = attempt.refusals,
                           .pod_warning = attempt.pod_warning,
                           .has_begun = attempt.has_begun,
                           .trainer_uid = attempt.trainer_uid,
                           .stopping = attempt.stop};
    for (const Object& pod : pods) {
      objects.pods.push_back(pod.get());
      if (IsLeaving(*pod) && !std::exchange(attempt.terminating, true)) attempt.deleted = Now();
    }
    const ClusterView view = ViewOf(objects);
    attempt.has_begun = view.has_begun;
    attempt.restarted = attempt.restarted || view.is_second;
    if (attempt.trainer_uid.empty()) attempt.trainer_uid = view.running_uid;
    if (attempt.events_of != view.events_of) {
      attempt.events_of = view.events_of;
      attempt.pod_warning.clear();
      attempt.look_for_events_at = attempt.started + options_.quiet_start;
    }
    if (view.phase != View::kBroken && attempt.created) attempt.broken_since.reset();
    attempt.was_lost = attempt.was_lost || view.node_lost;
    const bool silent = view.phase == View::kTerminating && (view.node_lost || attempt.killed);
    if (!silent) attempt.lost_since.reset();
    attempt.state.waiting_for.clear();
    switch (view.phase) {
      case View::kEnded:
        // The pod of a lost node is gone, but its process may live.
        if (attempt.was_lost && (pods.empty() || attempt.restarted)) return End(attempt, {.cause = Cause::kNodeLost});
        return End(attempt, attempt.orphaned ? EndOfOrphan(view.end) : view.end);
      case View::kRunning: attempt.state.phase = State::kRunning; return;
      case View::kTerminating: return ObserveTerminating(attempt, view);
      case View::kBroken: return ObserveBroken(attempt, absl::FailedPreconditionError(view.message));
      case View::kPending: return Wait(attempt, view.message);
      case View::kSuspended:
        return Wait(attempt, options_.jobs.queue.empty()
                                 ? "the Job is suspended"
                                 : StrCat("the Job is suspended: it waits in the queue ", options_.jobs.queue));
      case View::kAbsent: return ObserveAbsent(attempt);
    }
  }

  bool IsOurs(const Attempt& attempt, const Json& job) const {
    return kube::TextAt(job, {"metadata", "labels", kServerLabel}) == options_.jobs.server &&
           kube::TextAt(job, {"metadata", "labels", kJobLabel}) == attempt.request.job_id;
  }
  void EndBecauseOfStranger(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    End(attempt, {.cause = Cause::kNotStarted,
                  .failure = absl::FailedPreconditionError(
                      StrCat("the cluster has a Job ", attempt.name, " that is not this server's"))});
  }
  void End(Attempt& attempt, TrainerEnd end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // Takes the claim of an attempt that was not started, so that a pod that begins from now on writes nothing. If a
    // trainer holds the claim already, it has begun, and the attempt does not end.
    if (end.cause == Cause::kNotStarted &&
        absl::IsAlreadyExists(AttemptClaim::Take(attempt.request.directory, kMe).status()) &&
        ClaimedByTrainer(attempt.request.directory)) {
      attempt.has_begun = true;
      attempt.broken_since.reset();
      return;
    }
    attempt.state.phase = State::kEnded;
    attempt.state.end = std::move(end);
  }

  void Wait(Attempt& attempt, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    attempt.state.phase = State::kStarting;
    const absl::Duration until = attempt.started + options_.quiet_start;
    if (Now() < until) return WakeAt(until);
    attempt.state.waiting_for = why;
  }

  void ObserveBroken(Attempt& attempt, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!attempt.broken_since.has_value()) attempt.broken_since = Now();
    const absl::Duration until = *attempt.broken_since + options_.start_timeout;
    if (Now() >= until) return End(attempt, {.cause = Cause::kNotStarted, .failure = why});
    WakeAt(until);
    Wait(attempt, std::string(why.message()));
  }

  void ObserveTerminating(Attempt& attempt, const ClusterView& view) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (view.has_begun) attempt.state.phase = State::kRunning;
    // A pod that stays after a kill is on a node that does not answer, whether or not the cluster says so.
    if (!view.node_lost && !attempt.killed) return;
    if (!attempt.lost_since.has_value()) attempt.lost_since = Now();
    const absl::Duration until = *attempt.lost_since + options_.lost_node_timeout;
    if (Now() < until) return WakeAt(until);
    End(attempt, {.cause = Cause::kNodeLost, .detail = view.message});
  }

  // There is neither a Job nor a pod.
  void ObserveAbsent(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // A watch that has silently died does not show a pod that runs.
    const absl::Duration fresh_until = pods_->last_contact() + kFresh;
    const auto deleted = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (Now() > fresh_until) return WakeAt(Now() + kLookForJob);
      if (attempt.was_lost) return End(attempt, {.cause = Cause::kNodeLost});
      if (attempt.restarted)
        return End(attempt, {.cause = Cause::kPreempted, .detail = RestartedJob(!options_.jobs.queue.empty())});
      if (!attempt.stop) return End(attempt, {.cause = Cause::kDeleted});
      End(attempt, {.cause = Cause::kUnknown, .detail = "this server stopped it"});
    };
    if (attempt.seen) return deleted();
    if (attempt.stop && !attempt.posted && !attempt.calling) return deleted();
    // A pod, an outcome or a handle shows that the Job of an adopted attempt existed.
    if (attempt.adopted && !attempt.created &&
        (attempt.has_begun || !attempt.state.handle.empty() || Exists(attempt.request, store::kOutcomeFile))) {
      return deleted();
    }
    if (!attempt.trouble.empty()) Wait(attempt, attempt.trouble);
  }

  // Begins the next call that the attempt needs, if any.
  void Act(Attempt& attempt, const Object& job, const std::vector<Object>& pods) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (attempt.calling) return;
    if (Now() < attempt.not_before) return WakeAt(attempt.not_before);
    const bool ended = attempt.state.phase == State::kEnded;
    // A Job that was started again is useless: its pods find the attempt claimed as soon as they run.
    if (job != nullptr && (attempt.forgotten || attempt.stop || attempt.restarted) && !attempt.deleting)
      return Delete(attempt, kube::TextAt(*job, {"metadata", "uid"}));
    if (attempt.kill && !ended && !pods.empty()) return Kill(attempt, pods);
    if (ended || attempt.forgotten) return;
    const bool synced = jobs_->synced() && pods_->synced();
    if (synced && job == nullptr && !pods.empty() && (attempt.seen || attempt.adopted)) return EndOrphan(attempt, pods);
    if (!attempt.created && !attempt.stop) {
      // An adopted attempt may have a Job that the cache does not show yet.
      if (!attempt.adopted || synced) Create(attempt);
    } else if (!attempt.seen && attempt.posted) {
      LookForJob(attempt);
    } else if (!attempt.events_of.empty()) {
      LookForEvents(attempt);
    }
  }

  // Runs `done` with the attempt and the answer of a call, if the attempt still exists.
  kube::JobsApi::Done Then(Attempt& attempt, std::function<void(Attempt&, absl::StatusOr<Json>)> done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    attempt.calling = true;
    return [this, directory = attempt.request.directory, done = std::move(done)](absl::StatusOr<Json> answer) {
      base::MutexLock lock(mutex_);
      const auto found = attempts_.find(directory);
      if (found == attempts_.end()) return;
      found->second.calling = false;
      done(found->second, std::move(answer));
      Wake();
    };
  }
  // A call failed: the next one waits.
  void Pause(Attempt& attempt, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    attempt.not_before = Now() + attempt.backoff.Next();
    if (attempt.backoff.num_failures() > 1) return;
    base::LogWarning("a call to the cluster's API server failed; it will be repeated",
                     {{"job", attempt.request.job_id}, {"why", std::string(why.message())}});
  }

  void Create(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto job = MakeTrainerJob(options_.jobs, attempt.request);
    if (!job.ok()) return End(attempt, {.cause = Cause::kNotStarted, .failure = job.status()});
    const auto done = [this](Attempt& one, const absl::StatusOr<Json>& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (answer.ok() || absl::IsAlreadyExists(answer.status())) {
        one.backoff.Reset();
        one.trouble.clear();
        one.created = true;
        // A Job that was there already may be a stranger's, which the watch does not show.
        one.look_for_job_at = answer.ok() ? Now() + kLookForJob : Now();
        return;
      }
      Pause(one, answer.status());
      // After any other failure the API server may have the Job: only its answer may be lost.
      if (IsRefused(answer.status())) one.posted = false;
      if (one.state.phase == State::kEnded) return;
      one.trouble = StrCat("the Job cannot be created: ", answer.status().message());
      if (IsRefused(answer.status()) && !IsQuota(one.trouble))
        ObserveBroken(one, absl::FailedPreconditionError(one.trouble));
    };
    attempt.posted = true;
    attempt.orphaned = false;
    const absl::Status sent = api_.CreateJob(*std::move(job), Then(attempt, done));
    if (sent.ok()) return;
    attempt.calling = false;
    End(attempt, {.cause = Cause::kNotStarted, .failure = sent});
  }

  void Delete(Attempt& attempt, const std::string& uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // Foreground: the Job stays until its pod is gone. Once the end is recorded, nothing waits for the pod.
    const auto how = attempt.forgotten ? kube::Propagation::kBackground : kube::Propagation::kForeground;
    const auto done = [this](Attempt& one, const absl::StatusOr<Json>& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const bool gone = absl::IsNotFound(answer.status()) || absl::IsAborted(answer.status());
      if (answer.ok() || gone) {
        one.backoff.Reset();
        one.deleting = true;
        one.deleted = Now();
      } else {
        Pause(one, answer.status());
      }
    };
    Sent(attempt, api_.DeleteJob(attempt.name, uid, how, Then(attempt, done)));
  }

  void Kill(Attempt& attempt, const std::vector<Object>& pods) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // The trainer gets SIGTERM later than Send was called if the API server was away or the cluster is slow to delete
    // the pod. It still has its whole grace, counted from the deletion.
    const absl::Duration at = attempt.deleted + attempt.grace;
    if (Now() < at) return WakeAt(at);
    // If no pod was seen being deleted, this deletion is the first to send SIGTERM, so it leaves the whole grace.
    const int seconds = attempt.terminating ? 1 : static_cast<int>(absl::ToDoubleSeconds(attempt.grace)) + 1;
    attempt.killed = attempt.terminating;
    DeletePod(attempt, *pods.front(), seconds);
  }

  // Without its Job, a pod is in no queue and has no failure policy, and a cancel could only kill its trainer, without
  // SIGTERM before. So the pod is deleted now, with its grace period, and the attempt ends with it.
  void EndOrphan(Attempt& attempt, const std::vector<Object>& pods) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto lives = [](const Object& pod) {
      const std::string phase = kube::TextAt(*pod, {"status", "phase"});
      return phase != "Succeeded" && phase != "Failed" && !IsLeaving(*pod);
    };
    const auto pod = std::find_if(pods.begin(), pods.end(), lives);
    if (pod == pods.end()) return;
    // The watch of pods may be ahead of that of Jobs.
    if (!attempt.orphaned) return LookForJob(attempt);
    DeletePod(attempt, **pod, std::nullopt);
  }

  // This server deleted the pod of the orphan. A trainer that then saved its state and exited did so because of that.
  static TrainerEnd EndOfOrphan(TrainerEnd end) {
    const bool saved = end.cause == Cause::kExited && end.value == kExitTempFail;
    if (saved || end.cause == Cause::kDeleted) return {.cause = Cause::kDeleted, .detail = "its Job was deleted"};
    return end;
  }

  void DeletePod(Attempt& attempt, const Json& pod, std::optional<int> grace_seconds)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (Now() < attempt.delete_pod_at) return WakeAt(attempt.delete_pod_at);
    attempt.delete_pod_at = Now() + kDeletePodAgain;
    const auto done = [this](Attempt& one, const absl::StatusOr<Json>& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (answer.ok() || absl::IsNotFound(answer.status()) || absl::IsAborted(answer.status())) return;
      one.delete_pod_at = {};
      Pause(one, answer.status());
    };
    Sent(attempt, api_.DeletePod(kube::TextAt(pod, {"metadata", "name"}), kube::TextAt(pod, {"metadata", "uid"}),
                                 grace_seconds, Then(attempt, done)));
  }

  // Reads the Job by its name, to find out whether a POST created it or whether the Job of a pod still exists.
  void LookForJob(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (Now() < attempt.look_for_job_at) return WakeAt(attempt.look_for_job_at);
    const auto done = [this](Attempt& one, const absl::StatusOr<Json>& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      one.look_for_job_at = Now() + kLookForJob;
      const bool is_strangers = answer.ok() && !IsOurs(one, *answer);
      if (one.seen || (one.adopted && !one.posted)) {
        one.orphaned = is_strangers || absl::IsNotFound(answer.status());
        if (one.orphaned)
          base::LogWarning("a trainer's Job is gone and its pod lives, deleting the pod", {{"name", one.name}});
      } else if (absl::IsNotFound(answer.status())) {
        if (one.created) one.seen = true;  // deleted before the watch showed it
        if (!one.created) one.posted = false;
      } else if (is_strangers) {
        return EndBecauseOfStranger(one);
      } else if (answer.ok()) {
        one.created = true;
      }
      if (!answer.ok() && !absl::IsNotFound(answer.status())) Pause(one, answer.status());
    };
    Sent(attempt, api_.GetJob(attempt.name, Then(attempt, done)));
  }

  void LookForEvents(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (Now() < attempt.look_for_events_at) return WakeAt(attempt.look_for_events_at);
    attempt.look_for_events_at = Now() + kLookForEvents;
    const auto done = [of = attempt.events_of](Attempt& one, const absl::StatusOr<Json>& answer) {
      if (!answer.ok() || one.events_of != of) return;
      if (of == one.uid) {
        one.refusals = RefusalsIn(*answer);
      } else {
        one.pod_warning = WarningIn(*answer);
      }
    };
    Sent(attempt, api_.ListEvents(attempt.events_of, Then(attempt, done)));
  }

  // Handles the status that a call returned at once. An error means that nothing was sent, because the name of an
  // object of the cluster is not valid in Kubernetes.
  void Sent(Attempt& attempt, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (status.ok()) return;
    attempt.calling = false;
    Pause(attempt, status);
  }

  // Deletes this server's Jobs that belong to no attempt: a server was killed between the record of an end and the
  // deletion, or its request to create the Job arrived after the end of that server.
  void Sweep(const std::set<std::string>& names) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::map<std::string, absl::Duration> next;
    for (const Object& job : jobs_->Snapshot()) {
      const std::string name = kube::TextAt(*job, {"metadata", "name"}), uid = kube::TextAt(*job, {"metadata", "uid"});
      if (names.contains(name)) continue;
      const auto before = swept_.find(uid);
      absl::Duration& at = next.try_emplace(uid, before == swept_.end() ? Now() : before->second).first->second;
      if (Now() < at) {
        WakeAt(at);
        continue;
      }
      at = absl::InfiniteDuration();
      base::LogInfo("deleting a trainer's Job whose attempt is over", {{"name", name}});
      const auto done = [this, uid](const absl::StatusOr<Json>& answer) {
        if (answer.ok() || absl::IsNotFound(answer.status()) || absl::IsAborted(answer.status())) return;
        base::MutexLock lock(mutex_);
        swept_[uid] = Now() + options_.max_pause;
        Wake();
      };
      // Refused only for a name that Kubernetes would not take either.
      api_.DeleteJob(name, uid, kube::Propagation::kBackground, done).IgnoreError();
    }
    swept_ = std::move(next);
  }

  const KubernetesRunnerOptions options_;
  base::Mutex mutex_;
  std::map<std::string, Attempt> attempts_ ABSL_GUARDED_BY(mutex_);  // by directory
  // Jobs that Sweep deletes: when to try again, by UID.
  std::map<std::string, absl::Duration> swept_ ABSL_GUARDED_BY(mutex_);
  bool open_ ABSL_GUARDED_BY(mutex_) = false;   // the caches exist
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;  // a Reconcile is due
  absl::Duration wakes_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  bool recovered_ ABSL_GUARDED_BY(mutex_) = false;  // every attempt of an earlier server was adopted
  // In this order: the caches end before the client, and the client's callbacks before all of the above.
  kube::ApiClient client_;
  kube::JobsApi api_;
  std::unique_ptr<kube::ObjectCache> jobs_, pods_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Runner>> MakeKubernetesRunner(KubernetesRunnerOptions options) {
  auto runner = std::make_unique<KubernetesRunner>(std::move(options));
  NIBBLE_RETURN_IF_ERROR(runner->Open());
  return runner;
}

}  // namespace nibble::jobs
