// Making a record and answering it again: the proof that what was made is what is served (docs/numerics.md 10).
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

// Beside a job's model: the record of what it becomes as it is served (int8 or ternary). `models convert` hands it to that
// artifact when the weights come out with the same digest. "int8_record.bin".
std::string ForetoldRecordFile(Format served);

// InvalidArgument when a recorded token is not the model's.
absl::Status CheckTokens(const LoadedModel& model, std::span<const std::int32_t> tokens);

// Runs the sequences, each from position 0, and writes down the digest of every row of logits. `cancelled` is asked before every layer.
absl::StatusOr<Record> MakeRecord(const LoadedModel& model, const std::vector<std::vector<std::int32_t>>& sequences,
                                  const kernels::Stream& stream, const base::Cancelled& cancelled = {});

struct ReplayResult {
  bool equal = false;
  std::int64_t rows = 0;             // compared
  std::int64_t differing_rows = 0;
  std::int64_t first_sequence = -1;  // of the first row that differs
  std::int64_t first_position = -1;
  std::string difference;            // in words; "" when equal
};

// Runs the record's token ids again. `cancelled` is asked before every layer. Errors: FailedPrecondition when it was recorded on another
// kind of device; InvalidArgument when its tokens are not the model's; Cancelled.
absl::StatusOr<ReplayResult> ReplayRecord(const LoadedModel& model, const Record& record, const kernels::Stream& stream,
                                          const base::Cancelled& cancelled = {});

}  // namespace nibble::model
