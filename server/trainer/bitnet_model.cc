#include "server/trainer/bitnet_model.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/ops/attention/rope.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/convert.h"
#include "server/model/bitnet_shape.h"
#include "server/model/decoder.h"
#include "server/trainer/bit_linear.h"
#include "server/trainer/fixed_order.h"
#include "server/trainer/random_weights.h"
#include "server/trainer/recomputed_layer.h"
#include "server/trainer/segment_attention.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using model::Norm;
using torch::Tensor;

constexpr std::int64_t kLogitsChunk = 64;

struct Layer {
  std::array<Tensor, model::kNumNorms> norms;
  std::array<BitWeight, model::kNumLinearKinds> linears;
};

struct State {
  model::ModelConfig config;
  std::vector<Layer> layers;
  Tensor final_norm;
  Tensor embedding;         // [V, K] f32 parameter
  Tensor embedding_served;  // [V, K] bf16
  DenseHead head;
  BitLinearOptions options;
  AutogradContext context;
  std::vector<float> rope_cos, rope_sin;
  std::int64_t positions = 0;
  bool checkpointing = false;
};

// The decoder's operations with gradients (model/decoder.h), in the arithmetic of the ternary artifact.
class BitNetOps {
 public:
  using Tensor = torch::Tensor;
  using Input = BitInput;

  BitNetOps(State& state, const std::vector<std::int32_t>& tokens, const PagedSegments& segments)
      : state_(state), tokens_(tokens), segments_(segments) {}

  Tensor Embed() { return ApplyEmbedding(tokens_, state_.embedding_served, state_.embedding, state_.context); }
  template <typename Body>
  Tensor RunLayer(std::int64_t, Tensor h, Body body) {
    return state_.checkpointing ? RunRecomputed(std::move(h), body) : body(std::move(h));
  }
  void BeginLayer(std::int64_t) {}
  Input NormInput(const Tensor& x, std::int64_t layer, Norm norm, LinearKind) {
    return NormBitInput(x, Weight(layer, norm), Eps(norm), state_.options, state_.context);
  }
  Input PlainInput(Tensor x, std::int64_t, LinearKind) { return {std::move(x), nullptr}; }
  Tensor Linear(const Input& input, std::int64_t layer, LinearKind kind) {
    return ApplyBitLinear(input, state_.layers[static_cast<std::size_t>(layer)].linears[static_cast<std::size_t>(kind)],
                          state_.options, state_.context);
  }
  Tensor NormRows(const Tensor& x, std::int64_t layer, Norm norm) {
    return ApplyRmsNorm(x, Weight(layer, norm), Eps(norm), state_.context);
  }
  Tensor NormHeads(const Tensor& x, std::int64_t layer, Norm norm, std::int64_t num_heads) {
    return NormRows(x.view({x.size(0) * num_heads, x.size(1) / num_heads}), layer, norm).view(x.sizes());
  }
  Tensor Rope(const Tensor& x, std::int64_t num_heads) {
    return ApplyRope(x, num_heads, segments_.position(), state_.rope_cos.data(), state_.rope_sin.data(),
                     state_.positions, state_.context);
  }
  Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t) {
    return ApplySegmentAttention(q, k, v, segments_, state_.config.num_heads, state_.config.num_kv_heads,
                                 state_.context, torch::kFloat32);
  }
  Tensor Gated(const Tensor& gate, const Tensor& up) {
    return ApplyGatedMul(state_.config.activation, gate, up, state_.context);
  }
  Tensor Add(const Tensor& h, const Tensor& y) { return h + y; }
  Tensor FinalNorm(const Tensor& h) {
    return ApplyRmsNorm(h, state_.final_norm, state_.config.rms_norm_eps, state_.context);
  }

 private:
  const Tensor& Weight(std::int64_t layer, Norm norm) const {
    return state_.layers[static_cast<std::size_t>(layer)].norms[static_cast<std::size_t>(norm)];
  }
  double Eps(Norm norm) const {
    return norm >= Norm::kBeforeQ ? state_.config.linear_norm_eps : state_.config.rms_norm_eps;
  }

  State& state_;
  const std::vector<std::int32_t>& tokens_;
  const PagedSegments& segments_;
};

// The norm at the start of the block that a linear belongs to. If the trained model lacks this norm, a norm right
// before the linear starts with its values.
std::optional<Norm> BlockNormOf(LinearKind kind) {
  switch (kind) {
    case LinearKind::kQ:
    case LinearKind::kK:
    case LinearKind::kV: return Norm::kInput;
    case LinearKind::kGate:
    case LinearKind::kUp: return Norm::kPostAttention;
    default: return std::nullopt;
  }
}

