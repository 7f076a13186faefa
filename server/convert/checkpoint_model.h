// A checkpoint of a qlora job as a model that can be served: the same weights that the trainer would have published after that
// step.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/model/artifact.h"

namespace nibble::convert {

// In a checkpoint's directory, beside model::kAdapterConfigFile: the adapter's tensors by their PEFT names, and the optimiser's.
inline constexpr char kCheckpointTensorsFile[] = "state.safetensors";

// `base` is what the job started from: f32 and bf16 bases are quantised to nf4 under `scratch` (removed again), as the trainer
// did. The checkpoint must have been verified. On an error nothing is left at `target`.
// Errors: FailedPrecondition (NOT_SERVABLE: no adapter_config.json), DataLoss (a tensor is missing or of another shape), those of
// ConvertModel and MakeLoraModel.
absl::StatusOr<model::ArtifactInfo> MakeCheckpointModel(base::FileSystem& files, const model::Artifact& base,
                                                        const std::string& checkpoint_directory, const base::Json& provenance,
                                                        const std::string& scratch, const std::string& target,
                                                        const kernels::Stream& stream);

}  // namespace nibble::convert
