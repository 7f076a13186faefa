#include "server/trainer/bitnet_model.h"

#include <torch/types.h>

#include <array>
#include <vector>

#include "server/base/strings.h"
#include "server/model/bitnet_shape.h"
#include "server/trainer/bit_linear.h"
#include "server/trainer/coded_model.h"
#include "server/trainer/fixed_order.h"

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
    options_.activations.scaling = options.scaling;
    options_.ste = options.ste;
    options_.scale_grad = options.scale_grad;
    for (const LinearKind kind : options.float_linears) stays_float_[static_cast<std::size_t>(kind)] = true;
  }

  void BeginStep(std::int64_t step) override { share_ = ramp_.Share(step); }
  bool reads_codes(LinearKind kind) const override { return share_ == 1.0 && !StaysFloat(kind); }

  void AddLayer(const std::array<Source, model::kNumLinearKinds>& sources) override {
    auto& layer = layers_.emplace_back();
    for (std::size_t k = 0; k < sources.size(); ++k) {
      layer[k].ternary = {sources[k].weight, sources[k].bias, {}, {}};
      layer[k].dense.master = sources[k].weight;
    }
  }
  void Refresh(std::int64_t layer) override {
    for (int k = 0; k < model::kNumLinearKinds; ++k) {
      Weights& linear = layers_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(k)];
      if (StaysFloat(static_cast<LinearKind>(k))) {
        linear.dense.Round(stream_);
      } else {
        linear.ternary.Ternarize(stream_, options_.activations.scaling);
      }
    }
  }
  const CodedRowOptions& rows() const override { return options_; }
  Tensor Apply(const CodedInput& input, std::int64_t layer, LinearKind kind, std::uint64_t /*draw*/,
               TrainingContext& context) override {
    const Weights& linear = Linear(layer, kind);
    if (StaysFloat(kind)) return ApplyDenseLinear(input.x, linear.dense, linear.ternary.bias, context);
    if (share_ < 1.0) return ApplyPartlyBitLinear(input.x, linear.ternary, options_, share_, context);
    return ApplyBitLinear(input, linear.ternary, options_, context);
  }
  void Serve(std::int64_t layer, LinearKind kind, model::LinearWeight& weight) override {
    if (StaysFloat(kind)) {
      weight.kind = model::LinearWeight::Kind::kDense;
      weight.dense = Linear(layer, kind).dense.packed();
      return;
    }
    weight.kind = model::LinearWeight::Kind::kTernary;
    weight.ternary = Linear(layer, kind).ternary.packed();
  }

 private:
  // A linear uses one of the two forms, made from its master. The bias is always in `ternary`.
  struct Weights {
    BitWeight ternary;
    DenseWeight dense;
  };

  bool StaysFloat(LinearKind kind) const { return stays_float_[static_cast<std::size_t>(kind)]; }
  const Weights& Linear(std::int64_t layer, LinearKind kind) const {
    return layers_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(kind)];
  }

  const kernels::Stream stream_;
  const QuantizationRamp ramp_;
  double share_;  // of the current step
  BitLinearOptions options_;
  std::array<bool, model::kNumLinearKinds> stays_float_ = {};
  std::vector<std::array<Weights, model::kNumLinearKinds>> layers_;
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
