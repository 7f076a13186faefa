// What server/registry needs to know about a checkpoint to make a model of it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/model/artifact.h"
#include "server/registry/work_admission.h"

namespace nibble::registry {

// Inputs and output directory for making a model from a checkpoint; all borrowed.
struct CheckpointTarget {
  const model::Artifact& base;  // the model that the job started from
  const base::Json& provenance;
  const std::string& scratch;    // a path for files that are removed afterwards
  const std::string& directory;  // of the model
};

// A checkpoint of a job, and how its training method makes a model of it (plan/method_plan.h).
struct CheckpointSource {
  std::string directory;
  std::string job_id;
  std::int64_t step = 0;
  std::string base_model;
  base::Json eval_data;          // for the provenance of the published model (jobs::EvalDataJson)
  std::string base_digest = {};  // ArtifactInfo::weights_digest of the base when the job was created; "": unknown
  // Peak memory of `make`. `checkpoint_bytes`: of the checkpoint's files.
  std::function<WorkMemory(const model::Artifact& base, std::int64_t checkpoint_bytes)> memory;
  // Makes the model that the trainer would have written after that step. On an error nothing is left at the target.
  std::function<absl::StatusOr<model::ArtifactInfo>(base::FileSystem& files, const CheckpointTarget& target,
                                                    const kernels::Stream& stream)>
      make;
};

}  // namespace nibble::registry
