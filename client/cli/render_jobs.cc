#include <cstdio>
#include <map>

#include "absl/strings/str_join.h"
#include "client/cli/message_json.h"
#include "client/cli/render.h"
#include "client/cli/terminal.h"
#include "client/status.h"
#include "google/protobuf/util/time_util.h"
#include "server/base/error.h"
#include "server/base/human_bytes.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

using base::Json;

Json ProgressJson(const v1::Progress& progress) {
  Json json;
  json["step"] = progress.step();
  json["max_steps"] = progress.max_steps();
  json["epoch"] = progress.epoch();
  json["tokens"] = progress.tokens();
  json["trainable_tokens"] = progress.trainable_tokens();
  json["percent"] = progress.percent();
  json["eta_s"] =
      progress.has_eta()
          ? Json(static_cast<double>(google::protobuf::util::TimeUtil::DurationToMilliseconds(progress.eta())) / 1e3)
          : Json(nullptr);
  json["tokens_per_s"] = progress.tokens_per_s();
  json["peak_memory_bytes"] = progress.peak_memory_bytes();
  json["queue_position"] = progress.queue_position();
  json["update_time"] = TimeJson(progress.has_update_time(), progress.update_time());
  return json;
}

void AddStep(const v1::StepMetrics& step, Json& json) {
  json["step"] = step.step();
  json["epoch"] = step.epoch();
  json["loss"] = step.loss();
  json["lr"] = step.lr();
  json["grad_norm"] = step.grad_norm();
  json["tokens"] = step.tokens();
  json["trainable_tokens"] = step.trainable_tokens();
  json["tokens_per_s"] = step.tokens_per_s();
  json["step_ms"] = step.step_ms();
  json["kernel_launches"] = step.kernel_launches();
  json["peak_memory_bytes"] = step.peak_memory_bytes();
  Json launches = Json::array();
  for (const auto& launch : step.launches()) launches.push_back(ToJson(launch));
  json["launches"] = std::move(launches);
}

void AddEval(const v1::EvalResult& eval, Json& json) {
  json["step"] = eval.step();
  json["eval_loss"] = eval.eval_loss();
  json["tokens"] = eval.tokens();
  json["subject"] = Lower(eval.subject());
  json["duration_ms"] = eval.duration_ms();
  json["best"] = eval.best();
}

void AddWarning(const v1::Warning& warning, Json& json) {
  json["reason"] = warning.reason();
  json["message"] = warning.message();
  json["row_ids"] = std::vector<std::int64_t>(warning.row_ids().begin(), warning.row_ids().end());
}

Json EvalJson(bool has, const v1::EvalResult& eval) {
  if (!has) return nullptr;
  Json json;
  AddEval(eval, json);
  return json;
}

Json ErrorJson(const google::rpc::Status& error) {
  const absl::Status status = client::FromProto(error);
  Json json;
  json["code"] = client::CodeName(status.code());
  json["reason"] = base::Reason(status);
  json["message"] = error.message();
  json["metadata"] = base::ReasonMetadata(status);
  return json;
}

const char* EventType(const v1::JobEvent& event) {
  switch (event.event_case()) {
    case v1::JobEvent::kState: return "state";
    case v1::JobEvent::kStep: return "step";
    case v1::JobEvent::kEval: return "eval";
    case v1::JobEvent::kCheckpoint: return "checkpoint";
    case v1::JobEvent::kModel: return "model";
    case v1::JobEvent::kWarning: return "warning";
    case v1::JobEvent::kSnapshot: return "snapshot";
    // An event type of a newer server is shown as a log line.
    case v1::JobEvent::kLog:
    case v1::JobEvent::EVENT_NOT_SET: break;
  }
  return "log";
}

}  // namespace

std::string MethodName(const v1::JobSpec& spec) {
  if (spec.method_case() == v1::JobSpec::METHOD_NOT_SET) return "";
  return v1::JobSpec::descriptor()->FindFieldByNumber(spec.method_case())->name();
}

