#include "server/model/trainer_logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops/loss/log_softmax_gather.h"
#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/forward.h"
#include "server/model/replay.h"

namespace nibble::model {
namespace {

using base::Json;
using base::StrCat;

constexpr std::uint64_t kMaxBytes = 1 << 20;
constexpr std::int64_t kChunk = 16;  // tokens; limits the memory for logits

absl::Status Corrupt(std::string_view what) {
  return base::WithReason(absl::DataLossError(StrCat(kTrainerLogprobsFile, ": ", what)), "CORRUPT_ARTIFACT");
}

absl::StatusOr<TrainerLogprobs::Sequence> ParseSequence(const Json& json) {
  if (!json.is_object() || !json.contains("token_ids") || !json.contains("logprobs")) {
    return Corrupt("a sequence lacks token_ids or logprobs");
  }
  TrainerLogprobs::Sequence sequence;
  for (const Json& id : json["token_ids"]) {
    if (!id.is_number_integer()) return Corrupt("a token id is not a whole number");
    const auto token = id.get<std::int64_t>();
    if (token < 0 || token > std::numeric_limits<std::int32_t>::max()) {
      return Corrupt(StrCat("token id ", id.dump(), " is out of range"));
    }
    sequence.token_ids.push_back(static_cast<std::int32_t>(token));
  }
  for (const Json& logprob : json["logprobs"]) {
    if (!logprob.is_number()) return Corrupt("a logprob is not a number");
    sequence.logprobs.push_back(logprob.get<float>());
  }
  if (sequence.logprobs.size() + 1 != sequence.token_ids.size()) {
    return Corrupt(StrCat(sequence.logprobs.size(), " logprobs for ", sequence.token_ids.size(), " tokens"));
  }
  return sequence;
}

}  // namespace

absl::Status WriteTrainerLogprobs(base::FileSystem& files, const std::string& directory,
                                  const TrainerLogprobs& logprobs) {
  Json sequences = Json::array();
  for (const auto& sequence : logprobs.sequences) {
    sequences.push_back({{"token_ids", sequence.token_ids}, {"logprobs", sequence.logprobs}});
  }
  return base::WriteFileAtomically(files, base::JoinPath(directory, kTrainerLogprobsFile),
                                   base::Dump({{"version", 1}, {"sequences", std::move(sequences)}}));
}

absl::StatusOr<TrainerLogprobs> ReadTrainerLogprobs(base::FileSystem& files, const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text,
                          files.Read(base::JoinPath(directory, kTrainerLogprobsFile), kMaxBytes));
  const absl::StatusOr<Json> json = base::ParseJson(text);
  if (!json.ok() || !json->is_object() || !json->contains("sequences") || !(*json)["sequences"].is_array()) {
    return Corrupt("no list of sequences");
  }
  TrainerLogprobs logprobs;
  for (const Json& one : (*json)["sequences"]) {
    NIBBLE_ASSIGN_OR_RETURN(logprobs.sequences.emplace_back(), ParseSequence(one));
  }
  return logprobs;
}

absl::StatusOr<double> MaxLogprobDifference(const LoadedModel& model, const TrainerLogprobs& trained,
                                            const kernels::Stream& stream, const base::Cancelled& cancelled) {
  double worst = 0;
  for (const auto& sequence : trained.sequences) {
    NIBBLE_RETURN_IF_ERROR(CheckTokens(model, sequence.token_ids));
    std::vector<float> got(sequence.logprobs.size());
    const auto visit = [&](std::int64_t first, const kernels::Matrix& logits) -> absl::Status {
      // The last row predicts a token after the end.
      const std::int64_t rows = std::min<std::int64_t>(logits.rows, static_cast<std::int64_t>(got.size()) - first);
      if (rows <= 0) return absl::OkStatus();
      kernels::Matrix predicting = logits;
      predicting.rows = rows;
      return kernels::LogSoftmaxGather({.logits = predicting,
                                        .target = sequence.token_ids.data() + first + 1,
                                        .logprob = got.data() + first,
                                        .top_n = 0,
                                        .top_id = nullptr,
                                        .top_logprob = nullptr},
                                       stream);
    };
    NIBBLE_RETURN_IF_ERROR(
        ForEachLogits(model.config(), model.weights(), sequence.token_ids, kChunk, stream, visit, cancelled));
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!std::isfinite(got[i])) return absl::DataLossError(StrCat("the logprob of token ", i + 1, " is ", got[i]));
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(sequence.logprobs[i])));
    }
  }
  return worst;
}

}  // namespace nibble::model
