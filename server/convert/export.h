// Artifact -> what other programs load.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/base/files.h"
#include "server/model/artifact.h"

namespace nibble::convert {

// Of tensors in one file: transformers 4's max_shard_size.
inline constexpr std::uint64_t kDefaultShardBytes = 5'000'000'000;

// adapter_model.safetensors, adapter_config.json and a README, as PEFT saves them; base_model goes into
// base_model_name_or_path, the digest of the base's weights into nibble_base_digest, which PEFT passes over with a warning.
// Errors: InvalidArgument (not a lora artifact), AlreadyExists (target there and not empty). On any error nothing is left at
// target.
absl::Status ExportPeft(base::FileSystem& files, const model::Artifact& source, const std::string& base_model,
                        const std::string& target);

// How a ternary model's linears are written (transformers' quantization_config): both are packed, and hold the same codes.
enum class HfBitNetClass {
  kBitLinear,      // int8 codes times codes, divided by the scales at the end
  kAutoBitLinear,  // activations back in floats before the product
};

// config.json, model.safetensors or its shards (hf_shards.h), tokenizer and generation files, as transformers saves them. A
// ternary model becomes a "bitnet" checkpoint of the class named; master weights one of autobitlinear, online. Where a model has
// a norm before every linear and none before the blocks, transformers' block norms are written so that a ternary model computes the
// same with them; those of masters are ones, with which a row is sqrt(1 + eps / mean(x^2)) times what it was.
// Errors: InvalidArgument (int8, nf4, lora; rows that are no multiple of 4), Unimplemented (norms that transformers has no
// place for, activations of other than 8 bits, a bias that autobitlinear cannot hold), AlreadyExists. On any error nothing is left
// at target.
absl::Status ExportHf(base::FileSystem& files, const model::Artifact& source, const std::string& target,
                      HfBitNetClass bitnet_class = HfBitNetClass::kBitLinear,
                      std::uint64_t max_shard_bytes = kDefaultShardBytes);

// InvalidArgument (field "format") unless compressed-tensors can say what the model is: int8 without activation outliers, its
// head in floats.
absl::Status CheckCompressedTensors(const model::ArtifactInfo& info);

// As ExportHf, of an int8 model: linears are i8 [N, K] with weight_scale f32 [N, 1], the layout of compressed-tensors'
// "int-quantized". Codes and scales are the artifact's own; activations are quantised by who runs it.
// Errors: those of CheckCompressedTensors; otherwise as ExportHf.
absl::Status ExportCompressedTensors(base::FileSystem& files, const model::Artifact& source, const std::string& target,
                                     std::uint64_t max_shard_bytes = kDefaultShardBytes);

}  // namespace nibble::convert
