// A decoder that is trained in the arithmetic in which it is served: its linears have integer weights and read rows of
// codes (or float rows, if the served ones do), and all other operations run in the fixed order of serving, so that the
// training forward pass gives the bits of the served model. Each method supplies its linears. Only the .cc files of
// models include this.
#pragma once
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/formats/int8.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/model/artifact.h"
#include "server/model/decoder_weights.h"
#include "server/trainer/adapter_model.h"
#include "server/trainer/coded_rows.h"
#include "server/trainer/exact_model.h"

namespace nibble::trainer {

// The linears of a method.
class CodedLinears {
 public:
  virtual ~CodedLinears() = default;

  // Initial state of a linear. weight: undefined, or [N, K]; bias: undefined, or [N]. Both are f32, or bf16 if the
  // parameters are.
  struct Source {
    torch::Tensor weight;
    torch::Tensor bias;
  };
  // Meaning of Source::weight. kParameters: the trained parameter itself. kValues: initial values, from which the
  // linears make their own parameters. kNone: undefined; the linears read the base themselves.
  enum class Sources { kParameters, kValues, kNone };
  virtual Sources sources() const { return Sources::kParameters; }
  // A step after any run: the linears compute as they do at the end of training.
  static constexpr std::int64_t kAfterTraining = std::numeric_limits<std::int64_t>::max();
  // As TrainingModel::BeginStep, or kAfterTraining.
  virtual void BeginStep(std::int64_t /*step*/) {}
  // Whether this linear reads rows of codes from the norm before it; if not, float rows of type float_rows(). A norm
  // gives float rows to all its linears if one of them reads float rows, so Apply must accept these too.
  virtual bool reads_codes(model::LinearKind /*kind*/) const { return true; }
  // Type of float rows: bf16 if the served linears read float rows too, else f32.
  virtual torch::ScalarType float_rows() const { return torch::kFloat32; }
  // Whether the backward pass computes the inputs of Apply again where it can, so that the graph need not keep them
  // (ADR 0018).
  virtual bool recomputes_inputs() const { return false; }
  // The base's int8 head, if it has one and the model is frozen. With tied embeddings it is also the embedding.
  virtual std::optional<kernels::PackedInt8Weight> int8_head() const { return std::nullopt; }
  // Adds the linears of the next layer.
  virtual void AddLayer(const std::array<Source, model::kNumLinearKinds>& sources) = 0;
  // Appends the parameters that the linears made, with values and gradients.
  virtual void AddParameters(std::vector<Parameter>& /*parameters*/) {}
  virtual void ReleaseGradients() {}
  // Makes what forward passes read (such as codes) from the current parameters of a layer. Throws the kernel's error.
  virtual void Refresh(std::int64_t layer) = 0;
  // How rows become codes.
  virtual const CodedRowOptions& rows() const = 0;
  // `draw`: number of the micro-batch in the run.
  virtual torch::Tensor Apply(const CodedInput& input, std::int64_t layer, model::LinearKind kind, std::uint64_t draw,
                              TrainingContext& context) = 0;
  // Sets the served form, without the bias; valid until EndServing.
  virtual void Serve(std::int64_t layer, model::LinearKind kind, model::LinearWeight& weight) = 0;
  // Frees the memory that only the served form needs.
  virtual void EndServing() {}
};

struct CodedModelOptions {
  // Set for an adapter: embedding, norms, biases and head keep the base's values, except those that the adapter saves,
  // whose copies are parameters under the adapter's names.
  std::optional<AdapterOptions> adapter = std::nullopt;
  bool random_init = false;  // weights from N(0, 0.02), norms 1, biases 0; else the base's
  std::uint64_t init_seed = 0;
  bool bf16_backward = true;     // for products of the backward pass; the type of the forward pass is fixed
  bool bf16_parameters = false;  // of all weights, and of their gradients; needs Sources::kParameters
  bool activation_checkpointing = false;
  std::int64_t max_positions = 0;
  kernels::DType kv_dtype = kernels::DType::kBF16;
  // Type of the embedding in the served model. A tied embedding has the type of the head instead: bf16.
  kernels::DType embedding_dtype = kernels::DType::kBF16;
  base::Cancelled cancelled = {};  // TrainingContext::cancelled; also called for every tensor when the model is made
};

// Makes the parameters: embedding, layers, final norm, head. A norm that `config` has and the base lacks starts as 1,
// with one exception: if `config` has no norm before attention, the norms before q, k and v start with the values of
// the base's norm before attention. Likewise, without a norm before the MLP, those before gate and up start with the
// values of that norm of the base. `base`: f32 or bf16, or another format if the linears read it themselves. Errors:
// Cancelled, ResourceExhausted, Internal.
absl::StatusOr<std::unique_ptr<ExactModel>> MakeCodedModel(const model::Artifact& base,
                                                           const model::ModelConfig& config,
                                                           const CodedModelOptions& options,
                                                           std::unique_ptr<CodedLinears> linears,
                                                           const kernels::Stream& stream);

}  // namespace nibble::trainer
