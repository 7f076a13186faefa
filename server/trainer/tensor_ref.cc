#include "server/trainer/tensor_ref.h"

#include <algorithm>

#include "server/base/log.h"

namespace nibble::trainer {

const char* Name(ElementType type) {
  switch (type) {
    case ElementType::kF32: return "f32";
    case ElementType::kBF16: return "bf16";
    case ElementType::kInt8: return "int8";
    case ElementType::kMoment8: return "moment8";
  }
  return "unknown";
}

kernels::DType StoredType(ElementType type) {
  switch (type) {
    case ElementType::kF32: return kernels::DType::kF32;
    case ElementType::kBF16: return kernels::DType::kBF16;
    case ElementType::kInt8: return kernels::DType::kI8;
    case ElementType::kMoment8: return kernels::DType::kU8;
  }
  return kernels::DType::kF32;
}

TensorRef::TensorRef(std::span<float> values) : data(values.data()), count(static_cast<std::int64_t>(values.size())) {}

std::span<std::byte> TensorRef::bytes() const {
  return {static_cast<std::byte*>(data), static_cast<std::size_t>(num_bytes())};
}

std::span<float> TensorRef::f32() const {
  CHECK(type == ElementType::kF32);
  return {static_cast<float*>(data), static_cast<std::size_t>(count)};
}

TensorBuffer::TensorBuffer(ElementType type, std::int64_t count, std::int64_t block) {
  CHECK(HasScales(type) == (block > 0));
  ref_.type = type;
  ref_.count = count;
  ref_.block = block;
  bytes_ = std::make_unique<std::byte[]>(static_cast<std::size_t>(ref_.num_bytes()));
  ref_.data = bytes_.get();
  if (!HasScales(type)) return;
  scales_ = std::make_unique<float[]>(static_cast<std::size_t>(ref_.num_scales()));
  ref_.scales = scales_.get();
}

TensorBuffer::TensorBuffer(const std::vector<float>& values)
    : TensorBuffer(ElementType::kF32, static_cast<std::int64_t>(values.size())) {
  std::copy(values.begin(), values.end(), ref_.f32().begin());
}

}  // namespace nibble::trainer
