#include "server/trainer/coded_rows.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include "kernels/ops/norm/rms_norm.h"
#include "kernels/ops/norm/rms_norm_quantize.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "kernels/ops/quantize/quantize_int8_backward.h"
#include "server/model/row_values.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr char kCols[] = "input_cols", kRecomputed[] = "input_recomputed";

// transient: null, or where the codes are allocated.
CodedRows MakeRows(std::int64_t rows, std::int64_t cols, const CodedRowOptions& options, TransientMemory* transient) {
  const torch::ScalarType type = options.activations.bits == 16 ? torch::kInt16 : torch::kInt8;
  const std::vector<std::int64_t> sizes = {rows, kernels::Int8PaddedK(cols)};
  CodedRows made = {transient != nullptr ? transient->Empty(sizes, type) : torch::empty(sizes, type),
                    torch::empty({rows}, torch::kFloat32), cols};
  if (options.max_outliers > 0) {
    made.num_outliers = torch::empty({rows}, torch::kInt32);
    made.outlier_index = torch::empty({rows, kernels::kMaxOutliers}, torch::kInt32);
    made.outlier_value = torch::empty({rows, kernels::kMaxOutliers}, torch::kFloat32);
  }
  return made;
}

// rstd: null, or one number per row, overwritten.
CodedRows NormRows(const Tensor& x, const Tensor& weight, double eps, const CodedRowOptions& options, float* rstd,
                   bool transient, TrainingContext& context) {
  CodedRows rows = MakeRows(NumRows(x), x.size(-1), options, transient ? &context.transient : nullptr);
  ThrowIfError(kernels::RmsNormQuantize({.x = ViewOf(x),
                                         .weight = weight.data_ptr<float>(),
                                         .eps = static_cast<float>(eps),
                                         .out = rows.view(),
                                         .max_outliers = options.max_outliers,
                                         .how = options.activations,
                                         .rstd = rstd},
                                        context.stream));
  return rows;
}

CodedRows Quantize(const Tensor& x, const CodedRowOptions& options, TransientMemory* transient,
                   const kernels::Stream& stream) {
  CodedRows rows = MakeRows(NumRows(x), x.size(-1), options, transient);
  ThrowIfError(kernels::QuantizeActivations(
      {.x = ViewOf(x), .out = rows.view(), .max_outliers = options.max_outliers, .how = options.activations}, stream));
  return rows;
}

