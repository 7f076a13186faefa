#include "server/trainer/coded_model.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/ops/attention/rope.h"
#include "kernels/ops/elementwise/embedding.h"
#include "server/base/status_macros.h"
#include "server/model/bitnet_shape.h"
#include "server/model/decoder.h"
#include "server/model/forget_pages.h"
#include "server/model/random_weights.h"
#include "server/model/saved_modules.h"
#include "server/model/tensor_table.h"
#include "server/trainer/adapter_parameters.h"
#include "server/trainer/fixed_order.h"
#include "server/trainer/recomputed_layer.h"
#include "server/trainer/segment_attention.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {

using model::LinearKind;
using model::Norm;
using torch::Tensor;

namespace {

constexpr std::int64_t kLogitsChunk = 64;  // rows; limits the memory for logits. Any other value gives the same bits

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

bool HasBias(const model::ModelConfig& config, LinearKind kind) {
  switch (kind) {
    case LinearKind::kQ:
    case LinearKind::kK:
    case LinearKind::kV: return config.qkv_bias;
    case LinearKind::kO: return config.o_bias;
    default: return config.mlp_bias;
  }
}

class CodedModel : public ExactModel {
 public:
  // Throws; see Guarded (torch_bridge.h).
  CodedModel(const model::Artifact& base, const model::ModelConfig& config, const CodedModelOptions& options,
             std::unique_ptr<CodedLinears> linears, const kernels::Stream& stream);

  std::vector<Parameter>& parameters() override { return parameters_; }
  void BeginStep(std::int64_t step) override { linears_->BeginStep(step); }
  absl::Status Refresh() override;
  absl::StatusOr<double> ForwardBackward(const data::MicroBatch& batch, double scale, std::uint64_t draw) override;
  const model::DecoderWeights& ServingWeights() override;
  std::vector<TensorRef> Values() const override;
  void ReleaseGradients() override;
  absl::Status ForEachTrainingLogits(std::span<const std::int32_t> tokens, const VisitLogits& visit) override;

 private:
  friend class CodedOps;

  void MakeRopeTable();
  Tensor MakeValues(const model::Artifact& base, const std::string& name, const std::vector<std::int64_t>& shape,
                    const std::string& from = "");
  Tensor MakeParameter(const model::Artifact& base, const std::string& name, std::vector<std::int64_t> shape,
                       const std::string& from = "");
  void MakeLayer(const model::Artifact& base, std::int64_t layer);
  const float* ServedVector(const Tensor& vector);
  // Type of the values that the graph keeps for the backward pass; `type`: of the forward pass.
  torch::ScalarType Kept(torch::ScalarType type) const { return options_.bf16_backward ? torch::kBFloat16 : type; }
  // Whether the embedding is the int8 head.
  bool TiedInt8() const { return int8_head_.has_value() && config_.tied_embeddings; }
  Tensor Embed(const std::vector<std::int32_t>& tokens);
  Tensor Loss(const Tensor& hidden, const std::vector<std::int32_t>& targets, double scale, double* loss_sum);
  Tensor Logits(const Tensor& hidden);
  void MakeServingWeights();
  void EndServing();

  const model::ModelConfig config_;
  const CodedModelOptions options_;
  const std::unique_ptr<CodedLinears> linears_;
  TrainingContext context_;
  std::vector<std::array<Tensor, model::kNumNorms>> norms_;  // undefined where the model lacks the norm
  std::vector<std::array<Tensor, model::kNumLinearKinds>> biases_;
  Tensor final_norm_;
  Tensor embedding_;         // [V, K] parameter
  Tensor embedding_served_;  // [V, K] of the served type
  DenseWeight head_;
  std::optional<Int8Head> int8_head_;  // instead of head_
  std::vector<float> rope_cos_, rope_sin_;
  std::int64_t positions_ = 0;
  std::int64_t largest_ = 0;    // elements of the largest linear
  std::uint64_t num_made_ = 0;  // tensors made so far: keeps their random values apart
  bool serving_made_ = false;   // of the current parameters
  model::DecoderWeights serving_;
  std::vector<Tensor> served_vectors_;  // what serving_ reads of norms and biases
  Tensor served_panels_;                // of a frozen head
  std::set<std::string> saved_;         // the base's tensors of which an adapter trains copies
  std::vector<Tensor> tensors_;
  std::vector<Parameter> parameters_;  // those of tensors_, then those that the linears made
};

// The decoder's operations with gradients (model/decoder.h), in the arithmetic of the served model.
class CodedOps {
 public:
  using Tensor = torch::Tensor;
  using Input = CodedInput;

