#include "server/rpc/job_proto.h"

#include <cmath>
#include <limits>
#include <variant>

#include "google/rpc/error_details.pb.h"
#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/data/example.h"
#include "server/jobs/attempt.h"
#include "server/jobs/event.h"
#include "server/model/artifact.h"
#include "server/rpc/model_proto.h"
#include "server/rpc/status.h"
#include "server/rpc/time.h"

namespace nibble::rpc {

namespace {

using base::Json;

// 0 for an absent number. Other types do not occur: journals and progress were validated when they were read. A null
// stands for NaN, which JSON cannot write.
double Number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_null()) return std::numeric_limits<double>::quiet_NaN();
  return base::GetNumber(object, key, "", 0).value_or(0);
}
std::int64_t Int(const Json& object, const char* key) {
  const double number = Number(object, key);
  return std::isfinite(number) ? static_cast<std::int64_t>(number) : 0;
}
std::string Text(const Json& object, const char* key) {
  return ToUtf8(base::GetString(object, key, "", "").value_or(""));
}

v1::StepMetrics MetricsOf(const jobs::StepEvent& step) {
  v1::StepMetrics out;
  out.set_step(step.step.value_or(0));
  out.set_epoch(step.epoch.value_or(0));
  out.set_loss(step.loss.value_or(0));
  out.set_lr(step.lr.value_or(0));
  out.set_grad_norm(step.grad_norm.value_or(0));
  out.set_tokens(step.tokens.value_or(0));
  out.set_trainable_tokens(step.trainable_tokens.value_or(0));
  out.set_tokens_per_s(step.tokens_per_s.value_or(0));
  out.set_step_ms(step.step_ms.value_or(0));
  out.set_kernel_launches(step.kernel_launches.value_or(0));
  out.set_peak_memory_bytes(step.peak_memory_bytes.value_or(0));
  for (const auto& [kernel, count] : step.launches) {
    auto* launch = out.add_launches();
    launch->set_kernel(ToUtf8(kernel));
    launch->set_phase("train");
    launch->set_count(count);
  }
  return out;
}

v1::EvalResult ResultOf(const jobs::EvalEvent& eval) {
  v1::EvalResult out;
  out.set_step(eval.step.value_or(0));
  out.set_eval_loss(eval.eval_loss.value_or(0));
  out.set_tokens(eval.tokens.value_or(0));
  out.set_subject(eval.what == "int8"      ? v1::EVAL_SUBJECT_INT8
                  : eval.what == "ternary" ? v1::EVAL_SUBJECT_TERNARY
                                           : v1::EVAL_SUBJECT_TRAINED);
  out.set_duration_ms(eval.duration_ms.value_or(0));
  out.set_best(eval.best.value_or(false));
  return out;
}

