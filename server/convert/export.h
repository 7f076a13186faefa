// Exports artifacts in the formats of other programs.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/base/files.h"
#include "server/model/artifact.h"

namespace nibble::convert {

// Maximum bytes of tensors in one file: transformers 4's default max_shard_size.
inline constexpr std::uint64_t kDefaultShardBytes = 5'000'000'000;

// Writes adapter_model.safetensors, adapter_config.json and a README, as PEFT saves them, and tokenizer and
// generation files. The metadata of adapter_model.safetensors has the digest of the base's weights (kBaseDigestKey).
// Errors: InvalidArgument (not a lora artifact), Unimplemented (phi3), AlreadyExists (target exists and is not empty).
// On any error nothing is left at target.
absl::Status ExportPeft(base::FileSystem& files, const model::Artifact& source, const std::string& target);

// How a ternary model's linears are written (transformers' quantization_config). Both classes are packed and hold the
// same codes.
enum class HfBitNetClass {
  kBitLinear,      // multiplies int8 activation codes by weight codes, divides by the scales at the end
  kAutoBitLinear,  // dequantizes activations to floats before the product
};

// Writes config.json, model.safetensors or its shards (hf_shards.h), tokenizer and generation files, as transformers
// saves them. A ternary model becomes a "bitnet" checkpoint of the given class; master weights become a "bitnet"
// checkpoint of class autobitlinear, online (hf_bitnet.h). For a model with a norm before every linear and none before
// the blocks, this adds the block norms that transformers requires. In a ternary model they do not change the result;
// in masters they are ones, which multiplies a row by about sqrt(1 + eps / mean(x^2)).
// Errors: InvalidArgument (int8, nf4, lora; N not a multiple of 4), Unimplemented (norms or heads that transformers
// cannot represent, activations of other than 8 bits, a bias that autobitlinear cannot hold), AlreadyExists. On any
// error nothing is left at target.
absl::Status ExportHf(base::FileSystem& files, const model::Artifact& source, const std::string& target,
                      HfBitNetClass bitnet_class = HfBitNetClass::kBitLinear,
                      std::uint64_t max_shard_bytes = kDefaultShardBytes);

// InvalidArgument (field "format") unless compressed-tensors can represent the model: int8 with int8 activations,
// no activation outliers and a float head.
absl::Status CheckCompressedTensors(const model::ArtifactInfo& info);

// As ExportHf, for an int8 model. Linears are i8 [N, K] with weight_scale f32 [N, 1], the layout of compressed-tensors'
// "int-quantized". Codes and scales are the artifact's own; the program that runs the model quantizes activations.
// Errors: those of CheckCompressedTensors; otherwise as ExportHf.
absl::Status ExportCompressedTensors(base::FileSystem& files, const model::Artifact& source, const std::string& target,
                                     std::uint64_t max_shard_bytes = kDefaultShardBytes);

}  // namespace nibble::convert