  CodedOps(CodedModel& model, const std::vector<std::int32_t>& tokens, const PagedSegments& segments,
           std::uint64_t draw)
      : model_(model), tokens_(tokens), segments_(segments), draw_(draw) {}

  Tensor Embed() { return model_.Embed(tokens_); }
  template <typename Body>
  Tensor RunLayer(std::int64_t, Tensor h, Body body) {
    return model_.options_.activation_checkpointing ? RunRecomputed(std::move(h), body) : body(std::move(h));
  }
  void BeginLayer(std::int64_t) {}
  Input NormInput(const FloatInput& input, std::int64_t layer, Norm norm, LinearKind kind) {
    const Tensor& x = input.x;
    const std::span<const LinearKind> readers = model::ReadersOf(norm, kind);
    if (!std::all_of(readers.begin(), readers.end(), [&](auto k) { return model_.linears_->reads_codes(k); })) {
      const torch::ScalarType type = model_.linears_->float_rows();
      if (!Recomputes()) return {ApplyRmsNorm(x, Weight(layer, norm), Eps(norm), model_.context_, type), nullptr};
      return {ApplyRmsNormToInput(x, Weight(layer, norm), Eps(norm), model_.context_, type), nullptr};
    }
    // Norms before single linears share x, so a rounded copy for each would take more memory.
    const torch::ScalarType kept = norm < Norm::kBeforeQ ? model_.Kept(x.scalar_type()) : x.scalar_type();
    return NormCodedInput(x, Weight(layer, norm), Eps(norm), model_.linears_->rows(), model_.context_, kept,
                          Recomputes());
  }
  Input PlainInput(FloatInput x, std::int64_t, LinearKind) { return {std::move(x), nullptr}; }
  Tensor Linear(const Input& input, std::int64_t layer, LinearKind kind) {
    return model_.linears_->Apply(input, layer, kind, draw_, model_.context_);
  }
  Tensor NormRows(const Tensor& x, std::int64_t layer, Norm norm) {
    return ApplyRmsNorm(x, Weight(layer, norm), Eps(norm), model_.context_);
  }
  Tensor NormHeads(const Tensor& x, std::int64_t layer, Norm norm, std::int64_t num_heads) {
    return NormRows(x.view({x.size(0) * num_heads, x.size(1) / num_heads}), layer, norm).view(x.sizes());
  }
  Tensor Rope(const Tensor& x, std::int64_t num_heads) {
    return ApplyRope(x, num_heads, segments_.position(), model_.rope_cos_.data(), model_.rope_sin_.data(),
                     model_.positions_, model_.context_);
  }
  FloatInput Attention(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t) {
    const torch::ScalarType type = TypeBefore(LinearKind::kO);
    FloatInput mixed =
        ApplySegmentAttentionToInput(q, k, v, segments_, model_.config_.num_heads, model_.config_.num_kv_heads,
                                     model_.context_, type, model_.Kept(type));
    return Recomputes() ? mixed : FloatInput(mixed.x);
  }
  FloatInput Gated(const Tensor& gate, const Tensor& up) {
    const torch::ScalarType type = TypeBefore(LinearKind::kDown), kept = model_.Kept(type);
    if (!Recomputes()) return ApplyGatedMul(model_.config_.activation, gate, up, model_.context_, type, kept);
    return ApplyGatedMulToInput(model_.config_.activation, gate, up, model_.context_, type, kept);
  }
  Tensor Add(const Tensor& h, const Tensor& y) {
    // If none of these holds, the graph keeps rounded copies of the sum instead of the sum itself.
    const bool keeps_sum = model_.Kept(torch::kFloat32) == torch::kFloat32 || HasNorm(model_.config_, Norm::kBeforeQ) ||
                           model_.options_.activation_checkpointing;
    return keeps_sum || !Recomputes() ? h + y : ApplyTransientAdd(h, y, model_.context_);
  }
  Tensor FinalNorm(const Tensor& h) {
    return ApplyRmsNorm(h, model_.final_norm_.to(torch::kFloat32), model_.config_.rms_norm_eps, model_.context_);
  }

