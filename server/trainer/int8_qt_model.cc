#include "server/trainer/int8_qt_model.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <vector>

#include "server/trainer/coded_model.h"
#include "server/trainer/int8_qt_linear.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using torch::Tensor;

class Int8QtLinears : public CodedLinears {
 public:
  Int8QtLinears(const Int8QtOptions& options, const kernels::Stream& stream)
      : options_(options), rows_{.max_outliers = options.max_outliers}, stream_(stream) {}

  Sources sources() const override { return Sources::kValues; }

  void AddLayer(const std::array<Source, model::kNumLinearKinds>& sources) override {
    auto& layer = layers_.emplace_back();
    const torch::ScalarType grad_type = options_.bf16_compute ? torch::kBFloat16 : torch::kFloat32;
    for (std::size_t k = 0; k < sources.size(); ++k) {
      layer[k] = Int8QtWeight::Make(sources[k].weight, options_.one_scale, grad_type, stream_);
      layer[k].bias = sources[k].bias;
    }
    if (layers_.size() == 1) panels_ = PanelsFor(layer);  // all layers have the same shapes
  }
  void AddParameters(std::vector<Parameter>& parameters) override {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      for (std::size_t k = 0; k < layers_[l].size(); ++k) {
        const Int8QtWeight& weight = layers_[l][k];
        const std::string path = model::ModulePath(static_cast<std::int64_t>(l), static_cast<LinearKind>(k));
        parameters.push_back({.name = path + ".weight",
                              .shape = weight.codes.sizes().vec(),
                              .value = weight.value(),
                              .grad = RefOf(weight.grad),
                              .to_nearest = !options_.stochastic_rounding,
                              .one_scale = options_.one_scale});
      }
    }
  }
  void ReleaseGradients() override {
    for (auto& layer : layers_) {
      for (Int8QtWeight& weight : layer) weight.grad.reset();
    }
  }
  void Refresh(std::int64_t /*layer*/) override {}
  const CodedRowOptions& rows() const override { return rows_; }

  bool reads_codes(LinearKind) const override { return !options_.float_rows; }
  torch::ScalarType float_rows() const override { return options_.float_rows ? torch::kBFloat16 : torch::kFloat32; }

  Tensor Apply(const CodedInput& input, std::int64_t layer, LinearKind kind, std::uint64_t /*draw*/,
               TrainingContext& context) override {
    return ApplyInt8QtLinear(options_.float_rows ? input : WithRows(input, rows_, context), Linear(layer, kind),
                             panels_, context);
  }

  // Evaluations read all linears in the packed form, which EndServing frees.
  void Serve(std::int64_t layer, LinearKind kind, model::LinearWeight& weight) override {
    served_.push_back(PanelsFor({Linear(layer, kind)}));
    weight.kind = options_.float_rows ? model::LinearWeight::Kind::kInt8Weight : model::LinearWeight::Kind::kInt8;
    weight.int8 = Linear(layer, kind).Pack(served_.back(), stream_);
  }
  void EndServing() override { served_.clear(); }

 private:
  const Int8QtWeight& Linear(std::int64_t layer, LinearKind kind) const {
    return layers_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(kind)];
  }
  // Memory for the largest of the weights.
  static Int8Panels PanelsFor(c10::ArrayRef<Int8QtWeight> weights) {
    std::int64_t bytes = 0;
    std::int64_t rows = 0;
    for (const Int8QtWeight& weight : weights) {
      bytes = std::max(bytes, kernels::PackedInt8Bytes(weight.codes.size(0), weight.codes.size(1)));
      rows = std::max(rows, kernels::RoundUp(weight.codes.size(0), kernels::kInt8TileRows));
    }
    return {torch::empty({bytes}, torch::kInt8), torch::empty({rows}, torch::kInt32)};
  }

  const Int8QtOptions options_;
  const CodedRowOptions rows_;
  const kernels::Stream stream_;
  std::vector<std::array<Int8QtWeight, model::kNumLinearKinds>> layers_;
  Int8Panels panels_;
  std::vector<Int8Panels> served_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExactModel>> MakeInt8QtModel(const model::Artifact& base, const Int8QtOptions& options,
                                                            const kernels::Stream& stream) {
  if (base.info().is_masters() ||
      (base.info().format != model::Format::kF32 && base.info().format != model::Format::kBF16)) {
    return absl::InvalidArgumentError("int8_qt trains a base in f32 or bf16");
  }
  return MakeCodedModel(base, base.config(),
                        {.random_init = options.random_init,
                         .init_seed = options.init_seed,
                         .bf16_backward = options.bf16_compute,
                         .activation_checkpointing = options.activation_checkpointing,
                         .max_positions = options.max_positions,
                         .kv_dtype = kernels::DType::kBF16,
                         .embedding_dtype = kernels::DType::kF32,
                         .cancelled = options.cancelled},
                        std::make_unique<Int8QtLinears>(options, stream), stream);
}

}  // namespace nibble::trainer
