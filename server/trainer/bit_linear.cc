#include "server/trainer/bit_linear.h"

#include <torch/autograd.h>

#include <optional>

#include "kernels/ops/matmul/matmul_ternary.h"
#include "kernels/ops/quantize/dequantize_ternary.h"
#include "kernels/ops/quantize/ternarize.h"
#include "kernels/ops/quantize/ternarize_backward.h"
#include "server/trainer/held_gradient.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Computes grad [N, K] f32, the gradient of the master, from grad_ternary, the gradient of its ternary form. The two
// may be the same tensor.
void EstimateGradient(const Tensor& master, const Tensor& scale, const BitLinearOptions& options,
                      const Tensor& grad_ternary, const Tensor& grad, const TrainingContext& context) {
  ThrowIfError(kernels::TernarizeBackward({.w = ViewOf(master),
                                           .scale = scale.data_ptr<float>()[0],
                                           .grad_y = ViewOf(grad_ternary),
                                           .ste = options.ste,
                                           .scale_grad = options.scale_grad,
                                           .grad_w = ViewOf(grad)},
                                          context.stream));
}

struct BitLinearFunction : torch::autograd::Function<BitLinearFunction> {
  // `x` carries the gradient of `shared` rows; if `shared` is null, x is quantized here.
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& master, const std::optional<Tensor>& bias,
                        const BitWeight* weight, const CodedRows* shared, const BitLinearOptions* options,
                        TrainingContext* context) {
    Remember(ctx, "context", context);
    Remember(ctx, "options", options);
    ThrowIfCancelled(context->cancelled);
    const CodedRows rows = shared != nullptr ? *shared : QuantizeRows(x, *options, *context);
    Tensor y = x.scalar_type() == torch::kFloat32 ? context->Output(ShapeWith(x, master.size(0)))
                                                  : torch::empty(ShapeWith(x, master.size(0)), x.scalar_type());
    ThrowIfError(kernels::MatmulTernary({.x = rows.view(),
                                         .w = weight->packed(),
                                         .bias = bias.has_value() ? bias->data_ptr<float>() : nullptr,
                                         .y = ViewOf(y)},
                                        context->stream));
    const bool needs_x = shared == nullptr && ScaleHasGradient(*options);
    ctx->saved_data["has_bias"] = bias.has_value();
    ctx->saved_data["cols"] = master.size(1);
    ctx->save_for_backward({rows.codes, rows.scale, weight->tiles, weight->scale, master, needs_x ? x : Tensor()});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& context = Recall<TrainingContext>(ctx, "context");
    const auto& options = Recall<const BitLinearOptions>(ctx, "options");
    const variable_list saved = ctx->get_saved_variables();
    ThrowIfCancelled(context.cancelled);
    const CodedRows rows = {saved[0], saved[1], ctx->saved_data["cols"].toInt()};
    const Tensor& tiles = saved[2];
    const Tensor& scale = saved[3];
    const Tensor& master = saved[4];
    const Tensor g = AsRows(grads[0].contiguous());
    Tensor grad_x, grad_master, grad_bias;
    if (ctx->needs_input_grad(0)) {
      const torch::ScalarType type = context.scratch.scalar_type();
      const Tensor codes = context.scratch.narrow(0, 0, scale.size(0) * rows.cols).view({scale.size(0), rows.cols});
      ThrowIfError(kernels::DequantizeTernary(
          {.w = {tiles.data_ptr<std::uint8_t>(), nullptr, scale.size(0), rows.cols, kernels::TernaryPaddedK(rows.cols)},
           .out = ViewOf(codes)},
          context.stream));
      grad_x = torch::mm(PadTo(g, type), codes).narrow(0, 0, g.size(0)).to(torch::kFloat32).mul_(scale[0]).contiguous();
      if (saved[5].defined()) AddScaleGradient(saved[5], rows, options, grad_x, context);
      grad_x = grad_x.to(g.scalar_type()).view(ShapeWith(grads[0], rows.cols));
    }
    if (ctx->needs_input_grad(1)) {
      // bf16 cannot represent all codes of 16 bits.
      const torch::ScalarType type =
          rows.codes.scalar_type() == torch::kInt16 ? torch::kFloat32 : context.scratch.scalar_type();
      const Tensor scaled = g.to(torch::kFloat32) * rows.scale.unsqueeze(1);
      const Tensor padded = PadTo(scaled, type), codes = PadTo(rows.codes.narrow(1, 0, rows.cols), type);
      if (options.ste == kernels::Ste::kIdentity) {
        grad_master = AddOrReturnProduct(master, padded, codes, context.stream);
      } else {
        grad_master = torch::mm(padded.t(), codes).to(torch::kFloat32);
        EstimateGradient(master, scale, options, grad_master, grad_master, context);
      }
    }
    if (ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(2)) grad_bias = g.to(torch::kFloat32).sum(0);
    return {grad_x, grad_master, grad_bias, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// x + share * (quantized - x) in f32. `quantized`: f32, in the shape of x, overwritten.
Tensor Between(const Tensor& x, Tensor quantized, double share) { return quantized.mul_(share).add_(x, 1.0 - share); }

struct PartlyBitLinearFunction : torch::autograd::Function<PartlyBitLinearFunction> {
  // The linear's two operands.
  static Tensor Rows(const Tensor& x, const CodedRows& rows, double share, const TrainingContext& context) {
    return Between(AsRows(x), rows.Values(context.stream), share);
  }
  static Tensor Weight(const Tensor& master, const kernels::PackedTernaryWeight& ternary, double share,
                       const TrainingContext& context) {
    const Tensor values = torch::empty(master.sizes(), torch::kFloat32);
    ThrowIfError(kernels::DequantizeTernary({.w = ternary, .out = ViewOf(values)}, context.stream));
    return Between(master, values, share);
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& master, const std::optional<Tensor>& bias,
                        const BitWeight* weight, const BitLinearOptions* options, double share,
                        TrainingContext* context) {
    Remember(ctx, "context", context);
    Remember(ctx, "options", options);
    Remember(ctx, "weight", weight);
    ThrowIfCancelled(context->cancelled);
    const Tensor y = context->Output(ShapeWith(x, master.size(0)));
    Tensor y_rows = AsRows(y);
    torch::mm_out(y_rows, Rows(x, QuantizeRows(x, *options, *context), share, *context),
                  Weight(master, weight->packed(), share, *context).t());
    if (bias.has_value()) y_rows.add_(*bias);
    ctx->saved_data["share"] = share;
    ctx->saved_data["has_bias"] = bias.has_value();
    ctx->save_for_backward({x, master});
    return y.to(x.scalar_type());  // not a view, because rope changes it in place
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& context = Recall<TrainingContext>(ctx, "context");
    const auto& options = Recall<const BitLinearOptions>(ctx, "options");
    const auto& weight = Recall<const BitWeight>(ctx, "weight");
    const double share = ctx->saved_data["share"].toDouble();
    const variable_list saved = ctx->get_saved_variables();
    ThrowIfCancelled(context.cancelled);
    const Tensor& x = saved[0];
    const Tensor& master = saved[1];
    const torch::ScalarType type = context.scratch.scalar_type();
    const Tensor g = AsRows(grads[0].contiguous());
    const CodedRows rows = QuantizeRows(x, options, context);
    Tensor grad_x, grad_master, grad_bias;
    if (ctx->needs_input_grad(0)) {
      const Tensor values = Weight(master, weight.packed(), share, context).to(type);
      grad_x = torch::mm(PadTo(g, type), values).narrow(0, 0, g.size(0)).to(torch::kFloat32);
      if (ScaleHasGradient(options)) {
        const Tensor quantized = grad_x.clone();
        AddScaleGradient(x, rows, options, quantized, context);
        grad_x = grad_x.lerp(quantized, share);
      }
      grad_x = grad_x.to(grads[0].scalar_type()).view(x.sizes());
    }
    if (ctx->needs_input_grad(1)) {
      grad_master = torch::mm(PadTo(g, type).t(), PadTo(Rows(x, rows, share, context), type)).to(torch::kFloat32);
      if (options.ste != kernels::Ste::kIdentity) {
        const Tensor quantized = torch::empty_like(grad_master);
        EstimateGradient(master, weight.scale, options, grad_master, quantized, context);
        grad_master.lerp_(quantized, share);
      }
      grad_master = grad_master.to(master.scalar_type());
    }
    if (ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(2)) grad_bias = g.to(torch::kFloat32).sum(0);
    return {grad_x, grad_master, grad_bias, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// The bias as the products read it: f32.
std::optional<Tensor> BiasOf(const BitWeight& weight) {
  return weight.bias.defined() ? std::optional<Tensor>(weight.bias.to(torch::kFloat32)) : std::nullopt;
}

}  // namespace

void BitWeight::Ternarize(const kernels::Stream& stream, kernels::RowScaling scaling) {
  const std::int64_t n = master.size(0);
  const std::int64_t k = master.size(1);
  if (!tiles.defined()) {
    tiles = torch::empty({kernels::PackedTernaryBytes(n, k)}, torch::kUInt8);
    scale = torch::empty({n}, torch::kFloat32);
  }
  ThrowIfError(kernels::Ternarize(
      {.w = ViewOf(master), .scale = scale.data_ptr<float>(), .rows = nullptr, .tiles = tiles.data_ptr<std::uint8_t>()},
      stream));
  if (scaling == kernels::RowScaling::kReciprocal) scale.fill_(kernels::ReciprocalScale(scale.data_ptr<float>()[0]));
}

kernels::PackedTernaryWeight BitWeight::packed() const {
  return {tiles.data_ptr<std::uint8_t>(), scale.data_ptr<float>(), master.size(0), master.size(1),
          kernels::TernaryPaddedK(master.size(1))};
}

Tensor ApplyBitLinear(const CodedInput& input, const BitWeight& weight, const BitLinearOptions& options,
                      TrainingContext& context) {
  return BitLinearFunction::apply(input.x, weight.master, BiasOf(weight), &weight, input.rows.get(), &options,
                                  &context);
}

Tensor ApplyPartlyBitLinear(const Tensor& x, const BitWeight& weight, const BitLinearOptions& options, double share,
                            TrainingContext& context) {
  return PartlyBitLinearFunction::apply(x, weight.master, BiasOf(weight), &weight, &options, share, &context);
}

}  // namespace nibble::trainer
