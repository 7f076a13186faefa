#include "server/trainer/qlora_model.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/ops/elementwise/embedding.h"
#include "kernels/philox.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/decoder.h"
#include "server/trainer/autograd.h"
#include "server/trainer/chunked_loss.h"
#include "server/trainer/recomputed_layer.h"
#include "server/trainer/segment_attention.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using torch::Tensor;

struct LayerLinears {
  std::array<Nf4Linear, model::kNumLinearKinds> linears;
};

// The inputs of one forward pass besides the weights.
struct Pass {
  std::vector<std::int32_t> tokens;  // of the batch, then zeros up to a multiple of kRowQuantum
  std::vector<std::int32_t> position;
  std::optional<std::uint64_t> draw;        // number of the micro-batch, for dropout; unset: no dropout
  std::unique_ptr<PagedSegments> segments;  // one segment per example
};

struct TrainingState {
  const model::ModelConfig* config = nullptr;
  const model::DecoderWeights* weights = nullptr;
  std::vector<LayerLinears> layers;
  AutogradContext context;
  torch::ScalarType compute = torch::kBFloat16;
  torch::ScalarType head_type = torch::kBFloat16;  // of the rows that the head reads
  std::uint64_t dropout_seed = 0;
  bool checkpointing = false;
};

// The decoder's operations with gradients (model/decoder.h).
class TrainingOps {
 public:
  using Tensor = torch::Tensor;
  using Input = torch::Tensor;

  TrainingOps(TrainingState& state, const Pass& pass) : state_(state), pass_(pass) {}

  Tensor Embed() {
    // The residual stream is f32, as in serving: in bf16 each layer would round it, and the served adapter would differ
    // from the trained one.
    Tensor h =
        torch::empty({static_cast<std::int64_t>(pass_.tokens.size()), state_.config->hidden_size}, torch::kFloat32);
    const absl::Status status = kernels::Embedding({.ids = pass_.tokens.data(),
                                                    .num_ids = h.size(0),
                                                    .table = state_.weights->embedding,
                                                    .packed = state_.weights->embedding_int8,
                                                    .out = ViewOf(h)},
                                                   state_.context.stream);
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
    return h;
  }

  template <typename Body>
  Tensor RunLayer(std::int64_t, Tensor h, Body body);

  void BeginLayer(std::int64_t) {}

  Input NormInput(const Tensor& x, std::int64_t layer, model::Norm norm, LinearKind) {
    return Normed(x, layer, norm, state_.compute);
  }
  Input PlainInput(Tensor x, std::int64_t, LinearKind) { return x; }  // x has the type of TypeBefore
  Tensor Linear(const Input& input, std::int64_t layer, LinearKind kind) {
    const auto index = static_cast<std::uint64_t>(layer * model::kNumLinearKinds + static_cast<std::int64_t>(kind));
    std::optional<DropoutKey> key;
    // No model has 2^20 linears, so each pair of micro-batch and linear has its own stream.
    if (pass_.draw.has_value()) key = DropoutKey{state_.dropout_seed, *pass_.draw << 20 | index};
    return ApplyNf4Linear(input, state_.layers[static_cast<std::size_t>(layer)].linears[static_cast<std::size_t>(kind)],
                          key, state_.context);
  }
  Tensor NormRows(const Tensor& x, std::int64_t layer, model::Norm norm) {
    return Normed(x, layer, norm, torch::kFloat32);
  }
  Tensor NormHeads(const Tensor& x, std::int64_t layer, model::Norm norm, std::int64_t num_heads) {
    return NormRows(x.view({x.size(0) * num_heads, x.size(1) / num_heads}), layer, norm).view(x.sizes());
  }
  Tensor Rope(const Tensor& x, std::int64_t num_heads) {
    return ApplyRope(x, num_heads, pass_.position.data(), state_.weights->rope_cos, state_.weights->rope_sin,
                     state_.weights->rope_positions, state_.context);
  }
  Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t) {
    return ApplySegmentAttention(q, k, v, *pass_.segments, state_.config->num_heads, state_.config->num_kv_heads,
                                 state_.context, TypeBefore(LinearKind::kO));
  }
  Tensor Gated(const Tensor& gate, const Tensor& up) {
    return ApplyGatedMul(state_.config->activation, gate, up, state_.context, TypeBefore(LinearKind::kDown));
  }
  Tensor Add(const Tensor& h, const Tensor& y) { return h + y; }
  Tensor FinalNorm(const Tensor& h) {
    return ApplyRmsNorm(h, Frozen(state_.weights->final_norm, h.size(1)), state_.config->rms_norm_eps, state_.context,
                        state_.head_type);
  }

 private:
  Tensor Normed(const Tensor& x, std::int64_t layer, model::Norm norm, torch::ScalarType type) {
    const double eps = norm >= model::Norm::kBeforeQ ? state_.config->linear_norm_eps : state_.config->rms_norm_eps;
    return ApplyRmsNorm(x, Frozen(state_.weights->layers[static_cast<std::size_t>(layer)].norm(norm), x.size(1)), eps,
                        state_.context, type);
  }
  // An input that is normed right before the linear stays in f32 (model/serving_ops.h).
  torch::ScalarType TypeBefore(LinearKind kind) const {
    model::Norm norm;
    return HasNormRightBefore(*state_.config, kind, &norm) ? torch::kFloat32 : state_.compute;
  }
  static Tensor Frozen(const float* weight, std::int64_t size) {
    return torch::from_blob(const_cast<float*>(weight), {size});
  }

  TrainingState& state_;
  const Pass& pass_;
};

template <typename Body>
Tensor TrainingOps::RunLayer(std::int64_t, Tensor h, Body body) {
  return state_.checkpointing ? RunRecomputed(std::move(h), body) : body(std::move(h));
}

