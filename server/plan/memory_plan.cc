#include "server/plan/memory_plan.h"

#include <algorithm>

#include "kernels/formats/dense.h"
#include "kernels/formats/int8.h"
#include "kernels/formats/ternary.h"
#include "server/model/kv_pool.h"
#include "server/model/stored_tensors.h"
#include "server/model/tensor_table.h"
#include "server/model/working_rows.h"
#include "server/plan/method_plan.h"
#include "server/plan/model_sizes.h"

namespace nibble::plan {
namespace {

using model::ModelConfig;

// A trainer without a model: torch, gRPC and their libraries; in a CUDA build also cuBLASLt, with or without a GPU.
#ifdef NIBBLE_CUDA
constexpr std::int64_t kProcessBytes = std::int64_t{300} << 20;
#else
constexpr std::int64_t kProcessBytes = std::int64_t{150} << 20;
#endif
// Covers the primitives that oneDNN keeps, and heap overhead.
constexpr double kSlack = 1.08;
constexpr std::int64_t kRowQuantum = 64;  // the trainer pads the rows of a micro-batch to a multiple (autograd.h)
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;  // maximum of an item, see PlanMemory

// A conversion's buffers: rows of a weight, dequantized in f32, the adapter's part in f32, and their int8 codes
// (convert/merge.h, kBlockElements).
constexpr std::int64_t kConvertBytes = (std::int64_t{4} << 20) * 9;
// Maximum number of rows of a sequence in a job's record (trainer/attempt_run.cc).
constexpr std::int64_t kRecordRows = 64;

// Bytes of a forward pass of the served form over `rows` rows, and of a KV cache of `pages` pages.
std::int64_t EvaluationBytes(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t rows,
                             std::int64_t pages, kernels::DType kv_dtype) {
  return ServedPassBytes(spec, config, rows) + pages * model::KvPool::PageBytes(config, kv_dtype);
}

// The trainer's peak from its last step to its end. `training_weights` stay until the served form is made. The trained
// values stay to the end. So do the optimizer's moments unless the last step is saved, because an interrupted attempt
// saves them.
std::int64_t PeakOfPublishing(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes,
                              const BatchShape& batch, std::int64_t training_weights, std::int64_t process) {
  const ModelSizes sizes(config);
  const PublishingBytes bytes = PlanOf(spec).Publishing(spec, config, base_bytes, training_weights);
  // During conversion the embedding is mapped, widened and rounded, unless it does not change.
  const std::int64_t stored = bytes.stored_element;
  const std::int64_t embedding = sizes.embedding * (stored == 2 ? 2 : 10);
  const std::int64_t convert = std::max(embedding, sizes.largest * (stored + 1) + kConvertBytes);
  const std::int64_t converting = training_weights + bytes.converting + convert;
  const std::int64_t rows = std::max(batch.evaluation.rows, kRecordRows);
  const std::int64_t pages = std::max(batch.evaluation.pages, model::KvPool::PagesFor(kRecordRows));
  const std::int64_t moments = spec.run.save_every > 0 ? 0 : MomentBytes(spec, TrainedParameters(spec, config));
  const std::int64_t serving = ServedModelBytes(spec, config, base_bytes) + bytes.kept + moments +
                               EvaluationBytes(spec, config, rows, pages, kernels::DType::kBF16);
  return std::max(converting, serving) + process;
}

}  // namespace

std::int64_t ServedModelBytes(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes) {
  const MethodPlan& method = PlanOf(spec);
  const model::ArtifactInfo served = method.ServedForm(spec);
  const bool ternary = served.format == model::Format::kTernary;
  std::int64_t bytes = 0;
  for (const model::TensorSpec& tensor : model::RequiredTensors(config)) {
    const std::int64_t rows = tensor.shape[0];
    switch (tensor.role) {
      case model::TensorRole::kLinear:
        if (!model::IsQuantized(tensor, config, served)) {
          bytes += kernels::PackedDenseElements(rows, tensor.shape[1]) * 2;
          break;
        }
        // Codes in tiles and f32 scales; int8 also has row sums.
        bytes += ternary ? kernels::PackedTernaryBytes(rows, tensor.shape[1]) +
                               kernels::RoundUp(rows, kernels::kTernaryTileRows) * 4
                         : kernels::PackedInt8Bytes(rows, tensor.shape[1]) +
                               kernels::RoundUp(rows, kernels::kInt8TileRows) * 8;
        break;
      case model::TensorRole::kNorm:
      case model::TensorRole::kBias: bytes += rows * 4; break;
      // The embedding as it is stored (bf16 if it is also the head). The head is added below.
      case model::TensorRole::kEmbedding:
        bytes += rows * tensor.shape[1] * method.ServedEmbeddingElement(spec, config, base_bytes);
        break;
      case model::TensorRole::kHead: break;
    }
  }
  const std::int64_t positions = std::min(config.context_limit(), spec.data.max_seq_len);
  // The head in bf16; the cosines and sines of the rope table.
  return bytes + kernels::PackedDenseElements(config.vocab_size, config.hidden_size) * 2 +
         positions * config.head_dim * 4;
}

std::int64_t ServedPassBytes(const jobs::JobSpec& spec, const ModelConfig& c, std::int64_t rows) {
  const model::ArtifactInfo served = PlanOf(spec).ServedForm(spec);
  const bool wide = served.weight_only || (served.bitnet.has_value() && served.bitnet->act_bits == 16);
  const std::int64_t code = wide ? 2 : 1;
  // Codes of one input, its scale and its outliers; or a row in bf16, which is smaller.
  const auto quantized = [&](std::int64_t cols) {
    return kernels::Int8PaddedK(cols) * code + std::int64_t{8} + std::int64_t{kernels::kMaxOutliers} * 8;
  };
  // In f32: residual stream, q, k, v, attention, o, gate, up and down; the rows that the head reads, and their logits.
  std::int64_t values = 4 * c.hidden_size + 2 * c.q_size() + 2 * c.kv_size() + 2 * c.ffn_size + c.vocab_size;
  if (c.norms == model::NormPlacement::kBlockAndLinear) values += 2 * c.hidden_size;
  if (served.bitnet.has_value()) {  // rows of linears that stay float
    for (const model::LinearKind kind : served.bitnet->float_linears) values += model::InFeatures(c, kind);
  }
  return rows * (values * 4 + (NormsEachLinear(c) ? 5 : 2) * quantized(c.hidden_size) + quantized(c.q_size()) +
                 quantized(c.ffn_size));
}

std::int64_t TrainedParameters(const jobs::JobSpec& spec, const ModelConfig& config) {
  return PlanOf(spec).TrainedParameters(spec, config);
}

std::int64_t MomentBytes(const jobs::JobSpec& spec, std::int64_t parameters) {
  if (spec.optim.optimizer == "adamw") return parameters * 8;
  // Two codes of a byte, and an f32 absmax for every 256 of them.
  if (spec.optim.optimizer == "adamw_8bit") return parameters * 2 + parameters / 256 * 8;
  return parameters * 4;
}

std::vector<MemoryItem> PlanMemory(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes,
                                   const BatchShape& batch) {
  const MethodPlan& method = PlanOf(spec);
  const std::int64_t trained = method.TrainedParameters(spec, config);
  const std::int64_t tokens = kernels::RoundUp(batch.tokens, kRowQuantum);
  const std::int64_t token_bytes = method.TokenBytes(spec, config, base_bytes);
  // Checkpointing keeps each layer's input, and one whole layer while it is recomputed. Computed in doubles, because
  // the largest batch of the largest model needs more bytes than int64 holds.
  const std::int64_t kept_bytes = spec.run.activation_checkpointing
                                      ? config.num_layers * config.hidden_size * 4 + token_bytes
                                      : config.num_layers * token_bytes;
  // Evaluations run between steps, when no activations are kept.
  std::int64_t evaluation = EvaluationBytes(spec, config, batch.evaluation.rows, batch.evaluation.pages,
                                            method.EvaluationKvDtype(base_bytes));
  if (batch.evaluation.rows > 0) evaluation += method.EvaluationWeights(config);
  const double activation =
      std::max(static_cast<double>(tokens) * static_cast<double>(kept_bytes), static_cast<double>(evaluation));
  const TrainingBytes bytes = method.Training(spec, config, base_bytes, tokens);
  // A token id and its mask; an Example beside its tokens.
  const std::int64_t data = batch.dataset_tokens * 5 + batch.examples * 64;
  const std::int64_t workspace = kProcessBytes + bytes.workspace + data;
  const auto with_slack = [](double bytes) {
    return static_cast<std::int64_t>(std::min(bytes * kSlack, static_cast<double>(kMostBytes)));
  };
  std::vector<MemoryItem> items = {{"weights", bytes.weights}};
  if (method.AdapterOptions(spec) != nullptr) items.push_back({"adapter", bytes.adapter});
  items.push_back({"optimizer", MomentBytes(spec, trained)});
  items.push_back({"activation", with_slack(activation)});
  items.push_back({"workspace", with_slack(static_cast<double>(workspace))});
  std::int64_t training = 0;
  for (MemoryItem& item : items) {
    item.bytes = std::min(item.bytes, kMostBytes);
    training += item.bytes;
  }
  const std::int64_t process = with_slack(static_cast<double>(kProcessBytes + data));
  const std::int64_t publishing = PeakOfPublishing(spec, config, base_bytes, batch, bytes.weights, process);
  if (publishing > training) items.push_back({"publishing", std::min(publishing - training, kMostBytes)});
  return items;
}

}  // namespace nibble::plan
