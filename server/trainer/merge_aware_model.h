// Merge-aware QLoRA as the training loop sees it: adapters on an NF4 base, trained in the arithmetic of the int8 model
// that a conversion makes of both. No torch in this header.
#pragma once
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/model/adapter.h"
#include "server/model/loaded_model.h"
#include "server/trainer/exact_model.h"

namespace nibble::trainer {

struct MergeAwareOptions {
  model::AdapterConfig adapter = {};  // without dropout
  std::uint64_t init_seed = 0;
  double lora_plus_ratio = 1.0;  // Parameter::lr_factor of B
  bool bf16_compute = true;      // of the backward products
  bool activation_checkpointing = false;
  std::int64_t max_positions = 0;
  base::Cancelled cancelled = {};  // as in FullOptions
};

// `base` must be an nf4 artifact; its weights stay as they are. The parameters are those of QLoRA: A drawn by
// DrawAdapter, B 0. Errors: InvalidArgument (format, dropout), Cancelled, ResourceExhausted, Internal.
absl::StatusOr<std::unique_ptr<ExactModel>> MakeMergeAwareModel(std::shared_ptr<const model::LoadedModel> base,
                                                                const MergeAwareOptions& options,
                                                                const kernels::Stream& stream);

}  // namespace nibble::trainer
