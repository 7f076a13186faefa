#include "server/jobs/kubernetes_view.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "server/base/strings.h"
#include "server/jobs/attempt.h"
#include "server/jobs/kubernetes_job.h"
#include "server/kube/fields.h"

namespace nibble::jobs {

using base::Json;
using base::StrCat;
using kube::At;
using kube::TextAt;

bool IsQuota(std::string_view refusal) { return refusal.find("exceeded quota") != std::string_view::npos; }

namespace {

using Cause = TrainerEnd::Cause;
using Phase = ClusterView::Phase;

// "REASON: MESSAGE", or one of them.
std::string ReasonAndMessage(const Json& object) {
  const std::string reason = TextAt(object, {"reason"}), message = TextAt(object, {"message"});
  return reason.empty() || message.empty() ? reason + message : StrCat(reason, ": ", message);
}

// The array at the path; empty if there is none.
const Json& Elements(const Json& object, std::initializer_list<const char*> path) {
  static const Json none = Json::array();
  const Json& found = At(object, path);
  return found.is_array() ? found : none;
}

// The condition of a Job or pod if it has this status.
const Json* Condition(const Json& object, std::string_view type, std::string_view status = "True") {
  for (const Json& one : Elements(object, {"status", "conditions"})) {
    if (TextAt(one, {"type"}) == type && TextAt(one, {"status"}) == status) return &one;
  }
  return nullptr;
}

// The state ("waiting", "running" or "terminated") of the pod's trainer; null if it is not in that state.
const Json& TrainerStatus(const Json& pod, const char* state) {
  static const Json null;
  for (const Json& one : Elements(pod, {"status", "containerStatuses"})) {
    if (TextAt(one, {"name"}) == kTrainerContainer) return At(one, {"state", state});
  }
  return null;
}

TrainerEnd FromExitCode(int code) {
  // A container's exit code for an end by signal N, from 1 to 64, is 128 + N.
  if (code > 128 && code <= 128 + 64) return {.cause = Cause::kSignaled, .value = code - 128};
  return {.cause = Cause::kExited, .value = code};
}

// The cause that the cluster gives for the disruption of a pod.
TrainerEnd FromDisruption(const Json& condition) {
  const std::string reason = TextAt(condition, {"reason"});
  TrainerEnd end{.cause = Cause::kEvicted, .detail = ReasonAndMessage(condition)};
  if (reason == "PreemptionByScheduler") end.cause = Cause::kPreempted;
  if (reason == "DeletionByTaintManager" || reason == "DeletionByPodGC") end.cause = Cause::kNodeLost;
  return end;
}

bool HasEnded(const Json& pod) {
  const std::string phase = TextAt(pod, {"status", "phase"});
  return phase == "Succeeded" || phase == "Failed";
}

TrainerEnd EndOfPod(const Json& pod, bool stopping) {
  const Json& terminated = TrainerStatus(pod, "terminated");
  const std::string reason = TextAt(terminated, {"reason"});
  if (reason == "OOMKilled") return {.cause = Cause::kOutOfMemory, .detail = TextAt(terminated, {"message"})};
  const Json& code = At(terminated, {"exitCode"});
  const std::optional<int> exit_code =
      code.is_number_integer() ? std::optional<int>(code.get<int>()) : std::optional<int>();
  const Json* disruption = Condition(pod, "DisruptionTarget");
  // The kubelet gives exit code 137 and this reason to a container that never ran (pkg/kubelet/status/status_manager.go
  // in kubernetes, TerminatePod).
  const bool has_code = exit_code.has_value() && reason != "ContainerStatusUnknown";
  if (disruption != nullptr) {
    TrainerEnd end = FromDisruption(*disruption);
    // The kubelet reported the end, so its node answers.
    if (has_code && end.cause == Cause::kNodeLost) end.cause = Cause::kEvicted;
    return end;
  }
  TrainerEnd own = has_code ? FromExitCode(*exit_code) : TrainerEnd{.cause = Cause::kUnknown};
  // Somebody else's deletion ended the trainer: it had not begun, it was still loading, or its grace period was short.
  const bool deleted = !stopping && !At(pod, {"metadata", "deletionTimestamp"}).is_null();
  const bool by_kubelet = own.cause == Cause::kSignaled && (own.value == SIGTERM || own.value == SIGKILL);
  if (deleted && (by_kubelet || !has_code)) return {.cause = Cause::kDeleted};
  if (has_code) return own;
  for (const Json& init : Elements(pod, {"status", "initContainerStatuses"})) {
    const Json& init_code = At(init, {"state", "terminated", "exitCode"});
    if (!init_code.is_number_integer() || init_code == 0) continue;
    return {.cause = Cause::kNotStarted,
            .failure = absl::FailedPreconditionError(
                StrCat("the init container ", TextAt(init, {"name"}), " ended with exit code ", init_code.get<int>()))};
  }
  // Evicted by the kubelet before the container began: the pod's own status says why.
  if (TextAt(pod, {"status", "reason"}) == "Evicted") {
    return {.cause = Cause::kEvicted, .detail = TextAt(pod, {"status", "message"})};
  }
  return {.cause = Cause::kUnknown, .detail = ReasonAndMessage(At(pod, {"status"}))};
}

// From the condition Failed of a Job whose pod is gone. The messages are those of the Job controller
// (pkg/controller/job/pod_failure_policy.go in kubernetes): "Container trainer for pod NS/NAME failed with exit code
// 139 matching FailJob rule at index 1", "Pod NS/NAME has condition DisruptionTarget matching FailJob rule at index 0".
TrainerEnd EndOfJob(const Json& failed) {
  const std::string message = TextAt(failed, {"message"});
  constexpr std::string_view kExit = " failed with exit code ";
  if (const std::size_t at = message.find(kExit); at != std::string::npos) {
    const char* digits = message.c_str() + at + kExit.size();
    char* rest = nullptr;
    const long code = std::strtol(digits, &rest, 10);
    if (rest != digits) return FromExitCode(static_cast<int>(code));
  }
  // The message does not say which disruption, so assume a lost node, whose trainer may still write.
  if (message.find(" has condition DisruptionTarget") != std::string::npos) {
    return {.cause = Cause::kNodeLost, .detail = message};
  }
  return {.cause = Cause::kUnknown, .detail = ReasonAndMessage(failed)};
}

// Reasons for which a container waits until somebody mends its pod or image.
bool IsBroken(const std::string& reason) {
  static constexpr std::array<std::string_view, 7> kBroken = {
      "ErrImagePull",         "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
      "CreateContainerError", "RunContainerError"};
  for (const std::string_view one : kBroken) {
    if (reason == one) return true;
  }
  return false;
}

// Why the Job is suspended; "" if it does not say.
std::string SuspensionOf(const Json& job) {
  const Json* condition = Condition(job, "Suspended");
  return condition == nullptr ? "" : ReasonAndMessage(*condition);
}

// The init container that holds up the pod; null if none does. They run one after the other, and those that have not
// had their turn wait as PodInitializing. One that keeps running beside the others comes before them,
// so the last match counts.
const Json* CurrentInitContainer(const Json& pod) {
  const Json* current = nullptr;
  for (const Json& one : Elements(pod, {"status", "initContainerStatuses"})) {
    const std::string waiting = TextAt(one, {"state", "waiting", "reason"});
    if (At(one, {"state", "running"}).is_object() || (!waiting.empty() && waiting != "PodInitializing")) current = &one;
  }
  return current;
}

// Sets the phase, the message and events_of for a pod that has not begun.
void SayWhyItWaits(const Json& pod, const std::string& warning, ClusterView& view) {
  view.phase = Phase::kPending;
  if (const Json* unscheduled = Condition(pod, "PodScheduled", "False"); unscheduled != nullptr) {
    view.message = ReasonAndMessage(*unscheduled);
    return;
  }
  if (const Json* init = CurrentInitContainer(pod); init != nullptr) {
    const Json& waiting = At(*init, {"state", "waiting"});
    if (IsBroken(TextAt(waiting, {"reason"}))) view.phase = Phase::kBroken;
    view.message = StrCat("the init container ", TextAt(*init, {"name"}),
                          waiting.is_object() ? StrCat(" waits: ", ReasonAndMessage(waiting)) : " runs");
    return;
  }
  const Json& waiting = TrainerStatus(pod, "waiting");
  view.message = ReasonAndMessage(waiting);
  if (IsBroken(TextAt(waiting, {"reason"}))) {
    view.phase = Phase::kBroken;
  } else if (Condition(pod, "PodScheduled") != nullptr && Condition(pod, "PodReadyToStartContainers") == nullptr) {
    // The kubelet says only by events which volume it cannot mount.
    view.events_of = TextAt(pod, {"metadata", "uid"});
    view.message = "the node prepares the volumes and the network of the pod";
    if (!warning.empty()) view.message += StrCat(": ", warning);
  }
}

// The view of a pod that has not ended.
ClusterView ViewOfPod(const Json& pod, const std::string& warning) {
  ClusterView view;
  view.has_begun = TrainerStatus(pod, "running").is_object();
  if (!At(pod, {"metadata", "deletionTimestamp"}).is_null()) {
    view.phase = Phase::kTerminating;
    const Json* disruption = Condition(pod, "DisruptionTarget");
    if (disruption == nullptr) return view;
    view.message = ReasonAndMessage(*disruption);
    view.node_lost = FromDisruption(*disruption).cause == Cause::kNodeLost;
    return view;
  }
  if (view.has_begun) {
    view.phase = Phase::kRunning;
    view.running_uid = TextAt(pod, {"metadata", "uid"});
    return view;
  }
  SayWhyItWaits(pod, warning, view);
  return view;
}

// Whether the pod came after that of the trainer.
bool IsSecond(const Json& pod, const ClusterObjects& objects) {
  return !objects.trainer_uid.empty() && TextAt(pod, {"metadata", "uid"}) != objects.trainer_uid;
}

bool FoundClaim(const TrainerEnd& end) { return end.cause == Cause::kExited && end.value == kExitClaimed; }

// When an event last happened. The API's times are UTC, so their order is that of the texts.
std::string LastTime(const Json& event) {
  for (const std::string& time : {TextAt(event, {"lastTimestamp"}), TextAt(event, {"series", "lastObservedTime"}),
                                  TextAt(event, {"eventTime"})}) {
    if (!time.empty()) return time;
  }
  return TextAt(event, {"metadata", "creationTimestamp"});
}

// Events for which `wanted` is true, the newest last.
std::vector<const Json*> InOrder(const Json& events, const std::function<bool(const Json&)>& wanted) {
  std::vector<const Json*> found;
  for (const Json& event : Elements(events, {"items"})) {
    if (wanted(event)) found.push_back(&event);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Json* one, const Json* other) { return LastTime(*one) < LastTime(*other); });
  return found;
}

}  // namespace