Json CheckpointJson(const v1::Checkpoint& checkpoint) {
  Json json;
  json["name"] = checkpoint.name();
  json["step"] = checkpoint.step();
  // Sorted, because protobuf's order changes from run to run.
  json["metrics"] = std::map<std::string, double>(checkpoint.metrics().begin(), checkpoint.metrics().end());
  json["resumable"] = checkpoint.resumable();
  json["servable"] = checkpoint.servable();
  json["digest"] = checkpoint.digest();
  json["bytes"] = checkpoint.bytes();
  json["create_time"] = TimeJson(checkpoint.has_create_time(), checkpoint.create_time());
  json["attempt"] = checkpoint.attempt();
  return json;
}

namespace {

template <typename W>
std::string NameLines(const W& warning) {
  if (warning.row_ids().empty()) return "";
  return base::StrCat(warning.row_ids_size() == 1 ? " (line " : " (lines ", absl::StrJoin(warning.row_ids(), ", "),
                      ")");
}

}  // namespace

std::string LinesOf(const v1::Warning& warning) { return NameLines(warning); }
std::string LinesOf(const v1::RowWarning& warning) { return NameLines(warning); }

Json PlanJson(const v1::PlanJobResponse& plan) {
  Json json;
  json["max_steps"] = plan.max_steps();
  json["epochs"] = plan.epochs();
  json["tokens"] = plan.tokens();
  json["trainable_tokens"] = plan.trainable_tokens();
  json["trainable_parameters"] = plan.trainable_parameters();
  Json memory = Json::object();
  for (const v1::MemoryItem& item : plan.memory()) memory[item.pool()] = item.bytes();
  json["memory"] = std::move(memory);
  json["memory_total_bytes"] = plan.memory_total_bytes();
  json["memory_available_bytes"] = plan.memory_available_bytes();
  json["disk_bytes"] = plan.disk_bytes();
  json["disk_available_bytes"] = plan.disk_available_bytes();
  json["eta_s"] =
      plan.has_eta()
          ? Json(static_cast<double>(google::protobuf::util::TimeUtil::DurationToMilliseconds(plan.eta())) / 1e3)
          : Json(nullptr);
  json["warnings"] = Json::array();
  for (const v1::Warning& warning : plan.warnings()) {
    Json shown;
    AddWarning(warning, shown);
    json["warnings"].push_back(std::move(shown));
  }
  json["spec"] = ToJson(plan.spec());
  return json;
}

Json JobJson(const v1::Job& job) {
  Json json;
  json["id"] = job.name();
  json["uid"] = job.uid();
  json["state"] = Upper(job.state());
  json["reason"] = job.state_reason().reason();
  json["message"] = job.state_reason().message();
  json["attempt"] = job.attempt();
  json["retries"] = job.retries();
  json["method"] = MethodName(job.spec());
  json["base_model"] = job.spec().base_model();
  json["progress"] = ProgressJson(job.progress());
  if (job.has_latest_step()) {
    AddStep(job.latest_step(), json["latest_step"]);
  } else {
    json["latest_step"] = nullptr;
  }
  json["latest_eval"] = EvalJson(job.has_latest_eval(), job.latest_eval());
  json["int8_eval"] = EvalJson(job.has_int8_eval(), job.int8_eval());
  json["ternary_eval"] = EvalJson(job.has_ternary_eval(), job.ternary_eval());
  json["best_checkpoint"] = job.has_best_checkpoint() ? CheckpointJson(job.best_checkpoint()) : Json(nullptr);
  json["output_model"] = job.output_model();
  json["error"] = job.has_error() ? ErrorJson(job.error()) : Json(nullptr);
  json["create_time"] = TimeJson(job.has_create_time(), job.create_time());
  json["start_time"] = TimeJson(job.has_start_time(), job.start_time());
  json["end_time"] = TimeJson(job.has_end_time(), job.end_time());
  json["etag"] = job.etag();
  json["digests"] = ToJson(job.digests());
  json["spec"] = ToJson(job.spec());
  return json;
}

