// A decoder with float masters whose linears multiply in int8, as the training loop sees it: no torch in this header.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/model/artifact.h"
#include "server/trainer/coded_options.h"
#include "server/trainer/training_model.h"
#include "server/trainer/training_record.h"

namespace nibble::trainer {

struct Int8MixedOptions {
  Int8LinearOptions products = {};  // of all linears; `forward`, a scale per row and rounding to nearest in the forward
  bool bf16_compute = true;         // of the backward products that stay float
  bool activation_checkpointing = false;
  bool random_init = false;  // the base gives only the shapes
  std::uint64_t init_seed = 0;
  std::int64_t max_positions = 0;
  base::Cancelled cancelled = {};  // as in FullOptions
};

// Trains in the arithmetic of the int8 model with a bf16 head that conversion makes of the result.
class Int8MixedModel : public TrainingModel {
 public:
  // Starts from `base`, f32 or bf16. Errors: InvalidArgument (format, products), Cancelled, ResourceExhausted,
  // Internal.
  static absl::StatusOr<std::unique_ptr<Int8MixedModel>> Create(const model::Artifact& base,
                                                                const Int8MixedOptions& options,
                                                                const kernels::Stream& stream);

  // The parameters' values, in the order of RequiredTensors.
  virtual std::vector<std::span<const std::byte>> Values() const = 0;
  // Frees the gradients and the scratch of backward passes. Do not call ForwardBackward afterwards.
  virtual void ReleaseGradients() = 0;
  // Logits of every row by the training instantiation, with autograd on; in chunks.
  virtual absl::Status ForEachTrainingLogits(std::span<const std::int32_t> tokens, const VisitLogits& visit) = 0;
};

}  // namespace nibble::trainer
