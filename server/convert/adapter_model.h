// Joins a base and a separate adapter (PEFT's files, a job's checkpoint) into the lora artifact that is served.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/model/artifact.h"
#include "server/model/peft_adapter.h"

namespace nibble::convert {

// FailedPrecondition (ADAPTER_BASE) unless an adapter can run on the model: nf4, int8, or f32 or bf16 that is not a
// BitNet model.
absl::Status CheckAdapterBase(const model::ArtifactInfo& info);

// Whether an adapter runs on the base itself, not on its nf4 form: the base is nf4 or int8, or config.base_digest is
// its weights_digest, because a lora job trained the adapter on it.
bool RunsOnBaseItself(const model::ArtifactInfo& base, const model::AdapterConfig& config);

// f32 and bf16 bases are quantized to nf4 under `scratch` (removed afterwards), as a qlora job does, unless
// RunsOnBaseItself. The bytes are the same each time, so a job's adapter gets exactly the weights that it was trained
// on. adapter.config.base_digest, if set, must equal the weights_digest of the base that the adapter gets; the error
// names the base by provenance["base_model"], if set. made_of becomes ArtifactInfo::source. On an error nothing is left
// at `target`. Errors: FailedPrecondition (BASE_MISMATCH), those of CheckAdapterBase, ConvertModel and MakeLoraModel.
absl::StatusOr<model::ArtifactInfo> MakeAdapterModel(base::FileSystem& files, const model::Artifact& base,
                                                     model::PeftAdapter adapter, const base::Json& provenance,
                                                     const std::string& scratch, const std::string& target,
                                                     const kernels::Stream& stream, const char* made_of);

}  // namespace nibble::convert