class TorchBitNetModel : public BitNetModel {
 public:
  TorchBitNetModel(const model::Artifact& base, const model::ModelConfig& config, const BitNetOptions& options,
                   const kernels::Stream& stream)
      : base_(&base), options_(options) {
    state_.config = config;
    state_.context.stream = stream;
    state_.context.cancelled = options.cancelled;
    state_.options.activations.bits = options.act_bits;
    state_.options.activations.per_tensor = options.act_per_tensor;
    state_.options.ste = options.ste;
    state_.options.scale_grad = options.scale_grad;
    state_.checkpointing = options.activation_checkpointing;
    MakeRopeTable();
    state_.embedding = Make(model::kEmbeddingName, {config.vocab_size, config.hidden_size});
    std::int64_t largest = 0;
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
      state_.layers.push_back(MakeLayer(layer));
      for (const BitWeight& linear : state_.layers.back().linears) largest = std::max(largest, linear.master.numel());
    }
    state_.final_norm = Make(model::kFinalNormName, {config.hidden_size});
    state_.head.master =
        config.tied_embeddings ? state_.embedding : Make(model::kHeadName, {config.vocab_size, config.hidden_size});
    state_.context.scratch = torch::empty({largest}, BackwardType(options.bf16_backward, stream));
    base_ = nullptr;  // only read in the constructor
    HoldGradients(tensors_, parameters_);
  }

  std::vector<Parameter>& parameters() override { return parameters_; }

  absl::Status Refresh() override {
    return Guarded([&]() -> absl::Status {
      const torch::NoGradGuard no_grad;
      for (Layer& layer : state_.layers) {
        // Called only to show that the trainer is alive. The answer is ignored, because a step that has changed
        // parameters must finish.
        if (state_.context.cancelled) state_.context.cancelled();
        for (BitWeight& linear : layer.linears) linear.Ternarise(state_.context.stream);
      }
      state_.embedding_served = state_.embedding.to(torch::kBFloat16);
      state_.head.served =
          state_.config.tied_embeddings ? state_.embedding_served : state_.head.master.to(torch::kBFloat16);
      PackDense(state_.head.served, state_.head.panels);
      MakeServingWeights();
      return absl::OkStatus();
    });
  }

  absl::StatusOr<double> ForwardBackward(const data::MicroBatch& batch, double scale, std::uint64_t) override {
    double loss_sum = 0;
    NIBBLE_RETURN_IF_ERROR(Guarded([&]() -> absl::Status {
      NIBBLE_ASSIGN_OR_RETURN(const auto segments, PagedSegments::Create(state_.config, kKvType, batch.segments));
      BitNetOps ops(state_, batch.tokens, *segments);
      const Tensor hidden = model::RunDecoder(ops, state_.config);
      ApplyDenseLoss(hidden, state_.head, batch.targets, scale, &loss_sum, state_.context).backward();
      return absl::OkStatus();
    }));
    return loss_sum;
  }

  const model::DecoderWeights& ServingWeights() const override { return serving_; }

  void ReleaseGradients() override {
    trainer::ReleaseGradients(tensors_, parameters_);
    state_.context.scratch.reset();
  }

  absl::Status ForEachTrainingLogits(
      std::span<const std::int32_t> tokens,
      const std::function<absl::Status(std::int64_t, const kernels::Matrix&)>& visit) override {
    return Guarded([&]() -> absl::Status {
      const torch::AutoGradMode with_gradients(true);
      const std::vector<std::int32_t> ids(tokens.begin(), tokens.end());
      const std::vector<std::int64_t> whole = {0, static_cast<std::int64_t>(ids.size())};
      NIBBLE_ASSIGN_OR_RETURN(const auto segments, PagedSegments::Create(state_.config, kKvType, whole));
      BitNetOps ops(state_, ids, *segments);
      const Tensor hidden = model::RunDecoder(ops, state_.config).detach();
      for (std::int64_t begin = 0; begin < hidden.size(0); begin += kLogitsChunk) {
        const std::int64_t count = std::min(kLogitsChunk, hidden.size(0) - begin);
        NIBBLE_RETURN_IF_ERROR(
            visit(begin, ViewOf(DenseLogits(hidden.narrow(0, begin, count), state_.head, state_.context))));
      }
      return absl::OkStatus();
    });
  }

  absl::StatusOr<model::ArtifactInfo> Write(base::FileSystem& files, const std::string& companions_from,
                                            const base::Json& provenance, const std::string& directory) const override {
    std::vector<std::span<const float>> values;
    for (const model::TensorSpec& tensor : model::RequiredTensors(state_.config)) {
      const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                      [&](const Parameter& p) { return p.name == tensor.name; });
      if (found == parameters_.end()) return absl::InternalError("no master weight for " + tensor.name);
      values.push_back(found->value.f32());
    }
    return convert::MakeTrainedModel(files, state_.config,
                                     model::BitNetInfo{.act_bits = options_.act_bits, .head_dtype = kHeadType}, kKvType,
                                     values, companions_from, provenance, directory, "job", options_.cancelled);
  }

 private:
  static constexpr kernels::DType kKvType = model::kBitNetFloatType;
  static constexpr kernels::DType kHeadType = model::kBitNetFloatType;

  void MakeRopeTable() {
    state_.positions = std::min(options_.max_positions, state_.config.context_limit());
    const std::int64_t half = state_.config.head_dim / 2;
    const std::vector<float> frequencies = model::RopeInverseFrequencies(state_.config);
    state_.rope_cos.resize(static_cast<std::size_t>(state_.positions * half));
    state_.rope_sin.resize(state_.rope_cos.size());
    kernels::FillRopeTable(frequencies.data(), half, 0, state_.positions, state_.rope_cos.data(),
                           state_.rope_sin.data());
  }

  // Makes a parameter: from the base's tensor `from` (default: `name`), or drawn, or 1 for a vector that the base
  // lacks.
  Tensor Make(const std::string& name, std::vector<std::int64_t> shape, const std::string& from = "") {
    ThrowIfCancelled(options_.cancelled);
    Tensor tensor = torch::ones(shape, torch::kFloat32);
    const auto found = base_->tensors().find(from.empty() ? name : from);
    const bool bias = name.ends_with(".bias");
    if (options_.random_init) {
      if (shape.size() == 2) DrawWeights(tensor, options_.init_seed, tensors_.size(), state_.context.stream);
      if (bias) tensor.zero_();
    } else if (found != base_->tensors().end()) {
      const Tensor source =
          torch::from_blob(const_cast<std::byte*>(reinterpret_cast<const std::byte*>(found->second.bytes.data())),
                           shape, ToTorch(found->second.dtype));
      tensor.copy_(source);
    } else if (shape.size() == 2 || bias) {
      throw std::runtime_error("the base has no tensor " + name);
    }
    tensor.requires_grad_(true);
    tensors_.push_back(tensor);
    parameters_.push_back({name, std::move(shape), {}, {}});
    return tensor;
  }

  Layer MakeLayer(std::int64_t layer) {
    Layer made;
    for (int n = 0; n < model::kNumNorms; ++n) {
      const auto norm = static_cast<Norm>(n);
      if (!model::HasNorm(state_.config, norm)) continue;
      std::string from = model::NormName(layer, norm);
      if (norm >= Norm::kBeforeQ && !base_->tensors().contains(from)) {
        const auto kind = static_cast<LinearKind>(n - static_cast<int>(Norm::kBeforeQ));
        // If the block's norm also stays, a copy would apply its weight twice.
        const auto block = BlockNormOf(kind);
        if (block.has_value() && !model::HasNorm(state_.config, *block)) from = model::NormName(layer, *block);
      }
      made.norms[static_cast<std::size_t>(n)] =
          Make(model::NormName(layer, norm), {model::NormSize(state_.config, norm)}, from);
    }
    for (int k = 0; k < model::kNumLinearKinds; ++k) {
      const auto kind = static_cast<LinearKind>(k);
      const std::string path = model::ModulePath(layer, kind);
      BitWeight& linear = made.linears[static_cast<std::size_t>(k)];
      const std::int64_t out = model::OutFeatures(state_.config, kind);
      linear.master = Make(path + ".weight", {out, model::InFeatures(state_.config, kind)});
      if (HasBias(kind)) linear.bias = Make(path + ".bias", {out});
    }
    return made;
  }

  bool HasBias(LinearKind kind) const {
    switch (kind) {
      case LinearKind::kQ:
      case LinearKind::kK:
      case LinearKind::kV: return state_.config.qkv_bias;
      case LinearKind::kO: return state_.config.o_bias;
      default: return state_.config.mlp_bias;
    }
  }

  void MakeServingWeights() {
    model::DecoderWeights& weights = serving_;
    weights.embedding = ViewOf(state_.embedding_served);
    weights.final_norm = state_.final_norm.data_ptr<float>();
    weights.head.kind = model::LinearWeight::Kind::kDense;
    weights.head.dense = state_.head.packed();
    weights.rope_cos = state_.rope_cos.data();
    weights.rope_sin = state_.rope_sin.data();
    weights.rope_positions = state_.positions;
    weights.kv_dtype = kKvType;
    weights.act_quantize = state_.options.activations;
    weights.act_quantize.per_tensor = false;  // each row is served with its own scale
    weights.layers.resize(state_.layers.size());
    for (std::size_t l = 0; l < state_.layers.size(); ++l) {
      const Layer& layer = state_.layers[l];
      for (std::size_t n = 0; n < layer.norms.size(); ++n) {
        weights.layers[l].norms[n] = layer.norms[n].defined() ? layer.norms[n].data_ptr<float>() : nullptr;
      }
      for (std::size_t k = 0; k < layer.linears.size(); ++k) {
        model::LinearWeight& linear = weights.layers[l].linears[k];
        linear.kind = model::LinearWeight::Kind::kTernary;
        linear.ternary = layer.linears[k].packed();
        linear.bias = layer.linears[k].bias.defined() ? layer.linears[k].bias.data_ptr<float>() : nullptr;
      }
    }
  }

  const model::Artifact* base_;
  const BitNetOptions options_;
  State state_;
  model::DecoderWeights serving_;
  std::vector<Tensor> tensors_;
  std::vector<Parameter> parameters_;
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
