#include "server/jobs/attempt.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/layout.h"

namespace nibble::jobs {

using base::JoinPath;
using base::Json;
using base::StrCat;

namespace {

constexpr std::uint64_t kMaxBytes = 4u << 20;   // of a JSON file; a spec is much smaller
constexpr std::uint64_t kMaxAliveBytes = 64;    // room for any number
constexpr std::uint64_t kMaxRequestBytes = 64;  // room for any id
constexpr const char* kControlNames[] = {"preempt", "cancel", "cancel_keeping", "pause"};
constexpr const char* kStartNames[] = {"base", "resume", "weights", "adapter"};
constexpr const char* kOutcomeNames[] = {"ok", "failed", "cancelled", "paused"};

absl::StatusOr<Json> ReadObject(base::FileSystem& files, const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, files.Read(path, kMaxBytes));
  auto json = base::ParseJson(text);
  if (!json.ok() || !json->is_object()) return absl::DataLossError(StrCat(path, " is not a JSON object"));
  return json;
}

Json ToJson(const StartOrder& start) {
  return {{"kind", kStartNames[static_cast<int>(start.kind)]},
          {"name", start.name},
          {"directory", start.directory},
          {"same_rows", start.same_rows},
          {"same_eval", start.same_eval}};
}

absl::StatusOr<StartOrder> ParseStart(const Json& json, const std::string& where) {
  StartOrder start;
  NIBBLE_ASSIGN_OR_RETURN(const std::string kind, base::GetString(json, "kind", where));
  const auto* const name = std::find(std::begin(kStartNames), std::end(kStartNames), kind);
  if (name == std::end(kStartNames)) return absl::InvalidArgumentError(StrCat(where, ": unknown start \"", kind, "\""));
  start.kind = static_cast<StartOrder::Kind>(name - std::begin(kStartNames));
  NIBBLE_ASSIGN_OR_RETURN(start.name, base::GetString(json, "name", where));
  NIBBLE_ASSIGN_OR_RETURN(start.directory, base::GetString(json, "directory", where));
  NIBBLE_ASSIGN_OR_RETURN(start.same_rows, base::GetBool(json, "same_rows", where, false));
  NIBBLE_ASSIGN_OR_RETURN(start.same_eval, base::GetBool(json, "same_eval", where, false));
  return start;
}

absl::Status WriteObject(base::FileSystem& files, const std::string& path, const Json& json) {
  return base::WriteFileAtomically(files, path, base::Dump(json, 1));
}

// A file of our own that lacks a field is damaged, not a caller's mistake.
template <typename T>
absl::StatusOr<T> Own(absl::StatusOr<T> value) {
  if (!value.ok()) return absl::DataLossError(value.status().message());
  return value;
}

}  // namespace

absl::Status WriteAttemptOrder(base::FileSystem& files, const std::string& directory, const AttemptOrder& order) {
  Json json = Json::object();
  json["version"] = 1;
  json["job_id"] = order.job_id;
  json["attempt"] = order.attempt;
  json["spec"] = ToJson(order.spec);
  json["base_model_directory"] = order.base_model_directory;
  json["train_data_path"] = order.train_data_path;
  json["eval_data_path"] = order.eval_data_path;
  json["train_tokens_directory"] = order.train_tokens_directory;
  json["eval_tokens_directory"] = order.eval_tokens_directory;
  json["eval_format"] = order.eval_format;
  json["base_cache_directory"] = order.base_cache_directory;
  json["base_cache_bytes"] = order.base_cache_bytes;
  json["min_free_bytes"] = order.min_free_bytes;
  json["resume_checkpoint_directory"] = order.resume_checkpoint_directory;
  json["resume_step"] = order.resume_step;
  json["start"] = ToJson(order.start);
  json["output_directory"] = order.output_directory;
  json["report_address"] = order.report_address;
  json["report_ca"] = order.report_ca;
  json["token"] = order.token;
  json["threads"] = order.threads;
  json["isa"] = order.isa;
  json["nibble_version"] = order.nibble_version;
  json["show_alive_every_s"] = order.show_alive_every_s;
  return WriteObject(files, JoinPath(directory, store::kAttemptFile), json);
}

