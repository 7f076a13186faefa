// Lists the tensors that an artifact of each format holds, with types and shapes. Writers plan from this list and
// Artifact::Open checks against it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/model/artifact.h"
#include "server/model/safetensors_writer.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

// Suffixes of the tensors that belong to a quantized weight.
inline constexpr char kInt8ScaleSuffix[] = "_scale";
inline constexpr char kTernaryScaleSuffix[] = "_scale";
inline constexpr char kNf4AbsmaxSuffix[] = "_absmax";
inline constexpr char kNf4FactorSuffix[] = "_absmax_factor";
inline constexpr char kNf4OffsetSuffix[] = "_absmax_offset";

struct StoredTensor {
  std::string name;
  std::vector<kernels::DType> dtypes;  // the allowed types
  std::vector<std::int64_t> shape;
};

// True when the weight of this role is stored as codes (int8, NF4 or ternary) in that format.
bool IsQuantized(TensorRole role, const ModelConfig& config, const ArtifactInfo& info);

// The tensors of model.safetensors.
absl::StatusOr<std::vector<StoredTensor>> StoredTensors(const ModelConfig& config, const ArtifactInfo& info);
// Total bytes of these tensors. float_bytes: bytes per element where the format allows several float types.
absl::StatusOr<std::int64_t> WeightFileBytes(const ModelConfig& config, const ArtifactInfo& info, std::int64_t float_bytes);

// Maximum input features of a linear in that format: with more, the integer sums of its product could overflow.
// act_bits: bits of ternary's activation codes. nullopt: no limit.
std::optional<std::int64_t> MaxInFeatures(Format format, int act_bits);

// Called before a model is converted, loaded or trained for a format; otherwise the kernels would refuse its product at
// the first token. Errors: InvalidArgument, naming the weight, got and wanted.
absl::Status CheckInFeatures(const ModelConfig& config, const ArtifactInfo& info);

// Sorts into the file's order, so that the writer need not keep large tensors in memory.
void SortForWriter(const SafetensorsWriter& writer, std::vector<TensorSpec>& specs);

}  // namespace nibble::model
