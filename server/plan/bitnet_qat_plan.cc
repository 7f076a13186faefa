#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/convert/checkpoint_model.h"
#include "server/model/bitnet_shape.h"
#include "server/model/tensor_table.h"
#include "server/model/working_rows.h"
#include "server/plan/memory_plan.h"
#include "server/plan/method_plan.h"
#include "server/plan/model_sizes.h"
#include "server/registry/model_memory.h"

namespace nibble::plan {
namespace {

using model::Format;
using model::ModelConfig;
using model::NormPlacement;

class BitNetQat : public MethodPlan {
 public:
  const jobs::Method& method() const override { return jobs::BitNetQat(); }

  absl::Status CheckBase(const jobs::JobSpec&, const JobInputs& inputs) const override {
    if (inputs.base_format == "f32" || inputs.base_format == "bf16") return absl::OkStatus();
    return base::FieldError("base_model",
                            base::StrCat("is stored as ", inputs.base_format, ", wanted a model in f32 or bf16"));
  }

  ModelConfig TrainedConfig(const jobs::JobSpec& spec, const ModelConfig& base) const override {
    return model::BitNetShape(base, spec.bitnet_qat.preset);
  }
  model::ArtifactInfo ServedForm(const jobs::JobSpec& spec) const override {
    model::ArtifactInfo served;
    served.format = Format::kTernary;
    served.bitnet = Info(spec);
    return served;
  }

  std::int64_t TrainedParameters(const jobs::JobSpec&, const ModelConfig& config) const override {
    return ModelSizes(config).all;
  }

  std::int64_t CheckpointValueBytes(const jobs::JobSpec& spec, const ModelConfig& config) const override {
    return TrainedParameters(spec, config) * ElementBytes(spec.bitnet_qat.master_dtype);
  }

  std::int64_t TokenBytes(const jobs::JobSpec& spec, const ModelConfig& c, std::int64_t) const override {
    const std::int64_t code = spec.bitnet_qat.has_ramp() ? 4 : spec.bitnet_qat.act_bits == 16 ? 2 : 1;
    const std::int64_t element = ElementBytes(spec.bitnet_qat.compute_dtype);
    // A gradient through the scales of rows reads the norms' inputs as they are.
    const bool exact_inputs = spec.bitnet_qat.scale_grad && spec.bitnet_qat.ste != "identity";
    // Linears that stay float keep f32 rows. Ternary linears behind the same norm as such a linear do not share their
    // codes: each keeps its own.
    std::int64_t beside_floats = 0;
    for (const model::LinearKind kind : Info(spec).float_linears) {
      beside_floats += 4 * model::InFeatures(c, kind) + (NormsEachLinear(c) ? 0 : code * c.hidden_size);
    }
    // Codes that linears read, or floats in a ramp; linears after one norm share them.
    return CodedGraphBytes(c, element, exact_inputs ? 4 : element) + beside_floats +
           code * ((NormsEachLinear(c) ? 5 : 2) * c.hidden_size + c.q_size() + c.ffn_size);
  }

  TrainingBytes Training(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t /*base_bytes*/,
                         std::int64_t tokens) const override {
    const ModelSizes sizes(config);
    const std::int64_t element = ElementBytes(spec.bitnet_qat.compute_dtype);
    const std::int64_t master = ElementBytes(spec.bitnet_qat.master_dtype);
    const std::int64_t logits = model::kLossChunk * config.vocab_size;
    TrainingBytes bytes;
    const std::int64_t floats = FloatLinearElements(spec, config);
    // Masters and gradients; packed codes; the head and linears that stay float in panels.
    bytes.weights = sizes.all * 2 * master + (sizes.linears - floats) / 4 + (sizes.embedding + floats) * 2;
    // Embedding, head and linears that stay float, rounded to bf16 as they are served. Masters in bf16 need no rounded
    // copy.
    if (master == 4) bytes.weights += (sizes.heads * sizes.embedding + floats) * 2;
    // Gradients of head and embedding; the head as backward products read it, in f32 on a CPU without AVX-512; backward
    // products.
    bytes.workspace = TableGradientBytes(sizes, master) + sizes.embedding * 4 + sizes.largest * (element + 8) +
                      logits * (4 + element) + 4 * tokens * config.ffn_size * 4;
    if (spec.bitnet_qat.has_ramp()) {
      // A linear's weight between master and ternary form, also in the type of backward products; its rows in f32 and
      // as codes; for the estimator, a second gradient of each.
      bytes.workspace += sizes.largest * (4 + element + 4) + tokens * config.ffn_size * (4 + 4 + element);
    }
    return bytes;
  }

  PublishingBytes Publishing(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t /*base_bytes*/,
                             std::int64_t weights) const override {
    const std::int64_t trained = TrainedParameters(spec, config);
    // During conversion: the moments. Until the end: the weights of training without their gradients.
    const std::int64_t master = ElementBytes(spec.bitnet_qat.master_dtype);
    return {.stored_element = master, .converting = MomentBytes(spec, trained), .kept = weights - trained * master};
  }

  std::int64_t ServedEmbeddingElement(const jobs::JobSpec&, const ModelConfig&, std::int64_t) const override {
    return 2;
  }

  double WeightFileBytes(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t) const override {
    const std::int64_t master = ElementBytes(spec.bitnet_qat.master_dtype);
    return FileBytes(config, master == 2 ? Format::kBF16 : Format::kF32, master) +
           FileBytes(config, ServedForm(spec), 2);
  }

  void AddWarnings(const jobs::JobSpec& spec, std::vector<PlanWarning>& warnings) const override {
    if (spec.bitnet_qat.act_scale != "per_tensor") return;
    warnings.push_back({"PER_TENSOR_ACTIVATIONS",
                        "bitnet_qat.act_scale: rows share a scale in training; the served model has one per token",
                        {}});
  }

  registry::WorkMemory CheckpointMemory(const jobs::JobSpec& spec, const model::Artifact& base,
                                        std::int64_t /*checkpoint_bytes*/) const override {
    return registry::MastersMemory(TrainedConfig(spec, base.config()));
  }

  absl::StatusOr<model::ArtifactInfo> MakeCheckpointModel(base::FileSystem& files, const CheckpointToPublish& source,
                                                          const kernels::Stream& /*stream*/) const override {
    const kernels::DType dtype = convert::FloatType(source.spec.bitnet_qat.master_dtype);
    return convert::MakeTrainedCheckpointModel(
        files, source.target.base, TrainedConfig(source.spec, source.target.base.config()),
        {.bitnet = Info(source.spec), .kv_dtype = model::kBitNetFloatType, .dtype = dtype}, source.directory,
        source.target.provenance, source.target.directory);
  }

 private:
  static std::int64_t FloatLinearElements(const jobs::JobSpec& spec, const ModelConfig& config) {
    std::int64_t elements = 0;
    for (const model::LinearKind kind : Info(spec).float_linears) {
      elements += config.num_layers * model::OutFeatures(config, kind) * model::InFeatures(config, kind);
    }
    return elements;
  }
  static model::BitNetInfo Info(const jobs::JobSpec& spec) {
    return model::BitNetInfoOf(spec.bitnet_qat.preset, static_cast<int>(spec.bitnet_qat.act_bits),
                               spec.bitnet_qat.modules_to_not_convert);
  }
};

}  // namespace

const MethodPlan& BitNetQatPlan() {
  static const BitNetQat method;
  return method;
}

}  // namespace nibble::plan
