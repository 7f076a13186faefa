#include "tests/server/trainer/full_f32_model.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "kernels/ops/attention/rope.h"
#include "server/base/status_macros.h"
#include "server/model/decoder.h"
#include "server/trainer/autograd.h"
#include "server/trainer/fixed_order.h"
#include "server/trainer/segment_attention.h"
#include "server/trainer/torch_bridge.h"
#include "tests/support/random.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using model::Norm;
using torch::Tensor;

struct FloatLinear {
  Tensor weight;  // [N, K]
  Tensor bias;    // undefined, or [N]
};

struct State {
  model::ModelConfig config;
  std::vector<std::array<FloatLinear, model::kNumLinearKinds>> linears;  // by layer
  std::vector<std::array<Tensor, model::kNumNorms>> norms;
  Tensor embedding, final_norm;
  DenseWeight head;
  TrainingContext context;
  std::vector<float> rope_cos, rope_sin;
  std::int64_t positions = 0;
};

// The operations of the decoder (model/decoder.h) with gradients. All but Linear call the trainer's autograd functions;
// Linear is a product of torch with torch's own gradient.
class FloatOps {
 public:
  using Tensor = torch::Tensor;
  using Input = torch::Tensor;

  FloatOps(State& state, const std::vector<std::int32_t>& tokens, const PagedSegments& segments)
      : state_(state), tokens_(tokens), segments_(segments) {}

  Tensor Embed() { return ApplyEmbedding(tokens_, state_.embedding, state_.embedding, state_.context); }
  template <typename Body>
  Tensor RunLayer(std::int64_t, Tensor h, Body body) {
    return body(std::move(h));
  }
  void BeginLayer(std::int64_t) {}
  Input NormInput(const Tensor& x, std::int64_t layer, Norm norm, LinearKind) { return NormRows(x, layer, norm); }
  Input PlainInput(Tensor x, std::int64_t, LinearKind) { return x; }
  Tensor Linear(const Input& input, std::int64_t layer, LinearKind kind) {
    ThrowIfCancelled(state_.context.cancelled);
    const FloatLinear& linear = state_.linears[static_cast<std::size_t>(layer)][static_cast<std::size_t>(kind)];
    const Tensor y = torch::mm(input, linear.weight.t());
    return linear.bias.defined() ? y + linear.bias : y;
  }
  Tensor NormRows(const Tensor& x, std::int64_t layer, Norm norm) {
    const double eps = norm >= Norm::kBeforeQ ? state_.config.linear_norm_eps : state_.config.rms_norm_eps;
    return ApplyRmsNorm(x, state_.norms[static_cast<std::size_t>(layer)][static_cast<std::size_t>(norm)], eps,
                        state_.context);
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
  State& state_;
  const std::vector<std::int32_t>& tokens_;
  const PagedSegments& segments_;
};

class FullF32Model : public TrainingModel {
 public:
  FullF32Model(const model::ModelConfig& config, const FullF32Options& options, const kernels::Stream& stream) {
    state_.config = config;
    state_.context.stream = stream;
    state_.context.cancelled = options.cancelled;
    // Backward products have the type of the scratch.
    state_.context.scratch = torch::empty({1}, torch::kFloat32);
    std::map<std::string, Tensor> made;
    for (const model::TensorSpec& tensor : model::RequiredTensors(config)) {
      made[tensor.name] = Make(tensor, options.init_seed);
    }
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
      auto& linears = state_.linears.emplace_back();
      for (std::size_t k = 0; k < linears.size(); ++k) {
        const std::string path = model::ModulePath(layer, static_cast<LinearKind>(k));
        linears[k] = {made.at(path + ".weight"), made[path + ".bias"]};  // undefined if the config has no bias
      }
      auto& norms = state_.norms.emplace_back();
      for (std::size_t n = 0; n < norms.size(); ++n) norms[n] = made[model::NormName(layer, static_cast<Norm>(n))];
    }
    state_.embedding = made.at(model::kEmbeddingName);
    state_.final_norm = made.at(model::kFinalNormName);
    state_.head.master = config.tied_embeddings ? state_.embedding : made.at(model::kHeadName);
    state_.head.served = state_.head.master.detach();  // the same memory
    MakeRopeTable(options.max_positions);
    HoldGradients(tensors_, parameters_);
  }

