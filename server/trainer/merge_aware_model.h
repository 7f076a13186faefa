// Merge-aware QLoRA as the training loop sees it: adapters on an NF4 base, trained in the arithmetic of the int8 model
// that a conversion makes of both. No torch in this header.
#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/model/loaded_model.h"
#include "server/trainer/adapter_model.h"
#include "server/trainer/exact_model.h"

namespace nibble::trainer {

// `base` must be an nf4 artifact; its weights stay as they are. The parameters are those of QLoRA: A drawn by
// DrawAdapter, B 0. Errors: InvalidArgument (format, dropout, DoRA), those of Artifact::Open, Cancelled,
// ResourceExhausted, Internal.
absl::StatusOr<std::unique_ptr<ExactModel>> MakeMergeAwareModel(std::shared_ptr<const model::LoadedModel> base,
                                                                const AdapterOptions& options,
                                                                const kernels::Stream& stream);

}  // namespace nibble::trainer
