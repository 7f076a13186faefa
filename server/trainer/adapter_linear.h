// A frozen linear with a trained adapter. Base weights are saved by reference. Apart from FloatWeight::rounded, a
// weight in another type than the stored one exists only in the one scratch buffer while its product runs.
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <variant>

#include "kernels/formats/int8.h"
#include "kernels/formats/nf4.h"
#include "server/model/decoder_weights.h"
#include "server/trainer/autograd.h"
#include "server/trainer/coded_rows.h"
#include "server/trainer/dropout.h"

namespace nibble::trainer {

// A frozen float weight.
struct FloatWeight {
  torch::Tensor stored;  // [N, K] f32 or bf16
  // [N, K] bf16: the operand of products with bf16 rows. Is `stored` if that is bf16; undefined for f32 compute.
  torch::Tensor rounded;

  // `stored`, and for bf16 compute its rounded form.
  static FloatWeight Make(const torch::Tensor& stored, bool bf16_compute);
};

// y = x W^T + bias + scaling * ((drop(x) A^T) B^T). W is frozen. With DoRA, which has no dropout, everything but the
// bias is multiplied by magnitude / norms for each output; the norms pass no gradient, as in PEFT (docs/numerics.md
// 15).
struct AdapterLinear {
  std::variant<kernels::Nf4Weight, FloatWeight, kernels::PackedInt8Weight> weight;
  const float* bias = nullptr;  // [N], or null
  torch::Tensor lora_a;         // undefined, or [r, K] f32 parameter
  torch::Tensor lora_b;         // [N, r] f32 parameter
  double scaling = 0;
  double dropout = 0;
  torch::Tensor magnitude;    // undefined, or [N] f32 parameter of DoRA
  torch::Tensor norms;        // [N] f32: of the rows of W + scaling B A, by RefreshDora
  torch::Tensor dora_factor;  // [N] f32: magnitude / norms, by RefreshDora

  // Must follow every change of A, B and magnitude. Throws the kernel's error.
  void RefreshDora(const kernels::Stream& stream);
};

// x [T, K] is f32 or bf16; the result [T, N] is f32. bf16 rows are multiplied as serving multiplies them: by
// MatmulNf4, by MatmulInt8Weight, or by MatmulLibrary with a float weight. f32 rows are multiplied by the program's
// library. Gradients go to x, A, B and magnitude; backward products have the scratch's type, and read an f32 weight as
// stored if that type is f32. Without a key there is no dropout. `linear` must outlive the graph. The graph keeps
// recomputed rows if the input has any, else x. Throws the errors of torch, StoppedError, and std::runtime_error if a
// kernel fails.
torch::Tensor ApplyAdapterLinear(const FloatInput& input, const AdapterLinear& linear, std::optional<DropoutKey> key,
                                 TrainingContext& context);
// The same for an int8 weight. With rows, serving's MatmulInt8 multiplies them, and the adapter reads the values that
// they stand for; the gradient passes straight through the quantizer. The graph keeps recomputed rows if the input has
// any, else the codes.
torch::Tensor ApplyAdapterLinear(const CodedInput& input, const AdapterLinear& linear, std::optional<DropoutKey> key,
                                 TrainingContext& context);

// The key of a linear's dropout mask in a micro-batch of the run.
DropoutKey KeyOf(std::uint64_t seed, std::uint64_t micro_batch, std::int64_t layer, model::LinearKind kind);

// A linear's adapter as serving reads it. Its memory must outlive the result of View.
struct ServedAdapter {
  torch::Tensor panels_a, panels_b;

  // Must follow every change of A, B and the magnitudes.
  model::LoraWeight View(const AdapterLinear& linear);
};

}  // namespace nibble::trainer
