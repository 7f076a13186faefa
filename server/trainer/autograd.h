// Autograd functions over the kernels: forward and backward of what the decoder is made of. Base weights are saved packed, by
// reference; a dequantised weight exists only in the one scratch buffer while its product runs.
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/formats/nf4.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"

namespace nibble::trainer {

// Memory of f32 tensors that die within a layer, used again as soon as nothing else refers to it. Allocated one by one between what the
// graph keeps, they would leave a hole in every layer: at 4 x 256 tokens of SmolLM2-135M some 200 MiB. One thread.
class TransientMemory {
 public:
  torch::Tensor Empty(torch::IntArrayRef sizes);

 private:
  std::vector<c10::Storage> storages_;
};

// What every function needs; lives longer than any graph.
struct AutogradContext {
  kernels::Stream stream;
  TransientMemory transient = {};
  torch::Tensor scratch;  // of BackwardType, as many elements as the largest linear
  // Asked before every linear, attention segment and loss chunk, forward, recomputed and backward; true ends the pass with StoppedError.
  base::Cancelled cancelled = {};
};

// A frozen NF4 linear with an adapter: y = x W^T + bias + scaling * ((drop(x) A^T) B^T).
struct Nf4Linear {
  kernels::Nf4Weight weight;
  const float* bias = nullptr;  // [N]
  torch::Tensor lora_a;     // undefined, or [r, K] f32 parameter
  torch::Tensor lora_b;     // [N, r] f32 parameter
  double scaling = 0;
  double dropout = 0;
};

// Place of a dropout mask: the same seed, step and tensor give the same mask, also when a layer is recomputed.
struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  // of (step, micro-batch, linear)
};

// The type of backward products. torch multiplies bf16 in plain loops on CPUs without AVX-512, some twenty times slower than f32.
torch::ScalarType BackwardType(bool bf16_compute, const kernels::Stream& stream);

// x of f32 or bf16; the result is f32. bf16 rows are multiplied by the kernel that serves them, so that what trains is what serves.
// Backward products take the scratch's type. Without a key nothing is dropped out.
torch::Tensor ApplyNf4Linear(const torch::Tensor& x, const Nf4Linear& linear, std::optional<DropoutKey> key,
                             AutogradContext& context);
// weight [K] f32; its gradient is made where it wants one. `type`: of the result (default: x's), in which x is kept for the backward
// pass too: a copy in bf16 takes half the memory.
torch::Tensor ApplyRmsNorm(const torch::Tensor& x, const torch::Tensor& weight, double eps, AutogradContext& context,
                           std::optional<torch::ScalarType> type = std::nullopt);
// Gradients to x, in f32 or x's type, and weight (undefined where that wants none) of rows whose 1/rms is rstd.
std::pair<torch::Tensor, torch::Tensor> RmsNormGradients(const torch::Tensor& x, const torch::Tensor& weight,
                                                         const torch::Tensor& rstd, const torch::Tensor& grad_y,
                                                         AutogradContext& context,
                                                         std::optional<torch::ScalarType> type = std::nullopt);
// Rotates in place; x must be fresh.
torch::Tensor ApplyRope(const torch::Tensor& x, std::int64_t num_heads, const std::int32_t* position, const float* cos,
                        const float* sin, std::int64_t table_positions, AutogradContext& context);
// `type` as of ApplyRmsNorm.
torch::Tensor ApplySiluMul(const torch::Tensor& gate, const torch::Tensor& up, AutogradContext& context,
                           std::optional<torch::ScalarType> type = std::nullopt);
torch::Tensor ApplyRelu2Mul(const torch::Tensor& gate, const torch::Tensor& up, AutogradContext& context,
                            std::optional<torch::ScalarType> type = std::nullopt);
// Rows of a product are padded to a multiple of this. oneDNN, under torch's bf16 products, builds and keeps a primitive for every
// shape that it meets: ragged batches made new ones each step, slowly, and memory grew by some 25 MiB a step.
inline constexpr std::int64_t kRowQuantum = 64;
constexpr std::int64_t PadRows(std::int64_t rows) { return (rows + kRowQuantum - 1) / kRowQuantum * kRowQuantum; }

// Rows without a target take no part in a loss: with completion-only loss that is most of the work saved.
struct LossRows {
  std::vector<std::int64_t> row;
  std::vector<std::int32_t> target;
  std::int64_t count() const { return static_cast<std::int64_t>(row.size()); }
};
LossRows RowsWithTarget(const std::vector<std::int32_t>& targets);
// [PadRows(T), C] of another type, zero past T; f32 products need no padding and get [T, C].
torch::Tensor PadTo(const torch::Tensor& x, torch::ScalarType type);

// A frozen head [V, K].
struct FrozenHead {
  torch::Tensor served;    // of the type that serving multiplies: hidden states are of it too
  torch::Tensor backward;  // of BackwardType; the same tensor where the types are equal
};

// scale * sum of the losses of rows whose target is not -1, through a frozen head, in chunks of rows: tokens x vocabulary never exists.
// hidden [T, K] is of head.served's type. The unscaled sum goes to *loss_sum.
torch::Tensor ApplyChunkedLoss(const torch::Tensor& hidden, const FrozenHead& head, const std::vector<std::int32_t>& targets,
                               double scale, double* loss_sum, AutogradContext& context);
// The losses themselves, row by row as RowsWithTarget orders them.
std::vector<float> RowLosses(const torch::Tensor& hidden, const FrozenHead& head, const std::vector<std::int32_t>& targets,
                             AutogradContext& context);

}  // namespace nibble::trainer
