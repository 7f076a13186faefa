#include "server/trainer/merged_linear.h"

#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <utility>

#include "kernels/ops/matmul/matmul_dense.h"
#include "kernels/ops/matmul/matmul_int8.h"
#include "kernels/ops/quantize/dequantize_nf4.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor Forward(AutogradContext* ctx, const Tensor& x, const CodedRows& rows, const MergedWeight* weight,
               TrainingContext* context) {
  ThrowIfCancelled(context->cancelled);
  Remember(ctx, "context", context);
  Remember(ctx, "weight", weight);
  const Tensor y = context->Output({NumRows(x), weight->base.rows});
  ThrowIfError(kernels::MatmulInt8({.x = rows.view(), .w = weight->merged.view(), .y = ViewOf(y)}, context->stream));
  return y;
}

// g W [T, K] f32, with the codes of W in the scratch.
Tensor InputGradient(const Tensor& g, const MergedWeight& weight, TrainingContext& context) {
  const Tensor codes =
      context.scratch.narrow(0, 0, weight.base.rows * weight.base.cols).view({weight.base.rows, weight.base.cols});
  UnpackInt8(weight.merged.view(), codes, context.stream);
  return GradientThroughCodes(g, weight.merged.scale, codes);
}

// Without an adapter. A separate function, because torch accepts no undefined tensors as inputs.
struct FrozenMergedFunction : torch::autograd::Function<FrozenMergedFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const CodedRows* rows, const MergedWeight* weight,
                        TrainingContext* context) {
    return Forward(ctx, x, *rows, weight, context);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& context = Recall<TrainingContext>(ctx, "context");
    ThrowIfCancelled(context.cancelled);
    Tensor grad_x;
    if (ctx->needs_input_grad(0)) {
      grad_x = InputGradient(grads[0].contiguous(), Recall<const MergedWeight>(ctx, "weight"), context);
    }
    return {grad_x, Tensor(), Tensor(), Tensor()};
  }
};

struct MergedFunction : torch::autograd::Function<MergedFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& a, const Tensor& b,
                        const CodedInput* input, const MergedWeight* weight, TrainingContext* context) {
    const Tensor y = Forward(ctx, x, *input->rows, weight, context);
    KeepInput(ctx, *input, {a, b});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& context = Recall<TrainingContext>(ctx, "context");
    const auto& weight = Recall<const MergedWeight>(ctx, "weight");
    ThrowIfCancelled(context.cancelled);
    const variable_list saved = ctx->get_saved_variables();
    const torch::ScalarType type = context.scratch.scalar_type();
    const Tensor gradient = grads[0].contiguous();
    Tensor grad_x;
    if (ctx->needs_input_grad(0)) grad_x = InputGradient(gradient, weight, context);
    const Tensor a = saved[0].to(type), b = saved[1].to(type);
    const Tensor g = PadTo(gradient, type), x = PadTo(TakeInput(ctx, saved, 2, context), type);
    const Tensor grad_b = torch::mm(g.t(), torch::mm(x, a.t()).mul_(weight.scaling));
    const Tensor grad_a = torch::mm(torch::mm(g, b).mul_(weight.scaling).t(), x);
    return {grad_x, grad_a.to(torch::kFloat32), grad_b.to(torch::kFloat32), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

void MergedWeight::Merge(MergeScratch& scratch, const kernels::Stream& stream) {
  const torch::NoGradGuard no_grad;
  const std::int64_t elements = base.rows * base.cols;
  const Tensor values = scratch.values.narrow(0, 0, elements).view({base.rows, base.cols});
  ThrowIfError(kernels::DequantizeNf4({.w = base, .out = ViewOf(values)}, stream));
  if (lora_a.defined()) {
    // As model::MergedRows: one multiply-add chain over the rank, then a multiplication, then an addition.
    const Tensor delta = scratch.delta.narrow(0, 0, elements).view({base.rows, base.cols});
    Tensor panels;
    const kernels::PackedDenseWeight a = PackDense(lora_a.detach().t().contiguous(), panels, stream);
    ThrowIfError(kernels::MatmulDense({.x = ViewOf(lora_b.detach()), .w = a, .y = ViewOf(delta)}, stream));
    values.add_(delta.mul_(static_cast<float>(scaling)));
  }
  merged = PackInt8Rows(values, {}, stream, std::move(merged));
}

Tensor ApplyMergedLinear(const CodedInput& input, const MergedWeight& weight, TrainingContext& context) {
  const Tensor y = weight.lora_a.defined()
                       ? MergedFunction::apply(input.x, weight.lora_a, weight.lora_b, &input, &weight, &context)
                       : FrozenMergedFunction::apply(input.x, input.rows.get(), &weight, &context);
  return weight.bias.defined() ? y + weight.bias : y;
}

}  // namespace nibble::trainer