std::vector<std::string> RefusalsIn(const Json& events) {
  std::vector<std::string> refusals;
  for (const Json* event : InOrder(events, [](const Json& one) { return TextAt(one, {"reason"}) == "FailedCreate"; })) {
    refusals.push_back(TextAt(*event, {"message"}));
  }
  return refusals;
}

std::string WarningIn(const Json& events) {
  const auto warnings = InOrder(events, [](const Json& one) {
    return TextAt(one, {"type"}) == "Warning" && TextAt(one, {"reason"}) != "FailedScheduling";
  });
  return warnings.empty() ? "" : ReasonAndMessage(*warnings.back());
}

std::string RestartedJob(bool by_kueue) {
  return StrCat(by_kueue ? "Kueue admitted the Job again" : "the Job was started again",
                " after the trainer's pod had ended, and the new pod writes nothing");
}

ClusterView ViewOf(const ClusterObjects& objects) {
  const Json* ended_pod = nullptr;
  const Json* lives = nullptr;
  for (const Json* pod : objects.pods) {
    if (!HasEnded(*pod)) {
      if (lives == nullptr || IsSecond(*lives, objects)) lives = pod;
      continue;
    }
    // A pod that found the attempt claimed says nothing about the trainer.
    const bool second = IsSecond(*pod, objects) || At(TrainerStatus(*pod, "terminated"), {"exitCode"}) == kExitClaimed;
    if (ended_pod == nullptr || !second) ended_pod = pod;
  }
  if (lives != nullptr) {  // While a pod lives, nothing else counts.
    ClusterView view = ViewOfPod(*lives, objects.pod_warning);
    view.has_begun = view.has_begun || objects.has_begun;
    view.is_second = IsSecond(*lives, objects);
    return view;
  }
  ClusterView view;
  view.has_begun = objects.has_begun || ended_pod != nullptr;
  static const Json no_job;
  const Json& job = objects.job == nullptr ? no_job : *objects.job;
  const bool suspended = At(job, {"spec", "suspend"}) == true;
  const Json* failed = Condition(job, "Failed");
  const auto ended = [&](TrainerEnd end) {
    view.phase = Phase::kEnded;
    view.end = std::move(end);
    const bool second = (ended_pod != nullptr && IsSecond(*ended_pod, objects)) || FoundClaim(view.end);
    if (second && !objects.trainer_uid.empty())
      view.end = {.cause = Cause::kPreempted,
                  .detail = RestartedJob(!TextAt(job, {"metadata", "labels", kQueueLabel}).empty())};
    return view;
  };
  if (suspended && view.has_begun) return ended({.cause = Cause::kPreempted, .detail = SuspensionOf(job)});
  if (ended_pod != nullptr) return ended(EndOfPod(*ended_pod, objects.stopping));
  if (objects.job == nullptr) return view;
  if (failed != nullptr) return ended(EndOfJob(*failed));
  if (Condition(job, "Complete") != nullptr) return ended(FromExitCode(0));
  if (!At(job, {"metadata", "deletionTimestamp"}).is_null()) {
    view.phase = Phase::kTerminating;
  } else if (suspended) {
    view.phase = Phase::kSuspended;
    view.message = SuspensionOf(job);
  } else {
    // The Job controller says only by events that it cannot create a pod.
    view.events_of = TextAt(job, {"metadata", "uid"});
    if (!objects.refusals.empty()) view.message = objects.refusals.back();
    view.phase = view.message.empty() || IsQuota(view.message) ? Phase::kPending : Phase::kBroken;
  }
  return view;
}

}  // namespace nibble::jobs
