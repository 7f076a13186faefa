#include "server/kube/jobs_api.h"

#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::kube {

namespace {

using base::Json;
using base::StrCat;

constexpr char kBatch[] = "/apis/batch/v1";
constexpr char kCore[] = "/api/v1";

const char* NameOf(Propagation propagation) {
  switch (propagation) {
    case Propagation::kBackground: return "Background";
    case Propagation::kForeground: return "Foreground";
    case Propagation::kOrphan: break;
  }
  return "Orphan";
}

// A request to delete the object at `target` with that uid.
ApiRequest Deletion(std::string target, const std::string& uid) {
  ApiRequest request;
  request.method = Method::kDelete;
  request.target = std::move(target);
  request.body = Json{{"kind", "DeleteOptions"}, {"apiVersion", "v1"}, {"preconditions", {{"uid", uid}}}};
  request.repeatable = true;
  return request;
}

absl::StatusOr<std::string> Selecting(const std::string& collection, const Labels& labels) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string selector, LabelSelector(labels));
  return selector.empty() ? collection : StrCat(collection, "?labelSelector=", selector);
}

}  // namespace

std::string JobsApi::Collection(const char* api, const char* plural) const {
  return StrCat(api, "/namespaces/", client_.access().name_space, "/", plural);
}

void JobsApi::Send(ApiRequest request, Done done) {
  client_.Request(std::move(request), [done = std::move(done)](absl::StatusOr<ApiAnswer> answer) {
    if (!answer.ok()) return done(answer.status());
    if (const absl::Status status = StatusOf(*answer); !status.ok()) return done(status);
    if (!answer->json.is_object()) return done(absl::InternalError("the API server did not answer with an object"));
    done(std::move(answer->json));
  });
}

absl::Status JobsApi::CreateJob(Json job, Done done) {
  const auto metadata = job.is_object() ? job.find("metadata") : job.end();
  if (metadata == job.end()) return absl::InvalidArgumentError("job: no metadata");
  NIBBLE_ASSIGN_OR_RETURN(const std::string name, base::GetString(*metadata, "name", "job: metadata"));
  NIBBLE_RETURN_IF_ERROR(CheckName(name, "job"));
  ApiRequest request;
  request.method = Method::kPost;
  request.target = Collection(kBatch, "jobs");
  request.body = std::move(job);
  request.repeatable = true;
  Send(std::move(request), std::move(done));
  return absl::OkStatus();
}

absl::Status JobsApi::GetJob(const std::string& name, Done done) {
  NIBBLE_RETURN_IF_ERROR(CheckName(name, "job"));
  ApiRequest request;
  request.target = StrCat(Collection(kBatch, "jobs"), "/", name);
  Send(std::move(request), std::move(done));
  return absl::OkStatus();
}

absl::Status JobsApi::DeleteJob(const std::string& name, const std::string& uid, Propagation propagation, Done done) {
  NIBBLE_RETURN_IF_ERROR(CheckName(name, "job"));
  NIBBLE_RETURN_IF_ERROR(CheckName(uid, "uid"));
  ApiRequest request = Deletion(StrCat(Collection(kBatch, "jobs"), "/", name), uid);
  (*request.body)["propagationPolicy"] = NameOf(propagation);
  Send(std::move(request), std::move(done));
  return absl::OkStatus();
}

absl::Status JobsApi::DeletePod(const std::string& name, const std::string& uid,
                                std::optional<int> grace_period_seconds, Done done) {
  NIBBLE_RETURN_IF_ERROR(CheckName(name, "pod"));
  NIBBLE_RETURN_IF_ERROR(CheckName(uid, "uid"));
  if (grace_period_seconds.has_value() && *grace_period_seconds < 1) {
    return absl::InvalidArgumentError(
        StrCat("grace_period_seconds: ", *grace_period_seconds, ", wanted at least 1: with 0 the processes live on"));
  }
  ApiRequest request = Deletion(StrCat(Collection(kCore, "pods"), "/", name), uid);
  if (grace_period_seconds.has_value()) (*request.body)["gracePeriodSeconds"] = *grace_period_seconds;
  Send(std::move(request), std::move(done));
  return absl::OkStatus();
}

absl::Status JobsApi::ListEvents(const std::string& uid, Done done) {
  NIBBLE_RETURN_IF_ERROR(CheckName(uid, "uid"));
  ApiRequest request;
  request.target =
      StrCat(Collection(kCore, "events"), "?fieldSelector=", PercentEncode(StrCat("involvedObject.uid=", uid)));
  Send(std::move(request), std::move(done));
  return absl::OkStatus();
}

absl::StatusOr<std::string> JobsApi::JobsTarget(const Labels& labels) const {
  return Selecting(Collection(kBatch, "jobs"), labels);
}

absl::StatusOr<std::string> JobsApi::PodsTarget(const Labels& labels) const {
  return Selecting(Collection(kCore, "pods"), labels);
}

}  // namespace nibble::kube
