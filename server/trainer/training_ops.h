// The decoder's operations with gradients (model/decoder.h) for methods whose linears read float rows. A method brings
// its embedding, norms and linears (DecoderParts). Included by models' .cc only.
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/model/decoder.h"
#include "server/trainer/autograd.h"
#include "server/trainer/recomputed_layer.h"
#include "server/trainer/segment_attention.h"

namespace nibble::trainer {

// The inputs of one forward pass besides the weights.
struct Pass {
  // Pads the tokens of a batch with zeros up to a multiple of kRowQuantum. segments: as in data::MicroBatch. Errors:
  // those of PagedSegments::Create.
  static absl::StatusOr<Pass> Create(const model::ModelConfig& config, kernels::DType kv_dtype,
                                     const std::vector<std::int32_t>& tokens, const std::vector<std::int64_t>& segments,
                                     std::optional<std::uint64_t> draw);

  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> position;
  std::optional<std::uint64_t> draw;        // number of the micro-batch, for random draws; unset: no dropout
  std::unique_ptr<PagedSegments> segments;  // one segment per example
};

// What TrainingOps needs of a model; must outlive every graph.
class DecoderParts {
 public:
  virtual ~DecoderParts() = default;

  // Rows [T, hidden] f32. The residual stream is f32, as in serving: in bf16 each layer would round it, and the served
  // model would differ from the trained one.
  virtual torch::Tensor Embed(const Pass& pass) = 0;
  // input.x [T, K] has the compute type; returns [T, N] f32.
  virtual torch::Tensor Linear(const FloatInput& input, std::int64_t layer, model::LinearKind kind,
                               const Pass& pass) = 0;
  // Weights [K] f32 of a norm that the model has.
  virtual torch::Tensor NormWeight(std::int64_t layer, model::Norm norm) = 0;
  virtual torch::Tensor FinalNormWeight() = 0;

  const model::ModelConfig* config = nullptr;
  TrainingContext context;
  torch::ScalarType compute = torch::kBFloat16;    // of the rows that linears read
  torch::ScalarType head_type = torch::kBFloat16;  // of the rows that the head reads
  bool checkpointing = false;                      // recompute layers in the backward pass
  bool recomputes_inputs = true;                   // whether Linear keeps recomputed rows of its input (ADR 0018)
  const float* rope_cos = nullptr;                 // [rope_positions, head_dim / 2]
  const float* rope_sin = nullptr;
  std::int64_t rope_positions = 0;
};

// One forward pass. `parts` and `pass` must outlive the graph.
class TrainingOps {
 public:
  using Tensor = torch::Tensor;
  using Input = FloatInput;

  TrainingOps(DecoderParts& parts, const Pass& pass) : parts_(parts), pass_(pass) {}

  Tensor Embed() { return parts_.Embed(pass_); }
  template <typename Body>
  Tensor RunLayer(std::int64_t, Tensor h, Body body) {
    return parts_.checkpointing ? RunRecomputed(std::move(h), body) : body(std::move(h));
  }
  void BeginLayer(std::int64_t) {}
  Input NormInput(const Input& input, std::int64_t layer, model::Norm norm, model::LinearKind) {
    const Tensor weight = parts_.NormWeight(layer, norm);
    if (!parts_.recomputes_inputs) return ApplyRmsNorm(input.x, weight, Eps(norm), parts_.context, parts_.compute);
    return ApplyRmsNormToInput(input.x, weight, Eps(norm), parts_.context, parts_.compute);
  }
  Input PlainInput(Input input, std::int64_t, model::LinearKind) { return input; }  // of type TypeBefore
  Tensor Linear(const Input& input, std::int64_t layer, model::LinearKind kind) {
    return parts_.Linear(input, layer, kind, pass_);
  }
  Tensor NormRows(const Tensor& x, std::int64_t layer, model::Norm norm) {
    return ApplyRmsNorm(x, parts_.NormWeight(layer, norm), Eps(norm), parts_.context, torch::kFloat32);
  }
  Tensor NormHeads(const Tensor& x, std::int64_t layer, model::Norm norm, std::int64_t num_heads) {
    return NormRows(x.view({x.size(0) * num_heads, x.size(1) / num_heads}), layer, norm).view(x.sizes());
  }
  Tensor Rope(const Tensor& x, std::int64_t num_heads) {
    return ApplyRope(x, num_heads, pass_.position.data(), parts_.rope_cos, parts_.rope_sin, parts_.rope_positions,
                     parts_.context);
  }
  Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t) {
    return ApplySegmentAttention(q, k, v, *pass_.segments, parts_.config->num_heads, parts_.config->num_kv_heads,
                                 parts_.context, TypeBefore(model::LinearKind::kO));
  }
  Input Gated(const Tensor& gate, const Tensor& up) {
    const torch::ScalarType type = TypeBefore(model::LinearKind::kDown);
    if (!parts_.recomputes_inputs) return ApplyGatedMul(parts_.config->activation, gate, up, parts_.context, type);
    return ApplyGatedMulToInput(parts_.config->activation, gate, up, parts_.context, type, type);
  }
  Tensor Add(const Tensor& h, const Tensor& y) {
    // In bf16, norms keep rounded copies of the sum. A recomputed layer keeps it as it is.
    const bool keeps_sum = parts_.compute == torch::kFloat32 || parts_.checkpointing;
    return keeps_sum ? h + y : ApplyTransientAdd(h, y, parts_.context);
  }
  Tensor FinalNorm(const Tensor& h) {
    return ApplyRmsNorm(h, parts_.FinalNormWeight(), parts_.config->rms_norm_eps, parts_.context, parts_.head_type);
  }

 private:
  double Eps(model::Norm norm) const {
    return norm >= model::Norm::kBeforeQ ? parts_.config->linear_norm_eps : parts_.config->rms_norm_eps;
  }
  // An input that is normed right before the linear stays in f32 (model/serving_ops.h).
  torch::ScalarType TypeBefore(model::LinearKind kind) const {
    model::Norm norm;
    return HasNormRightBefore(*parts_.config, kind, &norm) ? torch::kFloat32 : parts_.compute;
  }

  DecoderParts& parts_;
  const Pass& pass_;
};

}  // namespace nibble::trainer
