#include "server/rpc/job_proto.h"

#include <cmath>
#include <limits>

#include "google/rpc/error_details.pb.h"
#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/data/example.h"
#include "server/jobs/attempt.h"
#include "server/model/artifact.h"
#include "server/rpc/model_proto.h"
#include "server/rpc/status.h"
#include "server/rpc/time.h"

namespace nibble::rpc {

namespace {

using base::Json;

// Journals and progress were validated when they were read, so an absent number is 0. A null stands for NaN, which JSON
// cannot write.
double Number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_null()) return std::numeric_limits<double>::quiet_NaN();
  return base::GetNumber(object, key, "", 0).value_or(0);
}
std::int64_t Int(const Json& object, const char* key) {
  const double number = Number(object, key);
  return std::isfinite(number) ? static_cast<std::int64_t>(number) : 0;
}
std::string Text(const Json& object, const char* key) { return ToUtf8(base::GetString(object, key, "", "").value_or("")); }

v1::StepMetrics StepOf(const Json& body) {
  v1::StepMetrics out;
  out.set_step(Int(body, "step"));
  out.set_epoch(Number(body, "epoch"));
  out.set_loss(Number(body, "loss"));
  out.set_lr(Number(body, "lr"));
  out.set_grad_norm(Number(body, "grad_norm"));
  out.set_tokens(Int(body, "tokens"));
  out.set_trainable_tokens(Int(body, "trainable_tokens"));
  out.set_tokens_per_s(Number(body, "tokens_per_s"));
  out.set_step_ms(Number(body, "step_ms"));
  out.set_kernel_launches(Int(body, "kernel_launches"));
  out.set_peak_memory_bytes(Int(body, "peak_memory_bytes"));
  const auto launches = body.find("launches");
  if (launches == body.end() || !launches->is_object()) return out;
  for (const auto& item : launches->items()) {
    if (!item.value().is_number_integer()) continue;
    auto* launch = out.add_launches();
    launch->set_kernel(ToUtf8(item.key()));
    launch->set_phase("train");
    launch->set_count(item.value().get<std::int64_t>());
  }
  return out;
}

v1::EvalResult EvalOf(const Json& body) {
  v1::EvalResult out;
  out.set_step(Int(body, "step"));
  out.set_eval_loss(Number(body, "eval_loss"));
  out.set_tokens(Int(body, "tokens"));
  const std::string what = Text(body, "what");
  out.set_subject(what == "int8"      ? v1::EVAL_SUBJECT_INT8
                  : what == "ternary" ? v1::EVAL_SUBJECT_TERNARY
                                      : v1::EVAL_SUBJECT_TRAINED);
  out.set_duration_ms(Number(body, "duration_ms"));
  out.set_best(base::GetBool(body, "best", "", false).value_or(false));
  return out;
}

v1::JobState StateOf(const Json& body, const char* key) {
  const auto state = jobs::ParseJobState(Text(body, key));
  return state.ok() ? ToProto(*state) : v1::JOB_STATE_UNSPECIFIED;
}

void PutProgress(const Json& progress, v1::Progress& out) {
  out.set_step(Int(progress, "step"));
  out.set_max_steps(Int(progress, "max_steps"));
  out.set_epoch(Number(progress, "epoch"));
  out.set_tokens(Int(progress, "tokens"));
  out.set_trainable_tokens(Int(progress, "trainable_tokens"));
  out.set_percent(Number(progress, "percent"));
  if (progress.contains("eta_s")) *out.mutable_eta() = ToProto(absl::Seconds(Number(progress, "eta_s")));
  out.set_tokens_per_s(Number(progress, "tokens_per_s"));
  out.set_peak_memory_bytes(Int(progress, "peak_memory_bytes"));
  out.set_queue_position(static_cast<std::int32_t>(Int(progress, "queue_position")));
  absl::Time updated;
  if (absl::ParseTime(absl::RFC3339_full, Text(progress, "update_time"), &updated, nullptr)) {
    *out.mutable_update_time() = ToProto(updated);
  }
}

void PutDigests(const jobs::JobDigests& digests, v1::JobDigests& out) {
  out.set_config(digests.config);
  out.set_data(digests.data);
  out.set_eval_data(digests.eval_data);
  out.set_tokenizer(digests.tokenizer);
  out.set_code(digests.code);
  out.set_base_model(digests.base_model);
}

// Copies at most kMaxNamedRows row numbers and ignores values that are not integers.
void PutRows(const Json& body, v1::Warning& out) {
  const auto rows = body.find("row_ids");
  if (rows == body.end() || !rows->is_array()) return;
  for (const Json& row : *rows) {
    if (out.row_ids_size() == data::kMaxNamedRows) return;
    if (row.is_number_integer()) out.add_row_ids(row.get<std::int64_t>());
  }
}

