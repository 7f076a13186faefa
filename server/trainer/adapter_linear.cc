#include "server/trainer/adapter_linear.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include "kernels/ops/matmul/matmul_dense.h"
#include "kernels/ops/matmul/matmul_int8.h"
#include "kernels/ops/matmul/matmul_int8_weight.h"
#include "kernels/ops/matmul/matmul_library.h"
#include "kernels/ops/matmul/matmul_nf4.h"
#include "kernels/ops/quantize/dequantize_nf4.h"
#include "server/model/dora.h"
#include "server/model/merged_rows.h"
#include "server/model/row_values.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

TrainingContext& ContextOf(AutogradContext* ctx) { return Recall<TrainingContext>(ctx, "context"); }

Tensor Scratch(std::int64_t rows, std::int64_t cols, TrainingContext& context) {
  return context.scratch.narrow(0, 0, rows * cols).view({rows, cols});
}

// The weight in the scratch's type: in the scratch, unless it exists in this type.
Tensor InScratchType(const kernels::Nf4Weight& weight, TrainingContext& context) {
  Tensor out = Scratch(weight.rows, weight.cols, context);
  ThrowIfError(kernels::DequantizeNf4({.w = weight, .out = ViewOf(out)}, context.stream));
  return out;
}
Tensor InScratchType(const FloatWeight& weight, TrainingContext& context) {
  const torch::ScalarType type = context.scratch.scalar_type();
  if (weight.stored.scalar_type() == type) return weight.stored;
  if (type == torch::kBFloat16) return weight.rounded;
  return Scratch(weight.stored.size(0), weight.stored.size(1), context).copy_(weight.stored);
}
Tensor InScratchType(const kernels::PackedInt8Weight& weight, TrainingContext& context) {
  Tensor out = Scratch(weight.rows, weight.cols, context);
  ThrowIfError(model::WeightValues(weight, /*begin=*/0, ViewOf(out), context.stream));
  return out;
}
Tensor InScratchType(const AdapterLinear& linear, TrainingContext& context) {
  return std::visit([&](const auto& weight) { return InScratchType(weight, context); }, linear.weight);
}

// x W^T + bias [T, N] f32. The serving kernel multiplies bf16 rows; torch multiplies f32 rows, which are not served.
Tensor BaseProduct(const Tensor& x, const kernels::Nf4Weight& weight, const float* bias, TrainingContext& context) {
  if (x.scalar_type() == torch::kBFloat16) {
    const Tensor y = context.transient.Empty({x.size(0), weight.rows});
    ThrowIfError(kernels::MatmulNf4({.x = ViewOf(x), .w = weight, .bias = bias, .y = ViewOf(y)}, context.stream));
    return y;
  }
  const Tensor dequantized = InScratchType(weight, context);
  if (bias == nullptr) return torch::mm(x, dequantized.t());
  return torch::addmm(torch::from_blob(const_cast<float*>(bias), {weight.rows}), x, dequantized.t());
}
Tensor BaseProduct(const Tensor& x, const FloatWeight& weight, const float* bias, TrainingContext& context) {
  const Tensor& read = x.scalar_type() == torch::kBFloat16 ? weight.rounded : weight.stored;
  const Tensor y = context.transient.Empty({x.size(0), read.size(0)});
  ThrowIfError(
      kernels::MatmulLibrary({.x = ViewOf(x), .w = ViewOf(read), .bias = bias, .y = ViewOf(y)}, context.stream));
  return y;
}
// rows: null, or the codes that are multiplied; x then has only their shape.
Tensor BaseProduct(const Tensor& x, const CodedRows* rows, const kernels::PackedInt8Weight& weight, const float* bias,
                   TrainingContext& context) {
  const Tensor y = context.transient.Empty({NumRows(x), weight.rows});
  if (rows != nullptr) {
    ThrowIfError(kernels::MatmulInt8({.x = rows->view(), .w = weight, .bias = bias, .y = ViewOf(y)}, context.stream));
  } else {
    ThrowIfError(
        kernels::MatmulInt8Weight({.x = ViewOf(x), .w = weight, .bias = bias, .y = ViewOf(y)}, context.stream));
  }
  return y;
}
Tensor BaseProduct(const Tensor& x, const CodedRows* rows, const AdapterLinear& linear, TrainingContext& context) {
  ThrowIfCancelled(context.cancelled);
  const float* bias = linear.magnitude.defined() ? nullptr : linear.bias;  // DoRA adds it last
  if (const auto* int8 = std::get_if<kernels::PackedInt8Weight>(&linear.weight)) {
    return BaseProduct(x, rows, *int8, bias, context);
  }
  if (const auto* nf4 = std::get_if<kernels::Nf4Weight>(&linear.weight)) return BaseProduct(x, *nf4, bias, context);
  return BaseProduct(x, std::get<FloatWeight>(linear.weight), bias, context);
}

