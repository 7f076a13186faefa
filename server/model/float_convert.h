// Converts between the float types of files (f32, bf16, f16): rounds to nearest even, with the same bits on every
// machine.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"

namespace nibble::model {

float HalfToFloat(std::uint16_t half);  // exact

// Reads count elements from bytes at any alignment. InvalidArgument when bytes holds fewer, or when dtype is not a
// float type.
absl::StatusOr<std::vector<float>> ToFloats(std::span<const std::byte> bytes, kernels::DType dtype, std::int64_t count);

// The bytes of the values as `dtype`, which must be f32 or bf16: nothing writes f16.
std::string FromFloats(std::span<const float> values, kernels::DType dtype);

// The `count` elements of a tensor as f32 or bf16, or the same bytes when the types are equal.
absl::StatusOr<std::string> ConvertFloats(std::span<const std::byte> bytes, kernels::DType from, kernels::DType to,
                                          std::int64_t count);

}  // namespace nibble::model
