#include "server/trainer/bitnet_model.h"

#include <torch/torch.h>

#include <array>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/convert.h"
#include "server/model/bitnet_shape.h"
#include "server/trainer/bit_linear.h"
#include "server/trainer/coded_model.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using torch::Tensor;

class BitLinears : public CodedLinears {
 public:
  BitLinears(const BitNetOptions& options, const kernels::Stream& stream) : stream_(stream) {
    options_.activations.bits = options.act_bits;
    options_.activations.per_tensor = options.act_per_tensor;
    options_.ste = options.ste;
    options_.scale_grad = options.scale_grad;
  }

  void AddLayer(const std::array<Source, model::kNumLinearKinds>& sources) override {
    auto& layer = layers_.emplace_back();
    for (std::size_t k = 0; k < sources.size(); ++k) layer[k] = {sources[k].master, sources[k].bias, {}, {}};
  }
  void Refresh(std::int64_t layer) override {
    for (BitWeight& linear : layers_[static_cast<std::size_t>(layer)]) linear.Ternarise(stream_);
  }
  const CodedRowOptions& rows() const override { return options_; }
  Tensor Apply(const CodedInput& input, std::int64_t layer, LinearKind kind, std::uint64_t /*draw*/,
               AutogradContext& context) override {
    return ApplyBitLinear(input, Linear(layer, kind), options_, context);
  }
  void Serve(std::int64_t layer, LinearKind kind, model::LinearWeight& weight) const override {
    weight.kind = model::LinearWeight::Kind::kTernary;
    weight.ternary = Linear(layer, kind).packed();
  }

 private:
  const BitWeight& Linear(std::int64_t layer, LinearKind kind) const {
    return layers_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(kind)];
  }

  const kernels::Stream stream_;
  BitLinearOptions options_;
  std::vector<std::array<BitWeight, model::kNumLinearKinds>> layers_;
};

class TorchBitNetModel : public BitNetModel {
 public:
  TorchBitNetModel(const model::Artifact& base, const model::ModelConfig& config, const BitNetOptions& options,
                   const kernels::Stream& stream)
      : options_(options),
        model_(base, config,
               {.random_init = options.random_init,
                .init_seed = options.init_seed,
                .bf16_backward = options.bf16_backward,
                .activation_checkpointing = options.activation_checkpointing,
                .max_positions = options.max_positions,
                .kv_dtype = model::kBitNetFloatType,
                .embedding_dtype = model::kBitNetFloatType,
                .cancelled = options.cancelled},
               std::make_unique<BitLinears>(options, stream), stream) {}

  std::vector<Parameter>& parameters() override { return model_.parameters(); }
  absl::Status Refresh() override { return model_.Refresh(); }
  absl::StatusOr<double> ForwardBackward(const data::MicroBatch& batch, double scale, std::uint64_t draw) override {
    return model_.ForwardBackward(batch, scale, draw);
  }
  const model::DecoderWeights& ServingWeights() const override { return model_.ServingWeights(); }
  void ReleaseGradients() override { model_.ReleaseGradients(); }
  absl::Status ForEachTrainingLogits(std::span<const std::int32_t> tokens, const VisitLogits& visit) override {
    return model_.ForEachTrainingLogits(tokens, visit);
  }

  absl::StatusOr<model::ArtifactInfo> Write(base::FileSystem& files, const std::string& companions_from,
                                            const base::Json& provenance, const std::string& directory) const override {
    return convert::MakeTrainedModel(
        files, model_.config(),
        {.bitnet = model::BitNetInfo{.act_bits = options_.act_bits, .head_dtype = model::kBitNetFloatType},
         .kv_dtype = model::kBitNetFloatType},
        model_.Values(), companions_from, provenance, directory, "job", options_.cancelled);
  }

 private:
  const BitNetOptions options_;
  CodedModel model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BitNetModel>> BitNetModel::Create(const model::Artifact& base,
                                                                 const model::ModelConfig& config,
                                                                 const BitNetOptions& options,
                                                                 const kernels::Stream& stream) {
  if (base.info().format != model::Format::kF32 && base.info().format != model::Format::kBF16) {
    return absl::InvalidArgumentError(
        base::StrCat("bitnet_qat trains on a base in f32 or bf16, got ", model::Name(base.info().format)));
  }
  return Guarded([&]() -> absl::StatusOr<std::unique_ptr<BitNetModel>> {
    auto made = std::make_unique<TorchBitNetModel>(base, config, options, stream);
    NIBBLE_RETURN_IF_ERROR(made->Refresh());
    return std::unique_ptr<BitNetModel>(std::move(made));
  });
}

}  // namespace nibble::trainer
