// NF4: 4-bit codes into a fixed table of normal quantiles, one absmax per 64 weights along a row.
// Layout: row r of [N, K] takes ceil(K / 2) bytes, element 0 in the HIGH nibble of byte 0. Each row starts a new block
// of 64; its last block may be partial. A zero block has absmax 0 and code 7 (docs/numerics.md 4).
#pragma once
#include <array>
#include <cstdint>

namespace nibble::kernels {

inline constexpr std::int64_t kNf4Block = 64;

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
constexpr std::int64_t Nf4RowBlocks(std::int64_t k) { return (k + kNf4Block - 1) / kNf4Block; }

// A weight [N, K]. absmax is plain f32: callers undo double quantization first (formats/double_quant.h).
struct Nf4Weight {
  const std::uint8_t* codes = nullptr;  // [N, Nf4RowBytes(K)]
  const float* absmax = nullptr;        // [N, Nf4RowBlocks(K)]
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

}  // namespace nibble::kernels