struct NormRowsFunction : torch::autograd::Function<NormRowsFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double eps,
                        const CodedRowOptions* options, torch::ScalarType kept, TrainingContext* context,
                        CodedRows* rows, bool recompute, c10::intrusive_ptr<RecomputedRows>* recomputed) {
    Remember(ctx, "context", context);
    Remember(ctx, "options", options);
    const Tensor rstd = torch::empty({NumRows(x)}, torch::kFloat32);
    recompute = recompute && !ScaleHasGradient(*options);
    *rows = NormRows(x, weight, eps, *options, rstd.data_ptr<float>(), recompute, *context);
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["type"] = static_cast<std::int64_t>(x.scalar_type());
    if (ScaleHasGradient(*options)) {
      ctx->save_for_backward({x, weight, rstd, rows->codes, rows->scale});
    } else {
      const Tensor copy = x.to(kept);
      ctx->save_for_backward({copy, weight, rstd});
      if (recompute) {
        *recomputed =
            c10::make_intrusive<RecomputedRows>([x = copy.detach(), w = weight.detach(), eps, options, context] {
              return NormRows(x, w, eps, *options, /*rstd=*/nullptr, /*transient=*/true, *context).Values(*context);
            });
      }
    }
    // This tensor only connects the graph. All its elements are one number in memory (strides of 0), because the values
    // of the rows are in the codes.
    static float zero = 0.0f;
    const std::vector<std::int64_t> strides(static_cast<std::size_t>(x.dim()), 0);
    return torch::from_blob(&zero, x.sizes(), strides, torch::TensorOptions().dtype(x.scalar_type()));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& context = Recall<TrainingContext>(ctx, "context");
    const auto& options = Recall<const CodedRowOptions>(ctx, "options");
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
    const auto type = static_cast<torch::ScalarType>(ctx->saved_data["type"].toInt());
    const auto [grad_x, grad_weight] = RmsNormGradients(x, weight, rstd, g, context, type);
    return {grad_x, grad_weight, Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

std::int64_t NumRows(const Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }
Tensor AsRows(const Tensor& x) { return x.view({-1, x.size(-1)}); }
std::vector<std::int64_t> ShapeWith(const Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return shape;
}

CodedRows QuantizeRows(const Tensor& x, const CodedRowOptions& options, const TrainingContext& context) {
  return Quantize(x, options, /*transient=*/nullptr, context.stream);
}

CodedInput WithRows(const CodedInput& input, const CodedRowOptions& options, TrainingContext& context) {
  if (input.rows != nullptr) return input;
  c10::intrusive_ptr<RecomputedRows> recomputed;
  if (input.recomputed.defined()) {
    recomputed = c10::make_intrusive<RecomputedRows>([x = input.recomputed, &options, &context] {
      return Quantize(x->Values(), options, &context.transient, context.stream).Values(context);
    });
  }
  TransientMemory* transient = recomputed.defined() ? &context.transient : nullptr;
  auto rows = std::make_shared<CodedRows>(Quantize(input.x, options, transient, context.stream));
  return {{input.x, std::move(recomputed)}, std::move(rows)};
}

void KeepInput(AutogradContext* ctx, const CodedInput& input, variable_list kept) {
  if (input.recomputed.defined()) {
    ctx->saved_data[kRecomputed] = torch::IValue::make_capsule(input.recomputed);
  } else if (input.rows != nullptr) {
    ctx->saved_data[kCols] = input.rows->cols;
    const variable_list tensors = input.rows->tensors();
    kept.insert(kept.end(), tensors.begin(), tensors.end());
  } else {
    kept.push_back(input.x);
  }
  ctx->save_for_backward(std::move(kept));
}

Tensor TakeInput(AutogradContext* ctx, const variable_list& saved, std::size_t num_kept, TrainingContext& context) {
  const auto cols = ctx->saved_data.find(kCols);
  if (cols != ctx->saved_data.end()) return CodedRows::Of(saved, num_kept, cols->second.toInt()).Values(context);
  const auto recomputed = ctx->saved_data.find(kRecomputed);
  if (recomputed == ctx->saved_data.end()) return saved.at(num_kept);
  const c10::intrusive_ptr<torch::CustomClassHolder> rows = recomputed->second.toCapsule();
  ctx->saved_data.erase(recomputed);
  return static_cast<RecomputedRows&>(*rows).Values();
}

bool ScaleHasGradient(const CodedRowOptions& options) {
  return options.scale_grad && options.ste != kernels::Ste::kIdentity;
}

void AddScaleGradient(const Tensor& x, const CodedRows& rows, const CodedRowOptions& options, const Tensor& grad,
                      TrainingContext& context) {
  ThrowIfError(kernels::QuantizeInt8Backward({.x = ViewOf(x),
                                              .q = rows.view(),
                                              .how = options.activations,
                                              .grad_y = ViewOf(grad),
                                              .ste = options.ste,
                                              .scale_grad = options.scale_grad,
                                              .grad_x = ViewOf(grad)},
                                             context.stream));
}

kernels::QuantizedRows CodedRows::view() const {
  kernels::QuantizedRows rows;
  if (codes.scalar_type() == torch::kInt16) {
    rows.wide_codes = codes.data_ptr<std::int16_t>();
  } else {
    rows.codes = codes.data_ptr<std::int8_t>();
  }
  rows.scale = scale.data_ptr<float>();
  if (num_outliers.defined()) {
    rows.num_outliers = num_outliers.data_ptr<std::int32_t>();
    rows.outlier_index = outlier_index.data_ptr<std::int32_t>();
    rows.outlier_value = outlier_value.data_ptr<float>();
  }
  rows.rows = codes.size(0);
  rows.cols = cols;
  rows.stride = codes.size(1);
  return rows;
}

Tensor CodedRows::Values(const kernels::Stream& stream) const {
  Tensor values = torch::empty({codes.size(0), cols}, torch::kFloat32);
  model::RowValues(view(), ViewOf(values), stream);
  return values;
}

Tensor CodedRows::Values(TrainingContext& context) const {
  Tensor values = context.transient.Empty({codes.size(0), cols});
  model::RowValues(view(), ViewOf(values), context.stream);
  return values;
}

CodedInput NormCodedInput(const Tensor& x, const Tensor& weight, double eps, const CodedRowOptions& options,
                          TrainingContext& context, std::optional<torch::ScalarType> kept, bool recompute) {
  auto rows = std::make_shared<CodedRows>();
  c10::intrusive_ptr<RecomputedRows> recomputed;
  const torch::ScalarType type = kept.value_or(x.scalar_type());
  Tensor carrier =
      NormRowsFunction::apply(x, weight, eps, &options, type, &context, rows.get(), recompute, &recomputed);
  return {{std::move(carrier), std::move(recomputed)}, std::move(rows)};
}

}  // namespace nibble::trainer