Json EventJson(const std::string& job, const v1::JobEvent& event) {
  Json json;
  json["sequence"] = event.sequence();
  json["type"] = EventType(event);
  json["job_id"] = job;
  json["time"] = TimeJson(event.has_time(), event.time());
  json["severity"] = Upper(event.severity());
  json["attempt"] = event.attempt();
  switch (event.event_case()) {
    case v1::JobEvent::kState:
      json["state"] = Upper(event.state().to());
      json["from"] =
          event.state().from() == v1::JOB_STATE_UNSPECIFIED ? Json(nullptr) : Json(Upper(event.state().from()));
      json["reason"] = event.state().reason().reason();
      json["message"] = event.state().reason().message();
      json["resumed_step"] = event.state().resumed_step();
      break;
    case v1::JobEvent::kStep: AddStep(event.step(), json); break;
    case v1::JobEvent::kEval: AddEval(event.eval(), json); break;
    case v1::JobEvent::kCheckpoint: {
      const Json checkpoint = CheckpointJson(event.checkpoint().checkpoint());
      json["step"] = checkpoint["step"];
      json["checkpoint"] = checkpoint;
      break;
    }
    case v1::JobEvent::kModel:
      json["model"] = event.model().model();
      json["format"] = Lower(event.model().format());
      json["digest"] = event.model().digest();
      json["bytes"] = event.model().bytes();
      break;
    case v1::JobEvent::kWarning: AddWarning(event.warning(), json); break;
    case v1::JobEvent::kLog: json["text"] = event.log().text(); break;
    case v1::JobEvent::kSnapshot: json["job"] = JobJson(event.snapshot().job()); break;
    case v1::JobEvent::EVENT_NOT_SET: json["text"] = ""; break;
  }
  return json;
}

std::string EventLine(const v1::JobEvent& event) {
  char text[256];
  switch (event.event_case()) {
    case v1::JobEvent::kState: {
      std::string line = base::StrCat("state ", Upper(event.state().to()));
      if (event.attempt() > 1) line += base::StrCat(" (attempt ", event.attempt(), ")");
      if (event.state().resumed_step() > 0) line += base::StrCat(", resumes from step ", event.state().resumed_step());
      if (!event.state().reason().message().empty()) line += base::StrCat(": ", event.state().reason().message());
      return line;
    }
    case v1::JobEvent::kStep:
      std::snprintf(text, sizeof text, "step %lld  loss %.4f  lr %.3g  grad norm %.3g  %.0f tokens/s  %s",
                    static_cast<long long>(event.step().step()), event.step().loss(), event.step().lr(),
                    event.step().grad_norm(), event.step().tokens_per_s(),
                    base::HumanBytes(event.step().peak_memory_bytes()).c_str());
      return text;
    case v1::JobEvent::kEval:
      std::snprintf(text, sizeof text, "eval at step %lld (%s)  loss %.4f", static_cast<long long>(event.eval().step()),
                    Lower(event.eval().subject()).c_str(), event.eval().eval_loss());
      return text;
    case v1::JobEvent::kCheckpoint:
      return base::StrCat("checkpoint ", event.checkpoint().checkpoint().name(), ", ",
                          base::HumanBytes(event.checkpoint().checkpoint().bytes()));
    case v1::JobEvent::kModel:
      return base::StrCat("model ", event.model().model(), " (", Lower(event.model().format()), ", ",
                          base::HumanBytes(event.model().bytes()), ")");
    case v1::JobEvent::kWarning:
      return base::StrCat("warning ", event.warning().reason(), ": ", event.warning().message(),
                          LinesOf(event.warning()));
    case v1::JobEvent::kLog: return event.log().text();
    case v1::JobEvent::kSnapshot:
    case v1::JobEvent::EVENT_NOT_SET: break;
  }
  return "";
}

}  // namespace nibble::cli
