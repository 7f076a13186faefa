#include "server/plan/model_sizes.h"

#include <algorithm>

#include "kernels/formats/int8.h"
#include "server/model/stored_tensors.h"
#include "server/model/tensor_table.h"

namespace nibble::plan {

ModelSizes::ModelSizes(const model::ModelConfig& config) {
  for (int k = 0; k < model::kNumLinearKinds; ++k) {
    const auto kind = static_cast<model::LinearKind>(k);
    const std::int64_t elements = model::OutFeatures(config, kind) * model::InFeatures(config, kind);
    linears += elements * config.num_layers;
    linear_rows += model::OutFeatures(config, kind) * config.num_layers;
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

std::int64_t TableGradientBytes(const ModelSizes& sizes, std::int64_t element) {
  return element == 4 ? 0 : sizes.embedding * 3 * 4;
}

std::int64_t HeadNormBytes(const model::ModelConfig& c) {
  return c.qk_norm ? 4 * (c.q_size() + c.kv_size() + c.num_heads + c.num_kv_heads) : 0;
}

std::int64_t FloatTokenBytes(const model::ModelConfig& c, std::int64_t element) {
  // In the linears' type: two norms' inputs and outputs; attention's q, k, v and output; gate, up and their product. In
  // f32: one number per head.
  const std::int64_t values = 4 * c.hidden_size + 2 * c.q_size() + 2 * c.kv_size() + 3 * c.ffn_size;
  return values * element + c.num_heads * 4 + HeadNormBytes(c);
}

std::int64_t RecomputedTokenBytes(const model::ModelConfig& c, std::int64_t element) {
  return FloatTokenBytes(c, element) - (2 * c.hidden_size + c.ffn_size) * element;
}

std::int64_t CodedGraphBytes(const model::ModelConfig& c, std::int64_t element, std::int64_t norm_element) {
  std::int64_t inputs = 2 * c.hidden_size;
  if (c.norms != model::NormPlacement::kBlock) inputs += c.q_size() + c.ffn_size;
  if (c.norms == model::NormPlacement::kBlockAndLinear) inputs += 2 * c.hidden_size;
  // q, gate and up in the graph's type; if that is bf16, also the result of attention, and a number per head in f32; k
  // and v in bf16.
  const std::int64_t attention = element == 2 ? 2 * c.q_size() + 4 * c.num_heads : 0;
  return (NormsEachLinear(c) ? 4 : norm_element) * inputs + element * (c.q_size() + 2 * c.ffn_size) + attention +
         2 * 2 * c.kv_size() + HeadNormBytes(c);
}

// A row of codes without the codes: a scale and outliers.
constexpr std::int64_t kRowBytes = 4 + 4 + kernels::kMaxOutliers * 8;

std::int64_t CodedTokenBytes(const model::ModelConfig& c, std::int64_t element) {
  // Four inputs of linears as rows of codes.
  return CodedGraphBytes(c, element, element) + 2 * c.hidden_size + c.q_size() + c.ffn_size + 4 * kRowBytes;
}

std::int64_t CodedAdapterTokenBytes(const model::ModelConfig& c, std::int64_t element) {
  // In f32, the graph keeps no result of attention from which its codes could be made.
  return CodedGraphBytes(c, element, element) + (element == 4 ? c.q_size() + kRowBytes : 0);
}

bool NormsEachLinear(const model::ModelConfig& config) {
  return config.norms == model::NormPlacement::kLinear || config.norms == model::NormPlacement::kBlockAndLinear;
}

double FileBytes(const model::ModelConfig& config, model::Format format, std::int64_t float_bytes) {
  model::ArtifactInfo info;
  info.format = format;
  return FileBytes(config, info, float_bytes);
}

double FileBytes(const model::ModelConfig& config, const model::ArtifactInfo& info, std::int64_t float_bytes) {
  return static_cast<double>(model::WeightFileBytes(config, info, float_bytes).value_or(0));
}

}  // namespace nibble::plan
