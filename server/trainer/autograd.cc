#include "server/trainer/autograd.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include <optional>
#include <stdexcept>

#include "kernels/ops/attention/rope.h"
#include "kernels/ops/elementwise/gated_mul.h"
#include "kernels/ops/elementwise/gated_mul_backward.h"
#include "kernels/ops/norm/rms_norm.h"
#include "kernels/ops/norm/rms_norm_backward.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

TrainingContext& ContextOf(AutogradContext* ctx) { return Recall<TrainingContext>(ctx, "context"); }

// rstd: null, or [M], overwritten.
void RmsNorm(const Tensor& x, const Tensor& weight, double eps, const Tensor& y, float* rstd,
             const TrainingContext& context) {
  ThrowIfError(kernels::RmsNorm({.x = ViewOf(x),
                                 .weight = weight.data_ptr<float>(),
                                 .eps = static_cast<float>(eps),
                                 .y = ViewOf(y),
                                 .rstd = rstd},
                                context.stream));
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  // recomputed: null, or set to the rows of the result, which then has transient memory.
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double eps, torch::ScalarType type,
                        c10::intrusive_ptr<RecomputedRows>* recomputed, TrainingContext* context) {
    Remember(ctx, "context", context);
    ctx->saved_data["type"] = static_cast<std::int64_t>(x.scalar_type());
    Tensor rstd = torch::empty({x.size(0)}, torch::kFloat32);
    Tensor y = recomputed != nullptr ? context->transient.Empty(x.sizes(), type) : torch::empty(x.sizes(), type);
    RmsNorm(x, weight, eps, y, rstd.data_ptr<float>(), *context);
    const Tensor kept = x.to(type);
    ctx->save_for_backward({kept, weight, rstd});
    if (recomputed != nullptr) {
      *recomputed = c10::make_intrusive<RecomputedRows>([x = kept.detach(), w = weight.detach(), eps, type, context] {
        Tensor y = context->transient.Empty(x.sizes(), type);
        RmsNorm(x, w, eps, y, /*rstd=*/nullptr, *context);
        return y;
      });
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto type = static_cast<torch::ScalarType>(ctx->saved_data["type"].toInt());
    const auto [grad_x, grad_weight] =
        RmsNormGradients(saved[0], saved[1], saved[2], grads[0].contiguous(), ContextOf(ctx), type);
    return {grad_x, grad_weight, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static Tensor forward(AutogradContext* ctx, Tensor x, std::int64_t num_heads, const std::int32_t* position,
                        const float* cos, const float* sin, std::int64_t table_positions, TrainingContext* context) {
    Remember(ctx, "context", context);
    ctx->saved_data["heads"] = num_heads;
    Remember(ctx, "position", position);
    Remember(ctx, "cos", cos);
    Remember(ctx, "sin", sin);
    ctx->saved_data["positions"] = table_positions;
    Rotate(x, ctx, *context, /*backward=*/false);
    ctx->mark_dirty({x});
    return x;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor grad_x = grads[0].clone(torch::MemoryFormat::Contiguous);
    Rotate(grad_x, ctx, ContextOf(ctx), /*backward=*/true);
    return {grad_x, Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }

  static void Rotate(const Tensor& x, AutogradContext* ctx, TrainingContext& context, bool backward) {
    ThrowIfError(kernels::Rope({.x = ViewOf(x),
                                .num_heads = ctx->saved_data["heads"].toInt(),
                                .position = &Recall<const std::int32_t>(ctx, "position"),
                                .cos = &Recall<const float>(ctx, "cos"),
                                .sin = &Recall<const float>(ctx, "sin"),
                                .table_positions = ctx->saved_data["positions"].toInt(),
                                .backward = backward},
                               context.stream));
  }
};

// act(gate) * up into y.
void GatedMul(kernels::Activation activation, const Tensor& gate, const Tensor& up, const Tensor& y,
              const TrainingContext& context) {
  ThrowIfError(kernels::GatedMul({.activation = activation, .gate = ViewOf(gate), .up = ViewOf(up), .y = ViewOf(y)},
                                 context.stream));
}

struct GatedMulFunction : torch::autograd::Function<GatedMulFunction> {
  // recomputed: as in RmsNormFunction.
  static Tensor forward(AutogradContext* ctx, kernels::Activation activation, const Tensor& gate, const Tensor& up,
                        torch::ScalarType type, torch::ScalarType kept, c10::intrusive_ptr<RecomputedRows>* recomputed,
                        TrainingContext* context) {
    Remember(ctx, "context", context);
    ctx->saved_data["activation"] = static_cast<std::int64_t>(activation);
    ctx->saved_data["type"] = static_cast<std::int64_t>(gate.scalar_type());
    // Transient, unless the graph may keep y itself.
    const bool transient = recomputed != nullptr || (type == torch::kFloat32 && kept != type);
    Tensor y = transient ? context->transient.Empty(gate.sizes(), type) : torch::empty(gate.sizes(), type);
    GatedMul(activation, gate, up, y, *context);
    const Tensor kept_gate = gate.to(kept), kept_up = up.to(kept);
    ctx->save_for_backward({kept_gate, kept_up});
    if (recomputed != nullptr) {
      *recomputed = c10::make_intrusive<RecomputedRows>(
          [activation, a = kept_gate.detach(), b = kept_up.detach(), type, context] {
            Tensor y = context->transient.Empty(a.sizes(), type);
            GatedMul(activation, a, b, y, *context);
            return y;
          });
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor g = grads[0].contiguous();
    const auto type = static_cast<torch::ScalarType>(ctx->saved_data["type"].toInt());
    const auto make = [&] {
      return type == torch::kFloat32 ? ContextOf(ctx).transient.Empty(g.sizes()) : torch::empty(g.sizes(), type);
    };
    const Tensor grad_gate = make(), grad_up = make();
    ThrowIfError(kernels::GatedMulBackward(
        {.activation = static_cast<kernels::Activation>(ctx->saved_data["activation"].toInt()),
         .gate = ViewOf(saved[0]),
         .up = ViewOf(saved[1]),
         .grad_y = ViewOf(g),
         .grad_gate = ViewOf(grad_gate),
         .grad_up = ViewOf(grad_up)},
        ContextOf(ctx).stream));
    return {Tensor(), grad_gate, grad_up, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

struct TransientAddFunction : torch::autograd::Function<TransientAddFunction> {
  static Tensor forward(AutogradContext* /*ctx*/, const Tensor& h, const Tensor& y, TrainingContext* context) {
    Tensor sum = context->transient.Empty(h.sizes());
    return torch::add_out(sum, h, y);
  }
  static variable_list backward(AutogradContext* /*ctx*/, variable_list grads) {
    return {grads[0], grads[0], Tensor()};
  }
};

}  // namespace

Tensor TransientMemory::Empty(torch::IntArrayRef sizes, torch::ScalarType type) {
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  auto found = storages_.end(), spare = storages_.end();
  for (auto storage = storages_.begin(); storage != storages_.end(); ++storage) {
    if (storage->use_count() > 1) continue;
    spare = storage;
    if (storage->nbytes() >= bytes && (found == storages_.end() || storage->nbytes() < found->nbytes()))
      found = storage;
  }
  if (found == storages_.end()) {
    // Drop a free storage that is too small, so that there are never more storages than were in use at once.
    if (spare != storages_.end()) storages_.erase(spare);
    found = storages_.insert(storages_.end(), torch::empty(sizes, type).storage());
  }
  return torch::empty({0}, type).set_(*found, 0, sizes);
}

torch::ScalarType BackwardType(bool bf16_compute, const kernels::Stream& stream) {
  return bf16_compute && stream.isa >= kernels::Isa::kAvx512 ? torch::kBFloat16 : torch::kFloat32;
}

Tensor ApplyRmsNorm(const Tensor& x, const Tensor& weight, double eps, TrainingContext& context,
                    std::optional<torch::ScalarType> type) {
  return RmsNormFunction::apply(x, weight, eps, type.value_or(x.scalar_type()), nullptr, &context);
}

FloatInput ApplyRmsNormToInput(const Tensor& x, const Tensor& weight, double eps, TrainingContext& context,
                               torch::ScalarType type) {
  c10::intrusive_ptr<RecomputedRows> recomputed;
  Tensor y = RmsNormFunction::apply(x, weight, eps, type, &recomputed, &context);
  return {std::move(y), std::move(recomputed)};
}

std::pair<Tensor, Tensor> RmsNormGradients(const Tensor& x, const Tensor& weight, const Tensor& rstd,
                                           const Tensor& grad_y, TrainingContext& context,
                                           std::optional<torch::ScalarType> type) {
  Tensor grad_x = torch::empty(x.sizes(), type.value_or(x.scalar_type()));
  Tensor grad_weight;
  if (weight.requires_grad()) grad_weight = torch::empty(weight.sizes(), torch::kFloat32);
  ThrowIfError(
      kernels::RmsNormBackward({.x = ViewOf(x),
                                .grad_y = ViewOf(grad_y),
                                .weight = weight.data_ptr<float>(),
                                .rstd = rstd.data_ptr<float>(),
                                .grad_x = ViewOf(grad_x),
                                .grad_weight = grad_weight.defined() ? grad_weight.data_ptr<float>() : nullptr},
                               context.stream));
  return {grad_x, grad_weight};
}

Tensor PadTo(const Tensor& x, torch::ScalarType type) {
  if (type == torch::kFloat32 || x.size(0) == PadRows(x.size(0))) return x.to(type);
  Tensor out = torch::zeros({PadRows(x.size(0)), x.size(1)}, type);
  out.narrow(0, 0, x.size(0)).copy_(x);
  return out;
}

Tensor ApplyRope(const Tensor& x, std::int64_t num_heads, const std::int32_t* position, const float* cos,
                 const float* sin, std::int64_t table_positions, TrainingContext& context) {
  return RopeFunction::apply(x, num_heads, position, cos, sin, table_positions, &context);
}

Tensor ApplyTransientAdd(const Tensor& h, const Tensor& y, TrainingContext& context) {
  return TransientAddFunction::apply(h, y, &context);
}

Tensor ApplyGatedMul(kernels::Activation activation, const Tensor& gate, const Tensor& up, TrainingContext& context,
                     std::optional<torch::ScalarType> type, std::optional<torch::ScalarType> kept) {
  const torch::ScalarType result = type.value_or(gate.scalar_type());
  return GatedMulFunction::apply(activation, gate, up, result, kept.value_or(result), nullptr, &context);
}

FloatInput ApplyGatedMulToInput(kernels::Activation activation, const Tensor& gate, const Tensor& up,
                                TrainingContext& context, torch::ScalarType type, torch::ScalarType kept) {
  c10::intrusive_ptr<RecomputedRows> recomputed;
  Tensor y = GatedMulFunction::apply(activation, gate, up, type, kept, &recomputed, &context);
  return {std::move(y), std::move(recomputed)};
}

}  // namespace nibble::trainer
