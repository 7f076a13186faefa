// Artifact -> what other programs load.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "server/base/files.h"
#include "server/model/artifact.h"

namespace nibble::convert {

// adapter_model.safetensors, adapter_config.json and a README, as PEFT saves them; base_model goes into
// base_model_name_or_path. Errors: InvalidArgument (not a lora artifact), AlreadyExists (target there and not empty).
// On any error nothing is left at target.
absl::Status ExportPeft(base::FileSystem& files, const model::Artifact& source, const std::string& base_model,
                        const std::string& target);

// config.json, model.safetensors, tokenizer and generation files, as transformers saves them. Errors: InvalidArgument (not
// f32 or bf16), AlreadyExists. On any error nothing is left at target.
absl::Status ExportHf(base::FileSystem& files, const model::Artifact& source, const std::string& target);

}  // namespace nibble::convert
