#include "server/trainer/adapter_model.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <variant>

#include "kernels/ops/elementwise/embedding.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/trainer/adapter_linear.h"
#include "server/trainer/adapter_parameters.h"
#include "server/trainer/chunked_loss.h"
#include "server/trainer/torch_bridge.h"
#include "server/trainer/training_ops.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using torch::Tensor;

// A frozen base with trained adapters.
struct AdapterParts : DecoderParts {
  Tensor Embed(const Pass& pass) override {
    Tensor h = torch::empty({static_cast<std::int64_t>(pass.tokens.size()), config->hidden_size}, torch::kFloat32);
    ThrowIfError(kernels::Embedding({.ids = pass.tokens.data(),
                                     .num_ids = h.size(0),
                                     .table = weights->embedding,
                                     .packed = weights->embedding_int8,
                                     .out = ViewOf(h)},
                                    context.stream));
    return h;
  }
  Tensor Linear(const Tensor& x, std::int64_t layer, LinearKind kind, const Pass& pass) override {
    std::optional<DropoutKey> key;
    if (pass.draw.has_value()) key = KeyOf(dropout_seed, *pass.draw, layer, kind);
    return ApplyAdapterLinear(x, layers[static_cast<std::size_t>(layer)][static_cast<std::size_t>(kind)], key, context);
  }
  Tensor NormWeight(std::int64_t layer, model::Norm norm) override {
    return Frozen(weights->layers[static_cast<std::size_t>(layer)].norm(norm), NormSize(*config, norm));
  }
  Tensor FinalNormWeight() override { return Frozen(weights->final_norm, config->hidden_size); }

  static Tensor Frozen(const float* weight, std::int64_t size) {
    return torch::from_blob(const_cast<float*>(weight), {size});
  }

  const model::DecoderWeights* weights = nullptr;
  std::vector<std::array<AdapterLinear, model::kNumLinearKinds>> layers;
  std::uint64_t dropout_seed = 0;
};

decltype(AdapterLinear::weight) BaseWeight(const model::LinearWeight& weight, bool bf16_compute) {
  if (weight.kind == model::LinearWeight::Kind::kNf4) return weight.nf4;
  return FloatWeight::Make(TensorOf(weight.library), bf16_compute);
}

class TorchAdapterModel : public AdapterModel {
 public:
  TorchAdapterModel(std::shared_ptr<const model::LoadedModel> base, const AdapterOptions& options,
                    const kernels::Stream& stream)
      : base_(std::move(base)), serving_(base_->weights()) {
    state_.config = &base_->config();
    state_.weights = &base_->weights();
    state_.rope_cos = state_.weights->rope_cos;
    state_.rope_sin = state_.weights->rope_sin;
    state_.rope_positions = state_.weights->rope_positions;
    state_.context.stream = stream;
    state_.context.cancelled = options.cancelled;
    state_.compute = options.bf16_compute ? torch::kBFloat16 : torch::kFloat32;
    state_.dropout_seed = options.dropout_seed;
    state_.checkpointing = options.activation_checkpointing;
    const Tensor head = TensorOf(base_->weights().head.library);
    head_.backward = head.to(BackwardType(options.bf16_compute, stream));
    head_.served = options.bf16_compute ? head : head_.backward;
    state_.head_type = head_.served.scalar_type();
    std::int64_t largest = 0;
    for (int k = 0; k < model::kNumLinearKinds; ++k) {
      const auto kind = static_cast<LinearKind>(k);
      largest = std::max(largest, OutFeatures(base_->config(), kind) * InFeatures(base_->config(), kind));
    }
    state_.context.scratch = torch::empty({largest}, BackwardType(options.bf16_compute, stream));
    for (std::int64_t layer = 0; layer < base_->config().num_layers; ++layer) {
      ThrowIfCancelled(options.cancelled);
      AddLayer(layer, options);
    }
    parameters_.HoldGradients();
  }

  std::vector<Parameter>& parameters() override { return parameters_.parameters(); }

  absl::StatusOr<double> ForwardBackward(const data::MicroBatch& batch, double scale, std::uint64_t draw) override {
    return Guarded([&]() -> absl::StatusOr<double> {
      NIBBLE_ASSIGN_OR_RETURN(const Pass pass, PassOf(batch.tokens, batch.segments, draw));
      TrainingOps ops(state_, pass);
      const Tensor hidden = model::RunDecoder(ops, *state_.config);
      double loss_sum = 0;
      const Tensor loss = ApplyChunkedLoss(hidden, head_, batch.targets, scale, &loss_sum, state_.context);
      loss.backward();
      return loss_sum;
    });
  }

