#include "server/model/nf4_scales.h"

#include <cstring>

#include "kernels/formats/double_quant.h"
#include "kernels/formats/nf4.h"
#include "kernels/ops/quantize/double_dequantize.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/stored_tensors.h"

namespace nibble::model {

namespace {

absl::StatusOr<TensorView> Tensor(const Artifact& artifact, const std::string& name, kernels::DType dtype,
                                  std::int64_t elements) {
  NIBBLE_ASSIGN_OR_RETURN(const TensorView view, artifact.Tensor(name));
  if (view.dtype == dtype && static_cast<std::int64_t>(view.bytes.size()) == elements * kernels::SizeOf(dtype)) {
    return view;
  }
  return absl::DataLossError(base::StrCat(name, ": wanted ", elements, " elements in ", kernels::Name(dtype)));
}

}  // namespace

absl::Status ReadNf4Scales(const Artifact& artifact, const std::string& name, std::int64_t rows, std::int64_t cols,
                           const kernels::Stream& stream, float* scales) {
  using kernels::DType;
  const Nf4Options& options = artifact.info().nf4;
  const std::int64_t n = rows * kernels::Nf4RowBlocks(cols, options.block);
  if (!options.double_quant) {
    NIBBLE_ASSIGN_OR_RETURN(const TensorView stored, Tensor(artifact, name + kNf4AbsmaxSuffix, DType::kF32, n));
    if (!stored.bytes.empty()) std::memcpy(scales, stored.bytes.data(), stored.bytes.size());
    return absl::OkStatus();
  }
  const std::int64_t factors = kernels::DoubleQuantBlocks(n, options.scaler_block);
  NIBBLE_ASSIGN_OR_RETURN(const TensorView codes, Tensor(artifact, name + kNf4AbsmaxSuffix, DType::kI8, n));
  NIBBLE_ASSIGN_OR_RETURN(const TensorView factor, Tensor(artifact, name + kNf4FactorSuffix, DType::kF32, factors));
  NIBBLE_ASSIGN_OR_RETURN(const TensorView offset, Tensor(artifact, name + kNf4OffsetSuffix, DType::kF32, 1));
  kernels::DoubleDequantizeArgs args;
  args.codes = reinterpret_cast<const std::int8_t*>(codes.bytes.data());
  args.factor = reinterpret_cast<const float*>(factor.bytes.data());
  std::memcpy(&args.offset, offset.bytes.data(), sizeof args.offset);
  args.n = n;
  args.absmax = scales;
  args.block = options.scaler_block;
  return kernels::DoubleDequantize(args, stream);
}

}  // namespace nibble::model
