// The serving form of a model in training, with its errors as a status. No torch in this header; torch_runtime.cc
// implements it.
#pragma once
#include "absl/status/statusor.h"
#include "server/model/decoder_weights.h"
#include "server/trainer/training_model.h"

namespace nibble::trainer {

// TrainingModel::ServingWeights, which may lay out all weights. Errors: ResourceExhausted (out of memory), Internal.
absl::StatusOr<const model::DecoderWeights*> MakeServingWeights(TrainingModel& model);

}  // namespace nibble::trainer
