// What a job is made of, as digests: told when it is created, and never again.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/jobs/job_spec.h"
#include "server/store/state_directory.h"

namespace nibble::jobs {

// SHA-256, lower-case hex; "" for what is not there or not known.
struct JobDigests {
  std::string config;      // of the resolved spec: jobs::Digest
  std::string data;        // of the training set's stored file
  std::string eval_data;   // of the evaluation set's
  std::string tokenizer;   // of the base's text assets, as `sha256sum` lists them
  std::string code;        // of the server's build
  std::string base_model;  // of the base's weights
};

base::Json ToJson(const JobDigests& digests);
// Absent keys are "". InvalidArgument for what is no object of strings.
absl::StatusOr<JobDigests> ParseJobDigests(const base::Json& json);

// Of a resolved spec whose model and datasets are held. All are known already but that of the text assets, which is taken of
// the model's manifest: no large file is read. Errors: NotFound (MODEL, DATASET), those of the manifest.
absl::StatusOr<JobDigests> MakeJobDigests(store::StateDirectory& state, const JobSpec& spec, const std::string& code);

}  // namespace nibble::jobs
