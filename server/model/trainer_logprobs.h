// trainer_logprobs.json: the logprobs that the trainer computed with an adapter on its base. Such a model is served
// without promised bits, so the difference between serving and training is measured instead
// (docs/numerics.md 10).
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
    std::vector<float> logprobs;  // of token_ids[i + 1] given the tokens before it, in nats; one fewer than tokens
  };
  std::vector<Sequence> sequences;
};

absl::Status WriteTrainerLogprobs(base::FileSystem& files, const std::string& directory,
                                  const TrainerLogprobs& logprobs);
// NotFound when the artifact has none; DataLoss (CORRUPT_ARTIFACT) when the file is malformed.
absl::StatusOr<TrainerLogprobs> ReadTrainerLogprobs(base::FileSystem& files, const std::string& directory);

// The largest |logprob of the model - logprob of the trainer|, in nats; 0 if there are no logprobs. Errors:
// InvalidArgument (token ids that are not in the model's vocabulary), those of the kernels, DataLoss (a logprob of the
// model is not finite), Cancelled (`cancelled` is checked before every layer).
absl::StatusOr<double> MaxLogprobDifference(const LoadedModel& model, const TrainerLogprobs& trained,
                                            const kernels::Stream& stream, const base::Cancelled& cancelled = {});

}  // namespace nibble::model
