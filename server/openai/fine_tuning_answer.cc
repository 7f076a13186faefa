#include "server/openai/fine_tuning_answer.h"

#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "server/base/strings.h"
#include "server/messages/message_json.h"
#include "server/openai/api_error.h"
#include "server/openai/fine_tuning_request.h"

namespace nibble::openai {

namespace {

using base::Json;
using base::StrCat;

Json OrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json Hyperparameters(const v1::JobSpec& spec) {
  Json json = {{"n_epochs", nullptr}, {"batch_size", nullptr}, {"learning_rate_multiplier", nullptr}};
  // A fraction, or a number of steps, has no form in OpenAI's API.
  const double epochs = spec.run().epochs();
  if (spec.run().has_epochs() && std::trunc(epochs) == epochs) json["n_epochs"] = static_cast<std::int64_t>(epochs);
  if (spec.run().has_micro_batch() && spec.run().has_grad_accum()) {
    json["batch_size"] = std::int64_t{spec.run().micro_batch()} * spec.run().grad_accum();
  }
  if (spec.optim().has_lr()) json["learning_rate_multiplier"] = spec.optim().lr() / kDefaultLearningRate;
  return json;
}

Json ErrorJson(const v1::Job& job) {
  if (job.state() != v1::JOB_STATE_FAILED) return nullptr;
  const grpc::Status status(static_cast<grpc::StatusCode>(job.error().code()), job.error().message(),
                            job.error().SerializeAsString());
  const ApiError error = FromStatus(status, [](std::string_view field) { return StrCat("nibble.", field); });
  return {{"code", error.code}, {"message", error.message}, {"param", OrNull(error.param)}};
}

std::string StepText(const v1::StepMetrics& step) {
  return StrCat("Step ", step.step(), ": training loss=", step.loss());
}

std::string EvalText(const v1::EvalResult& eval) {
  return StrCat("Step ", eval.step(), ": ", messages::Lower(eval.subject()), " validation loss=", eval.eval_loss());
}

std::string StateText(const v1::StateChanged& change) {
  std::string text = StrCat("The job is ", messages::Upper(change.to()));
  if (!change.reason().message().empty()) text += StrCat(": ", change.reason().message());
  return text;
}

// Text, and the event's own message as JSON.
struct Body {
  std::string text;
  Json data;
  bool metrics = false;
};

Body BodyOf(const v1::JobEvent& event) {
  switch (event.event_case()) {
    case v1::JobEvent::kState: return {StateText(event.state()), messages::ToJson(event.state())};
    case v1::JobEvent::kStep: {
      Json data = messages::ToJson(event.step());
      data["train_loss"] = event.step().loss();  // the name of OpenAI's API
      return {StepText(event.step()), std::move(data), /*metrics=*/true};
    }
    case v1::JobEvent::kEval: {
      Json data = messages::ToJson(event.eval());
      data["full_valid_loss"] = event.eval().eval_loss();
      return {EvalText(event.eval()), std::move(data), /*metrics=*/true};
    }
    case v1::JobEvent::kCheckpoint:
      return {StrCat("Checkpoint ", event.checkpoint().checkpoint().name(), " saved"),
              messages::ToJson(event.checkpoint())};
    case v1::JobEvent::kModel:
      return {StrCat("Model ", event.model().model(), " published"), messages::ToJson(event.model())};
    case v1::JobEvent::kWarning: return {event.warning().message(), messages::ToJson(event.warning())};
    case v1::JobEvent::kLog: return {event.log().text(), nullptr};
    default: return {"", nullptr};
  }
}

const char* LevelOf(v1::Severity severity) {
  switch (severity) {
    case v1::SEVERITY_WARNING: return "warn";
    case v1::SEVERITY_ERROR: return "error";
    default: return "info";
  }
}

std::string EventPrefix(std::string_view job) { return StrCat("ftevent-", job, "-"); }

std::optional<std::int64_t> NumberAfter(std::string_view id, std::string_view prefix) {
  std::int64_t number = 0;
  const bool good = id.starts_with(prefix) && absl::SimpleAtoi(base::ToAbsl(id.substr(prefix.size())), &number);
  return good && number >= 1 ? std::optional(number) : std::nullopt;
}

}  // namespace

const char* JobStatus(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_PLANNING: return "validating_files";
    case v1::JOB_STATE_QUEUED:
    case v1::JOB_STATE_PAUSED: return "queued";
    case v1::JOB_STATE_SUCCEEDED: return "succeeded";
    case v1::JOB_STATE_FAILED: return "failed";
    case v1::JOB_STATE_CANCELLED: return "cancelled";
    default: return "running";  // PREPARING, RUNNING, PAUSING and CANCELLING have a trainer
  }
}