// The status that CreateJob would return for this error. The "fault" metadata of its ErrorInfo says whose fault it is.
google::rpc::Status RpcStatusOf(const jobs::JobError& error, const std::string& job) {
  const absl::Status status(jobs::ParseCodeName(error.code), error.message);
  const bool user = absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status) ||
                    absl::IsCancelled(status);
  google::rpc::Status out = ToRpcStatus(base::About(base::WithReason(status, error.reason, error.metadata), job));
  // Add "fault" after ToRpcStatus, which reads the metadata of an INVALID_ARGUMENT as names of fields.
  for (auto& detail : *out.mutable_details()) {
    google::rpc::ErrorInfo info;
    if (!detail.UnpackTo(&info)) continue;
    (*info.mutable_metadata())["fault"] = user ? "user" : "server";
    detail.PackFrom(info);
  }
  return out;
}

}  // namespace

v1::JobState ToProto(jobs::JobState state) {
  switch (state) {
    case jobs::JobState::kPlanning: return v1::JOB_STATE_PLANNING;
    case jobs::JobState::kQueued: return v1::JOB_STATE_QUEUED;
    case jobs::JobState::kPreparing: return v1::JOB_STATE_PREPARING;
    case jobs::JobState::kRunning: return v1::JOB_STATE_RUNNING;
    case jobs::JobState::kPausing: return v1::JOB_STATE_PAUSING;
    case jobs::JobState::kPaused: return v1::JOB_STATE_PAUSED;
    case jobs::JobState::kCancelling: return v1::JOB_STATE_CANCELLING;
    case jobs::JobState::kSucceeded: return v1::JOB_STATE_SUCCEEDED;
    case jobs::JobState::kFailed: return v1::JOB_STATE_FAILED;
    case jobs::JobState::kCancelled: return v1::JOB_STATE_CANCELLED;
  }
  return v1::JOB_STATE_UNSPECIFIED;
}

absl::StatusOr<jobs::JobState> FromProto(v1::JobState state) {
  for (int i = 0; i < jobs::kNumJobStates; ++i) {
    if (ToProto(static_cast<jobs::JobState>(i)) == state) return static_cast<jobs::JobState>(i);
  }
  return base::FieldError("filter.states", base::StrCat("has ", static_cast<int>(state), ", wanted a job state"));
}

v1::Job ToProto(const jobs::StoredJob& job) {
  v1::Job out;
  out.set_name(job.id);
  out.set_uid(job.id);  // ids are random and never reused
  *out.mutable_spec() = ToProto(job.spec);
  if (const auto runtime = job.progress.find("runtime"); runtime != job.progress.end() && runtime->is_object()) {
    v1::RuntimeRecord& record = *out.mutable_spec()->mutable_runtime();
    record.set_binary(Text(*runtime, "binary"));
    record.set_isa(Text(*runtime, "isa"));
    record.set_threads(static_cast<std::int32_t>(Int(*runtime, "threads")));
  }
  out.set_state(ToProto(job.state));
  PutProgress(job.progress, *out.mutable_progress());
  // The requested steps, until the trainer reports its own count.
  if (!job.progress.contains("max_steps")) out.mutable_progress()->set_max_steps(job.spec.run.max_steps.value_or(0));
  if (const auto step = job.progress.find("latest_step"); step != job.progress.end()) *out.mutable_latest_step() = StepOf(*step);
  if (const auto eval = job.progress.find("latest_eval"); eval != job.progress.end()) *out.mutable_latest_eval() = EvalOf(*eval);
  if (const auto eval = job.progress.find("int8_eval"); eval != job.progress.end()) *out.mutable_int8_eval() = EvalOf(*eval);
  if (const auto eval = job.progress.find("ternary_eval"); eval != job.progress.end()) *out.mutable_ternary_eval() = EvalOf(*eval);
  if (job.best_checkpoint.has_value()) *out.mutable_best_checkpoint() = ToProto(job, *job.best_checkpoint);
  out.set_output_model(job.spec.output_model);
  if (job.error.has_value()) {
    *out.mutable_error() = RpcStatusOf(*job.error, job.id);
    out.mutable_state_reason()->set_reason(job.error->reason);
    out.mutable_state_reason()->set_message(ToUtf8(WithoutInternals(job.error->message), 1024));
  }
  *out.mutable_create_time() = ToProto(job.created);
  if (job.started.has_value()) *out.mutable_start_time() = ToProto(*job.started);
  if (job.ended.has_value()) *out.mutable_end_time() = ToProto(*job.ended);
  out.set_attempt(static_cast<std::int32_t>(job.attempt));
  out.set_retries(static_cast<std::int32_t>(job.retries));
  out.set_etag(jobs::Etag(job));
  PutDigests(job.digests, *out.mutable_digests());
  return out;
}

