#include "server/trainer/bitnet_model.h"

#include <torch/types.h>

#include <array>
#include <vector>

#include "server/base/strings.h"
#include "server/model/bitnet_shape.h"
#include "server/trainer/bit_linear.h"
#include "server/trainer/coded_model.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using torch::Tensor;

class BitLinears : public CodedLinears {
 public:
  BitLinears(const BitNetOptions& options, const kernels::Stream& stream)
      : stream_(stream), ramp_(options.ramp), share_(ramp_.Share(0)) {
    options_.activations.bits = options.act_bits;
    options_.activations.per_tensor = options.act_per_tensor;
    options_.ste = options.ste;
    options_.scale_grad = options.scale_grad;
  }

  void BeginStep(std::int64_t step) override { share_ = ramp_.Share(step); }
  bool reads_codes() const override { return share_ == 1.0; }

  void AddLayer(const std::array<Source, model::kNumLinearKinds>& sources) override {
    auto& layer = layers_.emplace_back();
    for (std::size_t k = 0; k < sources.size(); ++k) layer[k] = {sources[k].weight, sources[k].bias, {}, {}};
  }
  void Refresh(std::int64_t layer) override {
    for (BitWeight& linear : layers_[static_cast<std::size_t>(layer)]) linear.Ternarise(stream_);
  }
  const CodedRowOptions& rows() const override { return options_; }
  Tensor Apply(const CodedInput& input, std::int64_t layer, LinearKind kind, std::uint64_t /*draw*/,
               AutogradContext& context) override {
    if (share_ < 1.0) return ApplyPartlyBitLinear(input.x, Linear(layer, kind), options_, share_, context);
    return ApplyBitLinear(input, Linear(layer, kind), options_, context);
  }
  void Serve(std::int64_t layer, LinearKind kind, model::LinearWeight& weight) override {
    weight.kind = model::LinearWeight::Kind::kTernary;
    weight.ternary = Linear(layer, kind).packed();
  }

 private:
  const BitWeight& Linear(std::int64_t layer, LinearKind kind) const {
    return layers_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(kind)];
  }

  const kernels::Stream stream_;
  const QuantizationRamp ramp_;
  double share_;  // of the current step
  BitLinearOptions options_;
  std::vector<std::array<BitWeight, model::kNumLinearKinds>> layers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExactModel>> MakeBitNetModel(const model::Artifact& base,
                                                            const model::ModelConfig& config,
                                                            const BitNetOptions& options,
                                                            const kernels::Stream& stream) {
  if (base.info().format != model::Format::kF32 && base.info().format != model::Format::kBF16) {
    return absl::InvalidArgumentError(
        base::StrCat("bitnet_qat trains on a base in f32 or bf16, got ", model::Name(base.info().format)));
  }
  return MakeCodedModel(base, config,
                        {.random_init = options.random_init,
                         .init_seed = options.init_seed,
                         .bf16_backward = options.bf16_backward,
                         .bf16_parameters = options.bf16_masters,
                         .activation_checkpointing = options.activation_checkpointing,
                         .max_positions = options.max_positions,
                         .kv_dtype = model::kBitNetFloatType,
                         .embedding_dtype = model::kBitNetFloatType,
                         .cancelled = options.cancelled},
                        std::make_unique<BitLinears>(options, stream), stream);
}

}  // namespace nibble::trainer
