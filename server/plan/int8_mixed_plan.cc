#include "kernels/formats/int8.h"
#include "server/jobs/int8_mixed_method.h"
#include "server/model/working_rows.h"
#include "server/plan/float_masters_plan.h"

namespace nibble::plan {
namespace {

using model::ModelConfig;

class Int8Mixed : public FloatMastersPlan {
 public:
  const jobs::Method& method() const override { return jobs::Int8Mixed(); }

  model::ArtifactInfo ServedForm(const jobs::JobSpec& spec) const override {
    model::ArtifactInfo served = FloatMastersPlan::ServedForm(spec);
    served.act_outliers = jobs::TrainedOutliers(spec.int8_mixed).value_or(kernels::kDefaultOutliers);
    return served;
  }

  std::int64_t TokenBytes(const jobs::JobSpec& spec, const ModelConfig& c, std::int64_t) const override {
    const std::int64_t element = ElementBytes(spec.int8_mixed.compute_dtype);
    return Exact(spec) ? CodedTokenBytes(c, element) : FloatTokenBytes(c, element);
  }

  TrainingBytes Training(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t /*base_bytes*/,
                         std::int64_t tokens) const override {
    const ModelSizes sizes(config);
    const jobs::Int8MixedMethod method = jobs::WithPreset(spec.int8_mixed);
    const std::int64_t element = ElementBytes(method.compute_dtype);
    const std::int64_t master = ElementBytes(method.master_dtype);
    const std::int64_t logits = model::kLossChunk * config.vocab_size;
    const bool forward = method.forward.value();
    const bool grad_input = method.grad_input.value();
    TrainingBytes bytes;
    // Masters and gradients; codes of the linears for the forward product and of their transposes for the input's
    // gradient.
    bytes.weights = sizes.all * 2 * master + sizes.linears * (int{forward} + int{grad_input});
    if (Exact(spec)) bytes.weights += sizes.embedding * 2;  // the head in panels
    if (master == 4) {
      // Rounded to bf16: linears if one of the two products stays float; with an exact forward pass the embedding and
      // the head, as they are served, otherwise the head if products are in bf16.
      if (element == 2 && !(forward && grad_input)) bytes.weights += sizes.linears * 2;
      if (Exact(spec)) {
        bytes.weights += sizes.heads * sizes.embedding * 2;
      } else if (element == 2) {
        bytes.weights += sizes.embedding * 2;
      }
    }
    // The head as backward products read it, in f32 on a CPU without AVX-512 if it is served in bf16; gradients of head
    // and embedding; a gradient of the largest linear, also rounded if masters are bf16, and the codes that are made of
    // it; logits in f32 and rounded; gate, up and the residual stream in f32 with their gradients, the values and the
    // codes of the largest input; the cached K and V of one layer.
    const std::int64_t token = 8 * config.hidden_size + (12 + 2 * element) * config.ffn_size + 8 * config.kv_size();
    const std::int64_t linear = 4 + 2 + element + (master == 2 ? 2 : 0);
    bytes.workspace = (Exact(spec) || master == 2 ? sizes.embedding * 4 : 0) + TableGradientBytes(sizes, master) +
                      sizes.largest * linear + logits * (4 + element) + tokens * token;
    return bytes;
  }

  kernels::DType EvaluationKvDtype(std::int64_t base_bytes) const override {
    return base_bytes == 4 ? kernels::DType::kF32 : kernels::DType::kBF16;
  }
  PublishingBytes Publishing(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t /*base_bytes*/,
                             std::int64_t weights) const override {
    const std::int64_t trained = TrainedParameters(spec, config);
    // During conversion: the moments. Until the end: the weights of training without their gradients if they make the
    // record, else the values.
    const std::int64_t master = TrainedElement(spec);
    return {.stored_element = master,
            .converting = MomentBytes(spec, trained),
            .kept = Exact(spec) ? weights - trained * master : trained * master};
  }

 protected:
  convert::TrainedForm Form(const jobs::JobSpec& spec, const model::Artifact& base) const override {
    return {.kv_dtype = base.info().kv_dtype,
            .trained_outliers = jobs::TrainedOutliers(spec.int8_mixed),
            .dtype = convert::FloatType(spec.int8_mixed.master_dtype)};
  }
  std::int64_t TrainedElement(const jobs::JobSpec& spec) const override {
    return ElementBytes(spec.int8_mixed.master_dtype);
  }

 private:
  static bool Exact(const jobs::JobSpec& spec) { return jobs::WithPreset(spec.int8_mixed).exact_forward.value(); }
};

}  // namespace

const MethodPlan& Int8MixedPlan() {
  static const Int8Mixed method;
  return method;
}

}  // namespace nibble::plan
