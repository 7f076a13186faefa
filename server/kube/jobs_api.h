// The calls to the API server that running trainers as Jobs needs.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/kube/api_client.h"
#include "server/kube/names.h"

namespace nibble::kube {

// How the pods of a deleted Job are removed: Background removes the Job at once and its pods later, Foreground its pods
// first, Orphan keeps them.
enum class Propagation { kBackground, kForeground, kOrphan };

// Calls in the namespace of the client's access. All calls return InvalidArgument, send nothing and drop `done` if an
// argument is not valid in Kubernetes. Otherwise they return OK at once, and `done` gets the answer on the client's
// thread: an object of the API, or an error of ApiClient::Request or StatusOf. Thread-safe.
class JobsApi {
 public:
  using Done = std::function<void(absl::StatusOr<base::Json>)>;

  // The client must outlive it.
  explicit JobsApi(ApiClient& client) : client_(client) {}

  // `job`: a Job (batch/v1) with a fixed metadata.name. AlreadyExists: a Job of that name exists, perhaps because an
  // earlier sending of this request reached the server after all.
  absl::Status CreateJob(base::Json job, Done done);
  absl::Status GetJob(const std::string& name, Done done);
  // Deletes the Job only if it has this uid. Aborted: it has another; NotFound.
  absl::Status DeleteJob(const std::string& name, const std::string& uid, Propagation propagation, Done done);
  // Deletes the pod only if it has this uid. Its processes get SIGTERM now, and SIGKILL after the grace period: that of
  // the pod, or `grace_period_seconds`. The latter must be at least one second: with 0 the API server drops the object
  // while the processes live on. Aborted, NotFound: as above.
  absl::Status DeletePod(const std::string& name, const std::string& uid, std::optional<int> grace_period_seconds,
                         Done done);
  // The EventList of the object with this uid: for example why a Job has no pods.
  absl::Status ListEvents(const std::string& uid, Done done);

  // The targets of lists and watches (ObjectCacheOptions::target) of all objects with these labels.
  absl::StatusOr<std::string> JobsTarget(const Labels& labels) const;
  absl::StatusOr<std::string> PodsTarget(const Labels& labels) const;

 private:
  std::string Collection(const char* api, const char* plural) const;
  void Send(ApiRequest request, Done done);

  ApiClient& client_;
};

}  // namespace nibble::kube
