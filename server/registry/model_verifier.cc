#include "server/registry/model_verifier.h"

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/loaded_model.h"
#include "server/model/record.h"
#include "server/model/replay.h"
#include "server/registry/model_files.h"
#include "server/registry/model_memory.h"

namespace nibble::registry {

using base::StrCat;

namespace {

// Says why an intact model has no record, and how the user makes a model that has one.
absl::Status NoRecord(const std::string& name, const model::ArtifactInfo& info) {
  const char* to = info.is_masters() ? "ternary" : "int8";
  const std::string convert = StrCat("nibble models convert ", name, " --to ", to, " --name NEW");
  std::string why;
  if (info.determinism() != model::Determinism::kBitwise) {
    why = StrCat(": it is stored as ", info.is_masters() ? "master weights of a BitNet model" : Name(info.format),
                 ", and only int8 and ternary models and adapters on int8 bases have one; convert it: ", convert);
  } else if (info.format == model::Format::kLora) {
    why = StrCat(": only the adapter of a job's last step has the trainer's record; ", convert,
                 " merges this one into its base and records the logits of the result");
  } else if (info.source == "checkpoint") {
    why = StrCat(": it was published from a checkpoint, and a trainer records only the model of its last step; ",
                 convert, " copies its weights and records their logits");
  }
  return base::WithReason(
      absl::FailedPreconditionError(StrCat("model \"", name, "\" has no record to verify against", why)), "NO_RECORD");
}

}  // namespace

absl::StatusOr<VerifyReport> ModelVerifier::Verify(const std::string& name, OperationScope& scope) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, FindModel(*work_.state.models, work_.metrics, name));
  NIBBLE_ASSIGN_OR_RETURN(const auto pin, work_.state.models->PinModel(name, "verify"));
  auto replayed = Replay(stored, scope);
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(stored.info));
  const bool promised = info.determinism() == model::Determinism::kBitwise;
  if (absl::IsDataLoss(replayed.status())) {
    work_.metrics.ArtifactVerifyFailed();
    return replayed;
  }
  if (absl::IsCancelled(replayed.status()) || absl::IsResourceExhausted(replayed.status())) return replayed;
  if (!replayed.ok() && !promised) return replayed;  // such a model has no record
  // Check the manifest too: an unreadable file may have been altered, and logits can be equal although a file was
  // altered (a weight that no token of the record reaches). The answer reports differing rows; the log says whether the
  // files differ.
  const absl::Status files = CheckModelFiles(*work_.state.models, work_.metrics, name, scope.stopped());
  const bool differs = replayed.ok() && replayed->differing_rows > 0;
  if (absl::IsCancelled(files) || (!files.ok() && !differs)) return files;
  if (differs && files.ok()) {
    work_.metrics.ArtifactVerifyFailed();
    base::LogError("a model with intact files gives different logits than recorded", {{"model", name}});
  }
  return replayed;
}

absl::StatusOr<VerifyReport> ModelVerifier::Replay(const store::StoredModel& stored, OperationScope& scope) {
  const auto read = model::ReadRecord(work_.state.files, stored.directory);
  if (base::Reason(read.status()) == "NO_RECORD") {
    NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(stored.info));
    return NoRecord(stored.name, info);
  }
  NIBBLE_RETURN_IF_ERROR(read.status());
  const model::Record& record = *read;
  NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(stored.directory));
  NIBBLE_ASSIGN_OR_RETURN(const auto turn, work_.AwaitTurn(StrCat("verify of model ", stored.name),
                                                           ReplayMemory(*artifact, record), scope));
  scope.Progress("verify", 0, 1);
  // Read the model from the disk again, to verify what a restarted server would serve.
  const base::Cancelled cancelled = scope.stopped();
  NIBBLE_ASSIGN_OR_RETURN(const auto loaded,
                          model::LoadedModel::Load(stored.directory, {.cancelled = cancelled}, serve_stream_));
  NIBBLE_ASSIGN_OR_RETURN(const model::ReplayResult replay,
                          model::ReplayRecord(*loaded, record, serve_stream_, cancelled));
  VerifyReport report;
  report.equal = replay.equal && replay.rows > 0;
  report.rows = replay.rows;
  report.differing_rows = replay.differing_rows;
  report.recorded_by = loaded->info().recorded_by;
  report.digest = loaded->info().weights_digest;
  if (replay.differing_rows > 0) {
    std::int64_t row = replay.first_position;
    for (std::int64_t s = 0; s < replay.first_sequence; ++s) {
      row += static_cast<std::int64_t>(record.sequences[static_cast<std::size_t>(s)].row_digests.size());
    }
    const auto& sequence = record.sequences[static_cast<std::size_t>(replay.first_sequence)];
    const auto position = static_cast<std::size_t>(replay.first_position);
    NIBBLE_ASSIGN_OR_RETURN(const model::Record again,
                            model::MakeRecord(*loaded, {sequence.token_ids}, serve_stream_, cancelled));
    report.first_difference =
        VerifyReport::Difference{.row = row,
                                 .token_id = sequence.token_ids[position],
                                 .recorded_digest = sequence.row_digests[position],
                                 .computed_digest = again.sequences.front().row_digests[position]};
    return report;
  }
  // Files that match the manifest may still come from two models. Check the digests of the tensors and of the record.
  NIBBLE_RETURN_IF_ERROR(artifact->VerifyBytes(cancelled));
  if (record.weights_digest != loaded->info().weights_digest) {
    return base::WithReason(absl::DataLossError("record.bin was made from other weights"), "ARTIFACT_CORRUPT");
  }
  return report;
}

}  // namespace nibble::registry
