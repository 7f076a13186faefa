#include "server/trainer/float_linear.h"

#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "kernels/ops/matmul/matmul_library.h"
#include "server/trainer/coded_rows.h"
#include "server/trainer/held_gradient.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The weight in `type`. On machines whose backward products are f32 although compute is bf16, these read the master.
Tensor WeightIn(const FloatLinear& linear, torch::ScalarType type) {
  return type == torch::kBFloat16 ? linear.rounded : linear.master.detach().to(type);
}

struct FloatLinearFunction : torch::autograd::Function<FloatLinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& master, const CodedInput* input,
                        const FloatLinear* linear, TrainingContext* context) {
    ThrowIfCancelled(context->cancelled);
    Remember(ctx, "context", context);
    Remember(ctx, "linear", linear);
    const Tensor y = context->transient.Empty({x.size(0), master.size(0)});
    ThrowIfError(kernels::MatmulLibrary(
        {.x = ViewOf(x), .w = ViewOf(WeightIn(*linear, x.scalar_type())), .y = ViewOf(y)}, context->stream));
    KeepInput(ctx, *input, {});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TrainingContext& context = Recall<TrainingContext>(ctx, "context");
    ThrowIfCancelled(context.cancelled);
    const auto& linear = Recall<const FloatLinear>(ctx, "linear");
    const Tensor x = TakeInput(ctx, ctx->get_saved_variables(), 0, context);
    const torch::ScalarType type = context.scratch.scalar_type();
    const Tensor g = grads[0].contiguous().to(type);
    const Tensor grad_x = torch::mm(g, WeightIn(linear, type)).to(x.scalar_type());
    return {grad_x, AddOrReturnProduct(linear.master, g, x.to(type), context.stream), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

void FloatLinear::Round() {
  const torch::NoGradGuard no_grad;
  if (master.scalar_type() == torch::kBFloat16) {
    rounded = master.detach();
    return;
  }
  if (!rounded.defined()) rounded = torch::empty(master.sizes(), torch::kBFloat16);
  rounded.copy_(master);
}

Tensor ApplyFloatLinear(const FloatInput& input, const FloatLinear& linear, TrainingContext& context) {
  const CodedInput kept = {input, nullptr};
  const Tensor y = FloatLinearFunction::apply(input.x, linear.master, &kept, &linear, &context);
  return linear.bias.defined() ? y + linear.bias : y;
}

}  // namespace nibble::trainer
