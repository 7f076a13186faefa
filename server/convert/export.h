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

// How a ternary model's linears are written (transformers' quantization_config): both are packed, and hold the same codes.
enum class HfBitNetClass {
  kBitLinear,      // int8 codes times codes, divided by the scales at the end
  kAutoBitLinear,  // activations back in floats before the product
};

// config.json, model.safetensors, tokenizer and generation files, as transformers saves them. A ternary model becomes a "bitnet"
// checkpoint of the class named; master weights one of autobitlinear, online. Where a model has a norm before every linear and
// none before the blocks, transformers' block norms are written as ones: they differ by a factor of 1 + eps / (2 mean(x^2)).
// Errors: InvalidArgument (int8, nf4, lora; rows that are no multiple of 4), Unimplemented (norms that transformers has no
// place for), AlreadyExists. On any error nothing is left at target.
absl::Status ExportHf(base::FileSystem& files, const model::Artifact& source, const std::string& target,
                      HfBitNetClass bitnet_class = HfBitNetClass::kBitLinear);

}  // namespace nibble::convert
