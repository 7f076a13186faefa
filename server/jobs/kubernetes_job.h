// The Kubernetes Job of an attempt.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/jobs/runner.h"

namespace nibble::jobs {

inline constexpr char kServerLabel[] = "nibble.dev/server";
inline constexpr char kJobLabel[] = "nibble.dev/job";
inline constexpr char kAttemptLabel[] = "nibble.dev/attempt";
inline constexpr char kQueueLabel[] = "kueue.x-k8s.io/queue-name";

// "nibble-JOB-ATTEMPT": the same for every try to create it, so an attempt has at most one Job.
std::string TrainerJobName(std::string_view job_id, std::string_view attempt);
std::string TrainerJobName(const TrainerRequest& request);

struct TrainerJobs {
  std::string server;               // the label of this installation's Jobs
  std::string queue;                // Kueue's LocalQueue; "": without Kueue
  std::int64_t grace_seconds = 70;  // of a pod, from SIGTERM to SIGKILL, if the template has none
  // By device ("cpu", "cuda"): a batch/v1 Job with the operator's choices (image, volumes, resources other than CPU and
  // memory, node selector, tolerations, security context).
  std::map<std::string, base::Json> templates;
};

// Parses a file of templates: {"cpu": JOB, "cuda": JOB}, at least one of them. InvalidArgument: not such an object, a
// template without a container named "trainer", or one with a field that is not an object but needs to be one; the
// message names the device and the field.
absl::StatusOr<std::map<std::string, base::Json>> ParseTrainerTemplates(std::string_view text);

// The template of the request's device with what Nibble decides: name, labels, one pod that is never replaced, the
// container's arguments and environment, CPU and memory (the plan and a tenth; a template's memory stays if the job has
// no plan). With a queue it is created suspended, and Kueue starts it. FailedPrecondition if there is no template for
// the device.
absl::StatusOr<base::Json> MakeTrainerJob(const TrainerJobs& jobs, const TrainerRequest& request);

}  // namespace nibble::jobs