 private:
  // [K] f32, as the kernels read it; a bf16 weight is copied, and the copy passes the gradient on.
  Tensor Weight(std::int64_t layer, Norm norm) const {
    return model_.norms_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(norm)].to(torch::kFloat32);
  }
  bool Recomputes() const { return model_.linears_->recomputes_inputs(); }
  // An input that is normed right before the linear stays in f32 (model/serving_ops.h).
  torch::ScalarType TypeBefore(LinearKind kind) const {
    Norm norm;
    return HasNormRightBefore(model_.config_, kind, &norm) ? torch::kFloat32 : model_.linears_->float_rows();
  }
  double Eps(Norm norm) const {
    return norm >= Norm::kBeforeQ ? model_.config_.linear_norm_eps : model_.config_.rms_norm_eps;
  }

  CodedModel& model_;
  const std::vector<std::int32_t>& tokens_;
  const PagedSegments& segments_;
  const std::uint64_t draw_;
};

CodedModel::CodedModel(const model::Artifact& base, const model::ModelConfig& config, const CodedModelOptions& options,
                       std::unique_ptr<CodedLinears> linears, const kernels::Stream& stream)
    : config_(config), options_(options), linears_(std::move(linears)) {
  context_.stream = stream;
  context_.cancelled = options.cancelled;
  context_.keeps_outputs = !options.bf16_backward || config.qk_norm;  // norms of heads keep their inputs in f32
  MakeRopeTable();
  if (options.adapter.has_value()) {
    for (const model::TensorSpec& tensor : model::SavedTensors(config, options.adapter->adapter))
      saved_.insert(tensor.name);
  }
  if (const auto int8_head = linears_->int8_head(); int8_head.has_value()) {
    int8_head_ = Int8Head{*int8_head, linears_->float_rows() == torch::kBFloat16, linears_->rows()};
  }
  if (!TiedInt8()) embedding_ = MakeParameter(base, model::kEmbeddingName, {config.vocab_size, config.hidden_size});
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) MakeLayer(base, layer);
  final_norm_ = MakeParameter(base, model::kFinalNormName, {config.hidden_size});
  if (!int8_head_.has_value()) {
    head_.master = config.tied_embeddings
                       ? embedding_
                       : MakeParameter(base, model::kHeadName, {config.vocab_size, config.hidden_size});
  }
  context_.scratch = torch::empty({largest_}, BackwardType(options.bf16_backward, stream));
  HoldGradients(tensors_, parameters_);
  linears_->AddParameters(parameters_);
}

absl::Status CodedModel::Refresh() {
  EndServing();
  return Guarded([&]() -> absl::Status {
    const torch::NoGradGuard no_grad;
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      // Called only to show that the trainer is alive. The answer is ignored, because a step that has changed
      // parameters must finish.
      if (context_.cancelled) context_.cancelled();
      linears_->Refresh(layer);
    }
    // Undefined if it is frozen and an earlier call made its served form, or if it is the int8 head.
    if (embedding_.defined()) {
      const bool float_embedding = !config_.tied_embeddings && options_.embedding_dtype == kernels::DType::kF32;
      embedding_served_ = float_embedding ? embedding_.detach() : embedding_.detach().to(torch::kBFloat16);
    }
    if (head_.master.defined() && config_.tied_embeddings) {
      head_.served = embedding_served_;
      if (head_.master.requires_grad()) PackDense(head_.served, head_.panels, context_.stream);
    } else if (head_.master.defined()) {
      head_.Round(context_.stream);
    }
    // Of frozen matrices only the served forms are read.
    if (embedding_.defined() && !embedding_.requires_grad()) embedding_.reset();
    if (head_.master.defined() && !head_.master.requires_grad()) head_.master.reset();
    return absl::OkStatus();
  });
}

