// trainer_logprobs.json: what the trainer's own arithmetic answered with an adapter on its nf4 base. Library products serve such a
// model, so no bits are promised; how far what serves it is from what trained it is measured instead (docs/numerics.md 10).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/model/loaded_model.h"

namespace nibble::model {

inline constexpr char kTrainerLogprobsFile[] = "trainer_logprobs.json";

struct TrainerLogprobs {
  struct Sequence {
    std::vector<std::int32_t> token_ids;
    std::vector<float> logprobs;  // of token_ids[i + 1] given those before it: one less than tokens; nats
  };
  std::vector<Sequence> sequences;
};

absl::Status WriteTrainerLogprobs(base::FileSystem& files, const std::string& directory, const TrainerLogprobs& logprobs);
// NotFound when the artifact has none; DataLoss (CORRUPT_ARTIFACT) when it is not what Write wrote.
absl::StatusOr<TrainerLogprobs> ReadTrainerLogprobs(base::FileSystem& files, const std::string& directory);

// The largest |logprob of the model - logprob of the trainer|, in nats; 0 of no logprobs. Errors: InvalidArgument (token ids
// that are not the model's), those of the kernels; DataLoss when one of the model's is not finite; Cancelled once `cancelled`, asked
// before every layer, says so.
absl::StatusOr<double> MaxLogprobDifference(const LoadedModel& model, const TrainerLogprobs& trained,
                                            const kernels::Stream& stream, const base::Cancelled& cancelled = {});

}  // namespace nibble::model
