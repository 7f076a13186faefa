// A decoder whose linears are trained in int8 without a float copy, as the training loop sees it: no torch in this
// header.
#pragma once
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/model/artifact.h"
#include "server/trainer/exact_model.h"

namespace nibble::trainer {

struct Int8QtOptions {
  bool stochastic_rounding = true;  // of updated weights; else to nearest
  bool one_scale = false;           // per weight, else one per row
  bool float_rows = false;          // linears read rows in bf16, not codes; the result is a weight-only int8 model
  int max_outliers = 0;             // elements of an activation row that keep their value; 0 with float_rows
  bool bf16_compute = true;         // of the backward products and of the linears' gradients; else f32
  bool activation_checkpointing = false;
  bool random_init = false;  // the base gives only the shapes
  std::uint64_t init_seed = 0;
  std::int64_t max_positions = 0;
  base::Cancelled cancelled = {};  // as in FullOptions
};

// Starts from `base`, f32 or bf16, whose linears become int8 as in a conversion; the other parameters are f32, and the
// head is served in bf16. Errors: InvalidArgument (format), Cancelled, ResourceExhausted, Internal.
absl::StatusOr<std::unique_ptr<ExactModel>> MakeInt8QtModel(const model::Artifact& base, const Int8QtOptions& options,
                                                            const kernels::Stream& stream);

}  // namespace nibble::trainer
