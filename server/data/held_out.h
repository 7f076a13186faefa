// Holds out a share of a dataset's rows for evaluation (JobSpec::eval_fraction).
#pragma once
#include "absl/status/statusor.h"
#include "server/data/example.h"

namespace nibble::data {

struct HeldOut {
  Dataset train;
  Dataset eval;
};

// Draws round(fraction * R) of the R rows that have examples, at least one and at most R - 1. All examples of a row
// come into the same part. The draw depends only on R and `fraction`: jobs with other seeds hold out the same rows, so
// their evaluations are comparable. Warnings about rows stay in the summary of `train`. Errors: InvalidArgument
// (`fraction` is not above 0 and at most 0.5; NO_TRAINABLE_TOKENS with fewer than two such rows).
absl::StatusOr<HeldOut> HoldOut(const Dataset& all, double fraction);

}  // namespace nibble::data
