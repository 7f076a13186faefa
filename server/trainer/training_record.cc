#include "server/trainer/training_record.h"

#include <utility>

#include "server/base/status_macros.h"

namespace nibble::trainer {

absl::StatusOr<model::Record> MakeTrainingRecord(
    const model::LoadedModel& served, kernels::DeviceKind device,
    const std::vector<std::vector<std::int32_t>>& sequences,
    const std::function<absl::Status(std::span<const std::int32_t> tokens, const VisitLogits& visit)>&
        for_each_logits) {
  model::Record record;
  record.device = device;
  record.weights_digest = served.info().weights_digest;
  for (const auto& tokens : sequences) {
    model::RecordSequence sequence = {tokens, {}};
    NIBBLE_RETURN_IF_ERROR(for_each_logits(tokens, [&](std::int64_t, const kernels::Matrix& logits) {
      for (std::int64_t r = 0; r < logits.rows; ++r) {
        sequence.row_digests.push_back(model::RowDigest(logits.Row<float>(r), logits.cols));
      }
      return absl::OkStatus();
    }));
    record.sequences.push_back(std::move(sequence));
  }
  return record;
}

}  // namespace nibble::trainer
