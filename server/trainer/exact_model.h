// A model that is trained in the arithmetic of its served form, so that training gives the same bits as serving. No
// torch in this header.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/model/loaded_model.h"
#include "server/model/record.h"
#include "server/trainer/tensor_ref.h"
#include "server/trainer/training_model.h"
#include "server/trainer/training_record.h"

namespace nibble::trainer {

// One thread.
class ExactModel : public TrainingModel {
 public:
  // The values of the tensors of RequiredTensors(config), in that order. Only if all weights are trained.
  virtual std::vector<TensorRef> Values() const = 0;
  // Frees the gradients and the scratch of backward passes. Do not call ForwardBackward afterwards.
  virtual void ReleaseGradients() = 0;
  // Calls `visit` with the logits of all rows, in chunks as model::ForEachLogits does. The training instantiation
  // computes them, with autograd on, in the arithmetic of the served form: without a ramp or dropout, as after the last
  // step. Call BeginStep before the next ForwardBackward.
  virtual absl::Status ForEachTrainingLogits(std::span<const std::int32_t> tokens, const VisitLogits& visit) = 0;
};

// The record by the training instantiation, with autograd on: nibbled must give these bits (docs/numerics.md 10).
inline absl::StatusOr<model::Record> RecordOfTraining(ExactModel& trained, const model::LoadedModel& served,
                                                      kernels::DeviceKind device,
                                                      const std::vector<std::vector<std::int32_t>>& sequences) {
  return MakeTrainingRecord(served, device, sequences, [&trained](const auto& tokens, const auto& visit) {
    return trained.ForEachTrainingLogits(tokens, visit);
  });
}

}  // namespace nibble::trainer
