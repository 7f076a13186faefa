// The data of an attempt: its examples, and the order in which they are drawn. Does not use torch.
#pragma once
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/data/example.h"
#include "server/data/loader.h"
#include "server/jobs/attempt.h"
#include "server/trainer/checkpoint.h"
#include "server/trainer/recipe.h"

namespace nibble::trainer {

struct AttemptData {
  data::Dataset train;
  data::Dataset eval;
  bool has_eval = false;
  RunIdentity identity;
};

// Reads the tokens from the order's token files, which are verified, and written if missing (data::LoadTokens).
// Errors: InvalidArgument (data.max_seq_len exceeds what the model takes; bad rows), Cancelled, file errors.
absl::StatusOr<AttemptData> LoadAttemptData(base::FileSystem& files, const jobs::AttemptOrder& order,
                                            const Recipe& recipe, const kernels::Stream& stream,
                                            const base::Cancelled& cancelled);

// A loader over the training examples of `data`.
std::unique_ptr<data::Loader> MakeLoader(const jobs::JobSpec& spec, const AttemptData& data);

}  // namespace nibble::trainer