Json JobJson(const v1::Job& job) {
  const v1::JobSpec& spec = job.spec();
  const bool succeeded = job.state() == v1::JOB_STATE_SUCCEEDED;
  const Json hyperparameters = Hyperparameters(spec);
  Json json = {{"id", job.name()},
               {"object", "fine_tuning.job"},
               {"created_at", job.create_time().seconds()},
               {"finished_at", nullptr},
               {"status", JobStatus(job.state())},
               {"model", spec.base_model()},
               {"fine_tuned_model", succeeded ? OrNull(job.output_model()) : Json(nullptr)},
               {"organization_id", "nibble"},
               {"training_file", spec.train_dataset()},
               {"validation_file", OrNull(spec.eval_dataset())},
               {"result_files", Json::array()},
               {"trained_tokens", nullptr},
               {"estimated_finish", nullptr},
               {"seed", spec.run().seed()},
               {"error", ErrorJson(job)},
               {"hyperparameters", hyperparameters},
               {"integrations", Json::array()},
               {"metadata", Json::object()}};
  json["method"] = {{"type", "supervised"}, {"supervised", {{"hyperparameters", hyperparameters}}}};
  for (const auto& [key, value] : spec.labels()) json["metadata"][key] = value;
  if (job.has_end_time()) json["finished_at"] = job.end_time().seconds();
  if (job.has_end_time()) json["trained_tokens"] = job.progress().tokens();
  if (!job.has_end_time() && job.progress().has_eta()) {
    json["estimated_finish"] = job.progress().update_time().seconds() + job.progress().eta().seconds();
  }
  json["nibble"] = {{"state", messages::Upper(job.state())},
                    {"state_reason", messages::ToJson(job.state_reason())},
                    {"output_model", job.output_model()},
                    {"progress", messages::ToJson(job.progress())},
                    {"spec", messages::ToJson(spec)}};
  return json;
}

Json EventJson(const std::string& job, const v1::JobEvent& event) {
  Body body = BodyOf(event);
  return {{"id", StrCat(EventPrefix(job), event.sequence())},
          {"object", "fine_tuning.job.event"},
          {"created_at", event.time().seconds()},
          {"level", LevelOf(event.severity())},
          {"message", std::move(body.text)},
          {"type", body.metrics ? "metrics" : "message"},
          {"data", std::move(body.data)}};
}

std::optional<std::int64_t> SequenceOf(std::string_view event_id, std::string_view job) {
  return NumberAfter(event_id, EventPrefix(job));
}

std::optional<std::int64_t> StepOf(std::string_view checkpoint_id, std::string_view job) {
  return NumberAfter(checkpoint_id, StrCat(job, "/"));
}

Json CheckpointJson(const v1::Checkpoint& checkpoint) {
  Json metrics = {{"step", checkpoint.step()}};
  const auto add = [&](const char* name, const char* ours) {
    if (const auto it = checkpoint.metrics().find(ours); it != checkpoint.metrics().end()) metrics[name] = it->second;
  };
  add("train_loss", "loss");
  add("full_valid_loss", "eval_loss");
  return {{"id", checkpoint.name()},
          {"object", "fine_tuning.job.checkpoint"},
          {"created_at", checkpoint.create_time().seconds()},
          {"fine_tuned_model_checkpoint", checkpoint.name()},
          {"fine_tuning_job_id", checkpoint.job()},
          {"metrics", std::move(metrics)},
          {"step_number", checkpoint.step()}};
}

}  // namespace nibble::openai
