// Autograd functions over the kernels: forward and backward passes of the decoder's operations other than linears.
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/trainer/recomputed_rows.h"

namespace nibble::trainer {

// Memory of tensors that live only within a layer, such as outputs of linears of which the graph keeps bf16 copies. A
// tensor's memory is reused as soon as nothing else refers to it. If these tensors were allocated one by one between
// tensors that the graph keeps, they would leave unusable gaps in the heap: in all layers together some 200 MiB at
// 4 x 256 tokens of SmolLM2-135M. One thread.
class TransientMemory {
 public:
  torch::Tensor Empty(torch::IntArrayRef sizes, torch::ScalarType type = torch::kFloat32);

 private:
  std::vector<c10::Storage> storages_;
};

// What every function needs; must outlive every graph.
struct TrainingContext {
  kernels::Stream stream;
  TransientMemory transient = {};
  bool keeps_outputs = false;  // whether later nodes keep f32 outputs of linears until their backward pass
  torch::Tensor scratch;       // of BackwardType, as many elements as the largest linear
  // Called before every linear, part of attention (segment_attention.h) and loss chunk: forward, recomputed and
  // backward. True ends the pass with StoppedError.
  base::Cancelled cancelled = {};

  // Memory for an f32 output of a linear.
  torch::Tensor Output(torch::IntArrayRef sizes) {
    return keeps_outputs ? torch::empty(sizes, torch::kFloat32) : transient.Empty(sizes);
  }
};

// The type of backward products. torch multiplies bf16 in plain loops on CPUs without AVX-512, some twenty times slower
// than f32.
torch::ScalarType BackwardType(bool bf16_compute, const kernels::Stream& stream);

// weight [K] f32; its gradient is computed if it requires one. `type`: of the result (default: x's), and of the copy of
// x that is kept for the backward pass; bf16 takes half the memory.
torch::Tensor ApplyRmsNorm(const torch::Tensor& x, const torch::Tensor& weight, double eps, TrainingContext& context,
                           std::optional<torch::ScalarType> type = std::nullopt);
// The same in transient memory, with rows that linears compute again from the copy of x that is kept. In bf16 these
// rows differ from the result by the rounding of x.
FloatInput ApplyRmsNormToInput(const torch::Tensor& x, const torch::Tensor& weight, double eps,
                               TrainingContext& context, torch::ScalarType type);
// Gradients to x, in `type` (default: x's), and to weight (undefined if it requires none). rstd: 1/rms of each row.
std::pair<torch::Tensor, torch::Tensor> RmsNormGradients(const torch::Tensor& x, const torch::Tensor& weight,
                                                         const torch::Tensor& rstd, const torch::Tensor& grad_y,
                                                         TrainingContext& context,
                                                         std::optional<torch::ScalarType> type = std::nullopt);
// Rotates in place: x must be a new tensor that nothing else reads.
torch::Tensor ApplyRope(const torch::Tensor& x, std::int64_t num_heads, const std::int32_t* position, const float* cos,
                        const float* sin, std::int64_t table_positions, TrainingContext& context);
// `type`: of the result (default: gate's). `kept`: of the copies of gate and up that are kept for the backward pass
// (default: the result's).
torch::Tensor ApplyGatedMul(kernels::Activation activation, const torch::Tensor& gate, const torch::Tensor& up,
                            TrainingContext& context, std::optional<torch::ScalarType> type = std::nullopt,
                            std::optional<torch::ScalarType> kept = std::nullopt);
// The same in transient memory, with rows that linears compute again from the copies of gate and up.
FloatInput ApplyGatedMulToInput(kernels::Activation activation, const torch::Tensor& gate, const torch::Tensor& up,
                                TrainingContext& context, torch::ScalarType type, torch::ScalarType kept);
// h + y [T, K] f32, in transient memory: for methods whose graph does not keep the result.
torch::Tensor ApplyTransientAdd(const torch::Tensor& h, const torch::Tensor& y, TrainingContext& context);
// Rows of a product are padded to a multiple of this. For torch's bf16 products, oneDNN builds and keeps a primitive
// for every new shape: ragged batches made new ones each step, slowly, and memory grew by some 25 MiB per step.
inline constexpr std::int64_t kRowQuantum = 64;
constexpr std::int64_t PadRows(std::int64_t rows) { return (rows + kRowQuantum - 1) / kRowQuantum * kRowQuantum; }

// Returns x [T, C] in `type`, with rows of zeros up to PadRows(T); x itself if it is so already. Products in f32 need
// no padding: for kFloat32 the result has T rows.
torch::Tensor PadTo(const torch::Tensor& x, torch::ScalarType type);

}  // namespace nibble::trainer
