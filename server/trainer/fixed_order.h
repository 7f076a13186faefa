// The float parts of a promised artifact with gradients: forward by the kernels that serve, in their fixed order, so that
// training gives the bits of serving (docs/numerics.md 9 and 10). Backward passes are free of that.
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/formats/dense.h"
#include "kernels/formats/kv_cache.h"
#include "server/model/kv_pool.h"
#include "server/model/model_config.h"
#include "server/trainer/autograd.h"

namespace nibble::trainer {

// Places of the tokens of a micro-batch in the paged cache. The cache holds one layer: each uses it anew.
class PagedSegments {
 public:
  // segments [S+1]: first token of each, and T.
  static absl::StatusOr<std::unique_ptr<PagedSegments>> Create(const model::ModelConfig& config, kernels::DType kv_dtype,
                                                               const std::vector<std::int64_t>& segments);

  const std::int32_t* position() const { return position_.data(); }
  const kernels::KvCacheView& cache() const { return pool_->view(); }
  const std::vector<std::int64_t>& segments() const { return segments_; }
  kernels::KvRows rows() const;

 private:
  PagedSegments() = default;
  std::vector<std::int32_t> sequence_, position_, pages_;
  std::int64_t num_sequences_ = 0;
  std::int64_t pages_per_sequence_ = 0;
  std::unique_ptr<model::KvPool> pool_;
  std::vector<std::int64_t> segments_;
};

// Causal attention within each segment, keys and values rounded to the cache's type first; q [T, H*d], k and v [T, KV*d], f32.
torch::Tensor ApplyPagedAttention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                  const PagedSegments& segments, std::int64_t num_heads, std::int64_t num_kv_heads,
                                  AutogradContext& context);

// Rows [T, K] f32 of `table` [V, K] by id; the gradient goes to `master`, of which the table is a rounding.
torch::Tensor ApplyEmbedding(const std::vector<std::int32_t>& ids, const torch::Tensor& table, const torch::Tensor& master,
                             AutogradContext& context);

// A float layer [V, K]: what it is trained in, what it is served in (a rounding of it), and that in panels.
struct DenseHead {
  torch::Tensor master;  // [V, K] f32 parameter
  torch::Tensor served;  // [V, K] bf16
  torch::Tensor panels;  // of served
  kernels::PackedDenseWeight packed() const;
};

// Logits [T, V] f32, without gradients.
torch::Tensor DenseLogits(const torch::Tensor& hidden, const DenseHead& head, AutogradContext& context);
// As ApplyChunkedLoss, through a trained head: gradients go to hidden and to the head's master.
torch::Tensor ApplyDenseLoss(const torch::Tensor& hidden, const DenseHead& head, const std::vector<std::int32_t>& targets,
                             double scale, double* loss_sum, AutogradContext& context);

}  // namespace nibble::trainer
