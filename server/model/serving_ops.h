// The decoder's operations as direct kernel calls on views into an arena: used to serve, evaluate and verify.
#pragma once
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/formats/kv_cache.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/model/arena.h"
#include "server/model/decoder.h"
#include "server/model/decoder_weights.h"
#include "server/model/model_config.h"

namespace nibble::model {

// One step over T rows: the token, sequence and position of each row, and the rows whose logits are wanted.
struct StepRows {
  std::span<const std::int32_t> tokens;         // [T]
  kernels::KvRows kv;                           // [T] sequence and position of each row
  std::span<const std::int32_t> logit_rows;     // ascending row numbers
  std::span<const std::int32_t> hidden_rows{};  // rows whose hidden states after the final norm are wanted; likewise
  const base::Cancelled* cancelled = nullptr;   // checked before every layer; the step then ends with Cancelled
};

// One thread; lives for one step.
class ServingOps {
 public:
  using Tensor = kernels::Matrix;  // f32; rows for a linear or the head may be bf16 (TypeBefore, FinalNorm)
  struct Input {
    kernels::Matrix rows;              // of weights.input_dtype; if all linears read codes: f32, for adapters only
    kernels::QuantizedRows quantized;  // set if a linear reads codes
  };

  ServingOps(const ModelConfig& config, const DecoderWeights& weights, const kernels::KvCacheView& cache,
             const StepRows& rows, Arena& arena, const kernels::Stream& stream);

  Tensor Embed();
  template <typename Body>
  Tensor RunLayer(std::int64_t, Tensor h, Body body) {
    return body(h);
  }
  void BeginLayer(std::int64_t layer);
  Input NormInput(const Tensor& x, std::int64_t layer, Norm norm, LinearKind kind);
  Input PlainInput(const Tensor& x, std::int64_t layer, LinearKind kind);
  Tensor Linear(const Input& input, std::int64_t layer, LinearKind kind);
  Tensor NormRows(const Tensor& x, std::int64_t layer, Norm norm);
  Tensor NormHeads(Tensor x, std::int64_t layer, Norm norm, std::int64_t num_heads);
  Tensor Rope(Tensor x, std::int64_t num_heads);
  Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t layer);
  Tensor Gated(const Tensor& gate, const Tensor& up);
  Tensor Add(Tensor h, const Tensor& y);
  Tensor FinalNorm(const Tensor& h);

  // [hidden_rows, hidden] f32 after the final norm; set by FinalNorm().
  const Tensor& hidden() const { return hidden_; }
  // [logit_rows, V] f32 from FinalNorm's rows.
  Tensor Logits(const Tensor& normed);

  const absl::Status& status() const { return status_; }

 private:
  Input Quantize(const Tensor& x);
  // The final norm of these rows of h.
  Tensor NormedRows(const Tensor& h, std::span<const std::int32_t> rows, kernels::DType dtype);
  // Adds the values of the input's codes if the layer has adapters, which read them.
  void AddValues(std::int64_t layer, Input& input);
  kernels::QuantizedRows AllocateQuantized(std::int64_t rows, std::int64_t cols);
  Tensor Apply(const Input& input, const LinearWeight& weight, std::int64_t out_features);
  void ApplyLora(const kernels::Matrix& x, const LoraWeight& lora, const Tensor& y);
  const LayerWeights& Layer(std::int64_t layer) const { return weights_.layers[static_cast<std::size_t>(layer)]; }
  float NormEps(Norm norm) const;
  // The type that attention and the gated activation write for the linear that follows: f32 if a norm or a quantizer
  // reads it first.
  kernels::DType TypeBefore(std::int64_t layer, LinearKind kind) const;
  bool Ok(absl::Status status);

  const ModelConfig& config_;
  const DecoderWeights& weights_;
  kernels::KvCacheView cache_;
  StepRows rows_;
  Arena& arena_;
  kernels::Stream stream_;
  Arena::Mark layer_mark_;
  Tensor hidden_;
  absl::Status status_;
};

}  // namespace nibble::model
