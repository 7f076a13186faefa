// Lists the tensors in an artifact of each format, with types and shapes. Writers plan their files from this list, and
// Artifact::Open checks files against it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "server/model/artifact.h"
#include "server/model/safetensors_writer.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

// Suffixes of the tensors that belong to a quantized weight.
inline constexpr char kInt8ScaleSuffix[] = "_scale";
inline constexpr char kTernaryScaleSuffix[] = "_scale";
inline constexpr char kNf4AbsmaxSuffix[] = "_absmax";  // int8 codes with double quantization, else f32
inline constexpr char kNf4FactorSuffix[] = "_absmax_factor";
inline constexpr char kNf4OffsetSuffix[] = "_absmax_offset";

struct StoredTensor {
  std::string name;
  std::vector<kernels::DType> dtypes;  // the allowed types
  std::vector<std::int64_t> shape;
};

// True if an artifact with this `info` stores the tensor as codes (int8, NF4 or ternary).
bool IsQuantized(const TensorSpec& spec, const ModelConfig& config, const ArtifactInfo& info);

// The tensors of model.safetensors.
absl::StatusOr<std::vector<StoredTensor>> StoredTensors(const ModelConfig& config, const ArtifactInfo& info);
// Total bytes of these tensors. float_bytes: bytes per element of tensors that may have several float types.
absl::StatusOr<std::int64_t> WeightFileBytes(const ModelConfig& config, const ArtifactInfo& info,
                                             std::int64_t float_bytes);

// Maximum number of input features of a quantized linear. With more, the integer sums of its product could overflow.
// act_bits: bits of the activation codes, used only for ternary. nullopt: no limit.
std::optional<std::int64_t> MaxInFeatures(Format format, int act_bits);

// Checks MaxInFeatures for every quantized weight. Call this before converting, loading or training a model: the
// kernels check it only when they compute the first token. Errors: InvalidArgument, naming the weight, got and wanted.
absl::Status CheckInFeatures(const ModelConfig& config, const ArtifactInfo& info);

// Sorts specs into the writer's file order. In any other order, the writer keeps tensors in memory until their turn.
void SortForWriter(const SafetensorsWriter& writer, std::vector<TensorSpec>& specs);

}  // namespace nibble::model
