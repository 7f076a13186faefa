// Makes a model from a job's checkpoint, with the weights that the trainer would have published after that step.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/convert/convert.h"
#include "server/model/artifact.h"

namespace nibble::convert {

// A file in a checkpoint's directory, beside model::kAdapterConfigFile. It holds the trained tensors by name (PEFT's
// names for an adapter) and the optimizer's tensors.
inline constexpr char kCheckpointTensorsFile[] = "state.safetensors";
// The scales of a tensor in this file are stored under its name with this suffix.
inline constexpr char kCheckpointScales[] = ".scales";

// For a qlora job. `base` is the model that the job started from. f32 and bf16 bases are quantized to nf4 with the
// options `nf4` under `scratch` (removed afterwards), as the trainer did. The checkpoint must have been verified. On an
// error nothing is left at `target`. Errors: FailedPrecondition (NOT_SERVABLE: no adapter_config.json), DataLoss (a
// tensor is missing, not f32 or of another shape), those of MakeAdapterModel.
absl::StatusOr<model::ArtifactInfo> MakeCheckpointModel(base::FileSystem& files, const model::Artifact& base,
                                                        const std::string& checkpoint_directory,
                                                        const model::Nf4Options& nf4, const base::Json& provenance,
                                                        const std::string& scratch, const std::string& target,
                                                        const kernels::Stream& stream);

// For a lora job: the adapter stays on the f32, bf16 or int8 base on which it was trained. Errors: FailedPrecondition
// (NOT_SERVABLE) and DataLoss as above, those of MakeLoraModel.
absl::StatusOr<model::ArtifactInfo> MakeLoraCheckpointModel(base::FileSystem& files, const model::Artifact& base,
                                                            const std::string& checkpoint_directory,
                                                            const base::Json& provenance, const std::string& target);

// For a job that trains all weights: the result holds them in the checkpoint's type, form.dtype; TrainedForm says which
// tensors have another type with i8. `config` is the trained architecture; tokenizer files come from `base`. form: as
// for MakeTrainedModel.
// Errors: DataLoss as above, those of MakeTrainedModel.
absl::StatusOr<model::ArtifactInfo> MakeTrainedCheckpointModel(base::FileSystem& files, const model::Artifact& base,
                                                               const model::ModelConfig& config,
                                                               const TrainedForm& form,
                                                               const std::string& checkpoint_directory,
                                                               const base::Json& provenance, const std::string& target);

}  // namespace nibble::convert
