// Causal attention over packed rows, segment by segment: a segment takes the same memory and time, packed or alone. The
// forward pass uses the serving kernel, so that training has the bits of serving (docs/numerics.md 9 and 10).
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/formats/kv_cache.h"
#include "server/model/kv_pool.h"
#include "server/model/model_config.h"
#include "server/trainer/autograd.h"

namespace nibble::trainer {

// Places of a micro-batch's tokens in a paged cache of one layer. Every layer of the model overwrites this cache.
class PagedSegments {
 public:
  // segments [S+1]: first token of each segment, then their end. Errors: ResourceExhausted, InvalidArgument (no token).
  static absl::StatusOr<std::unique_ptr<PagedSegments>> Create(const model::ModelConfig& config,
                                                               kernels::DType kv_dtype,
                                                               const std::vector<std::int64_t>& segments);

  const kernels::KvCacheView& cache() const { return pool_->view(); }
  const std::vector<std::int64_t>& segments() const { return segments_; }
  std::int64_t num_tokens() const { return segments_.back(); }
  const std::int32_t* position() const { return position_.data(); }  // [num_tokens], each within its segment
  kernels::KvRows Rows(std::int64_t begin, std::int64_t count) const;

 private:
  PagedSegments() = default;
  std::vector<std::int32_t> sequence_, position_, pages_;
  std::int64_t num_sequences_ = 0;
  std::int64_t pages_per_sequence_ = 0;
  std::unique_ptr<model::KvPool> pool_;
  std::vector<std::int64_t> segments_;
};

// Each token attends to those of its own segment up to itself; k and v are rounded to the cache's type first.
//   q         [T, H*d]   f32
//   k, v      [T, KV*d]  f32; query head h reads KV head h / (H / KV)
//   segments  T or fewer tokens; must outlive the graph
//   type      of the result: f32 | bf16
//   kept      type of what the graph keeps: f32 | bf16; default: the result's
//   result    [T, H*d]   0 for tokens past the last segment, which get no gradient
// The graph keeps q, k, v and the result in `kept`, and one f32 per query head and token. If `kept` is f32 and the
// cache bf16, it keeps only q in f32 and k and v as cached, and the backward pass recomputes the rest. A segment's bits
// do not depend on the others. Throws StoppedError (TrainingContext::cancelled, called for each kForwardRows rows; in
// the backward pass, once for each group of whole segments with at most kForwardRows rows, and for each KV head of a
// longer segment).
torch::Tensor ApplySegmentAttention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                    const PagedSegments& segments, std::int64_t num_heads, std::int64_t num_kv_heads,
                                    TrainingContext& context, torch::ScalarType type,
                                    std::optional<torch::ScalarType> kept = std::nullopt);
// The same as an input of a linear. If the graph keeps the result or a copy of it, the input has recomputed rows.
FloatInput ApplySegmentAttentionToInput(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                        const PagedSegments& segments, std::int64_t num_heads,
                                        std::int64_t num_kv_heads, TrainingContext& context, torch::ScalarType type,
                                        torch::ScalarType kept);

// Rows between two calls of `cancelled`: they take some seconds at 16k tokens of a model with 8 billion parameters.
inline constexpr std::int64_t kForwardRows = 1024;

}  // namespace nibble::trainer
