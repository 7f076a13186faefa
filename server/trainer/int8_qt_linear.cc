#include "server/trainer/int8_qt_linear.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include "kernels/ops/matmul/matmul_int8.h"
#include "kernels/ops/matmul/matmul_int8_weight.h"
#include "server/trainer/int8_values.h"
#include "server/trainer/packed_int8.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Int8QtLinearFunction : torch::autograd::Function<Int8QtLinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const CodedInput* input, const Int8QtWeight* weight,
                        Int8Panels* panels, TrainingContext* context) {
    ThrowIfCancelled(context->cancelled);
    Remember(ctx, "context", context);
    Remember(ctx, "weight", weight);
    const Tensor y = context->Output({NumRows(x), weight->codes.size(0)});
    const kernels::PackedInt8Weight packed = weight->Pack(*panels, context->stream);
    if (input->rows == nullptr) {
      ThrowIfError(kernels::MatmulInt8Weight({.x = ViewOf(x), .w = packed, .y = ViewOf(y)}, context->stream));
    } else {
      ThrowIfError(kernels::MatmulInt8({.x = input->rows->view(), .w = packed, .y = ViewOf(y)}, context->stream));
    }
    KeepInput(ctx, *input, {});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& context = Recall<TrainingContext>(ctx, "context");
    const auto& weight = Recall<const Int8QtWeight>(ctx, "weight");
    ThrowIfCancelled(context.cancelled);
    const Tensor x = TakeInput(ctx, ctx->get_saved_variables(), 0, context);
    const torch::ScalarType type = context.scratch.scalar_type();
    const Tensor g = grads[0].contiguous();
    const Tensor codes = context.scratch.narrow(0, 0, weight.codes.numel()).view(weight.codes.sizes());
    codes.copy_(weight.codes);
    Tensor gradient = weight.grad;  // shares the memory
    gradient.add_(torch::mm(PadTo(g, type).t(), PadTo(x, type)));
    const Tensor grad_x = GradientThroughCodes(g, weight.scale, codes);
    return {grad_x.to(x.scalar_type()), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Int8QtWeight Int8QtWeight::Make(const Tensor& initial, bool one_scale, torch::ScalarType grad_type,
                                const kernels::Stream& stream) {
  Int8QtWeight weight;
  weight.codes = torch::zeros(initial.sizes(), torch::kInt8);
  weight.scale = torch::zeros({initial.size(0)}, torch::kFloat32);
  weight.grad = torch::zeros(initial.sizes(), grad_type);
  const std::span<const float> values(initial.data_ptr<float>(), static_cast<std::size_t>(initial.numel()));
  ThrowIfError(StoreInt8(values, weight.value(), 0, {.to_nearest = true, .one_scale = one_scale}, stream));
  return weight;
}

TensorRef Int8QtWeight::value() const {
  TensorRef ref;
  ref.type = ElementType::kInt8;
  ref.data = codes.data_ptr();
  ref.count = codes.numel();
  ref.block = codes.size(1);
  ref.scales = scale.data_ptr<float>();
  return ref;
}

kernels::PackedInt8Weight Int8QtWeight::Pack(Int8Panels& panels, const kernels::Stream& stream) const {
  const std::int64_t n = codes.size(0);
  const std::int64_t k = codes.size(1);
  auto* tiles = panels.tiles.data_ptr<std::int8_t>();
  auto* row_sum = panels.row_sum.data_ptr<std::int32_t>();
  PackInt8Codes(codes.data_ptr<std::int8_t>(), n, k, tiles, row_sum, stream);
  return {tiles, scale.data_ptr<float>(), row_sum, n, k, kernels::Int8PaddedK(k)};
}

Tensor ApplyInt8QtLinear(const CodedInput& input, const Int8QtWeight& weight, Int8Panels& panels,
                         TrainingContext& context) {
  const Tensor y = Int8QtLinearFunction::apply(input.x, &input, &weight, &panels, &context);
  return weight.bias.defined() ? y + weight.bias : y;
}

}  // namespace nibble::trainer
