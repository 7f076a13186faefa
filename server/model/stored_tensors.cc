#include "server/model/stored_tensors.h"

#include <algorithm>
#include <map>

#include "kernels/formats/double_quant.h"
#include "kernels/formats/nf4.h"
#include "kernels/formats/ternary.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/safetensors.h"

namespace nibble::model {

using base::StrCat;
using kernels::DType;

bool IsQuantized(const TensorSpec& spec, const ModelConfig& config, const ArtifactInfo& info) {
  const TensorRole role = spec.role;
  switch (info.weight_format()) {
    case Format::kInt8:
      return role == TensorRole::kLinear ||
             (info.int8_head &&
              (role == TensorRole::kHead || (role == TensorRole::kEmbedding && config.tied_embeddings)));
    case Format::kNf4: return role == TensorRole::kLinear;
    case Format::kTernary:
      return role == TensorRole::kLinear && !(info.bitnet.has_value() && info.bitnet->StaysFloat(*spec.linear));
    default: return false;
  }
}

absl::StatusOr<std::vector<StoredTensor>> StoredTensors(const ModelConfig& config, const ArtifactInfo& info) {
  std::vector<StoredTensor> out;
  for (const TensorSpec& spec : RequiredTensors(config)) {
    if (!IsQuantized(spec, config, info)) {
      std::vector<DType> dtypes;
      switch (info.weight_format()) {
        case Format::kF32: dtypes = {DType::kF32}; break;
        case Format::kBF16: dtypes = {DType::kBF16}; break;
        // Norms and biases are widened; embedding, head and float linears may have either type.
        default:
          dtypes = spec.role == TensorRole::kNorm || spec.role == TensorRole::kBias
                       ? std::vector<DType>{DType::kF32}
                       : std::vector<DType>{DType::kF32, DType::kBF16};
      }
      out.push_back({spec.name, dtypes, spec.shape});
      continue;
    }
    const std::int64_t n = spec.shape[0];
    const std::int64_t k = spec.shape[1];
    if (info.weight_format() == Format::kInt8) {
      out.push_back({spec.name, {DType::kI8}, spec.shape});
      out.push_back({spec.name + kInt8ScaleSuffix, {DType::kF32}, {n}});
    } else if (info.format == Format::kTernary) {
      out.push_back({spec.name, {DType::kU8}, {n, kernels::TernaryRowBytes(k)}});
      out.push_back({spec.name + kTernaryScaleSuffix, {DType::kF32}, {1}});
    } else {
      const Nf4Options& options = info.nf4;
      const std::int64_t blocks = kernels::Nf4RowBlocks(k, options.block);
      out.push_back({spec.name, {DType::kU8}, {n, kernels::Nf4RowBytes(k)}});
      out.push_back({spec.name + kNf4AbsmaxSuffix, {options.double_quant ? DType::kI8 : DType::kF32}, {n, blocks}});
      if (!options.double_quant) continue;
      const std::int64_t factors = kernels::DoubleQuantBlocks(n * blocks, options.scaler_block);
      out.push_back({spec.name + kNf4FactorSuffix, {DType::kF32}, {factors}});
      out.push_back({spec.name + kNf4OffsetSuffix, {DType::kF32}, {1}});
    }
  }
  return out;
}

absl::StatusOr<std::int64_t> WeightFileBytes(const ModelConfig& config, const ArtifactInfo& info,
                                             std::int64_t float_bytes) {
  NIBBLE_ASSIGN_OR_RETURN(const auto tensors, StoredTensors(config, info));
  std::int64_t bytes = 0;
  for (const StoredTensor& tensor : tensors) {
    const std::int64_t element = tensor.dtypes.size() > 1 ? float_bytes : kernels::SizeOf(tensor.dtypes[0]);
    bytes += NumElements(tensor.shape).value_or(0) * element;
  }
  return bytes;
}

std::optional<std::int64_t> MaxInFeatures(Format format, int act_bits) {
  switch (format) {
    case Format::kInt8: return kernels::kInt8MaxCols;
    case Format::kTernary: return act_bits == 16 ? kernels::kTernaryMaxColsWide : kernels::kTernaryMaxCols;
    default: return std::nullopt;
  }
}

absl::Status CheckInFeatures(const ModelConfig& config, const ArtifactInfo& info) {
  const int act_bits = info.bitnet.value_or(BitNetInfo()).act_bits;
  const auto max_in_features = MaxInFeatures(info.weight_format(), act_bits);
  if (!max_in_features.has_value()) return absl::OkStatus();
  for (const TensorSpec& spec : RequiredTensors(config)) {
    if (!IsQuantized(spec, config, info) || spec.shape[1] <= *max_in_features) continue;
    const std::string activations =
        info.format == Format::kTernary ? StrCat(" with ", act_bits, "-bit activations") : "";
    return absl::InvalidArgumentError(StrCat(spec.name, " has ", spec.shape[1], " input features, wanted at most ",
                                             *max_in_features, " for ", Name(info.weight_format()), activations));
  }
  return absl::OkStatus();
}

void SortForWriter(const SafetensorsWriter& writer, std::vector<TensorSpec>& specs) {
  std::map<std::string, std::size_t> position;
  for (const TensorPlan& tensor : writer.order()) position.emplace(tensor.name, position.size());
  std::sort(specs.begin(), specs.end(),
            [&](const TensorSpec& a, const TensorSpec& b) { return position.at(a.name) < position.at(b.name); });
}

}  // namespace nibble::model
