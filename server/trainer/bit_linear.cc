#include "server/trainer/bit_linear.h"

#include <torch/autograd.h>

#include <cmath>
#include <optional>

#include "kernels/ops/matmul/matmul_ternary.h"
#include "kernels/ops/norm/rms_norm.h"
#include "kernels/ops/norm/rms_norm_quantize.h"
#include "kernels/ops/quantize/dequantize_ternary.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "kernels/ops/quantize/quantize_int8_backward.h"
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

BitRows MakeRows(std::int64_t rows, std::int64_t cols, int bits) {
  return {torch::empty({rows, kernels::Int8PaddedK(cols)}, bits == 16 ? torch::kInt16 : torch::kInt8),
          torch::empty({rows}, torch::kFloat32), cols};
}

// All dimensions but the last are rows.
std::int64_t NumRows(const Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }
Tensor AsRows(const Tensor& x) { return x.view({-1, x.size(-1)}); }
std::vector<std::int64_t> ShapeWith(const Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return shape;
}

BitRows Quantize(const Tensor& x, const BitLinearOptions& options, const Context& context) {
  BitRows rows = MakeRows(NumRows(x), x.size(-1), options.activations.bits);
  ThrowIfError(
      kernels::QuantizeActivations({.x = ViewOf(x), .out = rows.view(), .how = options.activations}, context.stream));
  return rows;
}

// Whether a gradient flows through the rows' scale. Otherwise the gradient of the rows passes straight through: a scale
// that is made from a row's own maximum clips nothing.
bool ScaleHasGradient(const BitLinearOptions& options) {
  return options.scale_grad && options.ste != kernels::Ste::kIdentity;
}

void AddScaleGradient(const Tensor& x, const BitRows& rows, const BitLinearOptions& options, const Tensor& grad,
                      Context& context) {
  ThrowIfError(kernels::QuantizeInt8Backward({.x = ViewOf(x),
                                              .q = rows.view(),
                                              .how = options.activations,
                                              .grad_y = ViewOf(grad),
                                              .ste = options.ste,
                                              .scale_grad = options.scale_grad,
                                              .grad_x = ViewOf(grad)},
                                             context.stream));
}

struct NormRowsFunction : torch::autograd::Function<NormRowsFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double eps,
                        const BitLinearOptions* options, Context* context, BitRows* rows) {
    Remember(ctx, "context", context);
    Remember(ctx, "options", options);
    *rows = MakeRows(NumRows(x), x.size(-1), options->activations.bits);
    const Tensor rstd = torch::empty({NumRows(x)}, torch::kFloat32);
    ThrowIfError(kernels::RmsNormQuantize({.x = ViewOf(x),
                                           .weight = weight.data_ptr<float>(),
                                           .eps = static_cast<float>(eps),
                                           .out = rows->view(),
                                           .how = options->activations,
                                           .rstd = rstd.data_ptr<float>()},
                                          context->stream));
    ctx->saved_data["eps"] = eps;
    if (ScaleHasGradient(*options)) {
      ctx->save_for_backward({x, weight, rstd, rows->codes, rows->scale});
    } else {
      ctx->save_for_backward({x, weight, rstd});
    }
    // This tensor only connects the graph. All its elements are one number in memory (strides of 0), because the values
    // of the rows are in the codes.
    static float zero = 0.0f;
    const std::vector<std::int64_t> strides(static_cast<std::size_t>(x.dim()), 0);
    return torch::from_blob(&zero, x.sizes(), strides, torch::TensorOptions().dtype(x.scalar_type()));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& context = Recall<Context>(ctx, "context");
    const auto& options = Recall<const BitLinearOptions>(ctx, "options");
    const variable_list saved = ctx->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor& weight = saved[1];
    const Tensor& rstd = saved[2];
    Tensor g = grads[0].to(torch::kFloat32).contiguous();
    if (ScaleHasGradient(options)) {
      g = g.clone();
      const Tensor normed = torch::empty(x.sizes(), torch::kFloat32);
      ThrowIfError(kernels::RmsNorm({.x = ViewOf(x),
                                     .weight = weight.data_ptr<float>(),
                                     .eps = static_cast<float>(ctx->saved_data["eps"].toDouble()),
                                     .y = ViewOf(normed)},
                                    context.stream));
      AddScaleGradient(normed, {saved[3], saved[4], x.size(-1)}, options, g, context);
    }
    const auto [grad_x, grad_weight] = RmsNormGradients(x, weight, rstd, g, context);
    return {grad_x, grad_weight, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

struct BitLinearFunction : torch::autograd::Function<BitLinearFunction> {
  // `x` carries the gradient of `shared` rows; if `shared` is null, x is quantized here.
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& master, const std::optional<Tensor>& bias,
                        const BitWeight* weight, const BitRows* shared, const BitLinearOptions* options,
                        Context* context) {
    Remember(ctx, "context", context);
    Remember(ctx, "options", options);
    ThrowIfCancelled(context->cancelled);
    const BitRows rows = shared != nullptr ? *shared : Quantize(x, *options, *context);
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
    const BitRows rows = {saved[0], saved[1], ctx->saved_data["cols"].toInt()};
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

kernels::QuantizedRows BitRows::view() const {
  kernels::QuantizedRows rows;
  if (codes.scalar_type() == torch::kInt16) {
    rows.wide_codes = codes.data_ptr<std::int16_t>();
  } else {
    rows.codes = codes.data_ptr<std::int8_t>();
  }
  rows.scale = scale.data_ptr<float>();
  rows.rows = codes.size(0);
  rows.cols = cols;
  rows.stride = codes.size(1);
  return rows;
}

BitInput NormBitInput(const Tensor& x, const Tensor& weight, double eps, const BitLinearOptions& options,
                      Context& context) {
  auto rows = std::make_shared<BitRows>();
  Tensor carrier = NormRowsFunction::apply(x, weight, eps, &options, &context, rows.get());
  return {std::move(carrier), std::move(rows)};
}

Tensor ApplyBitLinear(const BitInput& input, const BitWeight& weight, const BitLinearOptions& options,
                      Context& context) {
  const auto bias = weight.bias.defined() ? std::optional<Tensor>(weight.bias) : std::nullopt;
  return BitLinearFunction::apply(input.x, weight.master, bias, &weight, input.rows.get(), &options, &context);
}

}  // namespace nibble::trainer
