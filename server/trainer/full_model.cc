#include "server/trainer/full_model.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "kernels/ops/attention/rope.h"
#include "server/base/status_macros.h"
#include "server/model/random_weights.h"
#include "server/model/tensor_table.h"
#include "server/trainer/chunked_loss.h"
#include "server/trainer/fixed_order.h"
#include "server/trainer/float_linear.h"
#include "server/trainer/int8_linear.h"
#include "server/trainer/torch_bridge.h"
#include "server/trainer/training_ops.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using model::Norm;
using torch::Tensor;

struct FullParts : DecoderParts {
  Tensor Embed(const Pass& pass) override { return ApplyEmbedding(pass.tokens, embedding, embedding, context); }
  Tensor Linear(const FloatInput& input, std::int64_t layer, LinearKind kind, const Pass& pass) override {
    const auto l = static_cast<std::size_t>(layer);
    const auto k = static_cast<std::size_t>(kind);
    if (!RunsInt8(k)) return ApplyFloatLinear(input, linears[l][k], context);
    const Tensor& x = input.x;
    // Rows of padding would change the scales of columns and of whole tensors. A float forward product needs them
    // (kRowQuantum).
    const std::int64_t tokens = int8->how.forward ? pass.segments->num_tokens() : x.size(0);
    const Tensor y = ApplyInt8Linear({x.narrow(0, 0, tokens), nullptr}, int8_linears[l][k], int8->how,
                                     pass.draw.value_or(0), context);
    return x.size(0) == tokens ? y : torch::constant_pad_nd(y, {0, 0, 0, x.size(0) - tokens});
  }
  Tensor NormWeight(std::int64_t layer, Norm norm) override {
    return norms[static_cast<std::size_t>(layer)][static_cast<std::size_t>(norm)].to(torch::kFloat32);
  }
  Tensor FinalNormWeight() override { return final_norm.to(torch::kFloat32); }

  bool RunsInt8(std::size_t kind) const { return int8.has_value() && int8->targets[kind]; }
  // Whether the forward products of all linears run in int8.
  bool ForwardIsInt8() const {
    return int8->how.forward &&
           std::all_of(int8->targets.begin(), int8->targets.end(), [](bool target) { return target; });
  }
  // Whether serving can run these products as training does.
  bool ServesInt8() const {
    return ForwardIsInt8() && !int8->how.stochastic_forward && !int8->how.rows.activations.per_tensor;
  }
  // Calls make(linear) for each linear that runs in int8.
  template <typename Make>
  void ForEachInt8(Make make) {
    for (auto& layer : int8_linears) {
      if (context.cancelled) context.cancelled();  // shows that the trainer is alive
      for (std::size_t k = 0; k < layer.size(); ++k) {
        if (RunsInt8(k)) make(layer[k]);
      }
    }
  }

  std::vector<std::array<FloatLinear, model::kNumLinearKinds>> linears;  // by layer
  std::optional<Int8Products> int8;
  std::vector<std::array<Int8Weight, model::kNumLinearKinds>> int8_linears;  // by layer; empty without int8
  std::vector<std::array<Tensor, model::kNumNorms>> norms;                   // undefined where the model lacks the norm
  Tensor embedding, final_norm;                                              // parameters
};

class TorchFullModel : public FullModel {
 public:
  TorchFullModel(const model::Artifact& base, const FullOptions& options, const kernels::Stream& stream)
      : config_(base.config()), kv_dtype_(base.info().kv_dtype) {
    parts_.config = &config_;
    parts_.context.stream = stream;
    parts_.context.cancelled = options.cancelled;
    parts_.checkpointing = options.activation_checkpointing;
    parts_.int8 = options.int8;
    parts_.recomputes_inputs = !options.int8.has_value();  // int8 linears keep x as it is
    parts_.compute = options.bf16_compute ? torch::kBFloat16 : torch::kFloat32;
    parts_.head_type = parts_.compute;
    // Backward products have the type of the scratch; no product here needs its memory.
    parts_.context.scratch = torch::empty({0}, BackwardType(options.bf16_compute, stream));
    MakeRopeTable(options.max_positions);
  }

