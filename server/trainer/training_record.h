// Records of models whose training gives the bits of serving (docs/numerics.md 10).
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"
#include "server/model/loaded_model.h"
#include "server/model/record.h"

namespace nibble::trainer {

using VisitLogits = std::function<absl::Status(std::int64_t first_row, const kernels::Matrix& logits)>;

// The record of the logits that the training instantiation gives; nibbled must give these bits. `for_each_logits` calls
// its second argument with the logits of all rows of one sequence, in order.
absl::StatusOr<model::Record> MakeTrainingRecord(
    const model::LoadedModel& served, kernels::DeviceKind device,
    const std::vector<std::vector<std::int32_t>>& sequences,
    const std::function<absl::Status(std::span<const std::int32_t> tokens, const VisitLogits& visit)>& for_each_logits);

}  // namespace nibble::trainer
