#pragma once
#include <string>

#include "nibble/v1/fine_tune_service.grpc.pb.h"
#include "server/jobs/controller.h"
#include "server/operations/operation_table.h"
#include "server/plan/job_planner.h"
#include "server/registry/text_cache.h"
#include "server/rpc/call.h"

namespace nibble::rpc {

// Thread-safe.
class FineTuneService : public v1::FineTuneService::CallbackService {
 public:
  FineTuneService(CallEnvironment& environment, jobs::JobController& jobs, registry::TextCache& texts,
                  operations::OperationTable& operations, const plan::JobPlanner& planner)
      : environment_(environment), jobs_(jobs), texts_(texts), operations_(operations), planner_(planner) {}

  grpc::ServerUnaryReactor* PlanJob(grpc::CallbackServerContext*, const v1::PlanJobRequest*,
                                    google::longrunning::Operation*) override;
  grpc::ServerUnaryReactor* CreateJob(grpc::CallbackServerContext*, const v1::CreateJobRequest*, v1::Job*) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext*, const v1::GetJobRequest*, v1::Job*) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext*, const v1::ListJobsRequest*,
                                     v1::ListJobsResponse*) override;
  grpc::ServerUnaryReactor* DeleteJob(grpc::CallbackServerContext*, const v1::DeleteJobRequest*,
                                      v1::DeleteJobResponse*) override;
  grpc::ServerWriteReactor<v1::JobEvent>* WatchJob(grpc::CallbackServerContext*, const v1::WatchJobRequest*) override;
  grpc::ServerWriteReactor<v1::JobLogChunk>* WatchJobLogs(grpc::CallbackServerContext*,
                                                          const v1::WatchJobLogsRequest*) override;
  grpc::ServerUnaryReactor* ListJobEvents(grpc::CallbackServerContext*, const v1::ListJobEventsRequest*,
                                          v1::ListJobEventsResponse*) override;
  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext*, const v1::ListCheckpointsRequest*,
                                            v1::ListCheckpointsResponse*) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext*, const v1::CancelJobRequest*, v1::Job*) override;
  grpc::ServerUnaryReactor* PauseJob(grpc::CallbackServerContext*, const v1::PauseJobRequest*, v1::Job*) override;
  grpc::ServerUnaryReactor* ResumeJob(grpc::CallbackServerContext*, const v1::ResumeJobRequest*, v1::Job*) override;
  grpc::ServerUnaryReactor* CheckpointJob(grpc::CallbackServerContext*, const v1::CheckpointJobRequest*,
                                          v1::Job*) override;

 private:
  // Converts the request. An unset max_seq_len is lowered to what the model supports.
  absl::StatusOr<jobs::JobSpec> SpecOf(const v1::JobSpec& request);
  absl::StatusOr<v1::PlanJobResponse> PlanOf(const jobs::JobSpec& spec, const std::string& tenant,
                                             const base::CancelToken& cancel);

  CallEnvironment& environment_;
  jobs::JobController& jobs_;
  registry::TextCache& texts_;
  operations::OperationTable& operations_;
  const plan::JobPlanner& planner_;
};

}  // namespace nibble::rpc
