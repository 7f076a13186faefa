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

// Reads one message, processes it on a worker and acknowledges it before it reads the next. The trainer's own queue is
// the buffer.
class ReportReactor final : public grpc::ServerBidiReactor<iv1::ReportRequest, iv1::ReportResponse> {
 public:
  ReportReactor(CallEnvironment& environment, grpc::CallbackServerContext* context, jobs::JobController& jobs)
      : call_(environment, context, CallType::kBidiStream, "nibble.internal.v1.TrainerReportService/Report"),
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
      default: return base::FieldError("message", "is not set, wanted hello or line");
    }
    NIBBLE_ASSIGN_OR_RETURN(const jobs::ReportAnswer answer,
                            jobs_.IngestReport(hello_.job_id(), hello_.attempt(), hello_.token(), lines));
    response_.Clear();
    response_.set_acknowledged_sequence(answer.acknowledged);
    const bool keeps = answer.command == jobs::Control::kCancelKeeping;
    if (keeps || answer.command == jobs::Control::kCancel) response_.set_command(iv1::TRAINER_COMMAND_CANCEL);
    response_.set_keep_checkpoint(keeps);
    if (answer.command == jobs::Control::kPause) response_.set_command(iv1::TRAINER_COMMAND_PAUSE);
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
  return new ReportReactor(environment_, context, jobs_);
}

}  // namespace nibble::rpc