// y = x w^T, or y += x w^T, with the kernel that serves adapters.
void MultiplyDense(const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate, TrainingContext& context) {
  Tensor panels;
  ThrowIfError(kernels::MatmulDense(
      {.x = ViewOf(x), .w = PackDense(w, panels, context.stream), .y = ViewOf(y), .accumulate = accumulate},
      context.stream));
}

// y += scaling * (x A^T) B^T. Returns scaling * x A^T [T, r] f32. If the rows are `served`, it uses serving's kernels
// in serving's order.
Tensor AddAdapter(const Tensor& x, bool served, const Tensor& a, const Tensor& b, double scaling, const Tensor& y,
                  TrainingContext& context) {
  const auto factor = static_cast<float>(scaling);
  if (!served) {
    const Tensor down = torch::mm(x, a.t()).mul_(factor);
    y.addmm_(down, b.t());
    return down;
  }
  Tensor down = torch::empty({x.size(0), a.size(0)}, torch::kFloat32);
  MultiplyDense(x, a, down, /*accumulate=*/false, context);
  down.mul_(factor);
  MultiplyDense(down, b, y, /*accumulate=*/true, context);
  return down;
}

const AdapterLinear& LinearOf(AutogradContext* ctx) { return Recall<const AdapterLinear>(ctx, "linear"); }

// A linear without an adapter. It keeps only the weight, by reference. A separate function, because torch accepts no
// undefined tensors as inputs.
struct FrozenLinearFunction : torch::autograd::Function<FrozenLinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const CodedRows* rows, const AdapterLinear* linear,
                        TrainingContext* context) {
    Remember(ctx, "context", context);
    Remember(ctx, "linear", linear);
    ctx->saved_data["type"] = static_cast<std::int64_t>(x.scalar_type());
    return BaseProduct(x, rows, *linear, *context);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TrainingContext& context = ContextOf(ctx);
    ThrowIfCancelled(context.cancelled);
    if (!ctx->needs_input_grad(0)) return {Tensor(), Tensor(), Tensor(), Tensor()};
    const Tensor g = PadTo(grads[0].contiguous(), context.scratch.scalar_type());
    const Tensor grad_x = torch::mm(g, InScratchType(LinearOf(ctx), context)).narrow(0, 0, grads[0].size(0));
    const auto type = static_cast<torch::ScalarType>(ctx->saved_data["type"].toInt());
    return {grad_x.to(type), Tensor(), Tensor(), Tensor()};
  }
};

