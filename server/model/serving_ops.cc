#include "server/model/serving_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/ops/attention/attention.h"
#include "kernels/ops/attention/kv_store.h"
#include "kernels/ops/attention/rope.h"
#include "kernels/ops/elementwise/add.h"
#include "kernels/ops/elementwise/embedding.h"
#include "kernels/ops/elementwise/gated_mul.h"
#include "kernels/ops/matmul/matmul_dense.h"
#include "kernels/ops/matmul/matmul_int8.h"
#include "kernels/ops/matmul/matmul_int8_weight.h"
#include "kernels/ops/matmul/matmul_library.h"
#include "kernels/ops/matmul/matmul_nf4.h"
#include "kernels/ops/matmul/matmul_ternary.h"
#include "kernels/ops/norm/rms_norm.h"
#include "kernels/ops/norm/rms_norm_quantize.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "server/base/log.h"
#include "server/model/dora.h"
#include "server/model/row_values.h"

namespace nibble::model {

using kernels::DType;
using kernels::Matrix;

ServingOps::ServingOps(const ModelConfig& config, const DecoderWeights& weights, const kernels::KvCacheView& cache,
                       const StepRows& rows, Arena& arena, const kernels::Stream& stream)
    : config_(config), weights_(weights), cache_(cache), rows_(rows), arena_(arena), stream_(stream) {}

bool ServingOps::Ok(absl::Status status) {
  if (status_.ok() && !status.ok()) status_ = std::move(status);
  return status_.ok();
}

ServingOps::Tensor ServingOps::Embed() {
  const auto num_rows = static_cast<std::int64_t>(rows_.tokens.size());
  Matrix h = arena_.AllocateMatrix(DType::kF32, num_rows, config_.hidden_size);
  Ok(kernels::Embedding({.ids = rows_.tokens.data(),
                         .num_ids = num_rows,
                         .table = weights_.embedding,
                         .packed = weights_.embedding_int8,
                         .out = h},
                        stream_));
  layer_mark_ = arena_.mark();  // the residual stream lives through all layers
  return h;
}

void ServingOps::BeginLayer(std::int64_t) {
  arena_.Release(layer_mark_);
  if (rows_.cancelled != nullptr && status_.ok()) Ok(base::CheckCancelled(*rows_.cancelled));
}

kernels::QuantizedRows ServingOps::AllocateQuantized(std::int64_t rows, std::int64_t cols) {
  kernels::QuantizedRows q;
  q.rows = rows;
  q.cols = cols;
  q.stride = kernels::Int8PaddedK(cols);
  if (weights_.act_quantize.bits == 16) {
    q.wide_codes = arena_.Allocate<std::int16_t>(rows * q.stride);
  } else {
    q.codes = arena_.Allocate<std::int8_t>(rows * q.stride);
  }
  q.scale = arena_.Allocate<float>(rows);
  q.num_outliers = arena_.Allocate<std::int32_t>(rows);
  q.outlier_index = arena_.Allocate<std::int32_t>(rows * kernels::kMaxOutliers);
  q.outlier_value = arena_.Allocate<float>(rows * kernels::kMaxOutliers);
  return q;
}

float ServingOps::NormEps(Norm norm) const {
  return static_cast<float>(norm >= Norm::kBeforeQ ? config_.linear_norm_eps : config_.rms_norm_eps);
}

DType ServingOps::TypeBefore(std::int64_t layer, LinearKind kind) const {
  Norm norm;
  if (HasNormRightBefore(config_, kind, &norm) || Layer(layer).linear(kind).reads_codes()) return DType::kF32;
  return weights_.input_dtype;
}

ServingOps::Input ServingOps::NormInput(const Tensor& x, std::int64_t layer, Norm norm, LinearKind kind) {
  Input input;
  if (!status_.ok()) return input;
  const float* weight = Layer(layer).norm(norm);
  bool codes = false, floats = false;
  for (const LinearKind reader : ReadersOf(norm, kind)) {
    if (Layer(layer).linear(reader).reads_codes()) {
      codes = true;
    } else {
      floats = true;
    }
  }
  if (!floats) {
    input.quantized = AllocateQuantized(x.rows, x.cols);
    Ok(kernels::RmsNormQuantize({.x = x,
                                 .weight = weight,
                                 .eps = NormEps(norm),
                                 .out = input.quantized,
                                 .max_outliers = weights_.act_outliers,
                                 .how = weights_.act_quantize},
                                stream_));
    AddValues(layer, input);
  } else {
    input.rows = arena_.AllocateMatrix(weights_.input_dtype, x.rows, x.cols);
    Ok(kernels::RmsNorm({.x = x, .weight = weight, .eps = NormEps(norm), .y = input.rows}, stream_));
    if (codes) input.quantized = Quantize(input.rows).quantized;
  }
  return input;
}

ServingOps::Tensor ServingOps::NormRows(const Tensor& x, std::int64_t layer, Norm norm) {
  Matrix y = arena_.AllocateMatrix(DType::kF32, x.rows, x.cols);
  if (status_.ok())
    Ok(kernels::RmsNorm({.x = x, .weight = Layer(layer).norm(norm), .eps = NormEps(norm), .y = y}, stream_));
  return y;
}

ServingOps::Tensor ServingOps::NormHeads(Tensor x, std::int64_t layer, Norm norm, std::int64_t num_heads) {
  if (!status_.ok()) return x;
  const Matrix heads = kernels::MakeMatrix(x.data, x.dtype, x.rows * num_heads, x.cols / num_heads);
  Ok(kernels::RmsNorm({.x = heads, .weight = Layer(layer).norm(norm), .eps = NormEps(norm), .y = heads}, stream_));
  return x;
}

ServingOps::Input ServingOps::Quantize(const Tensor& x) {
  Input input;
  input.quantized = AllocateQuantized(x.rows, x.cols);
  Ok(kernels::QuantizeActivations(
      {.x = x, .out = input.quantized, .max_outliers = weights_.act_outliers, .how = weights_.act_quantize}, stream_));
  return input;
}

void ServingOps::AddValues(std::int64_t layer, Input& input) {
  const auto& linears = Layer(layer).linears;
  const auto adapted = [](const LinearWeight& linear) { return linear.lora.has_value(); };
  if (!status_.ok() || std::none_of(linears.begin(), linears.end(), adapted)) return;
  input.rows = arena_.AllocateMatrix(DType::kF32, input.quantized.rows, input.quantized.cols);
  RowValues(input.quantized, input.rows, stream_);
}

ServingOps::Input ServingOps::PlainInput(const Tensor& x, std::int64_t layer, LinearKind kind) {
  if (!status_.ok()) return {};
  if (Layer(layer).linear(kind).reads_codes()) {
    Input input = Quantize(x);
    AddValues(layer, input);
    return input;
  }
  return {.rows = x, .quantized = {}};  // x has the type of TypeBefore
}

void ServingOps::ApplyLora(const Matrix& x, const LoraWeight& lora, const Tensor& y) {
  const std::int64_t rank = lora.a.rows;
  Matrix down = arena_.AllocateMatrix(DType::kF32, x.rows, rank);
  if (!Ok(kernels::MatmulDense({.x = x, .w = lora.a, .y = down}, stream_))) return;
  for (std::int64_t r = 0; r < down.rows; ++r) {
    for (std::int64_t i = 0; i < rank; ++i) down.Row<float>(r)[i] *= lora.scaling;
  }
  Ok(kernels::MatmulDense({.x = down, .w = lora.b, .y = y, .accumulate = true}, stream_));
}

ServingOps::Tensor ServingOps::Apply(const Input& input, const LinearWeight& weight, std::int64_t out_features) {
  const std::int64_t num_rows = weight.reads_codes() ? input.quantized.rows : input.rows.rows;
  Matrix y = arena_.AllocateMatrix(DType::kF32, num_rows, out_features);
  if (!status_.ok()) return y;
  const float* dora_factor = weight.lora.has_value() ? weight.lora->dora_factor : nullptr;
  const float* bias = dora_factor == nullptr ? weight.bias : nullptr;  // DoRA adds it last
  switch (weight.kind) {
    case LinearWeight::Kind::kLibrary:
      Ok(kernels::MatmulLibrary({.x = input.rows, .w = weight.library, .bias = bias, .y = y}, stream_));
      break;
    case LinearWeight::Kind::kDense:
      Ok(kernels::MatmulDense({.x = input.rows, .w = weight.dense, .bias = bias, .y = y}, stream_));
      break;
    case LinearWeight::Kind::kInt8:
      Ok(kernels::MatmulInt8({.x = input.quantized, .w = weight.int8, .bias = bias, .y = y}, stream_));
      break;
    case LinearWeight::Kind::kInt8Weight:
      Ok(kernels::MatmulInt8Weight({.x = input.rows, .w = weight.int8, .bias = bias, .y = y}, stream_));
      break;
    case LinearWeight::Kind::kTernary:
      Ok(kernels::MatmulTernary({.x = input.quantized, .w = weight.ternary, .bias = bias, .y = y}, stream_));
      break;
    case LinearWeight::Kind::kNf4:
      Ok(kernels::MatmulNf4({.x = input.rows, .w = weight.nf4, .bias = bias, .y = y}, stream_));
      break;
  }
  if (weight.lora.has_value() && status_.ok()) ApplyLora(input.rows, *weight.lora, y);
  if (dora_factor != nullptr && status_.ok()) ApplyDora(y, dora_factor, weight.bias, stream_);
  return y;
}

ServingOps::Tensor ServingOps::Linear(const Input& input, std::int64_t layer, LinearKind kind) {
  return Apply(input, Layer(layer).linear(kind), OutFeatures(config_, kind));
}

ServingOps::Tensor ServingOps::Rope(Tensor x, std::int64_t num_heads) {
  if (!status_.ok()) return x;
  Ok(kernels::Rope({.x = x,
                    .num_heads = num_heads,
                    .position = rows_.kv.position,
                    .cos = weights_.rope_cos,
                    .sin = weights_.rope_sin,
                    .table_positions = weights_.rope_positions},
                   stream_));
  return x;
}

ServingOps::Tensor ServingOps::Attention(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t layer) {
  Matrix out = arena_.AllocateMatrix(TypeBefore(layer, LinearKind::kO), q.rows, q.cols);
  if (!status_.ok()) return out;
  if (!Ok(kernels::KvStore({.k = k, .v = v, .cache = cache_, .layer = layer, .rows = rows_.kv}, stream_))) return out;
  Ok(kernels::Attention({.q = q,
                         .cache = cache_,
                         .layer = layer,
                         .rows = rows_.kv,
                         .num_heads = config_.num_heads,
                         .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim))),
                         .out = out},
                        stream_));
  return out;
}

