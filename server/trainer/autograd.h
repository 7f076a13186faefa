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

// What every function needs; lives longer than any graph.
struct AutogradContext {
  kernels::Stream stream;
  torch::Tensor scratch;  // of the compute type, as many elements as the largest linear
  // Asked before every linear, attention segment and loss chunk, forward, recomputed and backward; true ends the pass with StoppedError.
  base::Cancelled cancelled = {};
};

// A frozen NF4 linear with an adapter: y = x W^T + bias + scaling * ((drop(x) A^T) B^T).
struct Nf4Linear {
  kernels::Nf4Weight weight;
  torch::Tensor bias;       // undefined, or [N] of the compute type
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

// Without a key nothing is dropped out.
torch::Tensor ApplyNf4Linear(const torch::Tensor& x, const Nf4Linear& linear, std::optional<DropoutKey> key,
                             AutogradContext& context);
// weight [K] f32; its gradient is made where it wants one.
torch::Tensor ApplyRmsNorm(const torch::Tensor& x, const torch::Tensor& weight, double eps, AutogradContext& context);
// Gradients to x and weight (undefined where that wants none) of rows whose 1/rms is rstd.
std::pair<torch::Tensor, torch::Tensor> RmsNormGradients(const torch::Tensor& x, const torch::Tensor& weight,
                                                         const torch::Tensor& rstd, const torch::Tensor& grad_y,
                                                         AutogradContext& context);
// Rotates in place; x must be fresh.
torch::Tensor ApplyRope(const torch::Tensor& x, std::int64_t num_heads, const std::int32_t* position, const float* cos,
                        const float* sin, std::int64_t table_positions, AutogradContext& context);
torch::Tensor ApplySiluMul(const torch::Tensor& gate, const torch::Tensor& up, AutogradContext& context);
torch::Tensor ApplyRelu2Mul(const torch::Tensor& gate, const torch::Tensor& up, AutogradContext& context);
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

// scale * sum of the losses of rows whose target is not -1, through a frozen head [V, K] of hidden's type, in chunks of
// rows: tokens x vocabulary never exists. The unscaled sum goes to *loss_sum.
torch::Tensor ApplyChunkedLoss(const torch::Tensor& hidden, const torch::Tensor& head,
                               const std::vector<std::int32_t>& targets, double scale, double* loss_sum,
                               AutogradContext& context);
// The losses themselves, row by row as RowsWithTarget orders them.
std::vector<float> RowLosses(const torch::Tensor& hidden, const torch::Tensor& head, const std::vector<std::int32_t>& targets,
                             AutogradContext& context);

}  // namespace nibble::trainer
