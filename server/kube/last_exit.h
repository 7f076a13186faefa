// How the previous container of this pod ended, as Kubernetes reports it. If the OOM killer ended a whole container,
// with server and trainers, no count in the new container's control group shows it.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/strings.h"
#include "server/kube/cluster.h"

namespace nibble::kube {

// Where and how a pod's status is read.
struct PodAccess {
  std::string host, port;  // of the API server
  std::string token_file = base::StrCat(kServiceAccount, "/token");
  std::string ca_file = base::StrCat(kServiceAccount, "/ca.crt");
  std::string name_space, pod, container;
  absl::Duration timeout = absl::Seconds(5);  // of the whole request
};
// From entries "NAME=value": KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which Kubernetes sets, and
// NIBBLE_POD_NAMESPACE, NIBBLE_POD_NAME and NIBBLE_CONTAINER_NAME, which the chart sets with rbac.lastExit. Nullopt if
// one is missing.
std::optional<PodAccess> PodAccessOf(const std::vector<std::string>& environment);

// The reason why the container's previous run ended ("OOMKilled", "Error"); "" if this is its first run. `pod_json`: a
// Kubernetes Pod (core/v1). Errors: InvalidArgument (not a Pod, or a Pod without that container).
absl::StatusOr<std::string> LastExitReason(std::string_view pod_json, const std::string& container);
// The same, read from the API server. Waits for at most access.timeout. Errors: Unavailable (no connection, a
// certificate of another host or authority); DeadlineExceeded; PermissionDenied (an answer other than 200);
// InvalidArgument (the answer); those of reading the token and the CA file.
absl::StatusOr<std::string> ReadLastExitReason(const PodAccess& access);

inline constexpr char kOomKilled[] = "OOMKilled";

}  // namespace nibble::kube