v1::JobEvent ToProto(const jobs::StoredJob& job, const jobs::Event& event) {
  v1::JobEvent out;
  const Json& body = event.body;
  out.set_sequence(event.sequence);
  *out.mutable_time() = ToProto(event.time);
  out.set_severity(v1::SEVERITY_INFO);
  out.set_attempt(static_cast<std::int32_t>(event.attempt));
  if (event.type == "state") {
    auto* state = out.mutable_state();
    state->set_from(StateOf(body, "from"));
    state->set_to(StateOf(body, "state"));
    state->mutable_reason()->set_reason(Text(body, "reason"));
    state->mutable_reason()->set_message(WithoutInternals(Text(body, "message")));
    state->set_resumed_step(Int(body, "resumed_step"));
    if (state->to() == v1::JOB_STATE_FAILED) out.set_severity(v1::SEVERITY_ERROR);
  } else if (event.type == "step") {
    *out.mutable_step() = StepOf(body);
  } else if (event.type == "eval") {
    *out.mutable_eval() = EvalOf(body);
  } else if (event.type == "checkpoint") {
    auto* checkpoint = out.mutable_checkpoint()->mutable_checkpoint();
    checkpoint->set_name(base::StrCat(job.id, "/", Int(body, "step")));
    checkpoint->set_step(Int(body, "step"));
    checkpoint->set_resumable(true);
    checkpoint->set_servable(true);
    checkpoint->set_digest(Text(body, "digest"));
    checkpoint->set_bytes(Int(body, "bytes"));
    checkpoint->set_job(job.id);
    checkpoint->set_attempt(static_cast<std::int32_t>(event.attempt));
    *checkpoint->mutable_create_time() = ToProto(event.time);
    if (const auto metrics = body.find("metrics"); metrics != body.end() && metrics->is_object()) {
      for (const auto& item : metrics->items()) {
        if (item.value().is_number()) (*checkpoint->mutable_metrics())[ToUtf8(item.key())] = item.value().get<double>();
      }
    }
  } else if (event.type == "model") {
    auto* model = out.mutable_model();
    model->set_model(Text(body, "model"));
    if (const auto format = model::ParseFormat(Text(body, "format")); format.ok()) model->set_format(ToProto(*format));
    model->set_digest(Text(body, "digest"));
    model->set_bytes(Int(body, "bytes"));
  } else if (event.type == "warning") {
    out.set_severity(v1::SEVERITY_WARNING);
    out.mutable_warning()->set_reason(Text(body, "reason"));
    out.mutable_warning()->set_message(WithoutInternals(Text(body, "message")));
    PutRows(body, *out.mutable_warning());
  } else {
    out.mutable_log()->set_text(WithoutInternals(Text(body, "message")));
  }
  return out;
}

v1::PlanJobResponse ToProto(const plan::JobPlan& plan) {
  v1::PlanJobResponse out;
  for (const plan::MemoryItem& item : plan.memory) {
    v1::MemoryItem& made = *out.add_memory();
    made.set_pool(item.pool);
    made.set_bytes(item.bytes);
  }
  out.set_memory_total_bytes(plan.memory_bytes());
  out.set_disk_bytes(plan.disk_bytes);
  out.set_max_steps(plan.max_steps);
  out.set_epochs(plan.epochs);
  out.set_tokens(plan.tokens);
  out.set_trainable_tokens(plan.trained_tokens);
  out.set_trainable_parameters(plan.trained_parameters);
  for (const plan::PlanWarning& warning : plan.warnings) {
    v1::Warning& made = *out.add_warnings();
    made.set_reason(warning.reason);
    made.set_message(warning.message);
    for (const std::int64_t row : warning.rows) made.add_row_ids(row);
  }
  return out;
}

v1::Checkpoint ToProto(const jobs::StoredJob& job, const store::CheckpointInfo& info) {
  v1::Checkpoint out;
  out.set_name(base::StrCat(job.id, "/", info.step));
  out.set_step(info.step);
  out.set_resumable(true);
  out.set_digest(info.digest);
  out.set_bytes(static_cast<std::int64_t>(info.bytes));
  out.set_job(job.id);
  out.set_attempt(static_cast<std::int32_t>(info.attempt));
  out.set_servable(true);
  *out.mutable_create_time() = ToProto(info.created);
  for (const auto& [name, value] : info.metrics) (*out.mutable_metrics())[ToUtf8(name)] = value;
  return out;
}

}  // namespace nibble::rpc
