// Options and objects that imports, conversions, exports, verifications and publications share.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/memory_budget.h"
#include "server/model/text_assets.h"
#include "server/registry/checkpoint_source.h"
#include "server/registry/operation_scope.h"
#include "server/registry/work_admission.h"
#include "server/store/state_directory.h"
#include "server/store/upload.h"
#include "server/telemetry/metrics.h"

namespace nibble::registry {

struct ModelLibraryOptions {
  std::string import_root;                                                   // "": server paths are refused
  store::UploadLimits upload_limits;                                         // of a model
  std::uint64_t max_tokenizer_bytes = model::kMaxTokenizerBytes;             // of an imported tokenizer.json
  absl::Duration kept = absl::Hours(1);                                      // how long exports are kept
  std::int64_t max_eval_tokens = 16384;                                      // for a conversion's losses
  std::shared_ptr<base::MemoryBudget> memory = base::MemoryBudget::Make(0);  // shared with served models and trainers
  // The functions below look up jobs, which this folder does not know.
  // Returns the dataset on which a job evaluated, or from which it held out rows to evaluate on ("held_out" in its
  // model's provenance); "": none.
  std::function<std::string(const std::string& job_id)> eval_dataset_of_job;
  // Finds a checkpoint by Checkpoint.name for a caller of `tenant` ("": sees all tenants). Errors: NotFound
  // (CHECKPOINT).
  std::function<absl::StatusOr<CheckpointSource>(const std::string& checkpoint, const std::string& tenant)>
      find_checkpoint;
};

// The objects that all kinds of work on whole models share; all borrowed.
struct ModelWork {
  store::StateDirectory& state;
  telemetry::Metrics& metrics;
  WorkAdmission& admission;
  const kernels::Stream convert_stream;
  const ModelLibraryOptions& options;

  // Waits for the operation's turn; the progress shows "wait" meanwhile. `what`: as for WorkAdmission::Await.
  absl::StatusOr<WorkAdmission::Turn> AwaitTurn(const std::string& what, const WorkMemory& need,
                                                OperationScope& scope) const {
    return admission.Await(what, need, scope.stopped(), [&scope] { scope.Progress("wait", 0, 1); });
  }
};

}  // namespace nibble::registry
