// Checks the adapter whose weights are the initial weights of a job. Private to server/plan and its tests.
#pragma once
#include "absl/status/status.h"
#include "server/jobs/job_spec.h"
#include "server/model/adapter.h"
#include "server/store/state_directory.h"

namespace nibble::plan {

// InvalidArgument (FIELD_VIOLATION) unless the method trains an adapter with the tensors and the scale of `adapter`,
// the adapter of the model that `spec` names in warm_start_from.
absl::Status CheckAdapterFits(const jobs::JobSpec& spec, const model::AdapterConfig& adapter);

// OK if a resolved spec names no model in warm_start_from. Errors: those above, NotFound (MODEL), InvalidArgument
// (FIELD_VIOLATION) if the model is not an adapter, or if the options of nf4 would make another base than the
// adapter's; FailedPrecondition (BASE_MISMATCH) if it belongs to another base. For a qlora job on a float base this is
// known only while the base's nf4 form is in the cache; otherwise the trainer compares it.
absl::Status CheckAdapterStart(const store::StateDirectory& state, const jobs::JobSpec& spec);

}  // namespace nibble::plan
