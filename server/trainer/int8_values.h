// Parameters that are stored in int8 without a float copy: the optimizer widens a tensor, changes it in f32 and stores
// it as codes again.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/stream.h"
#include "server/trainer/tensor_ref.h"

namespace nibble::trainer {

// Whether a tensor is int8 with one scale per row of a matrix, as the functions below require.
bool IsInt8Matrix(const TensorRef& tensor);

// Memory that a step of the optimizer reuses from tensor to tensor. It grows as needed; between calls, its contents
// mean nothing.
struct Int8Buffers {
  std::vector<float> values;          // of the tensor, widened
  std::vector<std::uint8_t> changed;  // whether a row has changed
  std::vector<std::int8_t> codes;     // of the new rows, each padded as quantize_int8 requires
  std::vector<float> scales;          // of the new rows
};

// values [count] f32 = code * scale.
void WidenInt8(const TensorRef& tensor, std::span<float> values, const kernels::Stream& stream = {});

// Stores values [count] f32 as codes and scales, in the arithmetic of quantize_int8: one scale per row, or one for all
// rows with draws.one_scale; stochastically rounded, unless draws.to_nearest. A row whose values are still code * scale
// keeps its bytes, so a step without effect changes nothing. With draws.one_scale, rows keep their bytes only if no row
// has changed. `step` (of the optimizer) keeps the draws of different steps apart. `values` may be buffers->values.
// Without `buffers`, StoreInt8 allocates its own memory. Errors: InvalidArgument if a value is not finite; then nothing
// has changed.
absl::Status StoreInt8(std::span<const float> values, const TensorRef& tensor, std::int64_t step,
                       const StoreDraws& draws, const kernels::Stream& stream = {}, Int8Buffers* buffers = nullptr);

// The first `count` elements of `memory`, which grows to exactly that size, without its contents, if it is smaller.
template <typename T>
std::span<T> FirstOf(std::vector<T>& memory, std::int64_t count) {
  const auto size = static_cast<std::size_t>(count);
  if (memory.size() < size) {
    memory = {};
    memory.resize(size);
  }
  return std::span(memory).first(size);
}

}  // namespace nibble::trainer
