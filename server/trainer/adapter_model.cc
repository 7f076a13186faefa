#include "server/trainer/adapter_model.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "kernels/ops/elementwise/embedding.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/trainer/adapter_linear.h"
#include "server/trainer/adapter_parameters.h"
#include "server/trainer/chunked_loss.h"
#include "server/trainer/fixed_order.h"
#include "server/trainer/torch_bridge.h"
#include "server/trainer/training_ops.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using torch::Tensor;

// A frozen base with trained adapters, and perhaps with trained copies of its embedding, norms and head.
struct AdapterParts : DecoderParts {
  Tensor Embed(const Pass& pass) override {
    if (embedding.defined()) return ApplyEmbedding(pass.tokens, embedding_read, embedding, context);
    Tensor h = torch::empty({static_cast<std::int64_t>(pass.tokens.size()), config->hidden_size}, torch::kFloat32);
    ThrowIfError(kernels::Embedding({.ids = pass.tokens.data(),
                                     .num_ids = h.size(0),
                                     .table = weights->embedding,
                                     .packed = weights->embedding_int8,
                                     .out = ViewOf(h)},
                                    context.stream));
    return h;
  }
  Tensor Linear(const FloatInput& input, std::int64_t layer, LinearKind kind, const Pass& pass) override {
    std::optional<DropoutKey> key;
    if (pass.draw.has_value()) key = KeyOf(dropout_seed, *pass.draw, layer, kind);
    const AdapterLinear& linear = layers[static_cast<std::size_t>(layer)][static_cast<std::size_t>(kind)];
    return ApplyAdapterLinear(input, linear, key, context);
  }
  Tensor NormWeight(std::int64_t layer, model::Norm norm) override {
    return norms[static_cast<std::size_t>(layer)][static_cast<std::size_t>(norm)];
  }
  Tensor FinalNormWeight() override { return final_norm; }

  const model::DecoderWeights* weights = nullptr;
  std::vector<std::array<AdapterLinear, model::kNumLinearKinds>> layers;
  std::vector<std::array<Tensor, model::kNumNorms>> norms;  // undefined where the model lacks the norm
  Tensor final_norm;
  Tensor embedding;       // undefined, or [V, K] f32 parameter
  Tensor embedding_read;  // of `embedding`, in the type that forward passes read
  std::uint64_t dropout_seed = 0;
};

decltype(AdapterLinear::weight) BaseWeight(const model::LinearWeight& weight, bool bf16_compute) {
  if (weight.kind == model::LinearWeight::Kind::kNf4) return weight.nf4;
  return FloatWeight::Make(TensorOf(weight.library), bf16_compute);
}

class TorchAdapterModel : public AdapterModel {
 public:
  TorchAdapterModel(std::shared_ptr<const model::LoadedModel> base, const model::Artifact& artifact,
                    const AdapterOptions& options, const kernels::Stream& stream)
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
    AddOtherWeights(parameters_.AddSaved(options, artifact), options.bf16_compute);
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
      const Tensor loss = head_.master.defined()
                              ? ApplyTrainedHeadLoss(hidden, head_, batch.targets, scale, &loss_sum, state_.context)
                              : ApplyChunkedLoss(hidden, head_.read, batch.targets, scale, &loss_sum, state_.context);
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
      std::vector<float> logprobs =
          RowLosses(model::RunDecoder(ops, *state_.config), head_.read, targets, state_.context);
      for (float& logprob : logprobs) logprob = -logprob;
      return logprobs;
    });
  }

  absl::Status Refresh() override {
    return Guarded([&]() -> absl::Status {
      RefreshCopies();
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
    served_embedding_.reset();
    served_head_.reset();
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

  // Sets embedding, norms and head to the base's tensors, or to their copies. `copies`: by the names of the base's
  // tensors.
  void AddOtherWeights(const std::map<std::string, Tensor>& copies, bool bf16_compute) {
    const model::DecoderWeights& weights = base_->weights();
    const auto copy_of = [&](const std::string& name) {
      const auto found = copies.find(name);
      return found == copies.end() ? Tensor() : found->second;
    };
    const auto vector = [&](const std::string& name, const float* frozen, std::int64_t size) {
      const Tensor copy = copy_of(name);
      return copy.defined() ? copy : torch::from_blob(const_cast<float*>(frozen), {size});
    };
    for (std::int64_t layer = 0; layer < state_.config->num_layers; ++layer) {
      auto& norms = state_.norms.emplace_back();
      for (std::size_t n = 0; n < norms.size(); ++n) {
        const auto norm = static_cast<model::Norm>(n);
        if (!HasNorm(*state_.config, norm)) continue;
        norms[n] = vector(model::NormName(layer, norm), weights.layers[static_cast<std::size_t>(layer)].norm(norm),
                          NormSize(*state_.config, norm));
      }
    }
    state_.final_norm = vector(model::kFinalNormName, weights.final_norm, state_.config->hidden_size);
    state_.embedding = copy_of(model::kEmbeddingName);
    head_.master = state_.config->tied_embeddings ? state_.embedding : copy_of(model::kHeadName);
    backward_type_ = BackwardType(bf16_compute, state_.context.stream);
    // Training in f32 does not round.
    const Tensor head = TensorOf(weights.head.library);
    state_.head_type = bf16_compute ? head.scalar_type() : torch::kFloat32;
    if (!head_.master.defined())
      head_.read = {.served = head.to(state_.head_type), .backward = head.to(backward_type_)};
  }

  // Makes the forms of the trained copies that products and serving read. Serving reads them in the types of the base's
  // tensors.
  void RefreshCopies() {
    const torch::NoGradGuard no_gradients;
    const model::DecoderWeights& base = base_->weights();
    const auto served = [&](const Tensor& master, const kernels::ConstMatrix& replaced) {
      return master.detach().to(ToTorch(replaced.dtype));
    };
    if (state_.embedding.defined()) {
      served_embedding_ = served(state_.embedding, base.embedding);
      serving_.embedding = ViewOf(served_embedding_);
      state_.embedding_read = state_.compute == torch::kFloat32 ? state_.embedding.detach() : served_embedding_;
    }
    if (head_.master.defined()) {
      head_.Read(state_.head_type, backward_type_);
      served_head_ = served(head_.master, base.head.library);
      serving_.head.library = ViewOf(served_head_);
    }
    for (std::size_t l = 0; l < state_.norms.size(); ++l) {
      for (std::size_t n = 0; n < state_.norms[l].size(); ++n) {
        const Tensor& norm = state_.norms[l][n];
        serving_.layers[l].norms[n] = norm.defined() ? norm.data_ptr<float>() : nullptr;
      }
    }
    serving_.final_norm = state_.final_norm.data_ptr<float>();
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
  TrainedHead head_;  // without a master if the head is frozen
  torch::ScalarType backward_type_ = torch::kFloat32;
  Tensor served_embedding_, served_head_;  // of the trained copies, in the types of the base's tensors
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
    NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(base->directory()));
    auto made = std::make_unique<TorchAdapterModel>(std::move(base), *artifact, options, stream);
    NIBBLE_RETURN_IF_ERROR(made->Refresh());
    return std::unique_ptr<AdapterModel>(std::move(made));
  });
}

}  // namespace nibble::trainer
