#include "server/trainer/int8_values.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/formats/int8.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"

namespace nibble::trainer {
namespace {

std::int64_t RowsPerThread(const TensorRef& tensor) {
  return std::max<std::int64_t>(1, kElementsPerThread / tensor.block);
}

}  // namespace

bool IsInt8Matrix(const TensorRef& tensor) {
  return tensor.type == ElementType::kInt8 && tensor.block > 0 && tensor.count % tensor.block == 0;
}

void WidenInt8(const TensorRef& tensor, std::span<float> values, const kernels::Stream& stream) {
  CHECK(IsInt8Matrix(tensor) && static_cast<std::int64_t>(values.size()) == tensor.count);
  const auto* codes = static_cast<const std::int8_t*>(tensor.data);
  stream.ParallelFor(tensor.num_scales(), RowsPerThread(tensor), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float scale = tensor.scales[r];
      for (std::int64_t i = r * tensor.block; i < (r + 1) * tensor.block; ++i) {
        values[static_cast<std::size_t>(i)] = static_cast<float>(codes[i]) * scale;
      }
    }
  });
}

absl::Status StoreInt8(std::span<const float> values, const TensorRef& tensor, std::int64_t step,
                       const StoreDraws& draws, const kernels::Stream& stream, Int8Buffers* buffers) {
  CHECK(IsInt8Matrix(tensor) && static_cast<std::int64_t>(values.size()) == tensor.count);
  const std::int64_t rows = tensor.num_scales();
  const std::int64_t cols = tensor.block;
  auto* codes = static_cast<std::int8_t*>(tensor.data);
  Int8Buffers own;
  Int8Buffers& memory = buffers != nullptr ? *buffers : own;
  const std::span<std::uint8_t> changed = FirstOf(memory.changed, rows);
  std::atomic<bool> finite = true;
  stream.ParallelFor(rows, RowsPerThread(tensor), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::uint8_t& row_changed = changed[static_cast<std::size_t>(r)];
      row_changed = 0;
      for (std::int64_t i = r * cols; i < (r + 1) * cols; ++i) {
        const float value = values[static_cast<std::size_t>(i)];
        if (!std::isfinite(value)) finite = false;
        // A new tensor has no scales yet.
        if (tensor.scales[r] == 0.0f || value != static_cast<float>(codes[i]) * tensor.scales[r]) row_changed = 1;
      }
    }
  });
  if (!finite) return absl::InvalidArgumentError("an updated weight is not finite");
  const bool any = std::find(changed.begin(), changed.end(), 1) != changed.end();
  if (!any) return absl::OkStatus();
  const std::int64_t stride = kernels::Int8PaddedK(cols);
  const std::span<std::int8_t> padded = FirstOf(memory.codes, rows * stride);
  const std::span<float> scales = FirstOf(memory.scales, rows);
  kernels::QuantizeInt8Args args;
  args.x = kernels::MakeConstMatrix(values.data(), kernels::DType::kF32, rows, cols);
  args.out.codes = padded.data();
  args.out.scale = scales.data();
  args.out.rows = rows;
  args.out.cols = cols;
  args.out.stride = stride;
  args.how.per_tensor = draws.one_scale;
  args.how.stochastic = {.enabled = !draws.to_nearest,
                         .seed = draws.seed,
                         .stream = static_cast<std::uint64_t>(step) << 32 | draws.tensor};
  NIBBLE_RETURN_IF_ERROR(kernels::QuantizeInt8(args, stream));
  stream.ParallelFor(rows, RowsPerThread(tensor), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      if (!draws.one_scale && changed[static_cast<std::size_t>(r)] == 0) continue;
      std::copy_n(padded.data() + r * stride, cols, codes + r * cols);
      tensor.scales[r] = scales[static_cast<std::size_t>(r)];
    }
  });
  return absl::OkStatus();
}

}  // namespace nibble::trainer
