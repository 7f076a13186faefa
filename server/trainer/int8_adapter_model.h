// Adapters on an int8 base as the training loop sees them, trained in the arithmetic in which nibbled serves them on
// that base. No torch in this header.
#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/model/loaded_model.h"
#include "server/trainer/adapter_model.h"
#include "server/trainer/exact_model.h"

namespace nibble::trainer {

// `base` must be an int8 artifact, weight-only or not; its weights stay as they are. The parameters are those of
// AdapterModel. bf16_compute applies to the products of the backward pass only. Errors: InvalidArgument (format, an
// f32 head), those of Artifact::Open, Cancelled, ResourceExhausted, Internal.
absl::StatusOr<std::unique_ptr<ExactModel>> MakeInt8AdapterModel(std::shared_ptr<const model::LoadedModel> base,
                                                                 const AdapterOptions& options,
                                                                 const kernels::Stream& stream);

}  // namespace nibble::trainer