absl::StatusOr<AttemptOrder> ReadAttemptOrder(base::FileSystem& files, const std::string& directory) {
  const std::string where = JoinPath(directory, store::kAttemptFile);
  NIBBLE_ASSIGN_OR_RETURN(const Json json, ReadObject(files, where));
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t version, base::GetInt(json, "version", where));
  if (version != 1) return absl::InvalidArgumentError(StrCat(where, " has version ", version, ", wanted 1"));
  AttemptOrder order;
  NIBBLE_ASSIGN_OR_RETURN(order.job_id, base::GetString(json, "job_id", where));
  NIBBLE_ASSIGN_OR_RETURN(order.attempt, base::GetInt(json, "attempt", where));
  if (!json.contains("spec")) return absl::InvalidArgumentError(StrCat(where, ": no \"spec\""));
  NIBBLE_ASSIGN_OR_RETURN(order.spec, ParseJobSpec(json["spec"]));
  NIBBLE_ASSIGN_OR_RETURN(order.base_model_directory, base::GetString(json, "base_model_directory", where));
  NIBBLE_ASSIGN_OR_RETURN(order.train_data_path, base::GetString(json, "train_data_path", where));
  NIBBLE_ASSIGN_OR_RETURN(order.eval_data_path, base::GetString(json, "eval_data_path", where, ""));
  NIBBLE_ASSIGN_OR_RETURN(order.train_tokens_directory, base::GetString(json, "train_tokens_directory", where, ""));
  NIBBLE_ASSIGN_OR_RETURN(order.eval_tokens_directory, base::GetString(json, "eval_tokens_directory", where, ""));
  NIBBLE_ASSIGN_OR_RETURN(order.eval_format, base::GetString(json, "eval_format", where, ""));
  NIBBLE_ASSIGN_OR_RETURN(order.base_cache_directory, base::GetString(json, "base_cache_directory", where, ""));
  NIBBLE_ASSIGN_OR_RETURN(order.base_cache_bytes, base::GetInt(json, "base_cache_bytes", where, 0));
  NIBBLE_ASSIGN_OR_RETURN(order.min_free_bytes, base::GetInt(json, "min_free_bytes", where, 0));
  NIBBLE_ASSIGN_OR_RETURN(order.resume_checkpoint_directory,
                          base::GetString(json, "resume_checkpoint_directory", where, ""));
  NIBBLE_ASSIGN_OR_RETURN(order.resume_step, base::GetInt(json, "resume_step", where, 0));
  if (json.contains("start")) {
    NIBBLE_ASSIGN_OR_RETURN(order.start, ParseStart(json["start"], where));
  }
  NIBBLE_ASSIGN_OR_RETURN(order.output_directory, base::GetString(json, "output_directory", where));
  NIBBLE_ASSIGN_OR_RETURN(order.report_address, base::GetString(json, "report_address", where, ""));
  NIBBLE_ASSIGN_OR_RETURN(order.report_ca, base::GetString(json, "report_ca", where, ""));
  NIBBLE_ASSIGN_OR_RETURN(order.token, base::GetString(json, "token", where));
  NIBBLE_ASSIGN_OR_RETURN(order.threads, base::GetInt(json, "threads", where));
  NIBBLE_ASSIGN_OR_RETURN(order.isa, base::GetString(json, "isa", where, "auto"));
  NIBBLE_ASSIGN_OR_RETURN(order.nibble_version, base::GetString(json, "nibble_version", where, ""));
  NIBBLE_ASSIGN_OR_RETURN(order.show_alive_every_s,
                          base::GetNumber(json, "show_alive_every_s", where, order.show_alive_every_s));
  return order;
}

absl::Status WriteControl(base::FileSystem& files, const std::string& directory, Control control) {
  Json json = Json::object();
  json["command"] = kControlNames[static_cast<int>(control)];
  return WriteObject(files, JoinPath(directory, store::kControlFile), json);
}

