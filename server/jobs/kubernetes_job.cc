#include "server/jobs/kubernetes_job.h"

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/kubernetes_view.h"

namespace nibble::jobs {

using base::Json;
using base::StrCat;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

// The template's trainer container; null if it has none.
Json* TrainerContainer(Json& job) {
  Json* at = &job;
  for (const char* key : {"spec", "template", "spec", "containers"}) {
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &(*at)[key];
  }
  if (!at->is_array()) return nullptr;
  for (Json& container : *at) {
    if (container.is_object() && container.value("name", Json()) == kTrainerContainer) return &container;
  }
  return nullptr;
}

// Everything that MakeTrainerJob enters must be absent or an object.
absl::Status CheckObjects(Json& job, const char* device) {
  const auto check = [&](Json* at, std::string path, std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (!at->is_object()) break;
      if (!at->contains(key)) return absl::OkStatus();
      at = &(*at)[key];
      path += StrCat(path.empty() ? "" : ".", key);
    }
    if (at->is_object()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        StrCat("trainer templates: ", device, ": ", path.empty() ? "the Job" : path, " is not an object"));
  };
  NIBBLE_RETURN_IF_ERROR(check(&job, "", {"metadata", "labels"}));
  NIBBLE_RETURN_IF_ERROR(check(&job, "", {"spec", "template", "metadata", "labels"}));
  NIBBLE_RETURN_IF_ERROR(check(&job, "", {"spec", "template", "spec"}));
  Json* container = TrainerContainer(job);
  if (container == nullptr) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(check(container, "the trainer's container", {"resources", "requests"}));
  return check(container, "the trainer's container", {"resources", "limits"});
}

// Rules of the Job controller, in order. A disruption of the pod by the cluster and any exit code but 0 end the Job.
// FailJob puts the disruption or the exit code into the Job's condition; Count would, with backoffLimit 0, end the Job
// without either, and Ignore would start a second pod on the same attempt.
Json FailurePolicy() {
  return *base::ParseJson(R"({"rules":[
      {"action":"FailJob","onPodConditions":[{"type":"DisruptionTarget","status":"True"}]},
      {"action":"FailJob","onExitCodes":{"containerName":"trainer","operator":"NotIn","values":[0]}}]})");
}

void SetResources(Json& container, const TrainerRequest& request) {
  Json& resources = container["resources"];
  const std::string cpu = StrCat(request.threads);
  resources["requests"]["cpu"] = cpu;
  if (request.memory_bytes == 0) return;
  const std::int64_t bytes = request.memory_bytes + request.memory_bytes / 10;
  const std::string memory = StrCat((bytes + kMiB - 1) / kMiB, "Mi");
  resources["requests"]["memory"] = memory;
  resources["limits"]["memory"] = memory;  // the same: the trainer is not evicted for memory that it was promised
}

// Replaces an entry of the same name.
void SetEnvironment(Json& container, Json entry) {
  Json& all = container["env"];
  if (!all.is_array()) all = Json::array();
  for (Json& one : all) {
    if (one.is_object() && one.value("name", Json()) == entry["name"]) {
      one = std::move(entry);
      return;
    }
  }
  all.push_back(std::move(entry));
}

}  // namespace

std::string TrainerJobName(std::string_view job_id, std::string_view attempt) {
  return StrCat("nibble-", job_id, "-", attempt);
}
std::string TrainerJobName(const TrainerRequest& request) {
  return TrainerJobName(request.job_id, StrCat(request.attempt));
}

absl::StatusOr<std::map<std::string, Json>> ParseTrainerTemplates(std::string_view text) {
  NIBBLE_ASSIGN_OR_RETURN(const Json parsed, base::ParseJson(text));
  std::map<std::string, Json> templates;
  for (const char* device : {"cpu", "cuda"}) {
    if (!parsed.is_object() || !parsed.contains(device)) continue;
    Json job = parsed[device];
    NIBBLE_RETURN_IF_ERROR(CheckObjects(job, device));
    if (TrainerContainer(job) == nullptr) {
      return absl::InvalidArgumentError(StrCat("trainer templates: ", device,
                                               ": spec.template.spec.containers has no container named \"",
                                               kTrainerContainer, "\""));
    }
    templates[device] = std::move(job);
  }
  if (!templates.empty()) return templates;
  return absl::InvalidArgumentError("trainer templates: wanted an object with a Job for \"cpu\", \"cuda\" or both");
}

absl::StatusOr<Json> MakeTrainerJob(const TrainerJobs& jobs, const TrainerRequest& request) {
  const auto found = jobs.templates.find(request.device);
  if (found == jobs.templates.end()) {
    return absl::FailedPreconditionError(StrCat("the server has no template for trainers on \"", request.device, "\""));
  }
  Json job = found->second;
  job["apiVersion"] = "batch/v1";
  job["kind"] = "Job";
  job["metadata"]["name"] = TrainerJobName(request);
  const std::map<std::string, std::string> labels = {
      {kServerLabel, jobs.server}, {kJobLabel, request.job_id}, {kAttemptLabel, StrCat(request.attempt)}};
  Json& spec = job["spec"];
  for (const auto& [key, value] : labels) {
    job["metadata"]["labels"][key] = value;
    spec["template"]["metadata"]["labels"][key] = value;
  }
  if (!jobs.queue.empty()) job["metadata"]["labels"][kQueueLabel] = jobs.queue;
  spec["suspend"] = !jobs.queue.empty();
  spec["completionMode"] = "Indexed";  // the index of a pod is its rank; a trainer of one pod has rank 0
  spec["parallelism"] = 1;
  spec["completions"] = 1;
  spec["backoffLimit"] = 0;
  spec["podFailurePolicy"] = FailurePolicy();
  // If no server removes the Job, the cluster does.
  if (!spec.contains("ttlSecondsAfterFinished")) spec["ttlSecondsAfterFinished"] = 86'400;
  Json& pod = spec["template"]["spec"];
  pod["restartPolicy"] = "Never";
  if (!pod.contains("terminationGracePeriodSeconds")) pod["terminationGracePeriodSeconds"] = jobs.grace_seconds;
  Json& container = *TrainerContainer(job);
  container["args"] = Json::array({StrCat("--job_dir=", request.directory)});
  SetEnvironment(container, *base::ParseJson(
                                R"({"name":"NIBBLE_POD_UID","valueFrom":{"fieldRef":{"fieldPath":"metadata.uid"}}})"));
  // As TrainerEnvironment, which gives the reason (local_runner.cc).
  SetEnvironment(container, {{"name", "GOMP_SPINCOUNT"}, {"value", "1000"}});
  SetResources(container, request);
  return job;
}

}  // namespace nibble::jobs