  std::vector<Parameter>& parameters() override { return parameters_; }

  absl::Status Refresh() override {
    return Guarded([&]() -> absl::Status {
      const torch::NoGradGuard no_grad;
      PackDense(state_.head.served, state_.head.panels, state_.context.stream);
      MakeServingWeights();
      return absl::OkStatus();
    });
  }

  absl::StatusOr<double> ForwardBackward(const data::MicroBatch& batch, double scale, std::uint64_t) override {
    return Guarded([&]() -> absl::StatusOr<double> {
      NIBBLE_ASSIGN_OR_RETURN(const auto segments,
                              PagedSegments::Create(state_.config, kernels::DType::kF32, batch.segments));
      FloatOps ops(state_, batch.tokens, *segments);
      const Tensor hidden = model::RunDecoder(ops, state_.config);
      double loss_sum = 0;
      ApplyDenseLoss(hidden, state_.head, batch.targets, scale, &loss_sum, state_.context).backward();
      return loss_sum;
    });
  }

  const model::DecoderWeights& ServingWeights() override { return serving_; }

 private:
  Tensor Make(const model::TensorSpec& spec, std::uint64_t seed) {
    Tensor tensor = torch::ones(spec.shape, torch::kFloat32);
    if (spec.role == model::TensorRole::kBias) tensor.zero_();
    if (spec.shape.size() == 2) {
      const std::vector<float> drawn = support::NormalVector(seed * 1000 + tensors_.size(), tensor.numel(), 0.1f);
      std::copy(drawn.begin(), drawn.end(), tensor.data_ptr<float>());
    }
    tensor.requires_grad_(true);
    tensors_.push_back(tensor);
    parameters_.push_back({spec.name, spec.shape, {}, {}});
    return tensor;
  }

  void MakeRopeTable(std::int64_t max_positions) {
    state_.positions = std::min(max_positions, state_.config.context_limit());
    const std::int64_t half = state_.config.head_dim / 2;
    const std::vector<float> frequencies = model::RopeInverseFrequencies(state_.config);
    state_.rope_cos.resize(static_cast<std::size_t>(state_.positions * half));
    state_.rope_sin.resize(state_.rope_cos.size());
    kernels::FillRopeTable(frequencies.data(), half, 0, state_.positions, state_.rope_cos.data(),
                           state_.rope_sin.data());
  }

  void MakeServingWeights() {
    serving_.embedding = ViewOf(state_.embedding.detach());
    serving_.final_norm = state_.final_norm.data_ptr<float>();
    serving_.head.kind = model::LinearWeight::Kind::kDense;
    serving_.head.dense = state_.head.packed();
    serving_.rope_cos = state_.rope_cos.data();
    serving_.rope_sin = state_.rope_sin.data();
    serving_.rope_positions = state_.positions;
    serving_.layers.resize(state_.linears.size());
    for (std::size_t l = 0; l < serving_.layers.size(); ++l) {
      for (std::size_t n = 0; n < model::kNumNorms; ++n) {
        const Tensor& norm = state_.norms[l][n];
        serving_.layers[l].norms[n] = norm.defined() ? norm.data_ptr<float>() : nullptr;
      }
      for (std::size_t k = 0; k < model::kNumLinearKinds; ++k) {
        const FloatLinear& linear = state_.linears[l][k];
        serving_.layers[l].linears[k].library = ViewOf(linear.weight.detach());
        serving_.layers[l].linears[k].bias = linear.bias.defined() ? linear.bias.data_ptr<float>() : nullptr;
      }
    }
  }

  State state_;
  model::DecoderWeights serving_;
  std::vector<Tensor> tensors_;
  std::vector<Parameter> parameters_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingModel>> MakeFullF32Model(const model::ModelConfig& config,
                                                                const FullF32Options& options,
                                                                const kernels::Stream& stream) {
  return Guarded([&]() -> absl::StatusOr<std::unique_ptr<TrainingModel>> {
    auto made = std::make_unique<FullF32Model>(config, options, stream);
    NIBBLE_RETURN_IF_ERROR(made->Refresh());
    return std::unique_ptr<TrainingModel>(std::move(made));
  });
}

}  // namespace nibble::trainer
