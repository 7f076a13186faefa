// Reads the body of POST /v1/fine_tuning/jobs.
#pragma once
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nibble/v1/fine_tune_service.pb.h"
#include "server/base/json.h"

namespace nibble::openai {

// The learning rate of every method whose spec names none (OptimConfig.lr); learning_rate_multiplier multiplies it.
inline constexpr double kDefaultLearningRate = 2e-4;

struct FineTuningCall {
  v1::CreateJobRequest request;
  base::Json extension;  // the field "nibble" of the body; an empty object if there is none
  // Path of `hyperparameters` in the body.
  std::string hyperparameters = "hyperparameters";

  // The client's name of a field of the spec: "model" for base_model, "nibble.run.max_steps" for run.max_steps.
  std::string ClientField(std::string_view field) const;
};

// `idempotency_key`: of the request's header; "": none. Errors: InvalidArgument (FIELD_VIOLATION).
absl::StatusOr<FineTuningCall> ParseFineTuningJob(const base::Json& body, const std::string& idempotency_key);

}  // namespace nibble::openai
