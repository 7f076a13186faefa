// A decoder whose weights are all trained, as f32 or bf16 parameters, as the training loop sees it: no torch here.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/model/artifact.h"
#include "server/model/tensor_table.h"
#include "server/trainer/coded_options.h"
#include "server/trainer/training_model.h"

namespace nibble::trainer {

// Linears whose products run in int8 (int8_linear.h).
struct Int8Products {
  Int8LinearOptions how;
  std::array<bool, model::kNumLinearKinds> targets = {};  // by LinearKind
};

struct FullOptions {
  bool bf16_compute = true;
  bool bf16_parameters = false;           // of all weights, and of their gradients; needs bf16_compute
  std::optional<Int8Products> int8 = {};  // unset: all products are float
  bool activation_checkpointing = false;
  bool random_init = false;  // the base gives only the shapes
  std::uint64_t init_seed = 0;
  std::int64_t max_positions = 0;  // of the rope table
  base::Cancelled cancelled = {};  // TrainingContext::cancelled; also called for every tensor while the model is made
};

class FullModel : public TrainingModel {
 public:
  // Starts from the weights of `base`, f32 or bf16, as f32 or bf16 parameters in the order of RequiredTensors(config);
  // or from random matrices (model::DrawTensor, by the number of the tensor), norms of ones and biases of zeros. With
  // bf16 compute, linears and head multiply weights rounded to bf16 after every step.
  static absl::StatusOr<std::unique_ptr<FullModel>> Create(const model::Artifact& base, const FullOptions& options,
                                                           const kernels::Stream& stream);

  // The values of the parameters, in the order of RequiredTensors(config).
  virtual std::vector<TensorRef> Values() const = 0;
  // Frees everything except the values of the parameters. Afterwards only parameters() and Values() may be called.
  virtual void Release() = 0;
};

}  // namespace nibble::trainer
