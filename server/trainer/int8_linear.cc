#include "server/trainer/int8_linear.h"

#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <utility>

#include "kernels/ops/matmul/matmul_int8.h"
#include "kernels/ops/matmul/matmul_library.h"
#include "kernels/ops/quantize/quantize_int8_transposed.h"
#include "server/trainer/held_gradient.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Operands of a linear, by which draws of stochastic rounding are kept apart.
enum class Operand : std::uint64_t { kInput, kWeight, kGradRows, kGradColumns };

kernels::StochasticRounding Draws(bool enabled, const Int8LinearOptions& options, const Int8Weight& weight,
                                  std::uint64_t draw, Operand operand) {
  constexpr std::uint64_t kOperands = 4;
  constexpr std::uint64_t kLinears = std::uint64_t{1} << 20;
  const std::uint64_t linear = draw * kLinears + weight.number;
  return {enabled, options.seed, linear * kOperands + static_cast<std::uint64_t>(operand)};
}

// The transpose of x [R, C] as rows.
CodedRows RowsOfTranspose(const Tensor& x, const kernels::QuantizeOptions& how, const kernels::Stream& stream) {
  CodedRows rows = {torch::empty({x.size(1), kernels::Int8PaddedK(x.size(0))}, torch::kInt8),
                    torch::empty({x.size(1)}, torch::kFloat32), x.size(0)};
  ThrowIfError(kernels::QuantizeInt8Transposed({.x = ViewOf(x),
                                                .scale = rows.scale.data_ptr<float>(),
                                                .codes = rows.codes.data_ptr<std::int8_t>(),
                                                .stride = rows.codes.size(1),
                                                .how = how},
                                               stream));
  return rows;
}

Tensor Product(const CodedRows& x, const kernels::PackedInt8Weight& w, const kernels::Stream& stream) {
  const Tensor y = torch::empty({x.codes.size(0), w.rows}, torch::kFloat32);
  ThrowIfError(kernels::MatmulInt8({.x = x.view(), .w = w, .y = ViewOf(y)}, stream));
  return y;
}

// The weight in `type`, for products that stay float.
Tensor WeightIn(const Int8Weight& weight, torch::ScalarType type) {
  return type == torch::kBFloat16 ? weight.rounded : weight.master.detach().to(type);
}

