// The state of an attempt's trainer, read from its Kubernetes Job and pods.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/base/json.h"
#include "server/jobs/runner.h"

namespace nibble::jobs {

inline constexpr char kTrainerContainer[] = "trainer";

struct ClusterView {
  enum class Phase {
    kAbsent,       // neither a Job nor a pod
    kSuspended,    // no pod may start: Kueue has not admitted the Job
    kPending,      // its pod does not run yet
    kBroken,       // as kPending, but it cannot run until somebody mends its image, configuration or rights
    kRunning,      // its pod runs
    kTerminating,  // its pod or Job is being deleted, perhaps because its node does not answer
    kEnded,        // all of its pods have ended
  };
  Phase phase = Phase::kAbsent;
  std::string message;      // kSuspended, kPending, kBroken, kTerminating: why, for people; may be ""
  bool has_begun = false;   // a pod runs or has ended, whether or not its container began
  bool node_lost = false;   // kTerminating: because its node does not answer
  bool is_second = false;   // only pods live that came after the trainer's: they find the attempt claimed, and end
  std::string running_uid;  // kRunning: of the pod
  std::string events_of;    // kPending, kBroken: UID of the object whose events may say why; "" if none do
  TrainerEnd end;           // kEnded
};

// Explains to people the end of an attempt whose Job was started again after the trainer's pod had ended.
std::string RestartedJob(bool by_kueue);

// The messages in an EventList of a Job about pods that the Job controller could not create, the newest last.
std::vector<std::string> RefusalsIn(const base::Json& events);
// The newest warning in an EventList of a pod, except those of the scheduler; "" without one.
std::string WarningIn(const base::Json& events);

// Whether a refusal says that a ResourceQuota is used up: the trainer waits.
bool IsQuota(std::string_view refusal);

struct ClusterObjects {
  const base::Json* job = nullptr;           // batch/v1 Job; null if there is none
  std::vector<const base::Json*> pods = {};  // of the Job
  std::vector<std::string> refusals = {};    // RefusalsIn
  std::string pod_warning = {};              // WarningIn
  bool has_begun = false;                    // a pod has run, whether or not it is among `pods`
  std::string trainer_uid = {};              // of the pod whose trainer holds the attempt; "" while unknown
  bool stopping = false;                     // this server deletes the pods
};

// Reads unknown or malformed fields as absent. The cause of the end is read from the pod, and once the pod is gone,
// from the condition of the Job. If neither names the cause, it is kUnknown. A Job that is suspended after its pod has
// run was preempted: the Job controller deletes the pods of a suspended Job, and would start new ones on the same
// attempt.
ClusterView ViewOf(const ClusterObjects& objects);

}  // namespace nibble::jobs
