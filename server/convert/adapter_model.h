// A base and an adapter that lies apart from it (PEFT's files, a job's checkpoint) -> the lora artifact that serves both.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/model/artifact.h"
#include "server/model/peft_adapter.h"

namespace nibble::convert {

// FailedPrecondition (ADAPTER_BASE) unless an adapter can run on it: nf4, or f32 or bf16 that is no BitNet model.
absl::Status CheckAdapterBase(const model::ArtifactInfo& info);

// f32 and bf16 bases are quantised to nf4 under `scratch` (removed again), as a qlora job does: the same bytes each time, so that
// the adapter of a job finds the very weights that it was trained on. adapter.config.base_digest, where it is given, must be the
// weights_digest of the nf4 base. made_of: ArtifactInfo::source. On an error nothing is left at `target`.
// Errors: FailedPrecondition (BASE_MISMATCH), those of CheckAdapterBase, ConvertModel and MakeLoraModel.
absl::StatusOr<model::ArtifactInfo> MakeAdapterModel(base::FileSystem& files, const model::Artifact& base,
                                                     model::PeftAdapter adapter, const base::Json& provenance,
                                                     const std::string& scratch, const std::string& target,
                                                     const kernels::Stream& stream, const char* made_of);

}  // namespace nibble::convert
