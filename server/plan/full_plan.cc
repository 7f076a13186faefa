#include "server/model/working_rows.h"
#include "server/plan/float_masters_plan.h"

namespace nibble::plan {
namespace {

using model::ModelConfig;

class Full : public FloatMastersPlan {
 public:
  const jobs::Method& method() const override { return jobs::Full(); }

  std::int64_t TokenBytes(const jobs::JobSpec& spec, const ModelConfig& c, std::int64_t) const override {
    return RecomputedTokenBytes(c, ElementBytes(spec.full.compute_dtype));
  }

  TrainingBytes Training(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t /*base_bytes*/,
                         std::int64_t tokens) const override {
    const ModelSizes sizes(config);
    const std::int64_t element = ElementBytes(spec.full.compute_dtype);
    const std::int64_t logits = model::kLossChunk * config.vocab_size;
    TrainingBytes bytes;
    // Values and gradients; linears and head rounded to bf16 if products are in bf16 and the values are not.
    const std::int64_t value = ElementBytes(spec.full.param_dtype);
    bytes.weights = sizes.all * 2 * value;
    if (element == 2 && value == 4) bytes.weights += (sizes.linears + sizes.embedding) * 2;
    // Without AVX-512, backward products read the head and one linear at a time widened to f32.
    if (value == 2) bytes.weights += sizes.embedding * 4 + sizes.largest * 4;
    // Gradients of head and embedding; a gradient of the largest linear, rounded and in f32, unless it is added to an
    // f32 gradient in slices; logits in f32 and rounded; the residual stream and its gradient in f32; gate and up in
    // f32, and their gradients in the type of products; the cached K and V of one layer.
    const std::int64_t token = 8 * config.hidden_size + (8 + 2 * element) * config.ffn_size + 8 * config.kv_size();
    const std::int64_t gradient = value == 4 ? 0 : sizes.largest * (4 + element);
    bytes.workspace = TableGradientBytes(sizes, value) + gradient + logits * (4 + element) + tokens * token;
    return bytes;
  }

  // The evaluated model has the KV type of its base: f32 for a base in f32, else bf16.
  kernels::DType EvaluationKvDtype(std::int64_t base_bytes) const override {
    return base_bytes == 4 ? kernels::DType::kF32 : kernels::DType::kBF16;
  }
  PublishingBytes Publishing(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t /*base_bytes*/,
                             std::int64_t /*weights*/) const override {
    const std::int64_t trained = TrainedParameters(spec, config);
    // During conversion: the moments. Until the end: the values.
    const std::int64_t value = ElementBytes(spec.full.param_dtype);
    return {.stored_element = value, .converting = MomentBytes(spec, trained), .kept = trained * value};
  }

 protected:
  convert::TrainedForm Form(const jobs::JobSpec& spec, const model::Artifact& base) const override {
    return {.kv_dtype = base.info().kv_dtype, .dtype = convert::FloatType(spec.full.param_dtype)};
  }
  std::int64_t TrainedElement(const jobs::JobSpec& spec) const override { return ElementBytes(spec.full.param_dtype); }
};

}  // namespace

const MethodPlan& FullPlan() {
  static const Full method;
  return method;
}

}  // namespace nibble::plan