absl::StatusOr<double> CodedModel::ForwardBackward(const data::MicroBatch& batch, double scale, std::uint64_t draw) {
  EndServing();
  double loss_sum = 0;
  NIBBLE_RETURN_IF_ERROR(Guarded([&]() -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(const auto segments, PagedSegments::Create(config_, options_.kv_dtype, batch.segments));
    CodedOps ops(*this, batch.tokens, *segments, draw);
    const Tensor hidden = model::RunDecoder(ops, config_);
    Loss(hidden, batch.targets, scale, &loss_sum).backward();
    return absl::OkStatus();
  }));
  return loss_sum;
}

void CodedModel::ReleaseGradients() {
  trainer::ReleaseGradients(tensors_, parameters_);
  linears_->ReleaseGradients();
  for (Parameter& parameter : parameters_) parameter.grad = {};
  EndServing();
  context_.scratch.reset();
  context_.transient = {};
}

absl::Status CodedModel::ForEachTrainingLogits(std::span<const std::int32_t> tokens, const VisitLogits& visit) {
  linears_->BeginStep(CodedLinears::kAfterTraining);
  return Guarded([&]() -> absl::Status {
    const torch::AutoGradMode with_gradients(true);
    const std::vector<std::int32_t> ids(tokens.begin(), tokens.end());
    const std::vector<std::int64_t> whole = {0, static_cast<std::int64_t>(ids.size())};
    NIBBLE_ASSIGN_OR_RETURN(const auto segments, PagedSegments::Create(config_, options_.kv_dtype, whole));
    CodedOps ops(*this, ids, *segments, /*draw=*/0);
    const Tensor hidden = model::RunDecoder(ops, config_).detach();
    for (std::int64_t begin = 0; begin < hidden.size(0); begin += kLogitsChunk) {
      const std::int64_t count = std::min(kLogitsChunk, hidden.size(0) - begin);
      NIBBLE_RETURN_IF_ERROR(visit(begin, ViewOf(Logits(hidden.narrow(0, begin, count)))));
    }
    return absl::OkStatus();
  });
}

Tensor CodedModel::Embed(const std::vector<std::int32_t>& tokens) {
  if (TiedInt8()) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    Tensor rows = torch::empty({count, config_.hidden_size}, torch::kFloat32);
    ThrowIfError(kernels::Embedding(
        {.ids = tokens.data(), .num_ids = count, .table = {}, .packed = int8_head_->weight, .out = ViewOf(rows)},
        context_.stream));
    return rows;
  }
  if (!embedding_.defined()) return EmbeddingRows(tokens, embedding_served_, context_);
  return ApplyEmbedding(tokens, embedding_served_, embedding_, context_);
}

Tensor CodedModel::Loss(const Tensor& hidden, const std::vector<std::int32_t>& targets, double scale,
                        double* loss_sum) {
  return int8_head_.has_value() ? ApplyInt8Loss(hidden, *int8_head_, targets, scale, loss_sum, context_)
                                : ApplyDenseLoss(hidden, head_, targets, scale, loss_sum, context_);
}

Tensor CodedModel::Logits(const Tensor& hidden) {
  return int8_head_.has_value() ? Int8Logits(hidden, *int8_head_, context_) : DenseLogits(hidden, head_, context_);
}

const model::DecoderWeights& CodedModel::ServingWeights() {
  if (!serving_made_) {
    EndServing();  // frees what a failed call left
    MakeServingWeights();
  }
  return serving_;
}

void CodedModel::EndServing() {
  serving_made_ = false;
  served_vectors_.clear();
  served_panels_.reset();
  linears_->EndServing();
}

