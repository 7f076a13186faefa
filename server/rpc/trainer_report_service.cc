#include "server/rpc/trainer_report_service.h"

#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/journal.h"
#include "server/rpc/status.h"

namespace nibble::rpc {

namespace {

namespace iv1 = internal::v1;

// A stop wins over a request for a checkpoint: before a pause, or a cancel that keeps a checkpoint, the trainer writes
// one anyway, and a plain cancel needs none.
void SetCommand(const jobs::ReportAnswer& answer, iv1::ReportResponse& response) {
  using enum jobs::Control;
  // kPreempt stands for no command: the trainer learns of a preemption from SIGTERM alone.
  const jobs::Control stop = answer.command.value_or(kPreempt);
  if (stop == kPause) {
    response.set_command(iv1::TRAINER_COMMAND_PAUSE);
  } else if (stop == kCancel || stop == kCancelKeeping) {
    response.set_command(iv1::TRAINER_COMMAND_CANCEL);
    response.set_keep_checkpoint(stop == kCancelKeeping);
  } else if (!answer.checkpoint_request.empty()) {
    response.set_command(iv1::TRAINER_COMMAND_CHECKPOINT);
    response.set_checkpoint_request(answer.checkpoint_request);
  }
}

// Reads one message, processes it on a worker and acknowledges it before it reads the next. The trainer's own queue is
// the buffer.
class ReportReactor final : public grpc::ServerBidiReactor<iv1::ReportRequest, iv1::ReportResponse> {
 public:
  ReportReactor(CallEnvironment& environment, grpc::CallbackServerContext* context, jobs::JobController& jobs,
                bool for_trainers)
      : call_(environment, context, CallType::kBidiStream, "nibble.internal.v1.TrainerReportService/Report",
              for_trainers),
        jobs_(jobs) {
    if (call_.admitted().ok()) {
      StartRead(&request_);
    } else {
      Finish(call_.End(call_.admitted()));
    }
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(call_.End(call_.cancel().cancelled() ? absl::CancelledError("the trainer is gone") : absl::OkStatus()));
      return;
    }
    call_.environment().workers.Run([this] { Process(); });
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      StartRead(&request_);
    } else {
      Finish(call_.End(absl::CancelledError("the trainer is gone")));
    }
  }
  void Process() {
    if (const absl::Status status = Take(); !status.ok()) {
      Finish(call_.End(status));
      return;
    }
    StartWrite(&response_);
  }
  absl::Status Take() {
    std::vector<std::string> lines;
    switch (request_.message_case()) {
      case iv1::ReportRequest::kHello:
        if (!hello_.job_id().empty()) return base::FieldError("hello", "was sent twice");
        if (request_.hello().job_id().empty()) return base::FieldError("hello.job_id", "is empty");
        hello_ = request_.hello();
        break;
      case iv1::ReportRequest::kLine:
        if (hello_.job_id().empty()) return base::FieldError("hello", "is missing, must be the first message");
        if (request_.line().json().size() > jobs::kMaxJournalLineBytes) {
          return base::FieldError("line.json", base::StrCat("has ", request_.line().json().size(),
                                                            " bytes, wanted at most ", jobs::kMaxJournalLineBytes));
        }
        lines.push_back(std::move(*request_.mutable_line()->mutable_json()));
        break;
      case iv1::ReportRequest::kHeartbeat:
        if (hello_.job_id().empty()) return base::FieldError("hello", "is missing, must be the first message");
        break;
      default: return base::FieldError("message", "is not set, wanted hello, line or heartbeat");
    }
    NIBBLE_ASSIGN_OR_RETURN(const jobs::ReportAnswer answer,
                            jobs_.IngestReport(hello_.job_id(), hello_.attempt(), hello_.token(), lines));
    response_.Clear();
    response_.set_acknowledged_sequence(answer.acknowledged);
    SetCommand(answer, response_);
    return absl::OkStatus();
  }
  void OnCancel() override { call_.Cancel(); }
  void OnDone() override { delete this; }

  Call call_;
  jobs::JobController& jobs_;
  iv1::Hello hello_;
  iv1::ReportRequest request_;
  iv1::ReportResponse response_;
};

}  // namespace

grpc::ServerBidiReactor<iv1::ReportRequest, iv1::ReportResponse>* TrainerReportService::Report(
    grpc::CallbackServerContext* context) {
  return new ReportReactor(environment_, context, jobs_, for_trainers_);
}

}  // namespace nibble::rpc
