// Digests of all inputs of a job, fixed when the job is created.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/jobs/job_spec.h"
#include "server/store/state_directory.h"

namespace nibble::jobs {

// SHA-256, lower-case hex; "" if there is no such input or it is unknown.
struct JobDigests {
  std::string config;      // of the resolved spec: jobs::Digest
  std::string data;        // of the training set's stored file
  std::string eval_data;   // of the evaluation set's
  std::string tokenizer;   // of the base's text assets, as `sha256sum` lists them
  std::string code;        // of the server's build
  std::string base_model;  // of the base's weights
};

base::Json ToJson(const JobDigests& digests);
// Absent keys are "". InvalidArgument if it is not an object of strings.
absl::StatusOr<JobDigests> ParseJobDigests(const base::Json& json);

// `spec` must be resolved, and its model and datasets pinned. Reads no large file: the digest of the text assets comes
// from the model's manifest, and the others are known already. Errors: NotFound (MODEL, DATASET), those of the
// manifest.
absl::StatusOr<JobDigests> MakeJobDigests(store::StateDirectory& state, const JobSpec& spec, const std::string& code);

}  // namespace nibble::jobs