struct AdapterLinearFunction : torch::autograd::Function<AdapterLinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& a, const Tensor& b,
                        const CodedInput* input, const AdapterLinear* linear, std::optional<DropoutKey> key,
                        TrainingContext* context) {
    const CodedRows* rows = input->rows.get();
    Remember(ctx, "context", context);
    Remember(ctx, "linear", linear);
    const bool drops = key.has_value() && linear->dropout > 0;
    ctx->saved_data["drops"] = drops;
    if (drops) {
      ctx->saved_data["seed"] = static_cast<std::int64_t>(key->seed);
      ctx->saved_data["stream"] = static_cast<std::int64_t>(key->stream);
    }
    Tensor y = BaseProduct(x, rows, *linear, *context);
    const Tensor read = rows == nullptr ? x : rows->Values(*context);
    const Tensor dropped =
        drops ? Dropout(read, linear->dropout, *key, context->stream).Apply(read.contiguous()) : read;
    const bool served = rows != nullptr || x.scalar_type() == torch::kBFloat16;
    const Tensor down = AddAdapter(dropped, served, a, b, linear->scaling, y, *context);
    KeepInput(ctx, *input, {a, b, down.to(x.scalar_type())});
    ctx->saved_data["type"] = static_cast<std::int64_t>(x.scalar_type());
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TrainingContext& context = ContextOf(ctx);
    ThrowIfCancelled(context.cancelled);
    const AdapterLinear& linear = LinearOf(ctx);
    const variable_list saved = ctx->get_saved_variables();
    const torch::ScalarType type = context.scratch.scalar_type();
    const Tensor x = PadTo(TakeInput(ctx, saved, /*num_kept=*/3, context), type);
    const Tensor a = saved[0].to(type), b = saved[1].to(type);
    const Tensor down = PadTo(saved[2], type);  // already scaled
    const Tensor g = PadTo(grads[0].contiguous(), type);
    Tensor grad_x, grad_a;
    if (ctx->needs_input_grad(0)) grad_x = torch::mm(g, InScratchType(linear, context));
    const Tensor grad_b = torch::mm(g.t(), down).to(torch::kFloat32);
    const Tensor grad_down = torch::mm(g, b).mul_(linear.scaling);
    if (ctx->saved_data["drops"].toBool()) {
      const DropoutKey key = {static_cast<std::uint64_t>(ctx->saved_data["seed"].toInt()),
                              static_cast<std::uint64_t>(ctx->saved_data["stream"].toInt())};
      const Dropout dropout(x, linear.dropout, key, context.stream);
      grad_a = torch::mm(grad_down.t(), dropout.Apply(x.contiguous())).to(torch::kFloat32);
      if (grad_x.defined()) grad_x.add_(dropout.Apply(torch::mm(grad_down, a)));
    } else {
      grad_a = torch::mm(grad_down.t(), x).to(torch::kFloat32);
      if (grad_x.defined()) grad_x.addmm_(grad_down, a);
    }
    if (grad_x.defined()) {
      const auto type_of_x = static_cast<torch::ScalarType>(ctx->saved_data["type"].toInt());
      grad_x = grad_x.narrow(0, 0, grads[0].size(0)).to(type_of_x);
    }
    return {grad_x, grad_a, grad_b, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// Multiplies the output u of the linear and its adapter by DoRA's factors, in place, and adds the bias. `type`: of the
// copy of u that is kept for the gradient of the magnitudes.
struct DoraFunction : torch::autograd::Function<DoraFunction> {
  static Tensor forward(AutogradContext* ctx, Tensor u, const Tensor& /*magnitude*/, torch::ScalarType type,
                        const AdapterLinear* linear, TrainingContext* context) {
    Remember(ctx, "linear", linear);
    ctx->save_for_backward({u.to(type, /*non_blocking=*/false, /*copy=*/true)});
    model::ApplyDora(ViewOf(u), linear->dora_factor.data_ptr<float>(), linear->bias, context->stream);
    ctx->mark_dirty({u});
    return u;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const AdapterLinear& linear = LinearOf(ctx);
    const Tensor u = ctx->get_saved_variables()[0];
    const Tensor sums = torch::sum(grads[0] * u, 0).to(torch::kFloat32);
    const Tensor grad_magnitude = torch::where(linear.norms > 0, sums / linear.norms, torch::zeros_like(sums));
    return {grads[0] * linear.dora_factor, grad_magnitude, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

void AdapterLinear::RefreshDora(const kernels::Stream& stream) {
  if (!magnitude.defined()) return;
  const torch::NoGradGuard no_grad;
  model::FrozenWeight frozen;
  if (const auto* nf4 = std::get_if<kernels::Nf4Weight>(&weight)) {
    frozen = *nf4;
  } else if (const auto* int8 = std::get_if<kernels::PackedInt8Weight>(&weight)) {
    frozen = *int8;
  } else {
    frozen = kernels::ConstMatrix(ViewOf(std::get<FloatWeight>(weight).stored));
  }
  model::MergedRows merged(frozen);
  merged.SetAdapter(ViewOf(lora_a), ViewOf(lora_b), static_cast<float>(scaling));
  if (!norms.defined()) {
    norms = torch::empty({magnitude.size(0)}, torch::kFloat32);
    dora_factor = torch::empty_like(norms);
  }
  float* norm = norms.data_ptr<float>();
  ThrowIfError(merged.Norms(norm, stream));
  const float* m = magnitude.data_ptr<float>();
  for (std::int64_t i = 0; i < norms.size(0); ++i) dora_factor.data_ptr<float>()[i] = model::DoraFactor(m[i], norm[i]);
}

FloatWeight FloatWeight::Make(const Tensor& stored, bool bf16_compute) {
  return {stored, bf16_compute ? stored.to(torch::kBFloat16) : Tensor()};
}

Tensor ApplyAdapterLinear(const FloatInput& input, const AdapterLinear& linear, std::optional<DropoutKey> key,
                          TrainingContext& context) {
  return ApplyAdapterLinear(CodedInput{input, nullptr}, linear, key, context);
}

Tensor ApplyAdapterLinear(const CodedInput& input, const AdapterLinear& linear, std::optional<DropoutKey> key,
                          TrainingContext& context) {
  if (!linear.lora_a.defined()) return FrozenLinearFunction::apply(input.x, input.rows.get(), &linear, &context);
  const Tensor y = AdapterLinearFunction::apply(input.x, linear.lora_a, linear.lora_b, &input, &linear, key, &context);
  if (!linear.magnitude.defined()) return y;
  return DoraFunction::apply(y, linear.magnitude, input.x.scalar_type(), &linear, &context);
}

DropoutKey KeyOf(std::uint64_t seed, std::uint64_t micro_batch, std::int64_t layer, model::LinearKind kind) {
  const auto index = static_cast<std::uint64_t>(layer * model::kNumLinearKinds + static_cast<std::int64_t>(kind));
  return {seed, micro_batch << 20 | index};  // no model has 2^20 linears, so each mask has its own stream
}

model::LoraWeight ServedAdapter::View(const AdapterLinear& linear) {
  return {.a = PackDense(linear.lora_a, panels_a, {}),
          .b = PackDense(linear.lora_b, panels_b, {}),
          .scaling = static_cast<float>(linear.scaling),
          .dora_factor = linear.dora_factor.defined() ? linear.dora_factor.data_ptr<float>() : nullptr};
}

}  // namespace nibble::trainer
