#include "server/plan/adapter_plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/lora_method.h"
#include "server/model/safetensors.h"
#include "server/model/tensor_table.h"
#include "server/model/working_rows.h"
#include "server/plan/memory_plan.h"

namespace nibble::plan {

using base::StrCat;
using model::Format;
using model::ModelConfig;

namespace {

// Paths of the modules that are no linears of the decoder, in transformers' models.
std::vector<std::string> OtherModules(const ModelConfig& config) {
  std::vector<std::string> paths = {"",           "lm_head",         "model", "model.embed_tokens", "model.layers",
                                    "model.norm", "model.rotary_emb"};
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string path = StrCat("model.layers.", layer);
    for (const char* end : {"", ".self_attn", ".mlp", ".mlp.act_fn"}) paths.push_back(StrCat(path, end));
    for (int n = 0; n < model::kNumNorms; ++n) {
      const auto norm = static_cast<model::Norm>(n);
      const std::string name = model::NormName(layer, norm);
      if (model::HasNorm(config, norm)) paths.push_back(name.substr(0, name.rfind('.')));
    }
  }
  return paths;
}

absl::Status MatchesNothing(const std::string& field, const std::string& pattern, const char* what,
                            const ModelConfig& config) {
  return base::FieldError(field, StrCat("\"", pattern, "\" matches no ", what, ", wanted a match of a path such as ",
                                        model::ModulePath(config.num_layers - 1, model::LinearKind::kQ)));
}

// targets: the paths of the linears with an adapter.
template <typename Value>
absl::Status CheckPatterns(const std::string& field,
                           const std::vector<std::pair<model::ModulePattern, Value>>& patterns,
                           const std::vector<std::string>& targets, const ModelConfig& config) {
  std::map<std::string, std::string> matched;  // target to pattern
  for (const auto& [pattern, value] : patterns) {
    bool matches = false;
    for (const std::string& path : targets) {
      if (!pattern.MatchesEnd(path)) continue;
      matches = true;
      const auto [first, is_new] = matched.emplace(path, pattern.text());
      if (is_new) continue;
      return base::FieldError(field, StrCat("\"", first->second, "\" and \"", pattern.text(), "\" both match ", path,
                                            ", wanted at most one pattern for a linear"));
    }
    if (!matches) return MatchesNothing(field, pattern.text(), "linear with an adapter", config);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AdapterPlan::CheckNoMasters(const JobInputs& inputs) {
  if (!inputs.base_is_masters) return absl::OkStatus();
  return base::FieldError("base_model",
                          "has the master weights of a BitNet model, which run as ternary: wanted method bitnet_qat");
}

absl::Status AdapterPlan::CheckFields(const jobs::JobSpec& spec, const ModelConfig& base) const {
  NIBBLE_ASSIGN_OR_RETURN(const model::AdapterConfig adapter, jobs::AdapterOf(Adapter(spec)));
  std::vector<std::string> targets;
  for (std::int64_t layer = 0; layer < base.num_layers; ++layer) {
    for (int k = 0; k < model::kNumLinearKinds; ++k) {
      const std::string path = model::ModulePath(layer, static_cast<model::LinearKind>(k));
      if (adapter.On(path).has_value()) targets.push_back(path);
    }
  }
  if (adapter.target_pattern.has_value()) {
    const std::string field = StrCat(method().name(), ".target_pattern");
    const std::string& text = adapter.target_pattern->text();
    for (const std::string& other : OtherModules(base)) {
      if (!adapter.target_pattern->MatchesPath(other)) continue;
      return base::FieldError(
          field, StrCat("\"", text, "\" matches \"", other, "\", wanted only linears of the decoder, such as ",
                        model::ModulePath(0, model::LinearKind::kQ)));
    }
    if (targets.empty()) return MatchesNothing(field, text, "linear of the decoder", base);
  }
  NIBBLE_RETURN_IF_ERROR(CheckPatterns(StrCat(method().name(), ".rank_pattern"), adapter.rank_pattern, targets, base));
  return CheckPatterns(StrCat(method().name(), ".alpha_pattern"), adapter.alpha_pattern, targets, base);
}

model::ArtifactInfo AdapterPlan::ServedForm(const jobs::JobSpec& /*spec*/) const {
  model::ArtifactInfo served;
  served.format = Format::kInt8;
  return served;
}

std::vector<model::TensorPlan> AdapterPlan::AdapterTensors(const jobs::JobSpec& spec, const ModelConfig& config) const {
  return model::AdapterTensors(config, *jobs::AdapterOf(Adapter(spec)));
}

std::int64_t AdapterPlan::TrainedParameters(const jobs::JobSpec& spec, const ModelConfig& config) const {
  std::int64_t parameters = 0;
  for (const model::TensorPlan& tensor : AdapterTensors(spec, config)) {
    parameters += model::NumElements(tensor.shape).value_or(0);
  }
  return parameters;
}

std::int64_t AdapterPlan::TokenBytes(const jobs::JobSpec& spec, const ModelConfig& c, std::int64_t base_bytes) const {
  // On an int8 base, linears may read codes, and adapters then read the f32 values that these stand for.
  const bool coded = base_bytes == 1;
  const std::int64_t element = coded ? 4 : ElementBytes(Adapter(spec).compute_dtype);
  // Each adapter also keeps its rank-r values (the rank is the number of rows of A), and with DoRA its output.
  std::int64_t values = 0;
  for (const model::TensorPlan& tensor : AdapterTensors(spec, c)) {
    if (!tensor.name.ends_with(model::kLoraBSuffix)) values += tensor.shape[0];
  }
  return (coded ? CodedTokenBytes(c) : FloatTokenBytes(c, element)) +
         (values + c.num_layers - 1) / c.num_layers * element;
}

TrainingBytes AdapterPlan::Training(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes,
                                    std::int64_t tokens) const {
  const ModelSizes sizes(config);
  const std::int64_t element = ElementBytes(Adapter(spec).compute_dtype);
  const std::int64_t logits = model::kLossChunk * config.vocab_size;
  TrainingBytes bytes;
  // The linears; embedding and head as stored; a second copy of the head if it is multiplied in another type.
  bytes.weights =
      LinearBytes(spec, sizes, base_bytes) + sizes.heads * sizes.embedding * std::max<std::int64_t>(base_bytes, 2);
  if (element != base_bytes) bytes.weights += sizes.embedding * element;
  bytes.adapter = TrainedParameters(spec, config) * 4 * 3;  // values, gradients, and the form that the evaluation reads
  // A weight in the type of products; logits in f32 and rounded; gate, up and the residual stream in f32 with their
  // gradients, two of them rounded; the cached K and V of one layer.
  const std::int64_t token = 8 * config.hidden_size + (8 + 2 * element) * config.ffn_size + 8 * config.kv_size();
  bytes.workspace = sizes.largest * element + logits * (4 + element) + tokens * token;
  if (base_bytes != 4) bytes.workspace += std::min(config.vocab_size, model::kWidenedRows) * config.hidden_size * 4;
  return bytes;
}

PublishingBytes AdapterPlan::Publishing(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes,
                                        std::int64_t /*weights*/) const {
  const std::int64_t trained = TrainedParameters(spec, config);
  // During conversion: the moments, and in f32 values, gradients, the form that the evaluation reads, and the copy
  // that is written. Until the end: the values.
  return {.stored_element = std::max<std::int64_t>(base_bytes, 2),
          .converting = trained * 16 + MomentBytes(spec, trained),
          .kept = trained * 4};
}

std::int64_t AdapterPlan::ServedEmbeddingElement(const jobs::JobSpec& /*spec*/, const ModelConfig& config,
                                                 std::int64_t base_bytes) const {
  return config.tied_embeddings ? 2 : std::max<std::int64_t>(base_bytes, 2);
}

double AdapterPlan::WeightFileBytes(const jobs::JobSpec& spec, const ModelConfig& config,
                                    std::int64_t base_bytes) const {
  return static_cast<double>(TrainedParameters(spec, config) * 4) +
         FileBytes(config, Format::kInt8, ServedEmbeddingElement(spec, config, base_bytes));
}

}  // namespace nibble::plan
