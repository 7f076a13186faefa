// Converts jobs, specs and events to and from the API's messages.
#pragma once
#include "absl/status/statusor.h"
#include "nibble/v1/fine_tune_service.pb.h"
#include "server/jobs/stored_job.h"
#include "server/plan/plan_job.h"
#include "server/store/checkpoints.h"

namespace nibble::rpc {

// Errors: Unimplemented names the method or field; InvalidArgument. jobs::Validate checks the ranges.
absl::StatusOr<jobs::JobSpec> FromProto(const v1::JobSpec& spec);
v1::JobSpec ToProto(const jobs::JobSpec& spec);

v1::JobState ToProto(jobs::JobState state);
absl::StatusOr<jobs::JobState> FromProto(v1::JobState state);

v1::Job ToProto(const jobs::StoredJob& job);
v1::JobEvent ToProto(const jobs::StoredJob& job, const jobs::Event& event);
v1::PlanJobResponse ToProto(const plan::JobPlan& plan);  // without spec, available memory and disk, eta
v1::Checkpoint ToProto(const jobs::StoredJob& job, const store::CheckpointInfo& checkpoint);

}  // namespace nibble::rpc
