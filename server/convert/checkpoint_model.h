// A checkpoint of a job as a model: the same weights that the trainer would have published after that step.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/model/artifact.h"

namespace nibble::convert {

// In a checkpoint's directory, beside model::kAdapterConfigFile: what is trained by its names (an adapter's are PEFT's), and the
// optimiser's.
inline constexpr char kCheckpointTensorsFile[] = "state.safetensors";

// Of a qlora job. `base` is what the job started from: f32 and bf16 bases are quantised to nf4 under `scratch` (removed again),
// as the trainer did. The checkpoint must have been verified. On an error nothing is left at `target`.
// Errors: FailedPrecondition (NOT_SERVABLE: no adapter_config.json), DataLoss (a tensor is missing or of another shape), those of
// MakeAdapterModel.
absl::StatusOr<model::ArtifactInfo> MakeCheckpointModel(base::FileSystem& files, const model::Artifact& base,
                                                        const std::string& checkpoint_directory, const base::Json& provenance,
                                                        const std::string& scratch, const std::string& target,
                                                        const kernels::Stream& stream);

// Of a bitnet_qat job: its master weights, f32. `config` is the architecture that is trained; tokenizer files are those of `base`.
// Errors: DataLoss as above, those of MakeMasterModel.
absl::StatusOr<model::ArtifactInfo> MakeMasterCheckpointModel(base::FileSystem& files, const model::Artifact& base,
                                                              const model::ModelConfig& config, int act_bits,
                                                              const std::string& checkpoint_directory,
                                                              const base::Json& provenance, const std::string& target);

}  // namespace nibble::convert
