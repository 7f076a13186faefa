#include "server/model/replay.h"

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/forward.h"

namespace nibble::model {
namespace {

constexpr std::int64_t kChunk = 64;  // tokens; limits the memory for logits. Any other value gives the same bits

absl::StatusOr<std::vector<std::string>> RowDigests(const LoadedModel& model, const std::vector<std::int32_t>& tokens,
                                                    const kernels::Stream& stream, const base::Cancelled& cancelled) {
  NIBBLE_RETURN_IF_ERROR(CheckTokens(model, tokens));
  std::vector<std::string> digests;
  NIBBLE_RETURN_IF_ERROR(ForEachLogits(
      model.config(), model.weights(), tokens, kChunk, stream,
      [&](std::int64_t, const kernels::Matrix& logits) {
        for (std::int64_t r = 0; r < logits.rows; ++r) {
          digests.push_back(RowDigest(logits.Row<float>(r), logits.cols));
        }
        return absl::OkStatus();
      },
      cancelled));
  return digests;
}

}  // namespace

absl::Status CheckTokens(const LoadedModel& model, std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= model.config().vocab_size) {
      return absl::InvalidArgumentError(base::StrCat("recorded token id ", token, " is not in the model's vocabulary"));
    }
  }
  return absl::OkStatus();
}

std::string PredictedRecordFile(Format served) { return base::StrCat(Name(served), "_record.bin"); }

absl::StatusOr<Record> MakeRecord(const LoadedModel& model, const std::vector<std::vector<std::int32_t>>& sequences,
                                  const kernels::Stream& stream, const base::Cancelled& cancelled) {
  Record record;
  record.device = stream.device;
  record.weights_digest = model.info().weights_digest;
  for (const auto& tokens : sequences) {
    RecordSequence sequence = {tokens, {}};
    NIBBLE_ASSIGN_OR_RETURN(sequence.row_digests, RowDigests(model, tokens, stream, cancelled));
    record.sequences.push_back(std::move(sequence));
  }
  return record;
}

absl::StatusOr<ReplayResult> ReplayRecord(const LoadedModel& model, const Record& record, const kernels::Stream& stream,
                                          const base::Cancelled& cancelled) {
  if (record.device != stream.device) {
    return absl::FailedPreconditionError(
        "the record was made on another kind of device; bits are promised only within one kind");
  }
  ReplayResult result;
  for (std::size_t s = 0; s < record.sequences.size(); ++s) {
    const RecordSequence& sequence = record.sequences[s];
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> digests,
                            RowDigests(model, sequence.token_ids, stream, cancelled));
    for (std::size_t r = 0; r < digests.size(); ++r) {
      ++result.rows;
      if (digests[r] == sequence.row_digests[r]) continue;
      if (result.differing_rows++ == 0) {
        result.first_sequence = static_cast<std::int64_t>(s);
        result.first_position = static_cast<std::int64_t>(r);
      }
    }
  }
  if (result.differing_rows > 0) {
    result.difference =
        base::StrCat(result.differing_rows, " of ", result.rows, " rows of logits differ, first at position ",
                     result.first_position, " of sequence ", result.first_sequence);
  } else if (record.weights_digest != model.info().weights_digest) {
    result.difference = base::StrCat("the record was made with weights ", record.weights_digest, ", these are ",
                                     model.info().weights_digest);
  }
  result.equal = result.difference.empty() && result.rows > 0;
  return result;
}

}  // namespace nibble::model
