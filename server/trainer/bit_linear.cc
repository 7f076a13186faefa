#include "server/trainer/bit_linear.h"

#include <torch/autograd.h>

#include <optional>

#include "kernels/ops/matmul/matmul_ternary.h"
#include "kernels/ops/quantize/dequantize_ternary.h"
#include "kernels/ops/quantize/ternarise.h"
#include "kernels/ops/quantize/ternarise_backward.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Context = nibble::trainer::AutogradContext;

struct BitLinearFunction : torch::autograd::Function<BitLinearFunction> {
  // `x` carries the gradient of `shared` rows; if `shared` is null, x is quantized here.
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& master, const std::optional<Tensor>& bias,
                        const BitWeight* weight, const CodedRows* shared, const BitLinearOptions* options,
                        Context* context) {
    Remember(ctx, "context", context);
    Remember(ctx, "options", options);
    ThrowIfCancelled(context->cancelled);
    const CodedRows rows = shared != nullptr ? *shared : QuantizeRows(x, *options, *context);
    Tensor y = torch::empty(ShapeWith(x, master.size(0)), x.scalar_type());
    ThrowIfError(kernels::MatmulTernary({.x = rows.view(),
                                         .w = weight->packed(),
                                         .bias = bias.has_value() ? bias->data_ptr<float>() : nullptr,
                                         .y = ViewOf(y)},
                                        context->stream));
    const bool needs_x = shared == nullptr && ScaleHasGradient(*options);
    const bool needs_master = options->ste != kernels::Ste::kIdentity;
    ctx->saved_data["has_bias"] = bias.has_value();
    ctx->saved_data["cols"] = master.size(1);
    ctx->saved_data["master_type"] = master.scalar_type();
    ctx->save_for_backward({rows.codes, rows.scale, weight->tiles, weight->scale, needs_master ? master : Tensor(),
                            needs_x ? x : Tensor()});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& context = Recall<Context>(ctx, "context");
    const auto& options = Recall<const BitLinearOptions>(ctx, "options");
    const variable_list saved = ctx->get_saved_variables();
    ThrowIfCancelled(context.cancelled);
    const CodedRows rows = {saved[0], saved[1], ctx->saved_data["cols"].toInt()};
    const Tensor& tiles = saved[2];
    const Tensor& scale = saved[3];
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
      grad_master =
          torch::mm(PadTo(scaled, type).t(), PadTo(rows.codes.narrow(1, 0, rows.cols), type)).to(torch::kFloat32);
      if (saved[4].defined()) {
        ThrowIfError(kernels::TernariseBackward({.w = ViewOf(saved[4]),
                                                 .scale = scale.data_ptr<float>()[0],
                                                 .grad_y = ViewOf(grad_master),
                                                 .ste = options.ste,
                                                 .scale_grad = options.scale_grad,
                                                 .grad_w = ViewOf(grad_master)},
                                                context.stream));
      }
      grad_master = grad_master.to(ctx->saved_data["master_type"].toScalarType());
    }
    if (ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(2)) grad_bias = g.to(torch::kFloat32).sum(0);
    return {grad_x, grad_master, grad_bias, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

void BitWeight::Ternarise(const kernels::Stream& stream) {
  const std::int64_t n = master.size(0);
  const std::int64_t k = master.size(1);
  if (!tiles.defined()) {
    tiles = torch::empty({kernels::PackedTernaryBytes(n, k)}, torch::kUInt8);
    scale = torch::empty({n}, torch::kFloat32);
  }
  ThrowIfError(kernels::Ternarise(
      {.w = ViewOf(master), .scale = scale.data_ptr<float>(), .rows = nullptr, .tiles = tiles.data_ptr<std::uint8_t>()},
      stream));
}

kernels::PackedTernaryWeight BitWeight::packed() const {
  return {tiles.data_ptr<std::uint8_t>(), scale.data_ptr<float>(), master.size(0), master.size(1),
          kernels::TernaryPaddedK(master.size(1))};
}

Tensor ApplyBitLinear(const CodedInput& input, const BitWeight& weight, const BitLinearOptions& options,
                      Context& context) {
  const auto bias = weight.bias.defined() ? std::optional<Tensor>(weight.bias.to(torch::kFloat32)) : std::nullopt;
  return BitLinearFunction::apply(input.x, weight.master, bias, &weight, input.rows.get(), &options, &context);
}

}  // namespace nibble::trainer
