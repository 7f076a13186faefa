// A decoder that is trained in the arithmetic in which it is served: its linears read rows of integer codes, and all
// other operations run in the fixed order of serving, so that the training forward pass gives the bits of the served
// model. A method brings its linears. Included by models' .cc only.
#pragma once
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/matrix.h"
#include "server/base/cancelled.h"
#include "server/model/artifact.h"
#include "server/model/decoder_weights.h"
#include "server/trainer/coded_rows.h"
#include "server/trainer/fixed_order.h"
#include "server/trainer/segment_attention.h"
#include "server/trainer/training_model.h"
#include "server/trainer/training_record.h"

namespace nibble::trainer {

// The linears of a method.
class CodedLinears {
 public:
  virtual ~CodedLinears() = default;

  // Adds the linears of the next layer. master [N, K] f32 parameter; bias undefined, or [N] f32 parameter.
  struct Source {
    torch::Tensor master;
    torch::Tensor bias;
  };
  virtual void AddLayer(const std::array<Source, model::kNumLinearKinds>& sources) = 0;
  // Makes the codes of a layer's masters. Throws the kernel's error.
  virtual void Refresh(std::int64_t layer) = 0;
  // How rows become codes.
  virtual const CodedRowOptions& rows() const = 0;
  // `draw`: number of the micro-batch in the run.
  virtual torch::Tensor Apply(const CodedInput& input, std::int64_t layer, model::LinearKind kind, std::uint64_t draw,
                              AutogradContext& context) = 0;
  // Sets the served form, without the bias.
  virtual void Serve(std::int64_t layer, model::LinearKind kind, model::LinearWeight& weight) const = 0;
};

struct CodedModelOptions {
  bool random_init = false;  // weights from N(0, 0.02), norms 1; else the base's
  std::uint64_t init_seed = 0;
  bool bf16_backward = true;  // for products of the backward pass; the type of the forward pass is fixed
  bool activation_checkpointing = false;
  std::int64_t max_positions = 0;
  kernels::DType kv_dtype = kernels::DType::kBF16;
  // Type of the embedding in the served model; a tied one has the head's, bf16.
  kernels::DType embedding_dtype = kernels::DType::kBF16;
  base::Cancelled cancelled = {};  // AutogradContext::cancelled; also called for every tensor when the model is made
};

class CodedModel {
 public:
  // Makes the parameters: embedding, layers, final norm, head. A norm that `config` has and the base lacks starts as
  // 1, with one exception: if `config` has no norm before attention, the norms before q, k and v start with the values
  // of the base's norm before attention. Likewise, without a norm before the MLP, those before gate and up start with
  // the values of that norm of the base. Throws; see Guarded (torch_bridge.h).
  CodedModel(const model::Artifact& base, const model::ModelConfig& config, const CodedModelOptions& options,
             std::unique_ptr<CodedLinears> linears, const kernels::Stream& stream);

  // As in TrainingModel.
  std::vector<Parameter>& parameters() { return parameters_; }
  absl::Status Refresh();
  absl::StatusOr<double> ForwardBackward(const data::MicroBatch& batch, double scale, std::uint64_t draw);
  const model::DecoderWeights& ServingWeights() const { return serving_; }

  // Frees the gradients and the scratch of backward passes. Do not call ForwardBackward afterwards.
  void ReleaseGradients();
  // Logits of every row by the training instantiation, with autograd on; in chunks.
  absl::Status ForEachTrainingLogits(std::span<const std::int32_t> tokens, const VisitLogits& visit);
  // The parameters' values, in the order of RequiredTensors.
  std::vector<std::span<const std::byte>> Values() const;
  const model::ModelConfig& config() const { return config_; }

 private:
  friend class CodedOps;

  void MakeRopeTable();
  torch::Tensor Make(const model::Artifact& base, const std::string& name, std::vector<std::int64_t> shape,
                     const std::string& from = "");
  void MakeLayer(const model::Artifact& base, std::int64_t layer);
  void MakeServingWeights();

  const model::ModelConfig config_;
  const CodedModelOptions options_;
  const std::unique_ptr<CodedLinears> linears_;
  AutogradContext context_;
  std::vector<std::array<torch::Tensor, model::kNumNorms>> norms_;  // undefined where the model lacks the norm
  std::vector<std::array<torch::Tensor, model::kNumLinearKinds>> biases_;
  torch::Tensor final_norm_;
  torch::Tensor embedding_;         // [V, K] f32 parameter
  torch::Tensor embedding_served_;  // [V, K] of the served type
  DenseHead head_;
  std::vector<float> rope_cos_, rope_sin_;
  std::int64_t positions_ = 0;
  std::int64_t largest_ = 0;  // elements of the largest linear
  model::DecoderWeights serving_;
  std::vector<torch::Tensor> tensors_;
  std::vector<Parameter> parameters_;
};

}  // namespace nibble::trainer
