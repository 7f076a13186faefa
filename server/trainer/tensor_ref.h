// Trained values, gradients and moments in memory, each with its element type. No torch in this header.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/dtype.h"

namespace nibble::trainer {

enum class ElementType : std::uint8_t {
  kF32,
  kBF16,
  kInt8,     // signed codes with one f32 scale per block: value = code * scale
  kMoment8,  // unsigned codes of a moment with one f32 absmax per block, as in arXiv:2110.02861
};

const char* Name(ElementType type);           // "f32", "bf16", "int8", "moment8"
kernels::DType StoredType(ElementType type);  // of its elements or codes, in memory and in checkpoints
constexpr bool HasScales(ElementType type) { return type == ElementType::kInt8 || type == ElementType::kMoment8; }

// Loops over elements give each thread at least this many.
inline constexpr std::int64_t kElementsPerThread = 1 << 16;

// A view, like std::span: copies share the memory, which a const view can change too.
struct TensorRef {
  TensorRef() = default;
  // Implicit, because floats in memory are a kF32 tensor.
  TensorRef(std::span<float> values);
  TensorRef(std::vector<float>& values) : TensorRef(std::span<float>(values)) {}

  std::int64_t num_bytes() const { return count * kernels::SizeOf(StoredType(type)); }  // without the scales
  std::int64_t num_scales() const { return HasScales(type) ? (count + block - 1) / block : 0; }
  std::span<std::byte> bytes() const;
  // The elements of a kF32 tensor; CHECKs the type.
  std::span<float> f32() const;

  ElementType type = ElementType::kF32;
  void* data = nullptr;
  std::int64_t count = 0;   // elements
  std::int64_t block = 0;   // elements per scale; 0 without scales
  float* scales = nullptr;  // [num_scales()]
};

// How the optimizer stores a parameter in bf16 or int8: rounded stochastically. `tensor` keeps the draws of different
// tensors of a run apart; they also depend on the step and on the element.
struct StoreDraws {
  std::uint64_t seed = 0;
  std::uint64_t tensor = 0;
  bool to_nearest = false;  // int8: without draws
  bool one_scale = false;   // int8: one scale for all rows, else one per row
};

// A tensor that owns its memory. Constructed with zeros.
class TensorBuffer {
 public:
  TensorBuffer() = default;
  // `block`: elements per scale; needed by types with scales, 0 for others.
  TensorBuffer(ElementType type, std::int64_t count, std::int64_t block = 0);
  TensorBuffer(const std::vector<float>& values);  // a copy, in kF32

  const TensorRef& ref() const { return ref_; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::unique_ptr<float[]> scales_;
  TensorRef ref_;
};

}  // namespace nibble::trainer