struct Int8LinearFunction : torch::autograd::Function<Int8LinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& master, const Int8Weight* weight,
                        const CodedRows* shared, const Int8LinearOptions* options, std::int64_t draw,
                        TrainingContext* context) {
    ThrowIfCancelled(context->cancelled);
    Remember(ctx, "context", context);
    Remember(ctx, "options", options);
    Remember(ctx, "weight", weight);
    ctx->saved_data["draw"] = draw;
    const Tensor y = context->Output({NumRows(x), master.size(0)});
    if (!options->forward) {
      ThrowIfError(kernels::MatmulLibrary(
          {.x = ViewOf(x), .w = ViewOf(WeightIn(*weight, x.scalar_type())), .y = ViewOf(y)}, context->stream));
      ctx->save_for_backward({x});
      return y;
    }
    CodedRows rows;
    if (shared != nullptr) {
      rows = *shared;
    } else {
      CodedRowOptions how = options->rows;
      how.activations.stochastic =
          Draws(options->stochastic_forward, *options, *weight, static_cast<std::uint64_t>(draw), Operand::kInput);
      rows = QuantizeRows(x, how, *context);
    }
    ThrowIfError(kernels::MatmulInt8({.x = rows.view(), .w = weight->packed.view(), .y = ViewOf(y)}, context->stream));
    if (shared == nullptr) {
      ctx->save_for_backward({x});
    } else {
      ctx->saved_data["cols"] = rows.cols;
      variable_list kept = {Tensor()};  // no x
      const variable_list tensors = rows.tensors();
      kept.insert(kept.end(), tensors.begin(), tensors.end());
      ctx->save_for_backward(kept);
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& context = Recall<TrainingContext>(ctx, "context");
    const auto& options = Recall<const Int8LinearOptions>(ctx, "options");
    const auto& weight = Recall<const Int8Weight>(ctx, "weight");
    ThrowIfCancelled(context.cancelled);
    const variable_list saved = ctx->get_saved_variables();
    const auto draw = static_cast<std::uint64_t>(ctx->saved_data["draw"].toInt());
    const torch::ScalarType type = context.scratch.scalar_type();
    const Tensor g = grads[0].contiguous();
    const auto gradient = [&](Operand operand) {
      kernels::QuantizeOptions how;
      how.per_tensor = options.grad_per_tensor;
      how.stochastic = Draws(options.stochastic_gradients, options, weight, draw, operand);
      return how;
    };
    Tensor grad_x, grad_weight;
    if (ctx->needs_input_grad(0)) {
      if (options.grad_input) {
        const CodedRows rows = QuantizeRows(g, {.activations = gradient(Operand::kGradRows)}, context);
        grad_x = Product(rows, weight.transposed.view(), context.stream);
      } else {
        grad_x = torch::mm(PadTo(g, type), WeightIn(weight, type)).narrow(0, 0, g.size(0)).to(torch::kFloat32);
      }
      grad_x = grad_x.to(saved[0].defined() ? saved[0].scalar_type() : torch::kFloat32).contiguous();
    }
    if (ctx->needs_input_grad(1)) {
      const Tensor x = saved[0].defined()
                           ? saved[0]
                           : CodedRows::Of(saved, 1, ctx->saved_data["cols"].toInt()).Values(context.stream);
      if (options.grad_weight) {
        // Blocks of tokens, because an int8 product sums over at most kInt8MaxCols elements. Multiples of 64 need no
        // padding (Int8PaddedK).
        constexpr std::int64_t kTokens = kernels::kInt8MaxCols / 64 * 64;
        for (std::int64_t begin = 0; begin < g.size(0); begin += kTokens) {
          const std::int64_t count = std::min(kTokens, g.size(0) - begin);
          const CodedRows columns =
              RowsOfTranspose(g.narrow(0, begin, count), gradient(Operand::kGradColumns), context.stream);
          const PackedInt8 tokens = PackInt8Transposed(x.narrow(0, begin, count), {}, context.stream);
          const Tensor product = Product(columns, tokens.view(), context.stream);
          grad_weight = grad_weight.defined() ? grad_weight + product : product;
        }
      } else {
        grad_weight = AddOrReturnProduct(weight.master, PadTo(g, type), PadTo(x, type), context.stream);
      }
    }
    return {grad_x, grad_weight, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

void Int8Weight::Quantize(const Int8LinearOptions& options, bool bf16, const kernels::Stream& stream) {
  const torch::NoGradGuard no_grad;
  if (options.forward && !options.stochastic_forward) QuantizeForward(options, 0, stream);
  if (options.grad_input) {
    const kernels::QuantizeOptions how = {.per_tensor = options.weight_per_tensor};
    transposed = PackInt8Transposed(master.detach(), how, stream, std::move(transposed));
  }
  if (bf16 && (!options.forward || !options.grad_input)) rounded = master.detach().to(torch::kBFloat16);
}

void Int8Weight::QuantizeForward(const Int8LinearOptions& options, std::uint64_t draw, const kernels::Stream& stream) {
  kernels::QuantizeOptions how;
  how.per_tensor = options.weight_per_tensor;
  how.stochastic = Draws(options.stochastic_forward, options, *this, draw, Operand::kWeight);
  packed = PackInt8Rows(master.detach(), how, stream, std::move(packed));
}

Tensor ApplyInt8Linear(const CodedInput& input, const Int8Weight& weight, const Int8LinearOptions& options,
                       std::uint64_t draw, TrainingContext& context) {
  const Tensor y = Int8LinearFunction::apply(input.x, weight.master, &weight, input.rows.get(), &options,
                                             static_cast<std::int64_t>(draw), &context);
  return weight.bias.defined() ? y + weight.bias : y;
}

}  // namespace nibble::trainer
