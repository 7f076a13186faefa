// A decoder with float masters whose linears multiply in int8, as the training loop sees it: no torch in this header.
#pragma once
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/model/artifact.h"
#include "server/trainer/coded_options.h"
#include "server/trainer/exact_model.h"

namespace nibble::trainer {

struct Int8MixedOptions {
  // The products of all linears. The forward product must run in int8, with a scale per row, rounded to nearest.
  Int8LinearOptions products = {};
  bool bf16_compute = true;   // of the backward products that stay float
  bool bf16_masters = false;  // of all weights, and of their gradients
  bool activation_checkpointing = false;
  bool random_init = false;  // the base gives only the shapes
  std::uint64_t init_seed = 0;
  std::int64_t max_positions = 0;
  base::Cancelled cancelled = {};  // as in FullOptions
};

// The model trains in the arithmetic of its served form, the int8 model with a bf16 head into which a conversion turns
// the result. Starts from `base`, f32 or bf16. Errors: InvalidArgument (format, products), Cancelled,
// ResourceExhausted, Internal.
absl::StatusOr<std::unique_ptr<ExactModel>> MakeInt8MixedModel(const model::Artifact& base,
                                                               const Int8MixedOptions& options,
                                                               const kernels::Stream& stream);

}  // namespace nibble::trainer
