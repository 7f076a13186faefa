// Between the float types that files store: f32, bf16 and f16, by integer arithmetic, round to nearest even.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"

namespace nibble::model {

float HalfToFloat(std::uint16_t half);  // exact

// count elements from bytes at any alignment. Requires bytes to hold them and dtype to be a float type; InvalidArgument names
// the type otherwise.
absl::StatusOr<std::vector<float>> ToFloats(std::span<const std::byte> bytes, kernels::DType dtype, std::int64_t count);

// f32 -> the bytes of dtype (f32 or bf16).
std::string FromFloats(std::span<const float> values, kernels::DType dtype);

// The bytes of a tensor in another float type; the same bytes when the types are equal.
absl::StatusOr<std::string> ConvertFloats(std::span<const std::byte> bytes, kernels::DType from, kernels::DType to,
                                          std::int64_t count);

}  // namespace nibble::model
