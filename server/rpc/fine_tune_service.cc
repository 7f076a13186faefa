#include "server/rpc/fine_tune_service.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/auth/authority.h"
#include "server/base/error.h"
#include "server/base/human_bytes.h"
#include "server/base/ids.h"
#include "server/base/json.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/plan/plan_eta.h"
#include "server/rpc/begin_operation.h"
#include "server/rpc/job_proto.h"
#include "server/rpc/page.h"
#include "server/rpc/time.h"
#include "server/rpc/unary.h"
#include "server/rpc/watch_job.h"
#include "server/rpc/watch_job_logs.h"

namespace nibble::rpc {

namespace {

constexpr int kMaxLabels = 16;  // in a filter; a job has the same limit

// Distinguishes a repeated request from a different one with the same id. Covers the request as received, before
// defaults are filled in.
std::string BodyDigest(const v1::CreateJobRequest& request) {
  return base::Sha256Hex(DeterministicBytes(request.spec()));
}

bool MaySee(const Call& call, const jobs::StoredJob& job) {
  const std::string& tenant = call.principal().tenant;
  return tenant.empty() || tenant == job.tenant;
}

// The job that a request names. Other tenants' jobs look absent.
absl::StatusOr<jobs::StoredJob> Find(jobs::JobController& jobs, const Call& call, const std::string& name) {
  NIBBLE_ASSIGN_OR_RETURN(jobs::StoredJob job, jobs.Get(name));
  if (!MaySee(call, job)) return jobs::NoJob(name);
  return job;
}

// Checks that the caller may see the job. Called before each change of a job.
absl::Status CheckSeen(jobs::JobController& jobs, const Call& call, const std::string& name) {
  return Find(jobs, call, name).status();
}

template <typename Request>
std::optional<std::string> EtagOf(const Request& request) {
  return request.has_etag() ? std::optional(request.etag()) : std::nullopt;
}

// The jobs that the caller may see and that pass the filter.
absl::StatusOr<jobs::JobQuery> QueryOf(jobs::JobController& jobs, const Call& call,
                                       const v1::ListJobsRequest& request) {
  jobs::JobQuery query;
  NIBBLE_ASSIGN_OR_RETURN(query.before, ParsePageToken(request.page_token()));
  if (request.has_created_before()) {
    if (query.before != 0) return base::FieldError("created_before", "is set with page_token, wanted only one of them");
    NIBBLE_ASSIGN_OR_RETURN(const jobs::StoredJob job, Find(jobs, call, request.created_before()));
    query.before = job.number;
  }
  for (const int state : request.filter().states()) {
    if (state == v1::JOB_STATE_UNSPECIFIED) continue;  // ignored
    NIBBLE_ASSIGN_OR_RETURN(const jobs::JobState parsed, FromProto(static_cast<v1::JobState>(state)));
    query.states.push_back(parsed);
  }
  if (const std::string& tenant = call.principal().tenant; !tenant.empty()) query.tenant = tenant;
  if (request.filter().has_base_model()) query.base_model = request.filter().base_model();
  if (request.filter().labels_size() > kMaxLabels) {
    return base::FieldError(
        "filter.labels", base::StrCat("has ", request.filter().labels_size(), " labels, wanted at most ", kMaxLabels));
  }
  query.labels.insert(request.filter().labels().begin(), request.filter().labels().end());
  return query;
}

// `token`: sequence of the last event of the previous page; 0: this is the first page.
absl::Status ListNewestEvents(jobs::JobController& jobs, const jobs::StoredJob& job,
                              const v1::ListJobEventsRequest& request, std::int64_t size, std::int64_t token,
                              std::size_t max_page_bytes, v1::ListJobEventsResponse& response) {
  if (request.after_sequence() != 0)
    return base::FieldError("after_sequence", "is set with newest_first, wanted only one of them");
  std::int64_t before = std::numeric_limits<std::int64_t>::max();
  if (request.has_before_sequence()) {
    before = request.before_sequence();
    if (before < 1) return base::FieldError("before_sequence", base::StrCat("is ", before, ", wanted 1 or more"));
  }
  if (token != 0) before = std::min(before, token);
  // Ask for one more than the page shows, to know whether another page follows.
  NIBBLE_ASSIGN_OR_RETURN(const auto events, jobs.EventsBefore(job.id, before, size + 1));
  PageBytes bytes(max_page_bytes);
  for (const jobs::Event& event : events) {
    v1::JobEvent row = ToProto(job, event);
    if (response.events_size() == size || !bytes.Take(row.ByteSizeLong())) {
      response.set_next_page_token(std::to_string(response.events(response.events_size() - 1).sequence()));
      break;
    }
    *response.add_events() = std::move(row);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<jobs::JobSpec> FineTuneService::SpecOf(const v1::JobSpec& request) {
  NIBBLE_ASSIGN_OR_RETURN(jobs::JobSpec spec, FromProto(request));
  if (!request.data().has_max_seq_len()) {
    if (const auto facts = texts_.Facts(spec.base_model); facts.ok()) {
      spec.data.max_seq_len = std::min(spec.data.max_seq_len, facts->config.context_limit());
    }
  }
  return spec;
}

absl::StatusOr<v1::PlanJobResponse> FineTuneService::PlanOf(const jobs::JobSpec& spec, const std::string& tenant,
                                                            const base::CancelToken& cancel) {
  NIBBLE_ASSIGN_OR_RETURN(plan::PlannedJob planned, planner_.Plan(spec, cancel));
  NIBBLE_ASSIGN_OR_RETURN(const std::optional<jobs::JobStart> start, jobs_.FindStart(planned.spec, tenant));
  std::int64_t tokens = planned.plan.tokens;  // of the steps that are not done yet
  if (start.has_value()) {
    NIBBLE_RETURN_IF_ERROR(jobs_.VerifyStart(*start, cancel));
    NIBBLE_RETURN_IF_ERROR(jobs::CheckStepsAfter(*start, planned.spec, planned.plan.max_steps));
    planned.plan.disk_bytes += static_cast<std::int64_t>(start->bytes);
    if (!start->weights_only) tokens = tokens / planned.plan.max_steps * (planned.plan.max_steps - start->step);
  }
  v1::PlanJobResponse response = ToProto(planned.plan);
  const auto warn = [&response](const char* reason, const std::string& message) {
    v1::Warning& warning = *response.add_warnings();
    warning.set_reason(reason);
    warning.set_message(message);
  };
  *response.mutable_spec() = ToProto(planned.spec);
  response.set_memory_available_bytes(planned.available_bytes);
  response.set_disk_available_bytes(static_cast<std::int64_t>(planned.spare_disk_bytes));
  if (planned.available_bytes > 0 && planned.plan.memory_bytes() > planned.available_bytes) {
    warn("MEMORY", jobs::NeedsMoreMemoryText(planned.spec, planned.plan.memory_bytes(), planned.available_bytes));
  }
  if (static_cast<std::uint64_t>(planned.plan.disk_bytes) > planned.spare_disk_bytes) {
    warn("DISK", base::StrCat("the job writes up to ", base::HumanBytes(planned.plan.disk_bytes),
                              ", the server's disk has room for ",
                              base::HumanBytes(static_cast<std::int64_t>(planned.spare_disk_bytes))));
  }
  if (!spec.output_model.empty()) {  // otherwise the server makes a free name
    const absl::Status name = jobs_.CheckOutputName(spec.output_model, tenant);
    if (!name.ok()) warn("NAME_TAKEN", std::string(name.message()));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::optional<plan::PlanEta> eta, plan::EtaOf(planned.spec, tokens, jobs_, texts_));
  if (!eta.has_value()) return response;
  *response.mutable_eta() = ToProto(absl::Seconds(eta->seconds));
  if (eta->rough) {
    warn("ETA_ROUGH",
         "none of the newest 100 running or succeeded jobs has this base, method and device: eta "
         "estimated from a job on another base, scaled by the weights");
  }
  return response;
}

grpc::ServerUnaryReactor* FineTuneService::PlanJob(grpc::CallbackServerContext* context,
                                                   const v1::PlanJobRequest* request,
                                                   google::longrunning::Operation* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.FineTuneService/PlanJob", [=, this](const Call& call) -> absl::Status {
        jobs::JobSpec spec;
        const std::string tenant = call.principal().tenant;
        std::shared_ptr<const void> slot;  // held until the plan has ended
        const auto check = [&]() -> absl::Status {
          NIBBLE_ASSIGN_OR_RETURN(spec, SpecOf(request->spec()));
          NIBBLE_ASSIGN_OR_RETURN(const jobs::JobSpec resolved, planner_.Check(spec));
          NIBBLE_RETURN_IF_ERROR(jobs_.FindStart(resolved, tenant).status());
          NIBBLE_ASSIGN_OR_RETURN(slot,
                                  environment_.plans.Take(auth::FairnessKey(call.principal()),
                                                          operations_.RetryAfter(operations::OperationLane::kPlans)));
          return absl::OkStatus();
        };
        const operations::OperationStart start =
            StartOf(call, "plan", operations::OperationLane::kPlans, *request, request->spec().base_model());
        // Like Begin() (begin_operation.h), which cannot be used: the body needs the results of `check`.
        NIBBLE_ASSIGN_OR_RETURN(std::optional<operations::Operation> known, operations_.Find(start));
        if (!known.has_value()) {
          NIBBLE_RETURN_IF_ERROR(check());
          const auto plan = [this, spec, tenant,
                             slot](registry::OperationScope& scope) -> absl::StatusOr<operations::OperationResponse> {
            scope.Progress("plan", 0, 1);
            NIBBLE_ASSIGN_OR_RETURN(const v1::PlanJobResponse planned, PlanOf(spec, tenant, scope.cancel()));
            return Packed(planned);
          };
          NIBBLE_ASSIGN_OR_RETURN(known, operations_.Start(start, plan));
        }
        *response = ToProto(*known);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* FineTuneService::CreateJob(grpc::CallbackServerContext* context,
                                                     const v1::CreateJobRequest* request, v1::Job* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.FineTuneService/CreateJob", [=, this](const Call& call) -> absl::Status {
        NIBBLE_ASSIGN_OR_RETURN(const jobs::JobSpec spec, SpecOf(request->spec()));
        const auth::Principal& caller = call.principal();
        NIBBLE_RETURN_IF_ERROR(auth::CheckPriority(caller, "run.priority", spec.run.priority));
        const std::string owner =
            caller.name == base::kUnnamedCaller ? "" : caller.name;  // callers without a name have no quota
        const jobs::JobController::Submission submission{
            .body_digest = BodyDigest(*request), .owner = owner, .tenant = caller.tenant};
        NIBBLE_ASSIGN_OR_RETURN(const jobs::StoredJob job, jobs_.Submit(spec, request->request_id(), submission));
        *response = ToProto(job);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* FineTuneService::GetJob(grpc::CallbackServerContext* context,
                                                  const v1::GetJobRequest* request, v1::Job* response) {
  return UnaryOnWorker(environment_, context, "nibble.v1.FineTuneService/GetJob",
                       [=, this](const Call& call) -> absl::Status {
                         NIBBLE_ASSIGN_OR_RETURN(const jobs::StoredJob job, Find(jobs_, call, request->name()));
                         *response = ToProto(job);
                         return absl::OkStatus();
                       });
}

grpc::ServerUnaryReactor* FineTuneService::ListJobs(grpc::CallbackServerContext* context,
                                                    const v1::ListJobsRequest* request,
                                                    v1::ListJobsResponse* response) {
  return UnaryOnWorker(environment_, context, "nibble.v1.FineTuneService/ListJobs",
                       [=, this](const Call& call) -> absl::Status {
                         NIBBLE_ASSIGN_OR_RETURN(const std::int64_t size, CheckPageSize(request->page_size()));
                         NIBBLE_ASSIGN_OR_RETURN(const jobs::JobQuery query, QueryOf(jobs_, call, *request));
                         std::int64_t last = 0;  // number of the last job in the answer
                         // Ask for one more than the page shows, to know whether another page follows.
                         NIBBLE_ASSIGN_OR_RETURN(const auto page, jobs_.List(query, size + 1, call.cancel()));
                         std::int64_t next = page.next;
                         PageBytes bytes(environment_.max_page_bytes);
                         for (const jobs::StoredJob& job : page.jobs) {
                           v1::Job row = ToProto(job);
                           if (response->jobs_size() == size || !bytes.Take(row.ByteSizeLong())) {
                             next = last;
                             break;
                           }
                           *response->add_jobs() = std::move(row);
                           last = job.number;
                         }
                         if (next != 0) response->set_next_page_token(std::to_string(next));
                         return absl::OkStatus();
                       });
}

grpc::ServerUnaryReactor* FineTuneService::DeleteJob(grpc::CallbackServerContext* context,
                                                     const v1::DeleteJobRequest* request, v1::DeleteJobResponse*) {
  return UnaryOnWorker(environment_, context, "nibble.v1.FineTuneService/DeleteJob",
                       [=, this](const Call& call) -> absl::Status {
                         NIBBLE_RETURN_IF_ERROR(CheckSeen(jobs_, call, request->name()));
                         return jobs_.Delete(request->name(), EtagOf(*request));
                       });
}

grpc::ServerWriteReactor<v1::JobEvent>* FineTuneService::WatchJob(grpc::CallbackServerContext* context,
                                                                  const v1::WatchJobRequest* request) {
  auto stream = StreamReactor<v1::JobEvent>::Make(environment_, context, "nibble.v1.FineTuneService/WatchJob",
                                                  &environment_.watches);
  if (stream->ended()) return stream.get();
  RunOnWorker(environment_.watch_workers, *stream,
              [this, stream, name = request->name(), after = request->after_sequence()] {
                if (const auto job = Find(jobs_, stream->call(), name); !job.ok()) return stream->End(job.status());
                rpc::WatchJob(stream, jobs_, name, after);
              });
  return stream.get();
}

grpc::ServerWriteReactor<v1::JobLogChunk>* FineTuneService::WatchJobLogs(grpc::CallbackServerContext* context,
                                                                         const v1::WatchJobLogsRequest* request) {
  auto stream = StreamReactor<v1::JobLogChunk>::Make(environment_, context, "nibble.v1.FineTuneService/WatchJobLogs",
                                                     &environment_.watches);
  if (stream->ended()) return stream.get();
  RunOnWorker(environment_.watch_workers, *stream, [this, stream, copy = *request] {
    if (const auto job = Find(jobs_, stream->call(), copy.name()); !job.ok()) return stream->End(job.status());
    rpc::WatchJobLogs(stream, jobs_, copy);
  });
  return stream.get();
}

grpc::ServerUnaryReactor* FineTuneService::ListJobEvents(grpc::CallbackServerContext* context,
                                                         const v1::ListJobEventsRequest* request,
                                                         v1::ListJobEventsResponse* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.FineTuneService/ListJobEvents", [=, this](const Call& call) -> absl::Status {
        NIBBLE_ASSIGN_OR_RETURN(const std::int64_t size, CheckPageSize(request->page_size()));
        NIBBLE_ASSIGN_OR_RETURN(const std::int64_t token, ParsePageToken(request->page_token()));
        NIBBLE_ASSIGN_OR_RETURN(const jobs::StoredJob job, Find(jobs_, call, request->name()));
        if (request->newest_first()) {
          return ListNewestEvents(jobs_, job, *request, size, token, environment_.max_page_bytes, *response);
        }
        if (request->has_before_sequence()) {
          return base::FieldError("before_sequence", "is set without newest_first, wanted both or none");
        }
        if (request->after_sequence() < 0) {
          return base::FieldError("after_sequence",
                                  base::StrCat("is ", request->after_sequence(), ", wanted 0 or more"));
        }
        const std::int64_t after = std::max(token, request->after_sequence());
        NIBBLE_ASSIGN_OR_RETURN(const auto page, jobs_.Events(request->name(), after, size));
        PageBytes bytes(environment_.max_page_bytes);
        for (const jobs::Event& event : page.events) {
          v1::JobEvent row = ToProto(job, event);
          if (!bytes.Take(row.ByteSizeLong())) break;
          *response->add_events() = std::move(row);
        }
        if (response->events_size() == 0) return absl::OkStatus();
        const std::int64_t last = page.events[static_cast<std::size_t>(response->events_size()) - 1].sequence;
        // job.last_sequence was read before the events, so a page that reaches it is the last.
        if (last < job.last_sequence) response->set_next_page_token(std::to_string(last));
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* FineTuneService::ListCheckpoints(grpc::CallbackServerContext* context,
                                                           const v1::ListCheckpointsRequest* request,
                                                           v1::ListCheckpointsResponse* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.FineTuneService/ListCheckpoints", [=, this](const Call& call) -> absl::Status {
        NIBBLE_ASSIGN_OR_RETURN(const jobs::StoredJob job, Find(jobs_, call, request->name()));
        NIBBLE_ASSIGN_OR_RETURN(auto all, jobs_.Checkpoints(request->name()));
        std::reverse(all.begin(), all.end());  // newest first
        // FillPage needs keys that ascend as text; the steps descend.
        const auto key_of = [](const store::CheckpointInfo& one) {
          return base::StrCat(absl::Dec(std::numeric_limits<std::int64_t>::max() - one.step, absl::kZeroPad20));
        };
        const auto row_of = [&](const auto& one) -> absl::StatusOr<std::optional<v1::Checkpoint>> {
          return ToProto(job, one);
        };
        NIBBLE_ASSIGN_OR_RETURN(*response->mutable_next_page_token(),
                                FillPage(all, key_of, request->page_size(), request->page_token(),
                                         environment_.max_page_bytes, row_of, *response->mutable_checkpoints()));
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* FineTuneService::CancelJob(grpc::CallbackServerContext* context,
                                                     const v1::CancelJobRequest* request, v1::Job* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.FineTuneService/CancelJob", [=, this](const Call& call) -> absl::Status {
        NIBBLE_RETURN_IF_ERROR(CheckSeen(jobs_, call, request->name()));
        NIBBLE_ASSIGN_OR_RETURN(const jobs::StoredJob job,
                                jobs_.Cancel(request->name(), EtagOf(*request), request->keep_checkpoint()));
        *response = ToProto(job);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* FineTuneService::PauseJob(grpc::CallbackServerContext* context,
                                                    const v1::PauseJobRequest* request, v1::Job* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.FineTuneService/PauseJob", [=, this](const Call& call) -> absl::Status {
        NIBBLE_RETURN_IF_ERROR(CheckSeen(jobs_, call, request->name()));
        NIBBLE_ASSIGN_OR_RETURN(const jobs::StoredJob job, jobs_.Pause(request->name(), EtagOf(*request)));
        *response = ToProto(job);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* FineTuneService::ResumeJob(grpc::CallbackServerContext* context,
                                                     const v1::ResumeJobRequest* request, v1::Job* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.FineTuneService/ResumeJob", [=, this](const Call& call) -> absl::Status {
        NIBBLE_RETURN_IF_ERROR(CheckSeen(jobs_, call, request->name()));
        NIBBLE_ASSIGN_OR_RETURN(const jobs::StoredJob job, jobs_.Resume(request->name(), EtagOf(*request)));
        *response = ToProto(job);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* FineTuneService::CheckpointJob(grpc::CallbackServerContext* context,
                                                         const v1::CheckpointJobRequest* request, v1::Job* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.FineTuneService/CheckpointJob", [=, this](const Call& call) -> absl::Status {
        NIBBLE_RETURN_IF_ERROR(CheckSeen(jobs_, call, request->name()));
        NIBBLE_ASSIGN_OR_RETURN(const jobs::StoredJob job, jobs_.Checkpoint(request->name(), EtagOf(*request)));
        *response = ToProto(job);
        return absl::OkStatus();
      });
}

}  // namespace nibble::rpc
