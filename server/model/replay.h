// Makes a record and replays it: the proof that the served model is the model that was made (docs/numerics.md 10).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/model/loaded_model.h"
#include "server/model/record.h"

namespace nibble::model {

// Name of the file, beside a job's model, with the record that the trainer predicts for the model's served form (int8
// or ternary): "int8_record.bin".
// `models convert` copies it to the converted artifact when the weights' digests are equal.
std::string PredictedRecordFile(Format served);

// InvalidArgument when a recorded token is not in the model's vocabulary.
absl::Status CheckTokens(const LoadedModel& model, std::span<const std::int32_t> tokens);

// Runs the sequences, each from position 0, and records the digest of every row of logits. `cancelled` is checked
// before every layer.
absl::StatusOr<Record> MakeRecord(const LoadedModel& model, const std::vector<std::vector<std::int32_t>>& sequences,
                                  const kernels::Stream& stream, const base::Cancelled& cancelled = {});

struct ReplayResult {
  bool equal = false;
  std::int64_t rows = 0;  // compared
  std::int64_t differing_rows = 0;
  std::int64_t first_sequence = -1;  // where the first differing row is
  std::int64_t first_position = -1;
  std::string difference;  // for people; "" if no row differs and the digests of the weights are equal
};

// Runs the record's token ids again. `cancelled` is checked before every layer. Errors: FailedPrecondition (recorded on
// another kind of device), InvalidArgument (tokens that are not in the model's vocabulary), Cancelled.
absl::StatusOr<ReplayResult> ReplayRecord(const LoadedModel& model, const Record& record, const kernels::Stream& stream,
                                          const base::Cancelled& cancelled = {});

}  // namespace nibble::model