v1::JobState StateOf(const std::string& name) {
  const auto state = jobs::ParseJobState(name);
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

// The status that CreateJob would return for this error. The "fault" metadata of its ErrorInfo says whose fault it is.
google::rpc::Status RpcStatusOf(const jobs::JobError& error, const std::string& job) {
  const absl::Status status(jobs::ParseCodeName(error.code), error.message);
  const bool user = absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
                    absl::IsUnimplemented(status) || absl::IsCancelled(status);
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
    const jobs::Runtime where = jobs::DecodeRuntime(*runtime);
    v1::RuntimeRecord& record = *out.mutable_spec()->mutable_runtime();
    record.set_binary(ToUtf8(where.binary));
    record.set_isa(ToUtf8(where.isa));
    record.set_threads(static_cast<std::int32_t>(where.threads.value_or(0)));
  }
  out.set_state(ToProto(job.state));
  PutProgress(job.progress, *out.mutable_progress());
  // The requested steps, until the trainer reports its own count.
  if (!job.progress.contains("max_steps")) out.mutable_progress()->set_max_steps(job.spec.run.max_steps.value_or(0));
  if (const auto step = job.progress.find("latest_step"); step != job.progress.end())
    *out.mutable_latest_step() = MetricsOf(jobs::DecodeStep(*step));
  if (const auto eval = job.progress.find("latest_eval"); eval != job.progress.end())
    *out.mutable_latest_eval() = ResultOf(jobs::DecodeEval(*eval));
  if (const auto eval = job.progress.find("int8_eval"); eval != job.progress.end())
    *out.mutable_int8_eval() = ResultOf(jobs::DecodeEval(*eval));
  if (const auto eval = job.progress.find("ternary_eval"); eval != job.progress.end())
    *out.mutable_ternary_eval() = ResultOf(jobs::DecodeEval(*eval));
  if (job.best_checkpoint.has_value()) *out.mutable_best_checkpoint() = ToProto(job, *job.best_checkpoint);
  out.set_output_model(job.spec.output_model);
  if (job.error.has_value()) {
    *out.mutable_error() = RpcStatusOf(*job.error, job.id);
    out.mutable_state_reason()->set_reason(job.error->reason);
    out.mutable_state_reason()->set_message(ToUtf8(WithoutInternals(job.error->message), 1024));
  } else if (!job.wait_message.empty()) {
    out.mutable_state_reason()->set_reason(ToUtf8(job.wait_reason));
    out.mutable_state_reason()->set_message(ToUtf8(WithoutInternals(job.wait_message), 1024));
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

namespace {

// Sets the oneof of an event, and its severity if that is not INFO.
class EventWriter {
 public:
  EventWriter(const jobs::StoredJob& job, const jobs::Event& event, v1::JobEvent& out)
      : job_(job), event_(event), out_(out) {}

  void operator()(const jobs::StateEvent& event) const {
    auto& state = *out_.mutable_state();
    state.set_from(StateOf(event.from));
    state.set_to(StateOf(event.state));
    state.mutable_reason()->set_reason(ToUtf8(event.reason));
    state.mutable_reason()->set_message(WithoutInternals(ToUtf8(event.message)));
    state.set_resumed_step(event.resumed_step.value_or(0));
    if (state.to() == v1::JOB_STATE_FAILED) out_.set_severity(v1::SEVERITY_ERROR);
  }
  void operator()(const jobs::StepEvent& event) const { *out_.mutable_step() = MetricsOf(event); }
  void operator()(const jobs::EvalEvent& event) const { *out_.mutable_eval() = ResultOf(event); }
  void operator()(const jobs::CheckpointEvent& event) const {
    auto& checkpoint = *out_.mutable_checkpoint()->mutable_checkpoint();
    checkpoint.set_name(base::StrCat(job_.id, "/", event.step.value_or(0)));
    checkpoint.set_step(event.step.value_or(0));
    checkpoint.set_resumable(true);
    checkpoint.set_servable(true);
    checkpoint.set_digest(ToUtf8(event.digest));
    checkpoint.set_bytes(event.bytes.value_or(0));
    checkpoint.set_job(job_.id);
    checkpoint.set_attempt(static_cast<std::int32_t>(event_.attempt));
    *checkpoint.mutable_create_time() = ToProto(event_.time);
    for (const auto& [name, value] : event.metrics) (*checkpoint.mutable_metrics())[ToUtf8(name)] = value;
  }
  void operator()(const jobs::ModelEvent& event) const {
    auto& model = *out_.mutable_model();
    model.set_model(ToUtf8(event.model));
    if (const auto format = model::ParseFormat(event.format); format.ok()) model.set_format(ToProto(*format));
    model.set_digest(ToUtf8(event.digest));
    model.set_bytes(event.bytes.value_or(0));
  }
  void operator()(const jobs::WarningEvent& event) const {
    out_.set_severity(v1::SEVERITY_WARNING);
    auto& warning = *out_.mutable_warning();
    warning.set_reason(ToUtf8(event.reason));
    warning.set_message(WithoutInternals(ToUtf8(event.message)));
    for (const std::int64_t row : event.row_ids) {
      if (warning.row_ids_size() < data::kMaxNamedRows) warning.add_row_ids(row);
    }
  }
  void operator()(const jobs::LogEvent& event) const {
    out_.mutable_log()->set_text(WithoutInternals(ToUtf8(event.message)));
  }

 private:
  const jobs::StoredJob& job_;
  const jobs::Event& event_;
  v1::JobEvent& out_;
};

}  // namespace

v1::JobEvent ToProto(const jobs::StoredJob& job, const jobs::Event& event) {
  v1::JobEvent out;
  out.set_sequence(event.sequence);
  *out.mutable_time() = ToProto(event.time);
  out.set_severity(v1::SEVERITY_INFO);
  out.set_attempt(static_cast<std::int32_t>(event.attempt));
  // A type that this build does not know is shown as a line of the log.
  std::visit(EventWriter(job, event, out),
             jobs::Decode(event.type, event.body).value_or(jobs::LogEvent{.message = Text(event.body, "message")}));
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
