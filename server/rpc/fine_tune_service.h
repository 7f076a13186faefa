#pragma once
#include "nibble/v1/fine_tune_service.grpc.pb.h"
#include "server/jobs/controller.h"
#include "server/rpc/call.h"
#include "server/rpc/text_cache.h"

namespace nibble::rpc {

// Thread-safe.
class FineTuneService : public v1::FineTuneService::CallbackService {
 public:
  FineTuneService(Edge& edge, jobs::JobController& jobs, TextCache& texts) : edge_(edge), jobs_(jobs), texts_(texts) {}

  grpc::ServerUnaryReactor* PlanJob(grpc::CallbackServerContext*, const v1::PlanJobRequest*, v1::PlanJobResponse*) override;
  grpc::ServerUnaryReactor* CreateJob(grpc::CallbackServerContext*, const v1::CreateJobRequest*, v1::Job*) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext*, const v1::GetJobRequest*, v1::Job*) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext*, const v1::ListJobsRequest*,
                                     v1::ListJobsResponse*) override;
  grpc::ServerUnaryReactor* DeleteJob(grpc::CallbackServerContext*, const v1::DeleteJobRequest*,
                                      v1::DeleteJobResponse*) override;
  grpc::ServerWriteReactor<v1::JobEvent>* WatchJob(grpc::CallbackServerContext*, const v1::WatchJobRequest*) override;
  grpc::ServerUnaryReactor* ListJobEvents(grpc::CallbackServerContext*, const v1::ListJobEventsRequest*,
                                          v1::ListJobEventsResponse*) override;
  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext*, const v1::ListCheckpointsRequest*,
                                            v1::ListCheckpointsResponse*) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext*, const v1::CancelJobRequest*, v1::Job*) override;
  grpc::ServerUnaryReactor* PauseJob(grpc::CallbackServerContext*, const v1::PauseJobRequest*, v1::Job*) override;
  grpc::ServerUnaryReactor* ResumeJob(grpc::CallbackServerContext*, const v1::ResumeJobRequest*, v1::Job*) override;
  grpc::ServerUnaryReactor* CheckpointJob(grpc::CallbackServerContext*, const v1::CheckpointJobRequest*, v1::Job*) override;

 private:
  Edge& edge_;
  jobs::JobController& jobs_;
  TextCache& texts_;
};

}  // namespace nibble::rpc
