#include "server/plan/memory_plan.h"

#include <algorithm>

#include "kernels/formats/dense.h"
#include "kernels/formats/int8.h"
#include "kernels/formats/ternary.h"
#include "server/model/kv_pool.h"
#include "server/model/tensor_table.h"
#include "server/model/working_rows.h"

namespace nibble::plan {
namespace {

using model::LinearKind;
using model::ModelConfig;
using model::NormPlacement;

// A trainer without a model: torch, gRPC and their libraries; in a CUDA build also cuBLASLt, with or without a GPU.
#ifdef NIBBLE_CUDA
constexpr std::int64_t kProcessBytes = std::int64_t{300} << 20;
#else
constexpr std::int64_t kProcessBytes = std::int64_t{150} << 20;
#endif
// Covers the primitives that oneDNN keeps, and heap overhead.
constexpr double kSlack = 1.08;
constexpr std::int64_t kRowQuantum = 64;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;  // maximum of an item, see PlanMemory

// A conversion's buffers: rows of a weight as they are dequantized, merged and quantized (convert.cc, kBlockElements).
constexpr std::int64_t kConvertBytes = (std::int64_t{4} << 20) * 9;
// Rows of the sequences in a job's record.
constexpr std::int64_t kRecordRows = 64;

struct Sizes {
  explicit Sizes(const ModelConfig& config) {
    for (int k = 0; k < model::kNumLinearKinds; ++k) {
      const auto kind = static_cast<LinearKind>(k);
      const std::int64_t elements = model::OutFeatures(config, kind) * model::InFeatures(config, kind);
      linears += elements * config.num_layers;
      largest = std::max(largest, elements);
    }
    embedding = config.vocab_size * config.hidden_size;
    heads = config.tied_embeddings ? 1 : 2;
    for (const model::TensorSpec& tensor : model::RequiredTensors(config)) {
      std::int64_t elements = 1;
      for (const std::int64_t size : tensor.shape) elements *= size;
      all += elements;
    }
  }
  std::int64_t linears = 0;    // elements of all linears except the head
  std::int64_t largest = 0;    // elements of the largest of these linears
  std::int64_t embedding = 0;  // elements of the embedding
  std::int64_t heads = 1;      // embedding and head together, in embeddings
  std::int64_t all = 0;        // parameters
};

bool NormsEachLinear(const ModelConfig& c) {
  return c.norms == NormPlacement::kLinear || c.norms == NormPlacement::kBlockAndLinear;
}

std::int64_t AdapterParameters(const jobs::JobSpec& spec, const ModelConfig& config) {
  std::int64_t parameters = 0;
  for (int k = 0; k < model::kNumLinearKinds; ++k) {
    const auto kind = static_cast<LinearKind>(k);
    const auto& targets = spec.qlora.target_modules;
    if (std::find(targets.begin(), targets.end(), model::ShortName(kind)) == targets.end()) continue;
    parameters += spec.qlora.r * (model::OutFeatures(config, kind) + model::InFeatures(config, kind)) * config.num_layers;
  }
  return parameters;
}

// Bytes that one token keeps in one layer until its backward pass.
std::int64_t QLoraTokenBytes(const jobs::JobSpec& spec, const ModelConfig& c, std::int64_t element) {
  // In the compute type: two norms' inputs and outputs; attention's q, k, v and output; gate, up and their product; the
  // rank-r values that each adapter keeps. In f32: one number per head.
  const std::int64_t values = 4 * c.hidden_size + 2 * c.q_size() + 2 * c.kv_size() + 3 * c.ffn_size +
                              static_cast<std::int64_t>(spec.qlora.target_modules.size()) * spec.qlora.r;
  return values * element + c.num_heads * 4;
}
std::int64_t BitNetTokenBytes(const jobs::JobSpec& spec, const ModelConfig& c) {
  const std::int64_t code = spec.bitnet_qat.act_bits == 16 ? 2 : 1;
  const bool each = NormsEachLinear(c);
  // f32: norms' inputs, q, gate and up. bf16: k and v. Codes that linears read; linears after one norm share them.
  std::int64_t inputs = 2 * c.hidden_size;
  if (c.norms != NormPlacement::kBlock) inputs += c.q_size() + c.ffn_size;
  if (c.norms == NormPlacement::kBlockAndLinear) inputs += 2 * c.hidden_size;
  return 4 * (inputs + c.q_size() + 2 * c.ffn_size) + 2 * 2 * c.kv_size() +
         code * ((each ? 5 : 2) * c.hidden_size + c.q_size() + c.ffn_size);
}

// A pass of the served form over `rows`, with a KV cache of `pages`.
std::int64_t EvaluationBytes(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t rows, std::int64_t pages) {
  return ServedPassBytes(spec, config, rows) + pages * model::KvPool::PageBytes(config, kernels::DType::kBF16);
}

// The trainer's peak from its last step to its end. `training_weights` stay until the served form is made. The trained
// values stay to the end. So do the optimizer's moments unless the last step is saved, because an interrupted attempt
// saves them.
std::int64_t PublishingBytes(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes, const BatchShape& batch,
                             std::int64_t training_weights, std::int64_t process) {
  const Sizes sizes(config);
  const bool qlora = spec.method == jobs::kMethodQLora;
  const std::int64_t trained = TrainedParameters(spec, config);
  // During conversion the embedding is mapped, widened and rounded, unless it does not change.
  const std::int64_t stored = qlora ? std::max<std::int64_t>(base_bytes, 2) : 4;
  const std::int64_t embedding = sizes.embedding * (stored == 2 ? 2 : 10);
  const std::int64_t convert = std::max(embedding, sizes.largest * (stored + 1) + kConvertBytes);
  const std::int64_t converting = training_weights + trained * (qlora ? 24 : 8) + convert;
  const std::int64_t rows = std::max(batch.evaluation.rows, kRecordRows);
  const std::int64_t pages = std::max(batch.evaluation.pages, model::KvPool::PagesFor(kRecordRows));
  const std::int64_t moments = spec.run.save_every > 0 ? 0 : trained * 8;
  const std::int64_t values = qlora ? trained * 4 : training_weights - trained * 4;  // without their gradients
  const std::int64_t serving = ServedModelBytes(spec, config, base_bytes) + values + moments + EvaluationBytes(spec, config, rows, pages);
  return std::max(converting, serving) + process;
}

}  // namespace

std::int64_t ServedModelBytes(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes) {
  const bool qlora = spec.method == jobs::kMethodQLora;
  std::int64_t bytes = 0;
  for (const model::TensorSpec& tensor : model::RequiredTensors(config)) {
    const std::int64_t rows = tensor.shape[0];
    switch (tensor.role) {
      case model::TensorRole::kLinear:
        // Codes in tiles and f32 scales; int8 also has row sums.
        bytes += qlora ? kernels::PackedInt8Bytes(rows, tensor.shape[1]) + kernels::RoundUp(rows, kernels::kInt8TileRows) * 8
                       : kernels::PackedTernaryBytes(rows, tensor.shape[1]) + kernels::RoundUp(rows, kernels::kTernaryTileRows) * 4;
        break;
      case model::TensorRole::kNorm:
      case model::TensorRole::kBias: bytes += rows * 4; break;
      // The embedding as it is stored (bf16 if it is also the head), the head in panels of bf16.
      case model::TensorRole::kEmbedding:
        bytes += rows * tensor.shape[1] * (qlora && !config.tied_embeddings ? std::max<std::int64_t>(base_bytes, 2) : 2);
        break;
      case model::TensorRole::kHead: break;
    }
  }
  const std::int64_t positions = std::min(config.context_limit(), spec.data.max_seq_len);
  return bytes + kernels::PackedDenseElements(config.vocab_size, config.hidden_size) * 2 + positions * config.head_dim * 4;
}

std::int64_t ServedPassBytes(const jobs::JobSpec& spec, const ModelConfig& c, std::int64_t rows) {
  const std::int64_t code = spec.method == jobs::kMethodBitNetQat && spec.bitnet_qat.act_bits == 16 ? 2 : 1;
  // Codes of one input, its scale and its outliers.
  const auto quantized = [&](std::int64_t cols) {
    return kernels::Int8PaddedK(cols) * code + std::int64_t{8} + std::int64_t{kernels::kMaxOutliers} * 8;
  };
  // In f32: residual stream, q, k, v, attention, o, gate, up and down; the rows that the head reads, and their logits.
  std::int64_t values = 4 * c.hidden_size + 2 * c.q_size() + 2 * c.kv_size() + 2 * c.ffn_size + c.vocab_size;
  if (c.norms == NormPlacement::kBlockAndLinear) values += 2 * c.hidden_size;
  return rows * (values * 4 + (NormsEachLinear(c) ? 5 : 2) * quantized(c.hidden_size) + quantized(c.q_size()) + quantized(c.ffn_size));
}

std::int64_t TrainedParameters(const jobs::JobSpec& spec, const ModelConfig& config) {
  return spec.method == jobs::kMethodQLora ? AdapterParameters(spec, config) : Sizes(config).all;
}

std::vector<MemoryItem> PlanMemory(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes,
                                   const BatchShape& batch) {
  const Sizes sizes(config);
  const bool qlora = spec.method == jobs::kMethodQLora;
  const std::int64_t trained = TrainedParameters(spec, config);
  const std::string& dtype = qlora ? spec.qlora.compute_dtype : spec.bitnet_qat.compute_dtype;
  const std::int64_t element = dtype == "bf16" ? 2 : 4;
  const std::int64_t tokens = kernels::RoundUp(batch.tokens, kRowQuantum);
  const std::int64_t token_bytes = qlora ? QLoraTokenBytes(spec, config, element) : BitNetTokenBytes(spec, config);
  // Checkpointing keeps each layer's input, and one whole layer while it is recomputed. Computed in doubles, because
  // the largest batch of the largest model needs more bytes than int64 holds.
  const std::int64_t kept_bytes = spec.run.activation_checkpointing
                                      ? config.num_layers * config.hidden_size * 4 + token_bytes
                                      : config.num_layers * token_bytes;
  // Evaluations run between steps, when no activations are kept.
  const std::int64_t evaluation = EvaluationBytes(spec, config, batch.evaluation.rows, batch.evaluation.pages);
  const double activation = std::max(static_cast<double>(tokens) * static_cast<double>(kept_bytes), static_cast<double>(evaluation));

  std::int64_t weights = 0, adapter = 0, workspace = kProcessBytes;
  const std::int64_t logits = model::kLossChunk * config.vocab_size;
  if (qlora) {
    // Codes and f32 block scales; embedding and head as stored; a second copy of the head if it is multiplied in
    // another type.
    weights = sizes.linears / 2 + sizes.linears / 64 * 4 + sizes.heads * sizes.embedding * std::max<std::int64_t>(base_bytes, 2);
    if (element != base_bytes) weights += sizes.embedding * element;
    adapter = trained * 4 * 3;  // values, gradients, and the form that the evaluation reads
    // A dequantized weight; logits in f32 and rounded; gate, up and the residual stream in f32 with their gradients,
    // two of them rounded; the cached K and V of one layer.
    const std::int64_t token = 8 * config.hidden_size + (8 + 2 * element) * config.ffn_size + 8 * config.kv_size();
    workspace += sizes.largest * element + logits * (4 + element) + tokens * token;
    if (base_bytes != 4) workspace += std::min(config.vocab_size, model::kWidenedRows) * config.hidden_size * 4;
  } else {
    // Masters and gradients; packed codes; embedding and head as they are served, the head also in panels.
    weights = sizes.all * 8 + sizes.linears / 4 + sizes.heads * sizes.embedding * 2 + sizes.embedding * 2;
    // The gradients of head and embedding for one micro-batch, and their sum; backward products.
    workspace += 3 * sizes.embedding * 4 + sizes.embedding * element + sizes.largest * (element + 8) + logits * (4 + element) +
                 4 * tokens * config.ffn_size * 4;
  }
  const std::int64_t data = batch.dataset_tokens * 5 + batch.examples * 64;
  workspace += data;
  const auto with_slack = [](double bytes) {
    return static_cast<std::int64_t>(std::min(bytes * kSlack, static_cast<double>(kMostBytes)));
  };
  std::vector<MemoryItem> items = {{"weights", weights}};
  if (qlora) items.push_back({"adapter", adapter});
  items.push_back({"optimizer", trained * 8});
  items.push_back({"activation", with_slack(activation)});
  items.push_back({"workspace", with_slack(static_cast<double>(workspace))});
  std::int64_t training = 0;
  for (MemoryItem& item : items) {
    item.bytes = std::min(item.bytes, kMostBytes);
    training += item.bytes;
  }
  const std::int64_t process = with_slack(static_cast<double>(kProcessBytes + data));
  const std::int64_t publishing = PublishingBytes(spec, config, base_bytes, batch, weights, process);
  if (publishing > training) items.push_back({"publishing", std::min(publishing - training, kMostBytes)});
  return items;
}

}  // namespace nibble::plan