  absl::StatusOr<std::vector<float>> TrainingLogprobs(const std::vector<std::int32_t>& tokens) override {
    return Guarded([&]() -> absl::StatusOr<std::vector<float>> {
      const torch::NoGradGuard no_gradients;
      const std::vector<std::int64_t> whole = {0, static_cast<std::int64_t>(tokens.size())};
      NIBBLE_ASSIGN_OR_RETURN(const Pass pass, PassOf(tokens, whole, std::nullopt));
      TrainingOps ops(state_, pass);
      std::vector<std::int32_t> targets(tokens.begin() + 1, tokens.end());
      targets.push_back(-1);
      std::vector<float> logprobs = RowLosses(model::RunDecoder(ops, *state_.config), head_, targets, state_.context);
      for (float& logprob : logprobs) logprob = -logprob;
      return logprobs;
    });
  }

  absl::Status Refresh() override {
    return Guarded([&]() -> absl::Status {
      for (std::size_t l = 0; l < state_.layers.size(); ++l) {
        for (std::size_t k = 0; k < model::kNumLinearKinds; ++k) {
          AdapterLinear& linear = state_.layers[l][k];
          if (!linear.lora_a.defined()) continue;
          linear.RefreshDora(state_.context.stream);
          serving_.layers[l].linears[k].lora = served_[l][k].View(linear);
        }
      }
      return absl::OkStatus();
    });
  }

  const model::DecoderWeights& ServingWeights() override { return serving_; }

  void Release() override {
    state_ = {};
    head_ = {};
    served_.clear();
    serving_ = {};
    parameters_.ReleaseGradients();
    base_.reset();
  }

 private:
  absl::StatusOr<Pass> PassOf(const std::vector<std::int32_t>& tokens, const std::vector<std::int64_t>& segments,
                              std::optional<std::uint64_t> draw) const {
    // Keys and values have the type that serving caches; training in f32 does not round them.
    const kernels::DType kv_dtype = state_.compute == torch::kFloat32 ? kernels::DType::kF32 : state_.weights->kv_dtype;
    return Pass::Create(*state_.config, kv_dtype, tokens, segments, draw);
  }

  void AddLayer(std::int64_t layer, const AdapterOptions& options) {
    const model::LayerWeights& weights = base_->weights().layers[static_cast<std::size_t>(layer)];
    auto& linears = state_.layers.emplace_back();
    served_.emplace_back();
    for (int k = 0; k < model::kNumLinearKinds; ++k) {
      const auto kind = static_cast<LinearKind>(k);
      const auto index = static_cast<std::size_t>(k);
      AdapterLinear& linear = linears[index];
      linear.weight = BaseWeight(weights.linears[index], options.bf16_compute);
      linear.bias = weights.linears[index].bias;
      parameters_.AddTo(linear, options, layer, kind, base_->config(), state_.context.stream);
    }
  }

  std::shared_ptr<const model::LoadedModel> base_;
  model::DecoderWeights serving_;
  std::vector<std::array<ServedAdapter, model::kNumLinearKinds>> served_;  // what Refresh makes of the parameters
  AdapterParts state_;
  FrozenHead head_;
  AdapterParameters parameters_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AdapterModel>> AdapterModel::Create(std::shared_ptr<const model::LoadedModel> base,
                                                                   const AdapterOptions& options,
                                                                   const kernels::Stream& stream) {
  const model::Format format = base->info().format;
  if (format != model::Format::kNf4 && format != model::Format::kBF16 && format != model::Format::kF32) {
    return absl::InvalidArgumentError(
        base::StrCat("an adapter is trained on a base in nf4, bf16 or f32, got ", model::Name(format)));
  }
  if (base->weights().head.kind != model::LinearWeight::Kind::kLibrary) {
    return absl::InvalidArgumentError("an adapter needs a base with a float head");
  }
  return Guarded([&]() -> absl::StatusOr<std::unique_ptr<AdapterModel>> {
    auto made = std::make_unique<TorchAdapterModel>(std::move(base), options, stream);
    NIBBLE_RETURN_IF_ERROR(made->Refresh());
    return std::unique_ptr<AdapterModel>(std::move(made));
  });
}

}  // namespace nibble::trainer
