// The BitNet model in training: float masters, ternary products. No torch in this header.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/formats/int8.h"
#include "kernels/ste.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/model/artifact.h"
#include "server/model/tensor_table.h"
#include "server/trainer/exact_model.h"

namespace nibble::trainer {

// Linear ramp of the quantized share of weights and activations.
struct QuantizationRamp {
  double from = 0;         // share in the first step, 0 to 1
  std::int64_t steps = 0;  // after this many steps, the share is 1; 0: from the first step

  // The share in the passes after `step` complete steps.
  double Share(std::int64_t step) const {
    return step >= steps ? 1.0 : from + (1.0 - from) * static_cast<double>(step) / static_cast<double>(steps);
  }
};

struct BitNetOptions {
  int act_bits = 8;                                            // 4, 8 or 16
  bool act_per_tensor = false;                                 // one scale for all rows of a micro-batch
  kernels::RowScaling scaling = kernels::RowScaling::kNative;  // of rows and weights (model::BitNetInfo)
  std::vector<model::LinearKind> float_linears = {};           // stay float, rounded to bf16 as they are served
  kernels::Ste ste = kernels::Ste::kIdentity;
  bool scale_grad = false;
  QuantizationRamp ramp = {};
  bool random_init = false;  // weights from N(0, 0.02), norms 1; else the base's
  std::uint64_t init_seed = 0;
  bool bf16_backward = true;  // for products of the backward pass; the type of the forward pass is fixed
  bool bf16_masters = false;  // of all weights, and of their gradients
  bool activation_checkpointing = false;
  std::int64_t max_positions = 0;
  base::Cancelled cancelled = {};  // TrainingContext::cancelled; also called for every tensor when the model is made
};

// Starts from `base`, which must be f32 or bf16. A norm that `config` has and the base lacks starts as 1, with one
// exception: if `config` has no norm before attention, the norms before q, k and v start with the values of the base's
// norm before attention. Likewise, without a norm before the MLP, those before gate and up start with the values of
// that norm of the base. Errors: InvalidArgument (format), Cancelled, ResourceExhausted, Internal.
absl::StatusOr<std::unique_ptr<ExactModel>> MakeBitNetModel(const model::Artifact& base,
                                                            const model::ModelConfig& config,
                                                            const BitNetOptions& options,
                                                            const kernels::Stream& stream);

}  // namespace nibble::trainer
