#include "server/registry/model_memory.h"

#include <algorithm>

#include "server/base/status_macros.h"
#include "server/model/kv_pool.h"
#include "server/model/safetensors.h"
#include "server/model/stored_tensors.h"
#include "server/model/tensor_table.h"

namespace nibble::registry {

namespace {

constexpr std::int64_t kReplayRows = 64;     // rows per step: model/replay.cc
constexpr std::int64_t kEvaluateRows = 256;  // rows per step: data/evaluate.cc
// Activations of one row that exist at the same time. Hidden size: input, norm, q, k, v, attention, its projection and
// the residual sum. MLP size: gate, up and their product.
constexpr std::int64_t kHiddenVectors = 8;
constexpr std::int64_t kMlpVectors = 3;
// For each evaluated token, the most likely token of both models is kept.
constexpr std::int64_t kEvaluatedTokenBytes = 2 * sizeof(std::int32_t);
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kQuantizeBuffers = 64 * kMiB;  // blocks of 2^22 elements: convert/merge.h

std::int64_t StepBytes(const model::ModelConfig& config, std::int64_t rows) {
  const std::int64_t row = config.vocab_size + kHiddenVectors * config.hidden_size + kMlpVectors * config.ffn_size;
  return rows * row * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t KvBytes(const model::ModelConfig& config, kernels::DType dtype, std::int64_t tokens) {
  return model::KvPool::PagesFor(tokens) * model::KvPool::PageBytes(config, dtype);
}

std::int64_t StoredBytes(const model::Artifact& artifact) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : artifact.tensors()) bytes += static_cast<std::int64_t>(tensor.bytes.size());
  return bytes;
}

// The largest tensor in f32, and its codes or its copy in another type.
std::int64_t QuantizeBytes(const model::ModelConfig& config) {
  std::int64_t elements = 0;
  for (const auto& tensor : model::RequiredTensors(config))
    elements = std::max(elements, model::NumElements(tensor.shape).value_or(0));
  return elements * static_cast<std::int64_t>(2 * sizeof(float)) + kQuantizeBuffers;
}

std::int64_t AdapterBytes(const model::ModelConfig& config, const model::AdapterConfig& adapter) {
  std::int64_t elements = 0;
  for (const auto& tensor : model::AdapterTensors(config, adapter))
    elements += model::NumElements(tensor.shape).value_or(0);
  return elements * static_cast<std::int64_t>(sizeof(float));
}

// A file has narrow types first, so scales in f32 stay in memory until the codes of all weights are written.
std::int64_t HeldScaleBytes(const model::ModelConfig& config, const model::Nf4Options& nf4) {
  if (nf4.double_quant) return 0;
  std::int64_t scales = 0;
  for (const auto& tensor : model::RequiredTensors(config)) {
    if (tensor.role != model::TensorRole::kLinear) continue;
    scales += tensor.shape[0] * kernels::Nf4RowBlocks(tensor.shape[1], nf4.block);
  }
  return scales * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

WorkMemory ReplayMemory(const model::Artifact& model, const model::Record& record) {
  std::int64_t longest = 0;
  for (const auto& sequence : record.sequences)
    longest = std::max(longest, static_cast<std::int64_t>(sequence.token_ids.size()));
  return {.weights = StoredBytes(model),
          .kv_cache = KvBytes(model.config(), model.info().kv_dtype, longest),
          .buffers = StepBytes(model.config(), kReplayRows)};
}

absl::StatusOr<WorkMemory> ConvertMemory(const model::Artifact& source, const convert::ConvertOptions& options,
                                         const std::optional<EvaluationData>& evaluation) {
  const model::ModelConfig& config = source.config();
  const model::ArtifactInfo made = convert::InfoOfConversion(source.info(), options);
  const bool recorded = made.determinism() == model::Determinism::kBitwise;
  WorkMemory need;
  if (evaluation.has_value() || recorded) {
    NIBBLE_ASSIGN_OR_RETURN(need.weights, model::WeightFileBytes(config, made, /*float_bytes=*/4));
  }
  std::int64_t rows = kReplayRows, tokens = kEvaluateRows;
  if (evaluation.has_value()) {
    // Master weights are not evaluated.
    if (!source.info().is_masters()) need.weights = std::max(need.weights, StoredBytes(source));
    rows = kEvaluateRows;
    tokens = 2 * std::max(kEvaluateRows, evaluation->max_seq_len);
    need.data = evaluation->max_tokens * kEvaluatedTokenBytes;
  }
  need.buffers = QuantizeBytes(config);
  if (options.adapter_init.has_value()) {
    // The adapter is kept until the base is written, and is evaluated with the base.
    const std::int64_t adapter = AdapterBytes(config, options.adapter_init->adapter);
    need.buffers += adapter + convert::InitialAdapterBytes(*options.adapter_init, config);
    if (need.weights > 0) need.weights += adapter;
  }
  if (options.to == model::Format::kNf4) need.buffers += HeldScaleBytes(config, options.nf4);
  if (need.weights > 0) {
    need.kv_cache = std::max(KvBytes(config, made.kv_dtype, tokens), KvBytes(config, source.info().kv_dtype, tokens));
    need.buffers = std::max(need.buffers, StepBytes(config, rows));
  }
  return need;
}

WorkMemory AdapterMemory(const model::Artifact& base, std::int64_t adapter_bytes, const model::Nf4Options& nf4) {
  WorkMemory need;
  need.weights = adapter_bytes;
  const model::Format format = base.info().format;
  if (format != model::Format::kNf4 && format != model::Format::kInt8) {
    need.buffers = QuantizeBytes(base.config()) + HeldScaleBytes(base.config(), nf4);
  }
  return need;
}

WorkMemory MastersMemory(const model::ModelConfig& config) {
  WorkMemory need;
  for (const auto& tensor : model::RequiredTensors(config)) {
    need.weights += model::NumElements(tensor.shape).value_or(0) * static_cast<std::int64_t>(sizeof(float));
  }
  return need;
}

}  // namespace nibble::registry