  absl::Status MakeWeights(const model::Artifact& base, const FullOptions& options) {
    std::map<std::string, Tensor> made;
    for (const model::TensorSpec& tensor : model::RequiredTensors(config_)) {
      NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(parts_.context.cancelled));
      Tensor parameter = torch::empty(tensor.shape, torch::kFloat32);
      if (!options.random_init) {
        NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> values, base.FloatTensor(tensor.name));
        std::copy(values.begin(), values.end(), parameter.data_ptr<float>());
      } else {
        model::DrawTensor(tensor, {parameter.data_ptr<float>(), static_cast<std::size_t>(parameter.numel())},
                          options.init_seed, tensors_.size(), parts_.context.stream);
      }
      if (options.bf16_parameters) parameter = parameter.to(torch::kBFloat16);
      parameter.requires_grad_(true);
      tensors_.push_back(parameter);
      parameters_.push_back({tensor.name, tensor.shape, {}, {}});
      made[tensor.name] = parameter;
    }
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      auto& linears = parts_.linears.emplace_back();
      for (std::size_t k = 0; k < linears.size(); ++k) {
        const std::string path = model::ModulePath(layer, static_cast<LinearKind>(k));
        linears[k] = {made.at(path + ".weight"), {}, made[path + ".bias"]};  // undefined if the config has no bias
      }
      if (parts_.int8.has_value()) {
        auto& int8 = parts_.int8_linears.emplace_back();
        for (std::size_t k = 0; k < int8.size(); ++k) {
          int8[k].master = linears[k].master;
          int8[k].bias = linears[k].bias;
          int8[k].number = static_cast<std::uint64_t>(layer) * int8.size() + k;
        }
      }
      auto& norms = parts_.norms.emplace_back();
      for (std::size_t n = 0; n < norms.size(); ++n) norms[n] = made[model::NormName(layer, static_cast<Norm>(n))];
    }
    parts_.embedding = made.at(model::kEmbeddingName);
    parts_.final_norm = made.at(model::kFinalNormName);
    head_.master = config_.tied_embeddings ? parts_.embedding : made.at(model::kHeadName);
    HoldGradients(tensors_, parameters_);
    return absl::OkStatus();
  }

  std::vector<Parameter>& parameters() override { return parameters_; }
  std::vector<TensorRef> Values() const override {
    std::vector<TensorRef> values;
    for (const Parameter& parameter : parameters_) values.push_back(parameter.value);
    return values;
  }

  absl::Status Refresh() override {
    return Guarded([&]() -> absl::Status {
      if (parts_.compute == torch::kBFloat16) {
        for (auto& layer : parts_.linears) {
          // Called only to show that the trainer is alive. The answer is ignored, because a step that has changed
          // parameters must finish.
          if (parts_.context.cancelled) parts_.context.cancelled();
          for (std::size_t k = 0; k < layer.size(); ++k) {
            if (!parts_.RunsInt8(k)) layer[k].Round();
          }
        }
      }
      parts_.ForEachInt8([&](Int8Weight& linear) {
        linear.Quantize(parts_.int8->how, parts_.compute == torch::kBFloat16, parts_.context.stream);
      });
      head_.Read(parts_.compute, parts_.context.scratch.scalar_type());
      MakeServingWeights();
      return absl::OkStatus();
    });
  }

  absl::StatusOr<double> ForwardBackward(const data::MicroBatch& batch, double scale, std::uint64_t draw) override {
    return Guarded([&]() -> absl::StatusOr<double> {
      // Keys and values have the type that serving caches; training in f32 does not round them.
      const kernels::DType kv_dtype = parts_.compute == torch::kFloat32 ? kernels::DType::kF32 : kv_dtype_;
      NIBBLE_ASSIGN_OR_RETURN(const Pass pass, Pass::Create(config_, kv_dtype, batch.tokens, batch.segments, draw));
      if (parts_.int8.has_value() && parts_.int8->how.stochastic_forward) {
        parts_.ForEachInt8(
            [&](Int8Weight& linear) { linear.QuantizeForward(parts_.int8->how, draw, parts_.context.stream); });
      }
      TrainingOps ops(parts_, pass);
      const Tensor hidden = model::RunDecoder(ops, config_);
      double loss_sum = 0;
      ApplyTrainedHeadLoss(hidden, head_, batch.targets, scale, &loss_sum, parts_.context).backward();
      return loss_sum;
    });
  }

  const model::DecoderWeights& ServingWeights() override { return serving_; }

  void Release() override {
    parts_.linears.clear();
    parts_.int8_linears.clear();
    parts_.norms.clear();
    parts_.embedding.reset();
    parts_.final_norm.reset();
    parts_.context.transient = {};
    parts_.context.scratch.reset();
    head_ = {};
    served_vectors_.clear();
    serving_ = {};
    ReleaseGradients(tensors_, parameters_);
  }

 private:
  void MakeRopeTable(std::int64_t max_positions) {
    parts_.rope_positions = std::min(max_positions, config_.context_limit());
    const std::int64_t half = config_.head_dim / 2;
    const std::vector<float> frequencies = model::RopeInverseFrequencies(config_);
    rope_cos_.resize(static_cast<std::size_t>(parts_.rope_positions * half));
    rope_sin_.resize(rope_cos_.size());
    kernels::FillRopeTable(frequencies.data(), half, 0, parts_.rope_positions, rope_cos_.data(), rope_sin_.data());
    parts_.rope_cos = rope_cos_.data();
    parts_.rope_sin = rope_sin_.data();
  }

  // A vector as serving reads it: f32. Keeps the copy that it makes of a bf16 vector.
  const float* ServedVector(const Tensor& vector) {
    if (!vector.defined()) return nullptr;
    served_vectors_.push_back(vector.detach().to(torch::kFloat32));
    return served_vectors_.back().data_ptr<float>();
  }

  // The trained model is an artifact of the parameters, so evaluations read these. Linears that run in int8 are
  // evaluated in int8 if serving can run them as training does.
  void MakeServingWeights() {
    served_vectors_.clear();
    serving_.embedding = ViewOf(parts_.embedding.detach());
    serving_.final_norm = ServedVector(parts_.final_norm);
    serving_.head.kind = model::LinearWeight::Kind::kLibrary;
    serving_.head.library = ViewOf(head_.master.detach());
    serving_.rope_cos = parts_.rope_cos;
    serving_.rope_sin = parts_.rope_sin;
    serving_.rope_positions = parts_.rope_positions;
    serving_.input_dtype =
        head_.master.scalar_type() == torch::kBFloat16 ? kernels::DType::kBF16 : kernels::DType::kF32;
    serving_.kv_dtype = kv_dtype_;
    const bool serve_int8 = parts_.int8.has_value() && parts_.ServesInt8();
    if (serve_int8) serving_.act_outliers = parts_.int8->how.rows.max_outliers;
    serving_.layers.resize(parts_.linears.size());
    for (std::size_t l = 0; l < serving_.layers.size(); ++l) {
      model::LayerWeights& layer = serving_.layers[l];
      for (std::size_t n = 0; n < model::kNumNorms; ++n) layer.norms[n] = ServedVector(parts_.norms[l][n]);
      for (std::size_t k = 0; k < model::kNumLinearKinds; ++k) {
        const FloatLinear& linear = parts_.linears[l][k];
        if (serve_int8) {
          layer.linears[k].kind = model::LinearWeight::Kind::kInt8;
          layer.linears[k].int8 = parts_.int8_linears[l][k].packed.view();
        } else {
          layer.linears[k].library = ViewOf(linear.master.detach());
        }
        layer.linears[k].bias = ServedVector(linear.bias);
      }
    }
  }

  const model::ModelConfig config_;
  const kernels::DType kv_dtype_;
  FullParts parts_;
  TrainedHead head_;
  std::vector<float> rope_cos_, rope_sin_;
  std::vector<Tensor> served_vectors_;
  model::DecoderWeights serving_;
  std::vector<Tensor> tensors_;
  std::vector<Parameter> parameters_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FullModel>> FullModel::Create(const model::Artifact& base, const FullOptions& options,
                                                             const kernels::Stream& stream) {
  if (base.info().is_masters() ||
      (base.info().format != model::Format::kF32 && base.info().format != model::Format::kBF16)) {
    return absl::InvalidArgumentError("full and int8_mixed train a base in f32 or bf16");
  }
  return Guarded([&]() -> absl::StatusOr<std::unique_ptr<FullModel>> {
    auto made = std::make_unique<TorchFullModel>(base, options, stream);
    NIBBLE_RETURN_IF_ERROR(made->MakeWeights(base, options));
    NIBBLE_RETURN_IF_ERROR(made->Refresh());
    return std::unique_ptr<FullModel>(std::move(made));
  });
}

}  // namespace nibble::trainer