std::vector<TensorRef> CodedModel::Values() const {
  std::map<std::string, TensorRef> by_name;
  for (const Parameter& parameter : parameters_) by_name[parameter.name] = parameter.value;
  std::vector<TensorRef> values;
  for (const model::TensorSpec& tensor : model::RequiredTensors(config_)) values.push_back(by_name.at(tensor.name));
  return values;
}

void CodedModel::MakeRopeTable() {
  positions_ = std::min(options_.max_positions, config_.context_limit());
  const std::int64_t half = config_.head_dim / 2;
  const std::vector<float> frequencies = model::RopeInverseFrequencies(config_);
  rope_cos_.resize(static_cast<std::size_t>(positions_ * half));
  rope_sin_.resize(rope_cos_.size());
  kernels::FillRopeTable(frequencies.data(), half, 0, positions_, rope_cos_.data(), rope_sin_.data());
}

// Initial values: the base's tensor `from` (default: `name`), or 1 for a norm that the base lacks; throws if it lacks a
// matrix or a bias. With random_init instead: drawn for a matrix, 1 for a norm, 0 for a bias.
Tensor CodedModel::MakeValues(const model::Artifact& base, const std::string& name,
                              const std::vector<std::int64_t>& shape, const std::string& from) {
  ThrowIfCancelled(options_.cancelled);
  const std::uint64_t number = num_made_++;
  Tensor tensor = torch::ones(shape, torch::kFloat32);
  const auto found = base.tensors().find(from.empty() ? name : from);
  const bool bias = name.ends_with(".bias");
  if (options_.random_init) {
    if (shape.size() == 2) {
      model::DrawWeights({tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())}, options_.init_seed,
                         number, context_.stream);
    }
    if (bias) tensor.zero_();
  } else if (found != base.tensors().end()) {
    const Tensor source =
        torch::from_blob(const_cast<std::byte*>(reinterpret_cast<const std::byte*>(found->second.bytes.data())), shape,
                         ToTorch(found->second.dtype));
    tensor.copy_(source);
    model::ForgetPages(found->second.bytes);
  } else if (shape.size() == 2 || bias) {
    throw std::runtime_error("the base has no tensor " + name);
  }
  return tensor;
}

Tensor CodedModel::MakeParameter(const model::Artifact& base, const std::string& name, std::vector<std::int64_t> shape,
                                 const std::string& from) {
  Tensor tensor = MakeValues(base, name, shape, from);
  if (options_.adapter.has_value() && !saved_.contains(name)) return tensor;
  if (options_.bf16_parameters) tensor = tensor.to(torch::kBFloat16);
  tensor.requires_grad_(true);
  tensors_.push_back(tensor);
  Parameter& parameter = parameters_.emplace_back();
  parameter.name = options_.adapter.has_value() ? model::SavedName(name) : name;
  if (options_.adapter.has_value()) parameter.lr_factor = SavedLrFactor(*options_.adapter, shape);
  parameter.shape = std::move(shape);
  return tensor;
}

