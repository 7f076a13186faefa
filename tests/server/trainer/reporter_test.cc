#include "server/trainer/reporter.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "nibble/internal/v1/trainer_report.grpc.pb.h"
#include "server/base/mutex.h"
#include "server/base/strings.h"

namespace nibble::trainer {
namespace {

namespace v1 = ::nibble::internal::v1;

// The tests' lines begin with their sequence number.
int Sequence(const v1::JournalLine& line) { return std::stoi(line.json()); }

// Acknowledges `known` lines once `acknowledge` is set, like a server that has read them from the disk. Reads the
// stream only once `read` is set.
class LateReader final : public v1::TrainerReportService::Service {
 public:
  explicit LateReader(std::int64_t known) : known_(known) {}
  std::promise<void> acknowledge;
  std::promise<void> read;
  std::promise<void> ended;
  std::vector<v1::JournalLine> lines;  // valid after `ended`

  grpc::Status Report(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::ReportResponse, v1::ReportRequest>* stream) override {
    v1::ReportRequest request;
    if (!stream->Read(&request) || !request.has_hello()) return {grpc::StatusCode::INVALID_ARGUMENT, "no hello"};
    v1::ReportResponse response;
    response.set_acknowledged_sequence(known_);
    acknowledge.get_future().wait();
    stream->Write(response);
    read.get_future().wait();
    while (stream->Read(&request)) {
      lines.push_back(request.line());
      response.set_acknowledged_sequence(Sequence(request.line()));
      if (Sequence(request.line()) > known_) stream->Write(response);
    }
    ended.set_value();
    return grpc::Status::OK;
  }

 private:
  const std::int64_t known_;
};

TEST(ReporterTest, LinesAcknowledgedBeforeSendingAreNotSent) {
  constexpr int kKnown = 40;
  // A line is larger than the stream's buffers, so most lines are not yet sent when they are acknowledged.
  const auto line = [](int sequence) { return base::StrCat(sequence, std::string(100'000, ' ')); };
  LateReader service(kKnown);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // The flow-control window stays at 64 KiB.
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  {
    Reporter reporter(
        {.address = base::StrCat("127.0.0.1:", port), .job_id = "job-1", .attempt = 1, .token = "t", .ca = ""});
    for (int sequence = 1; sequence <= kKnown; ++sequence) reporter.Send(line(sequence));
    service.acknowledge.set_value();
    reporter.Flush(absl::Minutes(1));  // All are acknowledged, although the server has read none.
    reporter.Send(line(kKnown + 1));
    service.read.set_value();
    reporter.Flush(absl::Minutes(1));
    EXPECT_FALSE(reporter.fenced());
  }
  service.ended.get_future().wait();
  ASSERT_FALSE(service.lines.empty());
  EXPECT_LT(service.lines.size(), static_cast<std::size_t>(kKnown));
  EXPECT_EQ(Sequence(service.lines.back()), kKnown + 1);
  for (const v1::JournalLine& got : service.lines) {
    EXPECT_EQ(got.json(), line(Sequence(got))) << Sequence(got);
  }
}

// A refusal as the server makes it (server/rpc/status.h). With an empty reason: as gRPC itself makes it.
grpc::Status Refusal(grpc::StatusCode code, const std::string& reason, const std::string& domain = "nibble") {
  if (reason.empty()) return {code, "no"};
  google::rpc::Status details;
  details.set_code(static_cast<int>(code));
  details.set_message("no");
  google::rpc::PreconditionFailure failure;
  failure.add_violations()->set_type("FENCED");
  details.add_details()->PackFrom(failure);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain(domain);
  details.add_details()->PackFrom(info);
  return {code, "no", details.SerializeAsString()};
}

// Refuses the first stream of each job with its entry in `refusals`, and accepts the lines of later streams.
class RefusingOnce final : public v1::TrainerReportService::Service {
 public:
  explicit RefusingOnce(std::map<std::string, grpc::Status> refusals) : refusals_(std::move(refusals)) {}

  grpc::Status Report(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::ReportResponse, v1::ReportRequest>* stream) override {
    v1::ReportRequest request;
    if (!stream->Read(&request) || !request.has_hello()) return {grpc::StatusCode::INVALID_ARGUMENT, "no hello"};
    const std::string job = request.hello().job_id();
    {
      base::MutexLock lock(mutex_);
      if (++streams_[job] == 1) return refusals_.at(job);
    }
    while (stream->Read(&request)) {
      v1::ReportResponse response;
      {
        base::MutexLock lock(mutex_);
        lines_[job].push_back(request.line().json());
        response.set_acknowledged_sequence(static_cast<std::int64_t>(lines_[job].size()));
      }
      stream->Write(response);
    }
    return grpc::Status::OK;
  }
  int streams(const std::string& job) {
    base::MutexLock lock(mutex_);
    return streams_[job];
  }
  std::vector<std::string> lines(const std::string& job) {
    base::MutexLock lock(mutex_);
    return lines_[job];
  }

 private:
  const std::map<std::string, grpc::Status> refusals_;
  base::Mutex mutex_;
  std::map<std::string, int> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<std::string>> lines_ ABSL_GUARDED_BY(mutex_);
};

TEST(ReporterTest, OnlyFencedEndsTheAttempt) {
  using enum grpc::StatusCode;
  // All except "fenced" may come from another server or program that has taken the port.
  const std::map<std::string, grpc::Status> refusals = {
      {"unknown-job", Refusal(NOT_FOUND, "JOB")},
      {"unknown-token", Refusal(UNAUTHENTICATED, "TOKEN_INVALID")},
      {"no-token", Refusal(UNAUTHENTICATED, "")},
      {"other-state", Refusal(FAILED_PRECONDITION, "ILLEGAL_STATE")},
      {"other-program", Refusal(FAILED_PRECONDITION, "FENCED", "example.com")},
      {"no-reason", Refusal(FAILED_PRECONDITION, "")},
      {"unavailable", Refusal(UNAVAILABLE, "DRAINING")},
      {"fenced", Refusal(FAILED_PRECONDITION, "FENCED")}};
  RefusingOnce service(refusals);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  std::map<std::string, std::unique_ptr<Reporter>> reporters;
  for (const auto& [job, refusal] : refusals) {
    Reporter::Options options;
    options.address = base::StrCat("127.0.0.1:", port);
    options.job_id = job;
    options.attempt = 1;
    options.token = "t";
    reporters[job] = std::make_unique<Reporter>(std::move(options));
    reporters[job]->Send(base::StrCat("line of ", job));
  }
  const auto began = std::chrono::steady_clock::now();
  for (const auto& [job, reporter] : reporters) {
    reporter->Flush(absl::Minutes(1));
    if (job == "fenced") continue;
    EXPECT_FALSE(reporter->fenced()) << job;
    EXPECT_EQ(service.streams(job), 2) << job;
    EXPECT_EQ(service.lines(job), std::vector<std::string>{base::StrCat("line of ", job)}) << "retried without loss";
  }
  EXPECT_TRUE(reporters["fenced"]->fenced());
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(50)) << "a fenced reporter does not wait";
  reporters.clear();
  EXPECT_EQ(service.streams("fenced"), 1);
  EXPECT_TRUE(service.lines("fenced").empty());
}

}  // namespace
}  // namespace nibble::trainer
