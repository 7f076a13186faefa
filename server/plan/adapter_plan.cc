#include "server/plan/adapter_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/lora_method.h"
#include "server/model/adapter_targets.h"
#include "server/model/safetensors.h"
#include "server/model/saved_modules.h"
#include "server/model/tensor_table.h"
#include "server/model/working_rows.h"
#include "server/plan/memory_plan.h"

namespace nibble::plan {

using base::StrCat;
using model::Format;
using model::ModelConfig;

absl::Status AdapterPlan::CheckAnyBase(const jobs::JobSpec& spec, const JobInputs& inputs) const {
  if (inputs.base_is_masters) {
    return base::FieldError("base_model",
                            "has the master weights of a BitNet model, which run as ternary: wanted method bitnet_qat");
  }
  NIBBLE_ASSIGN_OR_RETURN(const model::AdapterConfig adapter, jobs::AdapterOf(Adapter(spec)));
  std::string problem = model::SavedModulesProblem(inputs.config, adapter, inputs.base_int8_head);
  return problem.empty() ? absl::OkStatus()
                         : base::FieldError(StrCat(method().name(), ".modules_to_save"), std::move(problem));
}

absl::Status AdapterPlan::CheckFields(const jobs::JobSpec& spec, const ModelConfig& base) const {
  NIBBLE_ASSIGN_OR_RETURN(const model::AdapterConfig adapter, jobs::AdapterOf(Adapter(spec)));
  return model::CheckAdapterTargets(method().name(), adapter, base);
}

model::ArtifactInfo AdapterPlan::ServedForm(const jobs::JobSpec& /*spec*/) const {
  model::ArtifactInfo served;
  served.format = Format::kInt8;
  return served;
}

std::vector<model::TensorPlan> AdapterPlan::AdapterTensors(const jobs::JobSpec& spec, const ModelConfig& config) const {
  return model::AdapterTensors(config, *jobs::AdapterOf(Adapter(spec)));
}

std::vector<model::TensorSpec> AdapterPlan::SavedTensors(const jobs::JobSpec& spec, const ModelConfig& config) const {
  return model::SavedTensors(config, *jobs::AdapterOf(Adapter(spec)));
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
    const bool adapts = tensor.name.ends_with(model::kLoraASuffix) || tensor.name.ends_with(model::kMagnitudeSuffix);
    if (adapts) values += tensor.shape[0];
  }
  return (coded ? CodedAdapterTokenBytes(c, ElementBytes(Adapter(spec).compute_dtype))
                : RecomputedTokenBytes(c, element)) +
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
  // A weight in the type of products; logits in f32 and rounded; the residual stream and its gradient in f32; gate and
  // up in f32, and their gradients in the type of products; the cached K and V of one layer.
  const std::int64_t token = 8 * config.hidden_size + (8 + 2 * element) * config.ffn_size + 8 * config.kv_size();
  bytes.workspace = sizes.largest * element + logits * (4 + element) + tokens * token;
  if (base_bytes != 4) bytes.workspace += std::min(config.vocab_size, model::kWidenedRows) * config.hidden_size * 4;
  // Of a trained embedding or head: the form of the matrix that backward products read.
  for (const model::TensorSpec& tensor : SavedTensors(spec, config)) {
    if (tensor.role != model::TensorRole::kNorm) bytes.workspace += sizes.embedding * 4;
  }
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
