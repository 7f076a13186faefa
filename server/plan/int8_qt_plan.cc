#include "kernels/formats/int8.h"
#include "server/model/working_rows.h"
#include "server/plan/float_masters_plan.h"

namespace nibble::plan {
namespace {

using model::ModelConfig;

class Int8Qt : public FloatMastersPlan {
 public:
  const jobs::Method& method() const override { return jobs::Int8Qt(); }

  model::ArtifactInfo ServedForm(const jobs::JobSpec& spec) const override {
    model::ArtifactInfo served = FloatMastersPlan::ServedForm(spec);
    served.act_outliers = static_cast<int>(spec.int8_qt.act_outliers);
    served.weight_only = ReadsFloatRows(spec);
    return served;
  }

  // Codes of the linears and a scale in f32 for each of their rows; the others in f32.
  std::int64_t CheckpointValueBytes(const jobs::JobSpec& /*spec*/, const ModelConfig& config) const override {
    const ModelSizes sizes(config);
    return sizes.linears + (sizes.linear_rows + sizes.all - sizes.linears) * 4;
  }

  std::int64_t TokenBytes(const jobs::JobSpec& spec, const ModelConfig& c, std::int64_t) const override {
    return ReadsFloatRows(spec) ? FloatTokenBytes(c, 2) : CodedTokenBytes(c, ElementBytes(spec.int8_qt.compute_dtype));
  }

  TrainingBytes Training(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t /*base_bytes*/,
                         std::int64_t tokens) const override {
    const ModelSizes sizes(config);
    const std::int64_t element = ElementBytes(spec.int8_qt.compute_dtype);
    const std::int64_t logits = model::kLossChunk * config.vocab_size;
    TrainingBytes bytes;
    // Codes of the linears and their gradients; values and gradients of the others in f32; the embedding and the head
    // as they are served, the head also in panels.
    bytes.weights = sizes.linears * (1 + element) + (sizes.all - sizes.linears) * 8 +
                    sizes.heads * sizes.embedding * 2 + sizes.embedding * 2;
    // The head as backward products read it, in f32 on a CPU without AVX-512; of the largest linear: the codes widened
    // for backward products, and in an optimizer step the values in f32 with new codes, and the packed form; logits in
    // f32 and rounded; gate, up and the residual stream in f32 with their gradients, the values and the codes of the
    // largest input; the cached K and V of one layer.
    const std::int64_t token = 8 * config.hidden_size + (12 + 2 * element) * config.ffn_size + 8 * config.kv_size();
    bytes.workspace =
        sizes.embedding * 4 + sizes.largest * (element + 4 + 1 + 1) + logits * (4 + element) + tokens * token;
    return bytes;
  }

  std::int64_t EvaluationWeights(const ModelConfig& config) const override { return ModelSizes(config).linears; }
  PublishingBytes Publishing(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t /*base_bytes*/,
                             std::int64_t weights) const override {
    const ModelSizes sizes(config);
    const std::int64_t gradients =
        sizes.linears * ElementBytes(spec.int8_qt.compute_dtype) + (sizes.all - sizes.linears) * 4;
    // While the model is written: the moments. Until the end: the weights of training, which make the record, without
    // their gradients.
    return {.stored_element = 4,
            .converting = MomentBytes(spec, TrainedParameters(spec, config)),
            .kept = weights - gradients};
  }
  double WeightFileBytes(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes) const override {
    return FileBytes(config, model::Format::kInt8, ServedEmbeddingElement(spec, config, base_bytes));
  }

 protected:
  convert::TrainedForm Form(const jobs::JobSpec& spec, const model::Artifact& /*base*/) const override {
    return {.trained_outliers = static_cast<int>(spec.int8_qt.act_outliers),
            .weight_only = ReadsFloatRows(spec),
            .dtype = kernels::DType::kI8};
  }

 private:
  // Whether linears read rows in bf16 instead of codes.
  static bool ReadsFloatRows(const jobs::JobSpec& spec) { return spec.int8_qt.compute == "float"; }
};

}  // namespace

const MethodPlan& Int8QtPlan() {
  static const Int8Qt method;
  return method;
}

}  // namespace nibble::plan
