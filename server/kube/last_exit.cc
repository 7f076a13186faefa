#include "server/kube/last_exit.h"

#include <map>
#include <utility>

#include "server/base/json.h"
#include "server/base/mutex.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/kube/api_client.h"
#include "server/kube/cluster.h"
#include "server/kube/fields.h"

namespace nibble::kube {

namespace {

using base::StrCat;

// Sends one request and waits for its answer.
absl::StatusOr<ApiAnswer> Ask(const PodAccess& access) {
  base::Mutex mutex;
  base::Condition answered;
  std::optional<absl::StatusOr<ApiAnswer>> answer;
  ApiClient client({.host = access.host,
                    .port = access.port,
                    .token_file = access.token_file,
                    .ca_file = access.ca_file,
                    .name_space = access.name_space});
  client.Request(
      {.target = StrCat("/api/v1/namespaces/", access.name_space, "/pods/", access.pod), .timeout = access.timeout},
      [&](absl::StatusOr<ApiAnswer> got) {
        base::MutexLock lock(mutex);
        answer = std::move(got);
        answered.NotifyOne();
      });
  base::MutexLock lock(mutex);
  answered.Wait(lock, [&] { return answer.has_value(); });
  return *std::move(answer);
}

absl::StatusOr<std::string> ReasonOf(const base::Json& pod, const std::string& container) {
  const base::Json& statuses = At(pod, {"status", "containerStatuses"});
  for (const base::Json& status : statuses.is_array() ? statuses : base::Json::array()) {
    if (TextAt(status, {"name"}) != container) continue;
    return TextAt(status, {"lastState", "terminated", "reason"});
  }
  return absl::InvalidArgumentError(StrCat("the answer is not a pod with a status of the container ", container));
}

}  // namespace

std::optional<PodAccess> PodAccessOf(const std::vector<std::string>& environment) {
  PodAccess access;
  const std::map<std::string, std::string*> wanted = {{"KUBERNETES_SERVICE_HOST", &access.host},
                                                      {"KUBERNETES_SERVICE_PORT", &access.port},
                                                      {"NIBBLE_POD_NAMESPACE", &access.name_space},
                                                      {"NIBBLE_POD_NAME", &access.pod},
                                                      {"NIBBLE_CONTAINER_NAME", &access.container}};
  for (const auto& [name, value] : wanted) {
    *value = EnvironmentValue(environment, name);
    if (value->empty()) return std::nullopt;
  }
  return access;
}

absl::StatusOr<std::string> LastExitReason(std::string_view pod_json, const std::string& container) {
  NIBBLE_ASSIGN_OR_RETURN(const base::Json pod, base::ParseJson(pod_json));
  return ReasonOf(pod, container);
}

absl::StatusOr<std::string> ReadLastExitReason(const PodAccess& access) {
  NIBBLE_ASSIGN_OR_RETURN(const ApiAnswer answer, Ask(access));
  if (answer.status != 200) {
    return absl::PermissionDeniedError(StrCat("the API server answered ", answer.status, " ", answer.phrase,
                                              " for the pod ", access.name_space, "/", access.pod));
  }
  return ReasonOf(answer.json, access.container);
}

}  // namespace nibble::kube
