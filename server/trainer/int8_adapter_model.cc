#include "server/trainer/int8_adapter_model.h"

#include <torch/types.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/trainer/adapter_linear.h"
#include "server/trainer/adapter_parameters.h"
#include "server/trainer/coded_model.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using torch::Tensor;

// The linears of the base; those that are targets of the adapter have its matrices.
class Int8AdapterLinears : public CodedLinears {
 public:
  Int8AdapterLinears(std::shared_ptr<const model::LoadedModel> base, const AdapterOptions& options,
                     const kernels::Stream& stream)
      : base_(std::move(base)), options_(options), rows_{.max_outliers = base_->info().act_outliers}, stream_(stream) {}

  Sources sources() const override { return Sources::kNone; }
  bool reads_codes(LinearKind /*kind*/) const override { return !base_->info().weight_only; }
  bool recomputes_inputs() const override { return true; }
  torch::ScalarType float_rows() const override {
    return base_->info().weight_only ? torch::kBFloat16 : torch::kFloat32;
  }
  std::optional<kernels::PackedInt8Weight> int8_head() const override {
    if (!base_->info().int8_head) return std::nullopt;
    return base_->weights().head.int8;
  }

  void BeginStep(std::int64_t step) override { drops_ = step != kAfterTraining; }
  void AddLayer(const std::array<Source, model::kNumLinearKinds>& /*sources*/) override {
    const std::size_t l = layers_.size();
    auto& layer = layers_.emplace_back();
    served_.emplace_back();
    for (std::size_t k = 0; k < layer.size(); ++k) {
      const model::LinearWeight& weight = base_->weights().layers[l].linears[k];
      layer[k].weight = weight.int8;
      layer[k].bias = weight.bias;
      parameters_.AddTo(layer[k], options_, static_cast<std::int64_t>(l), static_cast<LinearKind>(k), base_->config(),
                        stream_);
    }
  }
  void AddParameters(std::vector<Parameter>& parameters) override { parameters_.AppendTo(parameters); }
  void ReleaseGradients() override { parameters_.ReleaseGradients(); }

  void Refresh(std::int64_t layer) override {
    for (AdapterLinear& linear : layers_[static_cast<std::size_t>(layer)]) linear.RefreshDora(stream_);
  }
  const CodedRowOptions& rows() const override { return rows_; }
  Tensor Apply(const CodedInput& input, std::int64_t layer, LinearKind kind, std::uint64_t draw,
               TrainingContext& context) override {
    std::optional<DropoutKey> key;
    if (drops_) key = KeyOf(options_.dropout_seed, draw, layer, kind);
    return ApplyAdapterLinear(reads_codes(kind) ? WithRows(input, rows_, context) : input, Of(layers_, layer, kind),
                              key, context);
  }
  void Serve(std::int64_t layer, LinearKind kind, model::LinearWeight& weight) override {
    const AdapterLinear& linear = Of(layers_, layer, kind);
    weight = base_->weights().layers[static_cast<std::size_t>(layer)].linear(kind);
    if (linear.lora_a.defined()) weight.lora = Of(served_, layer, kind).View(linear);
  }

 private:
  template <typename Value>
  static Value& Of(std::vector<std::array<Value, model::kNumLinearKinds>>& layers, std::int64_t layer,
                   LinearKind kind) {
    return layers[static_cast<std::size_t>(layer)][static_cast<std::size_t>(kind)];
  }

  const std::shared_ptr<const model::LoadedModel> base_;
  const AdapterOptions options_;
  const CodedRowOptions rows_;
  const kernels::Stream stream_;
  bool drops_ = true;  // whether dropout applies; false after training, as in the served model
  std::vector<std::array<AdapterLinear, model::kNumLinearKinds>> layers_;
  std::vector<std::array<ServedAdapter, model::kNumLinearKinds>> served_;
  AdapterParameters parameters_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExactModel>> MakeInt8AdapterModel(std::shared_ptr<const model::LoadedModel> base,
                                                                 const AdapterOptions& options,
                                                                 const kernels::Stream& stream) {
  const model::ArtifactInfo& info = base->info();
  if (info.format != model::Format::kInt8) {
    return absl::InvalidArgumentError(base::StrCat("wanted an int8 base, got ", model::Name(info.format)));
  }
  const model::DecoderWeights& weights = base->weights();
  if (!info.int8_head && weights.head.dense.dtype != kernels::DType::kBF16) {
    return absl::InvalidArgumentError("the float head of an int8 base is f32, wanted bf16");
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(base->directory()));
  // Read before `base` moves into the linears.
  const model::ModelConfig& config = base->config();
  const CodedModelOptions coded = {.adapter = options,
                                   .bf16_backward = options.bf16_compute,
                                   .activation_checkpointing = options.activation_checkpointing,
                                   .max_positions = base->max_positions(),
                                   .kv_dtype = info.kv_dtype,
                                   .embedding_dtype = weights.embedding.dtype,
                                   .cancelled = options.cancelled};
  return MakeCodedModel(*artifact, config, coded,
                        std::make_unique<Int8AdapterLinears>(std::move(base), options, stream), stream);
}

}  // namespace nibble::trainer
