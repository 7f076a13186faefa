// A valid job spec, and job specs from JSON text.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/jobs/job_spec.h"

namespace nibble::jobs {

inline JobSpec Good() {
  JobSpec spec;
  spec.base_model = "base";
  spec.train_dataset = "train";
  return spec;
}

inline absl::StatusOr<JobSpec> Parse(const std::string& text) { return ParseJobSpec(*base::ParseJson(text)); }

}  // namespace nibble::jobs