ServingOps::Tensor ServingOps::Gated(const Tensor& gate, const Tensor& up) {
  const DType type = TypeBefore(0, LinearKind::kDown);  // all layers have one format
  Matrix y = type == DType::kF32 ? gate : arena_.AllocateMatrix(type, gate.rows, gate.cols);
  if (!status_.ok()) return y;
  Ok(kernels::GatedMul({.activation = config_.activation, .gate = gate, .up = up, .y = y}, stream_));
  return y;
}

ServingOps::Tensor ServingOps::Add(Tensor h, const Tensor& y) {
  if (status_.ok()) Ok(kernels::Add({.x = h, .y = y}, stream_));
  return h;
}

ServingOps::Tensor ServingOps::NormedRows(const Tensor& h, std::span<const std::int32_t> wanted, DType dtype) {
  const auto count = static_cast<std::int64_t>(wanted.size());
  Matrix rows = arena_.AllocateMatrix(DType::kF32, count, h.cols);
  Matrix normed = dtype == DType::kF32 ? rows : arena_.AllocateMatrix(dtype, count, h.cols);
  if (!status_.ok()) return normed;
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(rows.Row<float>(i), h.Row<float>(wanted[static_cast<std::size_t>(i)]),
                static_cast<std::size_t>(h.cols) * sizeof(float));
  }
  Ok(kernels::RmsNorm(
      {.x = rows, .weight = weights_.final_norm, .eps = static_cast<float>(config_.rms_norm_eps), .y = normed},
      stream_));
  return normed;
}

ServingOps::Tensor ServingOps::FinalNorm(const Tensor& h) {
  if (!rows_.hidden_rows.empty()) hidden_ = NormedRows(h, rows_.hidden_rows, DType::kF32);
  // A library head reads rows of its own type; an int8 or promised float head reads f32, also in a weight-only model.
  const bool library = weights_.head.kind == LinearWeight::Kind::kLibrary;
  return NormedRows(h, rows_.logit_rows, library ? weights_.head.library.dtype : DType::kF32);
}

ServingOps::Tensor ServingOps::Logits(const Tensor& normed) {
  if (normed.rows == 0) return arena_.AllocateMatrix(DType::kF32, 0, config_.vocab_size);
  Input input;
  if (status_.ok() && weights_.head.kind == LinearWeight::Kind::kInt8) {
    input = Quantize(normed);
  } else {
    input.rows = normed;
  }
  return Apply(input, weights_.head, config_.vocab_size);
}

}  // namespace nibble::model
