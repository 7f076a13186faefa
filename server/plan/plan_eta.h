// Estimates how long the steps of a planned job will take, from the speed of other jobs on this server.
#pragma once
#include <optional>

#include "absl/status/statusor.h"
#include "server/jobs/controller.h"
#include "server/registry/text_cache.h"

namespace nibble::plan {

struct PlanEta {
  double seconds = 0;
  bool rough = false;  // scaled from a job on another base
};

// Estimated time to train `tokens` with a resolved spec, from the newest running or succeeded job with the same base,
// method and device. Without one, from the newest such job on another base, scaled by the weights that multiply a
// token. nullopt if there is no such job either. Looks at the newest 100 running or succeeded jobs. Errors: those of
// JobController::List.
absl::StatusOr<std::optional<PlanEta>> EtaOf(const jobs::JobSpec& spec, std::int64_t tokens, jobs::JobController& jobs,
                                             registry::TextCache& texts);

}  // namespace nibble::plan
