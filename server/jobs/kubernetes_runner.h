#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/jobs/kubernetes_job.h"
#include "server/jobs/runner.h"
#include "server/kube/cluster.h"

namespace nibble::jobs {

struct KubernetesRunnerOptions {
  kube::ClusterAccess access;
  TrainerJobs jobs;
  // A trainer whose image, configuration or rights are wrong for this long has failed to start.
  absl::Duration start_timeout = absl::Minutes(5);
  // A trainer whose node does not answer for this long has ended with kNodeLost, although its process may still run.
  absl::Duration lost_node_timeout = absl::Minutes(5);
  // Poll reports why a trainer has not begun only after this time.
  absl::Duration quiet_start = absl::Seconds(5);
  absl::Duration min_pause = absl::Milliseconds(500), max_pause = absl::Seconds(30);  // after a failed call
  base::Clock* clock = &base::RealClock();
};

// Runs each attempt as a Job (kubernetes_job.h) in the access's namespace; the attempt's directory must have the same
// path in the Job's pods. Follows Jobs and pods by watches. A trainer's handle is "JOB_NAME/UID". kTerminate deletes
// the Job, so its pod gets SIGTERM and its grace period. kKill leaves the pod one second; if the deletion was late, it
// waits first, so that the trainer keeps the time between both signals. Forget deletes the Job. After Recovered, Jobs
// with this server's label whose attempt the runner does not know are deleted. Trainers outlive the runner.
// InvalidArgument if the server's name is not valid as a label's value.
absl::StatusOr<std::unique_ptr<Runner>> MakeKubernetesRunner(KubernetesRunnerOptions options);

}  // namespace nibble::jobs
