#pragma once
#include "nibble/internal/v1/trainer_report.grpc.pb.h"
#include "server/jobs/controller.h"
#include "server/rpc/call.h"

namespace nibble::rpc {

// Receives the trainers' journals. Thread-safe.
class TrainerReportService : public internal::v1::TrainerReportService::CallbackService {
 public:
  TrainerReportService(CallEnvironment& environment, jobs::JobController& jobs)
      : environment_(environment), jobs_(jobs) {}

  grpc::ServerBidiReactor<internal::v1::ReportRequest, internal::v1::ReportResponse>* Report(
      grpc::CallbackServerContext*) override;

 private:
  CallEnvironment& environment_;
  jobs::JobController& jobs_;
};

}  // namespace nibble::rpc
