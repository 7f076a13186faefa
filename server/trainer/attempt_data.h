// The data of an attempt: as it was cut, and in the order in which it is drawn. No torch here.
#pragma once
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/base/json.h"
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

// Errors: InvalidArgument (data.max_seq_len beyond what the model takes; rows), Cancelled, those of files.
// Tokens come from the order's token files, which are verified, and made where they are missing (data::LoadTokens).
absl::StatusOr<AttemptData> LoadAttemptData(base::FileSystem& files, const jobs::AttemptOrder& order, const Recipe& recipe,
                                            const kernels::Stream& stream, const base::Cancelled& cancelled);

// Over `data`, which it borrows.
std::unique_ptr<data::Loader> MakeLoader(const jobs::JobSpec& spec, const AttemptData& data);

// How the evaluation set was cut: a conversion evaluates the same tokens again.
base::Json EvalDataJson(const jobs::JobSpec& spec);

}  // namespace nibble::trainer