void CodedModel::MakeLayer(const model::Artifact& base, std::int64_t layer) {
  auto& norms = norms_.emplace_back();
  for (int n = 0; n < model::kNumNorms; ++n) {
    const auto norm = static_cast<Norm>(n);
    if (!model::HasNorm(config_, norm)) continue;
    std::string from = model::NormName(layer, norm);
    if (norm >= Norm::kBeforeQ && !base.tensors().contains(from)) {
      const auto kind = static_cast<LinearKind>(n - static_cast<int>(Norm::kBeforeQ));
      // If the block's norm also stays, a copy would apply its weight twice.
      const auto block = BlockNormOf(kind);
      if (block.has_value() && !model::HasNorm(config_, *block)) from = model::NormName(layer, *block);
    }
    norms[static_cast<std::size_t>(n)] =
        MakeParameter(base, model::NormName(layer, norm), {model::NormSize(config_, norm)}, from);
  }
  std::array<CodedLinears::Source, model::kNumLinearKinds> sources;
  auto& biases = biases_.emplace_back();
  for (std::size_t k = 0; k < sources.size(); ++k) {
    const auto kind = static_cast<LinearKind>(k);
    const std::string path = model::ModulePath(layer, kind);
    const std::int64_t out = model::OutFeatures(config_, kind);
    const std::vector<std::int64_t> shape = {out, model::InFeatures(config_, kind)};
    switch (linears_->sources()) {
      case CodedLinears::Sources::kParameters: sources[k].weight = MakeParameter(base, path + ".weight", shape); break;
      case CodedLinears::Sources::kValues: sources[k].weight = MakeValues(base, path + ".weight", shape); break;
      case CodedLinears::Sources::kNone: break;
    }
    if (HasBias(config_, kind)) sources[k].bias = MakeParameter(base, path + ".bias", {out});
    biases[k] = sources[k].bias;
    largest_ = std::max(largest_, shape[0] * shape[1]);
  }
  linears_->AddLayer(sources);
}

// A vector as serving reads it: f32. Valid until EndServing.
const float* CodedModel::ServedVector(const Tensor& vector) {
  if (!vector.defined()) return nullptr;
  served_vectors_.push_back(vector.detach().to(torch::kFloat32));
  return served_vectors_.back().data_ptr<float>();
}

void CodedModel::MakeServingWeights() {
  if (TiedInt8()) {
    serving_.embedding_int8 = int8_head_->weight;
  } else {
    serving_.embedding = ViewOf(embedding_served_);
  }
  serving_.final_norm = ServedVector(final_norm_);
  if (int8_head_.has_value()) {
    using Kind = model::LinearWeight::Kind;
    serving_.head.kind = int8_head_->float_rows ? Kind::kInt8Weight : Kind::kInt8;
    serving_.head.int8 = int8_head_->weight;
  } else {
    serving_.head.kind = model::LinearWeight::Kind::kDense;
    const bool frozen = !head_.panels.defined();
    serving_.head.dense = frozen ? PackDense(head_.served, served_panels_, context_.stream) : head_.packed();
  }
  serving_.rope_cos = rope_cos_.data();
  serving_.rope_sin = rope_sin_.data();
  serving_.rope_positions = positions_;
  serving_.input_dtype = linears_->float_rows() == torch::kBFloat16 ? kernels::DType::kBF16 : kernels::DType::kF32;
  serving_.kv_dtype = options_.kv_dtype;
  serving_.act_quantize = linears_->rows().activations;
  serving_.act_quantize.per_tensor = false;  // each row is served with its own scale
  serving_.act_outliers = linears_->rows().max_outliers;
  serving_.layers.resize(norms_.size());
  for (std::size_t l = 0; l < norms_.size(); ++l) {
    if (context_.cancelled) context_.cancelled();  // shows that the trainer is alive
    for (std::size_t n = 0; n < model::kNumNorms; ++n) {
      serving_.layers[l].norms[n] = ServedVector(norms_[l][n]);
    }
    for (std::size_t k = 0; k < model::kNumLinearKinds; ++k) {
      model::LinearWeight& linear = serving_.layers[l].linears[k];
      linears_->Serve(static_cast<std::int64_t>(l), static_cast<LinearKind>(k), linear);
      linear.bias = ServedVector(biases_[l][k]);
    }
  }
  serving_made_ = true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExactModel>> MakeCodedModel(const model::Artifact& base,
                                                           const model::ModelConfig& config,
                                                           const CodedModelOptions& options,
                                                           std::unique_ptr<CodedLinears> linears,
                                                           const kernels::Stream& stream) {
  return Guarded([&]() -> absl::StatusOr<std::unique_ptr<ExactModel>> {
    auto made = std::make_unique<CodedModel>(base, config, options, std::move(linears), stream);
    NIBBLE_RETURN_IF_ERROR(made->Refresh());
    return std::unique_ptr<ExactModel>(std::move(made));
  });
}

}  // namespace nibble::trainer
