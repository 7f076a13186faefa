#include "server/jobs/kubernetes_view.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "server/base/strings.h"
#include "server/jobs/attempt.h"
#include "server/kube/fields.h"

namespace nibble::jobs {

bool IsQuota(std::string_view refusal) { return refusal.find("exceeded quota") != std::string_view::npos; }

namespace {

using base::Json;
using base::StrCat;
using kube::At;
using kube::TextAt;
using Cause = TrainerEnd::Cause;
using Phase = ClusterView::Phase;

// "REASON: MESSAGE", or one of them.
std::string ReasonAndMessage(const Json& object) {
  const std::string reason = TextAt(object, {"reason"}), message = TextAt(object, {"message"});
  return reason.empty() || message.empty() ? reason + message : StrCat(reason, ": ", message);
}

// The condition of a Job or pod if it is true.
const Json* Condition(const Json& object, std::string_view type) {
  const Json& conditions = At(object, {"status", "conditions"});
  if (!conditions.is_array()) return nullptr;
  for (const Json& one : conditions) {
    if (TextAt(one, {"type"}) == type && TextAt(one, {"status"}) == "True") return &one;
  }
  return nullptr;
}

// The state ("waiting", "running" or "terminated") of the pod's trainer; null if it is not in that state.
const Json& TrainerStatus(const Json& pod, const char* state) {
  static const Json kNull;
  const Json& statuses = At(pod, {"status", "containerStatuses"});
  if (!statuses.is_array()) return kNull;
  for (const Json& one : statuses) {
    if (TextAt(one, {"name"}) == kTrainerContainer) return At(one, {"state", state});
  }
  return kNull;
}

TrainerEnd FromExitCode(int code) {
  // A container's exit code for an end by signal N is 128 + N.
  if (code > 128 && code < 128 + 65) return {.cause = Cause::kSignaled, .value = code - 128};
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
  // The kubelet gives 137 to a container that never ran (pkg/kubelet/status/status_manager.go in kubernetes,
  // TerminatePod).
  const bool has_code = exit_code.has_value() && reason != "ContainerStatusUnknown";
  if (disruption != nullptr) {
    TrainerEnd end = FromDisruption(*disruption);
    // The kubelet reported the end, so its node answers.
    if (has_code && end.cause == Cause::kNodeLost) end.cause = Cause::kEvicted;
    return end;
  }
  const TrainerEnd own = has_code ? FromExitCode(*exit_code) : TrainerEnd{.cause = Cause::kUnknown};
  // Deleted by somebody else, and ended by that: it did not begin, it was still loading, or its grace period was short.
  const bool deleted = !stopping && !At(pod, {"metadata", "deletionTimestamp"}).is_null();
  const bool by_kubelet = own.cause == Cause::kSignaled && (own.value == SIGTERM || own.value == SIGKILL);
  if (deleted && (by_kubelet || !has_code)) return {.cause = Cause::kDeleted};
  if (has_code) return own;
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
  // It does not say which disruption. If the node was removed, the trainer may still write.
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

// Of a Job with one pod that has not ended.
ClusterView ViewOfPod(const Json& pod) {
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
    return view;
  }
  const Json& waiting = TrainerStatus(pod, "waiting");
  view.phase = IsBroken(TextAt(waiting, {"reason"})) ? Phase::kBroken : Phase::kPending;
  view.message = ReasonAndMessage(waiting);
  const Json& conditions = At(pod, {"status", "conditions"});
  for (const Json& one : conditions.is_array() ? conditions : Json::array()) {
    const bool unscheduled = TextAt(one, {"type"}) == "PodScheduled" && TextAt(one, {"status"}) == "False";
    if (unscheduled) view.message = ReasonAndMessage(one);
  }
  return view;
}

}  // namespace

ClusterView ViewOf(const ClusterObjects& objects) {
  const Json* ended_pod = nullptr;
  for (const Json* pod : objects.pods) {
    if (!HasEnded(*pod)) {  // While a pod lives, nothing else counts.
      ClusterView view = ViewOfPod(*pod);
      view.has_begun = view.has_begun || objects.has_begun;
      return view;
    }
    // A pod that found the attempt claimed says nothing about the trainer.
    const bool second = At(TrainerStatus(*pod, "terminated"), {"exitCode"}) == kExitClaimed;
    if (ended_pod == nullptr || !second) ended_pod = pod;
  }
  ClusterView view;
  view.has_begun = objects.has_begun || ended_pod != nullptr;
  static const Json kNoJob;
  const Json& job = objects.job == nullptr ? kNoJob : *objects.job;
  const bool suspended = At(job, {"spec", "suspend"}) == true;
  const Json* failed = Condition(job, "Failed");
  const auto ended = [&](TrainerEnd end) {
    view.phase = Phase::kEnded;
    view.end = std::move(end);
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
    if (!objects.refusals.empty()) view.message = objects.refusals.back();
    view.phase = view.message.empty() || IsQuota(view.message) ? Phase::kPending : Phase::kBroken;
  }
  return view;
}

}  // namespace nibble::jobs
