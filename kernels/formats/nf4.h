// NF4: 4-bit codes into a fixed table of normal quantiles, one absmax per block of weights along a row.
// Layout: row r of [N, K] takes ceil(K / 2) bytes, element 0 in the HIGH nibble of byte 0. Each row starts a new block;
// its last block may be partial. A zero block has absmax 0 and code 7 (docs/numerics.md 4).
#pragma once
#include <array>
#include <cstdint>

namespace nibble::kernels {

// Weights per block: a power of two. bitsandbytes has the same sizes.
inline constexpr std::int64_t kNf4Block = 64;  // the default
inline constexpr std::int64_t kNf4SmallestBlock = 32;
inline constexpr std::int64_t kNf4LargestBlock = 4096;
constexpr bool IsNf4Block(std::int64_t block) {
  return block >= kNf4SmallestBlock && block <= kNf4LargestBlock && (block & (block - 1)) == 0;
}

// QLoRA, arXiv:2305.14314 App. E; float32 values as in bitsandbytes functional.py get_4bit_type("nf4").
inline constexpr std::array<float, 16> kNf4Book = {-1.0f,
                                                   -0.6961928009986877f,
                                                   -0.5250730514526367f,
                                                   -0.39491748809814453f,
                                                   -0.28444138169288635f,
                                                   -0.18477343022823334f,
                                                   -0.09105003625154495f,
                                                   0.0f,
                                                   0.07958029955625534f,
                                                   0.16093020141124725f,
                                                   0.24611230194568634f,
                                                   0.33791524171829224f,
                                                   0.44070982933044434f,
                                                   0.5626170039176941f,
                                                   0.7229568362236023f,
                                                   1.0f};

// Boundary between codes i and i + 1; a value above it takes i + 1, an exact tie stays at i (bitsandbytes
// kernels.cu dQuantizeNF4).
inline constexpr std::array<float, 15> kNf4Thresholds = {
    -0.8480964004993439f,  -0.6106329262256622f,   -0.4599952697753906f, -0.33967943489551544f, -0.23460740596055984f,
    -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f, 0.1202552504837513f,   0.2035212516784668f,
    0.2920137718319893f,   0.3893125355243683f,    0.5016634166240692f,  0.6427869200706482f,   0.8614784181118011f};

constexpr std::int64_t Nf4RowBytes(std::int64_t k) { return (k + 1) / 2; }
constexpr std::int64_t Nf4RowBlocks(std::int64_t k, std::int64_t block) { return (k + block - 1) / block; }
// Column k belongs to block k >> Nf4BlockShift(block) of its row.
constexpr int Nf4BlockShift(std::int64_t block) {
  int shift = 0;
  while ((std::int64_t{1} << shift) < block) ++shift;
  return shift;
}

// A weight [N, K]. absmax is plain f32: callers undo double quantization first (formats/double_quant.h).
struct Nf4Weight {
  const std::uint8_t* codes = nullptr;  // [N, Nf4RowBytes(K)]
  const float* absmax = nullptr;        // [N, Nf4RowBlocks(K, block)]
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t block = kNf4Block;
};

}  // namespace nibble::kernels
