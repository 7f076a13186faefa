// How long the steps of a planned job will take, by what jobs measured on this server.
#pragma once
#include <optional>

#include "absl/status/statusor.h"
#include "server/jobs/controller.h"
#include "server/rpc/text_cache.h"

namespace nibble::rpc {

struct PlanEta {
  double seconds = 0;
  bool rough = false;  // measured on another base, and scaled
};

// Of `tokens` through the model of a resolved spec: by the speed of the newest job of the same method and device that runs or has
// succeeded, on the same base where there is one; of another base it is scaled by the weights that multiply a token. Nothing where
// no such job has run. Errors: those of JobController::List.
absl::StatusOr<std::optional<PlanEta>> EtaOf(const jobs::JobSpec& spec, std::int64_t tokens, jobs::JobController& jobs,
                                             TextCache& texts);

}  // namespace nibble::rpc
