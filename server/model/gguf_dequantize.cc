#include <cstring>

#include "server/model/float_convert.h"
#include "server/model/gguf.h"

namespace nibble::model {
namespace {

// Blocks of ggml-common.h: block_q4_0 {f16 d; u8 qs[16]}, block_q4_1 {f16 d, m; u8 qs[16]}, block_q8_0 {f16 d; i8
// qs[32]}. In 4-bit blocks, byte j holds element j in its low nibble and element j + 16 in its high nibble.
constexpr std::int64_t kBlock = 32;

float ReadHalf(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  return HalfToFloat(bits);
}

// NOLINTBEGIN(readability-identifier-naming): named as ggml names the formats.
void DequantizeQ4_0(const std::byte* block, float* out) {
  const float d = ReadHalf(block);
  for (int j = 0; j < kBlock / 2; ++j) {
    const int byte = std::to_integer<int>(block[2 + j]);
    out[j] = d * static_cast<float>((byte & 15) - 8);
    out[j + kBlock / 2] = d * static_cast<float>((byte >> 4) - 8);
  }
}

void DequantizeQ4_1(const std::byte* block, float* out) {
  const float d = ReadHalf(block);
  const float m = ReadHalf(block + 2);
  for (int j = 0; j < kBlock / 2; ++j) {
    const int byte = std::to_integer<int>(block[4 + j]);
    out[j] = d * static_cast<float>(byte & 15) + m;
    out[j + kBlock / 2] = d * static_cast<float>(byte >> 4) + m;
  }
}

void DequantizeQ8_0(const std::byte* block, float* out) {
  const float d = ReadHalf(block);
  for (int j = 0; j < kBlock; ++j) out[j] = static_cast<float>(std::to_integer<std::int8_t>(block[2 + j])) * d;
}
// NOLINTEND(readability-identifier-naming)

}  // namespace

const char* Name(GgufType type) {
  switch (type) {
    case GgufType::kF32: return "F32";
    case GgufType::kF16: return "F16";
    case GgufType::kBF16: return "BF16";
    case GgufType::kQ4_0: return "Q4_0";
    case GgufType::kQ4_1: return "Q4_1";
    case GgufType::kQ8_0: return "Q8_0";
  }
  return "unknown";
}

std::int64_t BlockElements(GgufType type) {
  switch (type) {
    case GgufType::kF32:
    case GgufType::kF16:
    case GgufType::kBF16: return 1;
    case GgufType::kQ4_0:
    case GgufType::kQ4_1:
    case GgufType::kQ8_0: return kBlock;
  }
  return 1;
}

std::int64_t BlockBytes(GgufType type) {
  switch (type) {
    case GgufType::kF32: return 4;
    case GgufType::kF16:
    case GgufType::kBF16: return 2;
    case GgufType::kQ4_0: return 18;
    case GgufType::kQ4_1: return 20;
    case GgufType::kQ8_0: return 34;
  }
  return 1;
}

std::vector<float> DequantizeGguf(GgufType type, std::span<const std::byte> bytes, std::int64_t count) {
  switch (type) {
    case GgufType::kF32: return *ToFloats(bytes, kernels::DType::kF32, count);
    case GgufType::kF16: return *ToFloats(bytes, kernels::DType::kF16, count);
    case GgufType::kBF16: return *ToFloats(bytes, kernels::DType::kBF16, count);
    default: break;
  }
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::int64_t block = 0; block < count / kBlock; ++block) {
    const std::byte* from = bytes.data() + block * BlockBytes(type);
    float* to = out.data() + block * kBlock;
    switch (type) {
      case GgufType::kQ4_0: DequantizeQ4_0(from, to); break;
      case GgufType::kQ4_1: DequantizeQ4_1(from, to); break;
      default: DequantizeQ8_0(from, to); break;
    }
  }
  return out;
}

}  // namespace nibble::model
