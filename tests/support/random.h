// Reproducible test data: a counter-based generator, so that value i of a seed never depends on earlier draws.
// Also buffers with guard bytes on both sides, which show whether an op wrote outside its output.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/dtype.h"

namespace nibble::support {

// SplitMix64's output function (Steele et al., OOPSLA 2014) of seed and counter.
inline std::uint64_t Bits(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t z = seed * 0xd1342543de82ef95u + (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// In [0, 1), a multiple of 2^-24: exact in f32.
inline float Uniform(std::uint64_t seed, std::uint64_t i) { return static_cast<float>(Bits(seed, i) >> 40) * 0x1p-24f; }

// In [0, n).
inline std::int64_t UniformInt(std::uint64_t seed, std::uint64_t i, std::int64_t n) {
  return static_cast<std::int64_t>(Bits(seed, i) % static_cast<std::uint64_t>(n));
}

// Standard normal by Box and Muller.
inline float Normal(std::uint64_t seed, std::uint64_t i) {
  const double u = (static_cast<double>(Bits(seed, 2 * i) >> 11) + 1.0) * 0x1p-53;
  const double v = static_cast<double>(Bits(seed, 2 * i + 1) >> 11) * 0x1p-53;
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
}

inline std::vector<float> NormalVector(std::uint64_t seed, std::int64_t n, float scale = 1.0f) {
  std::vector<float> out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = scale * Normal(seed, i);
  return out;
}

// Codes in [-127, 127].
inline std::vector<std::int8_t> CodeVector(std::uint64_t seed, std::int64_t n) {
  std::vector<std::int8_t> out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int8_t>(UniformInt(seed, i, 255) - 127);
  return out;
}

// The same values in type T: f32 as they are, bf16 rounded.
template <typename T>
std::vector<T> ConvertTo(const std::vector<float>& x) {
  std::vector<T> out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = kernels::RoundTo<T>(x[i]);
  return out;
}

// Bytes of a float vector in a run-time type (f32 or bf16).
inline std::vector<std::uint8_t> ToBytes(const std::vector<float>& x, kernels::DType dtype) {
  std::vector<std::uint8_t> out(x.size() * static_cast<std::size_t>(kernels::SizeOf(dtype)));
  if (x.empty()) return out;
  if (dtype == kernels::DType::kF32) {
    std::memcpy(out.data(), x.data(), out.size());
  } else {
    const std::vector<kernels::BF16> narrow = ConvertTo<kernels::BF16>(x);
    std::memcpy(out.data(), narrow.data(), out.size());
  }
  return out;
}

// size bytes between two guards of kGuardBytes; everything starts as kFill, so unwritten output shows as well.
class GuardedBytes {
 public:
  static constexpr std::size_t kGuardBytes = 128;
  static constexpr std::uint8_t kFill = 0xa5;

  explicit GuardedBytes(std::int64_t size)
      : size_(static_cast<std::size_t>(size)), storage_(size_ + 2 * kGuardBytes, kFill) {}

  std::uint8_t* data() { return storage_.data() + kGuardBytes; }
  const std::uint8_t* data() const { return storage_.data() + kGuardBytes; }
  std::size_t size() const { return size_; }
  template <typename T>
  T* As() {
    return reinterpret_cast<T*>(data());
  }
  template <typename T>
  const T* As() const {
    return reinterpret_cast<const T*>(data());
  }
  // True when no byte outside [data, data + size) changed.
  bool GuardsIntact() const {
    for (std::size_t i = 0; i < kGuardBytes; ++i) {
      if (storage_[i] != kFill || storage_[kGuardBytes + size_ + i] != kFill) return false;
    }
    return true;
  }

 private:
  std::size_t size_;
  std::vector<std::uint8_t> storage_;
};

}  // namespace nibble::support
