// Which tensors an artifact of a format holds, with their types and shapes: the one list that writers plan by and
// Artifact::Open checks against.
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

// Suffixes of what stands beside a quantised weight.
inline constexpr char kInt8ScaleSuffix[] = "_scale";
inline constexpr char kTernaryScaleSuffix[] = "_scale";
inline constexpr char kNf4AbsmaxSuffix[] = "_absmax";
inline constexpr char kNf4FactorSuffix[] = "_absmax_factor";
inline constexpr char kNf4OffsetSuffix[] = "_absmax_offset";

struct StoredTensor {
  std::string name;
  std::vector<kernels::DType> dtypes;  // any of these
  std::vector<std::int64_t> shape;
};

// True when the weight of this role is stored as codes (int8, NF4 or ternary) in that format.
bool IsQuantized(TensorRole role, const ModelConfig& config, const ArtifactInfo& info);

// Those of model.safetensors.
absl::StatusOr<std::vector<StoredTensor>> StoredTensors(const ModelConfig& config, const ArtifactInfo& info);
// Their bytes. `float_bytes`: of an element where the format leaves its type open.
absl::StatusOr<std::int64_t> WeightFileBytes(const ModelConfig& config, const ArtifactInfo& info, std::int64_t float_bytes);

// The most input features of a linear in that format, which the integer sums of its product hold; act_bits is that of ternary's
// activations. Nothing where there is no limit.
std::optional<std::int64_t> MaxInFeatures(Format format, int act_bits);

// Before a model is converted, loaded or trained for a format: its product would be refused at the first token otherwise.
// Errors: InvalidArgument, naming the weight, what it has and what is wanted.
absl::Status CheckInFeatures(const ModelConfig& config, const ArtifactInfo& info);

// In the file's order, so that its writer holds nothing large back.
void SortForWriter(const SafetensorsWriter& writer, std::vector<TensorSpec>& specs);

}  // namespace nibble::model
