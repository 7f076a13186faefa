// The values that an int8_mixed job runs with.
#pragma once
#include <optional>

#include "server/jobs/job_spec.h"

namespace nibble::jobs {

// Gives each unset field the value of the preset, with two exceptions: act_outliers is 0 where rows share a scale or
// the forward product is float, and exact_forward is false where another field excludes it.
Int8MixedMethod WithPreset(Int8MixedMethod method);

// Outliers per row of the forward product that the job trains with; unset if that product is float.
std::optional<int> TrainedOutliers(const Int8MixedMethod& method);

// The first field that excludes an exact forward pass, and the value that it would need: "forward", "true". Both are
// null if no field does. `method`: a result of WithPreset.
struct Exclusion {
  const char* field = nullptr;
  const char* wanted = nullptr;
};
Exclusion ExcludesExactForward(const Int8MixedMethod& method);

}  // namespace nibble::jobs
