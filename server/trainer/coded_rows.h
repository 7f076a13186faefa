// Rows of integer codes, as linears of a quantized model read them, with gradients. The serving kernels make them, so
// training reads the rows of the served model. In the backward pass the gradient passes straight through the quantizer.
#pragma once
#include <torch/autograd.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/formats/int8.h"
#include "server/trainer/autograd.h"
#include "server/trainer/coded_options.h"
#include "server/trainer/recomputed_rows.h"

namespace nibble::trainer {

// Quantized rows, shared by the linears that read them.
struct CodedRows {
  torch::Tensor codes;  // [T, stride] i8, or i16 for 16 bits
  torch::Tensor scale;  // [T] f32
  std::int64_t cols = 0;
  torch::Tensor num_outliers = {};   // undefined, or [T] i32
  torch::Tensor outlier_index = {};  // undefined, or [T, 16] i32
  torch::Tensor outlier_value = {};  // undefined, or [T, 16] f32

  // The tensors that a node saves, and the rows of saved tensors from index `first` on.
  std::vector<torch::Tensor> tensors() const { return {codes, scale, num_outliers, outlier_index, outlier_value}; }
  static CodedRows Of(const std::vector<torch::Tensor>& saved, std::size_t first, std::int64_t cols) {
    return {saved[first], saved[first + 1], cols, saved[first + 2], saved[first + 3], saved[first + 4]};
  }

  kernels::QuantizedRows view() const;
  // The values [T, K] f32 that the rows stand for. The overload with a context returns transient memory.
  torch::Tensor Values(const kernels::Stream& stream) const;
  torch::Tensor Values(TrainingContext& context) const;
};

// Input of linears; all dimensions of x but the last are rows. With `rows`, x only carries their gradient: linears do
// not read its elements, and NormCodedInput gives it no memory of its own. Recomputed rows are then the values in f32
// that `rows` stand for.
struct CodedInput : FloatInput {
  std::shared_ptr<const CodedRows> rows;  // null: the linear quantizes x itself
};

// Makes the node of a linear save `kept`, then its input: the recomputed rows if there are any, else the codes, else x.
void KeepInput(torch::autograd::AutogradContext* ctx, const CodedInput& input, torch::autograd::variable_list kept);
// The values of the input of such a node; may be called once. `saved`: its saved tensors, the first num_kept of which
// are `kept`. The node gives up recomputed rows, so that they are freed when the last linear that reads them has ended.
torch::Tensor TakeInput(torch::autograd::AutogradContext* ctx, const torch::autograd::variable_list& saved,
                        std::size_t num_kept, TrainingContext& context);

CodedRows QuantizeRows(const torch::Tensor& x, const CodedRowOptions& options, const TrainingContext& context);

// `input`, with rows made of x if it has none: so a node keeps the rows and not x. If x can be recomputed, the rows
// have transient memory, and their values can be recomputed instead. Options and context must outlive the graph.
CodedInput WithRows(const CodedInput& input, const CodedRowOptions& options, TrainingContext& context);

// rms_norm and quantizer in one node, for all linears that follow. Keeps x in `kept` (default: x's type) and one number
// per row; if the rows' scale has a gradient, x as it is and also the rows. `recompute`: unless the scale has a
// gradient, the rows have transient memory, and their values can be recomputed from what is kept. Options and context
// must outlive the graph.
CodedInput NormCodedInput(const torch::Tensor& x, const torch::Tensor& weight, double eps,
                          const CodedRowOptions& options, TrainingContext& context,
                          std::optional<torch::ScalarType> kept = std::nullopt, bool recompute = false);

// Whether a gradient flows through the rows' scale. Otherwise the gradient of the rows passes straight through: a scale
// that is made from a row's own maximum clips nothing.
bool ScaleHasGradient(const CodedRowOptions& options);
// Adds the gradient through the scale of `rows`, which were made of x, to grad [T, K] f32, the gradient of the rows.
void AddScaleGradient(const torch::Tensor& x, const CodedRows& rows, const CodedRowOptions& options,
                      const torch::Tensor& grad, TrainingContext& context);

// Shapes of tensors in which all dimensions but the last are rows.
std::int64_t NumRows(const torch::Tensor& x);
torch::Tensor AsRows(const torch::Tensor& x);
std::vector<std::int64_t> ShapeWith(const torch::Tensor& x, std::int64_t last);

}  // namespace nibble::trainer
