#include "server/jobs/job_start.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/method.h"
#include "server/jobs/qlora_method.h"

namespace nibble::jobs {

using base::FieldError;
using base::Json;
using base::StrCat;

namespace {

constexpr std::uint64_t kMaxStartBytes = 1 << 16;  // of start.json

// A list of names is a set.
Json Sorted(Json value) {
  if (value.is_array()) std::sort(value.begin(), value.end());
  return value;
}

std::string Text(const Json& value) { return value.is_null() ? "not set" : base::Dump(value); }

// An option of the nf4 base that is not set means the same as its default.
JobSpec WithNf4Defaults(JobSpec spec) {
  spec.qlora = WithNf4Options(spec.qlora, Nf4OptionsOf(spec.qlora));
  return spec;
}

// Compares the methods and the fields of the method. `may_differ`: whether a field is left out of the comparison.
template <typename MayDiffer>
absl::Status CompareMethods(const JobSpec& spec, const JobSpec& source, const std::string& checkpoint,
                            const MayDiffer& may_differ) {
  if (spec.method != source.method) {
    return FieldError("method", StrCat("is ", spec.method, ", wanted ", source.method, ", the method of ", checkpoint));
  }
  const Json all = ToJson(WithNf4Defaults(spec)), all_of_source = ToJson(WithNf4Defaults(source));
  const Json got = all.value(spec.method, Json::object()), wanted = all_of_source.value(spec.method, Json::object());
  Json both = wanted;
  both.update(got);
  for (const auto& item : both.items()) {
    const std::string& field = item.key();
    const Json value = Sorted(got.value(field, Json())), value_of_source = Sorted(wanted.value(field, Json()));
    if (value == value_of_source || may_differ(field)) continue;
    return FieldError(StrCat(spec.method, ".", field),
                      StrCat("is ", Text(value), ", wanted ", Text(value_of_source), ", as in ", checkpoint));
  }
  return absl::OkStatus();
}

absl::Status CheckWarmStart(const JobSpec& spec, const JobSpec& source, const std::string& checkpoint) {
  const Method* method = FindMethod(spec.method);
  return CompareMethods(spec, source, checkpoint,
                        [&](const std::string& field) { return method != nullptr && method->MayDifferInStart(field); });
}

absl::Status CheckResume(const JobSpec& spec, const JobSpec& source, const JobStart& start) {
  // These two fields only choose initial values, which the checkpoint replaces.
  const auto draws = [](const std::string& field) { return field == "seed" || field == "init"; };
  NIBBLE_RETURN_IF_ERROR(CompareMethods(spec, source, start.checkpoint, draws));
  if (spec.optim.optimizer != source.optim.optimizer) {
    return FieldError("optim.optimizer", StrCat("is ", spec.optim.optimizer, ", wanted ", source.optim.optimizer,
                                                ", whose moments ", start.checkpoint, " has"));
  }
  if (spec.run.max_steps.has_value()) return CheckStepsAfter(start, spec, *spec.run.max_steps);
  const bool same_batch =
      spec.run.micro_batch == source.run.micro_batch && spec.run.grad_accum == source.run.grad_accum;
  if (start.same_rows && same_batch) return absl::OkStatus();
  return FieldError("run.epochs",
                    StrCat("is ", spec.run.epochs.value_or(1.0), ", wanted run.max_steps instead: the ", start.step,
                           " steps of ", start.checkpoint, " read ", start.same_rows ? "another batch" : "other rows",
                           ", so epochs of this job cannot count them"));
}

// Whether both jobs turn the same training set into the same rows, in the same order.
bool ReadsSameRows(const StoredJob& job, const StoredJob& source) {
  return !job.digests.data.empty() && job.digests.data == source.digests.data &&
         job.digests.tokenizer == source.digests.tokenizer && job.spec.eval_fraction == source.spec.eval_fraction &&
         ToJson(job.spec)["data"] == ToJson(source.spec)["data"];
}

bool EvaluatesSameRows(const StoredJob& job, const StoredJob& source) {
  if (!HasEvaluation(job.spec) || !HasEvaluation(source.spec)) return false;
  return ReadsSameRows(job, source) && job.digests.eval_data == source.digests.eval_data;
}

absl::Status Damaged(const JobStart& start, const absl::Status& why) {
  std::map<std::string, std::string> metadata = base::ReasonMetadata(why);  // the file, its digests
  const auto file = metadata.find("file");
  const std::string what = file == metadata.end() ? "it" : file->second;
  metadata["checkpoint"] = start.checkpoint;
  return base::WithReason(
      absl::DataLossError(StrCat("checkpoint ", start.checkpoint, ": ", what, " does not match the manifest")),
      "CHECKPOINT_CORRUPT", metadata);
}

absl::Status Classify(base::FileSystem& files, const JobStart& start, const absl::Status& status) {
  if (status.ok()) return status;
  if (!files.Exists(start.directory)) return NoCheckpoint(start.checkpoint);
  return store::SaysDamaged(status) ? Damaged(start, status) : status;
}

}  // namespace

absl::StatusOr<JobStart> MakeJobStart(const StoredJob& job, const StoredJob& source,
                                      const store::CheckpointInfo& checkpoint) {
  JobStart start{.checkpoint = StartCheckpoint(job.spec),
                 .directory = checkpoint.directory,
                 .step = checkpoint.step,
                 .bytes = checkpoint.bytes,
                 .weights_only = job.spec.resume_from.empty(),
                 .same_rows = ReadsSameRows(job, source),
                 .same_eval = EvaluatesSameRows(job, source)};
  NIBBLE_RETURN_IF_ERROR(start.weights_only ? CheckWarmStart(job.spec, source.spec, start.checkpoint)
                                            : CheckResume(job.spec, source.spec, start));
  // The trainer compares the digests again: those of an older server's jobs are unknown here.
  const std::string& got = job.digests.base_model;
  const std::string& wanted = source.digests.base_model;
  if (got.empty() || wanted.empty() || got == wanted) return start;
  return base::WithReason(
      absl::FailedPreconditionError(StrCat("base_model: \"", job.spec.base_model, "\" has weights ", got, ", wanted ",
                                           wanted, ", on which ", start.checkpoint, " was trained")),
      "BASE_MISMATCH", {{"field", "base_model"}, {"got", got}, {"wanted", wanted}});
}

absl::Status CheckStepsAfter(const JobStart& start, const JobSpec& spec, std::int64_t max_steps) {
  if (start.weights_only || max_steps > start.step) return absl::OkStatus();
  const std::string wanted =
      StrCat(", wanted more than ", start.step, ", the steps of ", start.checkpoint, ", which count as done");
  if (spec.run.max_steps.has_value()) return FieldError("run.max_steps", StrCat("is ", max_steps, wanted));
  return FieldError("run.epochs", StrCat("gives ", max_steps, max_steps == 1 ? " step" : " steps", wanted));
}

absl::Status VerifyStart(base::FileSystem& files, const JobStart& start, const base::Cancelled& cancelled) {
  return Classify(files, start, store::Verify(files, start.directory, cancelled).status());
}

absl::Status KeepStart(base::FileSystem& files, const store::StatePaths& paths, const std::string& job_id,
                       const JobStart& start) {
  const auto keep = [&]() -> absl::Status {
    NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(paths.job(job_id)));
    NIBBLE_RETURN_IF_ERROR(Classify(files, start, store::CopyCheckpoint(files, start.directory, paths.start(job_id))));
    const Json json = {{"version", 1},
                       {"checkpoint", start.checkpoint},
                       {"step", start.step},
                       {"bytes", start.bytes},
                       {"weights_only", start.weights_only},
                       {"same_rows", start.same_rows},
                       {"same_eval", start.same_eval}};
    NIBBLE_RETURN_IF_ERROR(base::WriteFileAtomically(files, paths.start_file(job_id), base::Dump(json, 1)));
    return files.SyncDirectory(paths.jobs());
  };
  absl::Status kept = keep();
  if (!kept.ok()) files.RemoveAll(paths.job(job_id)).IgnoreError();
  return kept;
}

absl::StatusOr<JobStart> ReadStart(base::FileSystem& files, const store::StatePaths& paths, const std::string& job_id) {
  const std::string where = paths.start_file(job_id);
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, files.Read(where, kMaxStartBytes));
  const auto json = base::ParseJson(text);
  if (!json.ok() || !json->is_object()) return absl::DataLossError(StrCat(where, " is not a JSON object"));
  JobStart start;
  start.directory = paths.start(job_id);
  NIBBLE_ASSIGN_OR_RETURN(start.checkpoint, base::GetString(*json, "checkpoint", where));
  NIBBLE_ASSIGN_OR_RETURN(start.step, base::GetInt(*json, "step", where));
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t bytes, base::GetInt(*json, "bytes", where));
  start.bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0));
  NIBBLE_ASSIGN_OR_RETURN(start.weights_only, base::GetBool(*json, "weights_only", where));
  NIBBLE_ASSIGN_OR_RETURN(start.same_rows, base::GetBool(*json, "same_rows", where));
  NIBBLE_ASSIGN_OR_RETURN(start.same_eval, base::GetBool(*json, "same_eval", where));
  return start;
}

}  // namespace nibble::jobs