class TorchQLoraModel : public QLoraModel {
 public:
  TorchQLoraModel(std::shared_ptr<const model::LoadedModel> base, const QLoraOptions& options,
                  const kernels::Stream& stream)
      : base_(std::move(base)), serving_(base_->weights()) {
    state_.config = &base_->config();
    state_.weights = &base_->weights();
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
    HoldGradients(tensors_, parameters_);
  }

  std::vector<Parameter>& parameters() override { return parameters_; }

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
    for (ServedAdapter& served : served_) {
      served.Pack();
      serving_.layers[served.layer].linears[served.kind].lora = served.weight;
    }
    return absl::OkStatus();
  }

  const model::DecoderWeights& ServingWeights() const override { return serving_; }

  void Release() override {
    state_ = {};
    head_ = {};
    served_.clear();
    serving_ = {};
    ReleaseGradients(tensors_, parameters_);
    base_.reset();
  }

 private:
  absl::StatusOr<Pass> PassOf(const std::vector<std::int32_t>& tokens, const std::vector<std::int64_t>& segments,
                              std::optional<std::uint64_t> draw) const {
    // Keys and values have the type that serving caches; training in f32 does not round them.
    const kernels::DType kv_dtype = state_.compute == torch::kFloat32 ? kernels::DType::kF32 : state_.weights->kv_dtype;
    Pass pass = {tokens, {}, draw, nullptr};
    NIBBLE_ASSIGN_OR_RETURN(pass.segments, PagedSegments::Create(*state_.config, kv_dtype, segments));
    pass.tokens.resize(static_cast<std::size_t>(PadRows(static_cast<std::int64_t>(tokens.size()))), 0);
    pass.position.assign(pass.segments->position(), pass.segments->position() + pass.segments->num_tokens());
    pass.position.resize(pass.tokens.size(), 0);
    return pass;
  }

  // An adapter as serving reads it; Refresh makes it from the parameters.
  struct ServedAdapter {
    std::size_t layer = 0;
    std::size_t kind = 0;
    Tensor a, b;
    Tensor panels_a, panels_b;
    model::LoraWeight weight;

    void Pack() {
      weight.a = PackDense(a, panels_a);
      weight.b = PackDense(b, panels_b);
    }
  };

  void AddLayer(std::int64_t layer, const QLoraOptions& options) {
    const model::LayerWeights& weights = base_->weights().layers[static_cast<std::size_t>(layer)];
    LayerLinears made;
    for (int k = 0; k < model::kNumLinearKinds; ++k) {
      const auto kind = static_cast<LinearKind>(k);
      const auto index = static_cast<std::size_t>(k);
      Nf4Linear& linear = made.linears[index];
      linear.weight = weights.linears[index].nf4;
      linear.bias = weights.linears[index].bias;
      if (!options.adapter.has_target(kind)) continue;
      linear.scaling = options.adapter.scaling();
      linear.dropout = options.adapter.dropout;
      linear.lora_a = AddParameter(model::LoraAName(layer, kind), options.adapter.rank, linear.weight.cols);
      linear.lora_b = AddParameter(model::LoraBName(layer, kind), linear.weight.rows, options.adapter.rank);
      const auto stream = static_cast<std::uint64_t>(layer * model::kNumLinearKinds + k);
      const double bound = 1.0 / std::sqrt(static_cast<double>(linear.weight.cols));
      float* a = linear.lora_a.data_ptr<float>();
      for (std::int64_t i = 0; i < linear.lora_a.numel(); ++i) {
        a[i] = static_cast<float>(
            (2.0 * kernels::PhiloxUniform(options.init_seed, static_cast<std::uint64_t>(i), stream) - 1.0) * bound);
      }
      served_.push_back({.layer = static_cast<std::size_t>(layer),
                         .kind = index,
                         .a = linear.lora_a,
                         .b = linear.lora_b,
                         .panels_a = {},
                         .panels_b = {},
                         .weight = {.a = {}, .b = {}, .scaling = static_cast<float>(linear.scaling)}});
    }
    state_.layers.push_back(std::move(made));
  }

  Tensor AddParameter(std::string name, std::int64_t rows, std::int64_t cols) {
    Tensor tensor = torch::zeros({rows, cols}, torch::kFloat32).requires_grad_(true);
    tensors_.push_back(tensor);
    parameters_.push_back({std::move(name), {rows, cols}, {}, {}});
    return tensor;
  }

  std::shared_ptr<const model::LoadedModel> base_;
  model::DecoderWeights serving_;
  std::vector<ServedAdapter> served_;
  TrainingState state_;
  FrozenHead head_;
  std::vector<Tensor> tensors_;
  std::vector<Parameter> parameters_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<QLoraModel>> QLoraModel::Create(std::shared_ptr<const model::LoadedModel> base,
                                                               const QLoraOptions& options,
                                                               const kernels::Stream& stream) {
  if (base->info().format != model::Format::kNf4) {
    return absl::InvalidArgumentError(
        base::StrCat("qlora trains on an nf4 base, got ", model::Name(base->info().format)));
  }
  if (base->weights().head.kind != model::LinearWeight::Kind::kLibrary) {
    return absl::InvalidArgumentError("qlora needs a base with a float head");
  }
  return Guarded([&]() -> absl::StatusOr<std::unique_ptr<QLoraModel>> {
    auto made = std::make_unique<TorchQLoraModel>(std::move(base), options, stream);
    NIBBLE_RETURN_IF_ERROR(made->Refresh());
    return std::unique_ptr<QLoraModel>(std::move(made));
  });
}

}  // namespace nibble::trainer
