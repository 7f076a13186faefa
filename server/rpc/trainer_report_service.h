#pragma once
#include "nibble/internal/v1/trainer_report.grpc.pb.h"
#include "server/jobs/controller.h"
#include "server/rpc/call.h"

namespace nibble::rpc {

// Receives the trainers' journals, and answers with the server's commands. Thread-safe.
class TrainerReportService : public internal::v1::TrainerReportService::CallbackService {
 public:
  // `for_trainers`: this service is registered on a listener that accepts only trainers (see Call's constructor).
  TrainerReportService(CallEnvironment& environment, jobs::JobController& jobs, bool for_trainers = false)
      : environment_(environment), jobs_(jobs), for_trainers_(for_trainers) {}

  grpc::ServerBidiReactor<internal::v1::ReportRequest, internal::v1::ReportResponse>* Report(
      grpc::CallbackServerContext*) override;

 private:
  CallEnvironment& environment_;
  jobs::JobController& jobs_;
  const bool for_trainers_;
};

}  // namespace nibble::rpc