absl::StatusOr<Control> ReadControl(base::FileSystem& files, const std::string& directory) {
  const std::string path = JoinPath(directory, store::kControlFile);
  if (!files.Exists(path)) return Control::kPreempt;
  NIBBLE_ASSIGN_OR_RETURN(const Json json, ReadObject(files, path));
  NIBBLE_ASSIGN_OR_RETURN(const std::string command, base::GetString(json, "command", path));
  for (int i = 0; i < static_cast<int>(std::size(kControlNames)); ++i) {
    if (command == kControlNames[i]) return static_cast<Control>(i);
  }
  return absl::InvalidArgumentError(StrCat(path, ": unknown command \"", command, "\""));
}

absl::Status RequestCheckpoint(base::FileSystem& files, const std::string& directory, const std::string& id) {
  return base::WriteFileAtomically(files, JoinPath(directory, store::kCheckpointRequestFile), id);
}
std::optional<std::string> CheckpointRequest(base::FileSystem& files, const std::string& directory) {
  const std::string path = JoinPath(directory, store::kCheckpointRequestFile);
  if (!files.Exists(path)) return std::nullopt;
  return files.Read(path, kMaxRequestBytes).value_or("");
}
absl::Status ClearCheckpointRequest(base::FileSystem& files, const std::string& directory) {
  return files.RemoveAll(JoinPath(directory, store::kCheckpointRequestFile));
}

absl::Status ShowAlive(base::FileSystem& files, const std::string& directory, std::int64_t count) {
  return base::WriteFileAtomically(files, JoinPath(directory, store::kAliveFile), std::to_string(count));
}
std::string LastAlive(base::FileSystem& files, const std::string& directory) {
  return files.Read(JoinPath(directory, store::kAliveFile), kMaxAliveBytes).value_or("");
}

absl::Status WriteOutcome(base::FileSystem& files, const std::string& directory, const Outcome& outcome) {
  Json json = Json::object();
  json["version"] = 1;
  json["outcome"] = kOutcomeNames[static_cast<int>(outcome.kind)];
  if (outcome.kind == Outcome::Kind::kFailed) {
    json["code"] = outcome.code;
    json["reason"] = outcome.reason;
    json["message"] = outcome.message;
  }
  json["exit_code"] = outcome.exit_code;
  json["output_directory"] = outcome.output_directory;
  json["final"] = outcome.final;
  return WriteObject(files, JoinPath(directory, store::kOutcomeFile), json);
}

absl::StatusOr<Outcome> ReadOutcome(base::FileSystem& files, const std::string& directory) {
  const std::string where = JoinPath(directory, store::kOutcomeFile);
  NIBBLE_ASSIGN_OR_RETURN(const Json json, ReadObject(files, where));
  NIBBLE_ASSIGN_OR_RETURN(const std::string name, Own(base::GetString(json, "outcome", where)));
  Outcome outcome;
  bool known = false;
  for (int kind = 0; kind < static_cast<int>(std::size(kOutcomeNames)); ++kind) {
    if (name == kOutcomeNames[kind]) {
      outcome.kind = static_cast<Outcome::Kind>(kind);
      known = true;
    }
  }
  if (!known) return absl::DataLossError(StrCat(where, ": unknown outcome \"", name, "\""));
  NIBBLE_ASSIGN_OR_RETURN(outcome.code, Own(base::GetString(json, "code", where, "")));
  NIBBLE_ASSIGN_OR_RETURN(outcome.reason, Own(base::GetString(json, "reason", where, "")));
  NIBBLE_ASSIGN_OR_RETURN(outcome.message, Own(base::GetString(json, "message", where, "")));
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t exit_code, Own(base::GetInt(json, "exit_code", where)));
  if (exit_code < 0 || exit_code > 255) return absl::DataLossError(StrCat(where, ": exit_code is ", exit_code));
  outcome.exit_code = static_cast<int>(exit_code);
  NIBBLE_ASSIGN_OR_RETURN(outcome.output_directory, Own(base::GetString(json, "output_directory", where, "")));
  if (const auto it = json.find("final"); it != json.end() && it->is_object()) outcome.final = *it;
  return outcome;
}

std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

absl::StatusCode ParseCodeName(const std::string& name) {
  constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);
  for (int code = 0; code <= kLastCode; ++code) {
    if (name == CodeName(static_cast<absl::StatusCode>(code))) return static_cast<absl::StatusCode>(code);
  }
  return absl::StatusCode::kUnknown;
}

}  // namespace nibble::jobs
