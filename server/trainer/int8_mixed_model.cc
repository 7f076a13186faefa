#include "server/trainer/int8_mixed_model.h"

#include <torch/types.h>

#include <array>

#include "server/trainer/coded_model.h"
#include "server/trainer/int8_linear.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using torch::Tensor;

class Int8Linears : public CodedLinears {
 public:
  Int8Linears(const Int8MixedOptions& options, const kernels::Stream& stream)
      : options_(options.products),
        bf16_(BackwardType(options.bf16_compute, stream) == torch::kBFloat16),
        stream_(stream) {}

  void AddLayer(const std::array<Source, model::kNumLinearKinds>& sources) override {
    const std::uint64_t first = layers_.size() * model::kNumLinearKinds;
    auto& layer = layers_.emplace_back();
    for (std::size_t k = 0; k < sources.size(); ++k) {
      layer[k].master = sources[k].weight;
      layer[k].bias = sources[k].bias;
      layer[k].number = first + k;
    }
  }
  void Refresh(std::int64_t layer) override {
    for (Int8Weight& linear : layers_[static_cast<std::size_t>(layer)]) linear.Quantize(options_, bf16_, stream_);
  }
  const CodedRowOptions& rows() const override { return options_.rows; }
  Tensor Apply(const CodedInput& input, std::int64_t layer, LinearKind kind, std::uint64_t draw,
               TrainingContext& context) override {
    return ApplyInt8Linear(WithRows(input, options_.rows, context), Linear(layer, kind), options_, draw, context);
  }
  void Serve(std::int64_t layer, LinearKind kind, model::LinearWeight& weight) override {
    weight.kind = model::LinearWeight::Kind::kInt8;
    weight.int8 = Linear(layer, kind).packed.view();
  }

 private:
  const Int8Weight& Linear(std::int64_t layer, LinearKind kind) const {
    return layers_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(kind)];
  }

  const Int8LinearOptions options_;
  const bool bf16_;
  const kernels::Stream stream_;
  std::vector<std::array<Int8Weight, model::kNumLinearKinds>> layers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExactModel>> MakeInt8MixedModel(const model::Artifact& base,
                                                               const Int8MixedOptions& options,
                                                               const kernels::Stream& stream) {
  if (base.info().is_masters() ||
      (base.info().format != model::Format::kF32 && base.info().format != model::Format::kBF16)) {
    return absl::InvalidArgumentError("int8_mixed trains a base in f32 or bf16");
  }
  const Int8LinearOptions& products = options.products;
  if (!products.forward || products.stochastic_forward || products.weight_per_tensor ||
      products.rows.activations.per_tensor) {
    return absl::InvalidArgumentError("an exact forward pass runs in int8, with a scale per row, rounded to nearest");
  }
  return MakeCodedModel(base, base.config(),
                        {.random_init = options.random_init,
                         .init_seed = options.init_seed,
                         .bf16_backward = options.bf16_compute,
                         .bf16_parameters = options.bf16_masters,
                         .activation_checkpointing = options.activation_checkpointing,
                         .max_positions = options.max_positions,
                         .kv_dtype = kernels::DType::kBF16,        // default of a conversion to int8
                         .embedding_dtype = kernels::DType::kF32,  // a conversion rounds only a tied embedding
                         .cancelled = options.cancelled},
                        std::make_unique<Int8Linears>(options, stream), stream);
}

}  // namespace nibble::trainer
