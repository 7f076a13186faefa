#include "server/trainer/reporter.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "nibble/internal/v1/trainer_report.grpc.pb.h"
#include "server/base/strings.h"

namespace nibble::trainer {
namespace {

namespace v1 = ::nibble::internal::v1;

// Acknowledges `known` lines when it is told to, as a server does that has read them from the disk; and reads what the
// stream carries only once it is told that too.
class LateReader final : public v1::TrainerReportService::Service {
 public:
  explicit LateReader(std::int64_t known) : known_(known) {}
  std::promise<void> acknowledge;
  std::promise<void> read;
  std::promise<void> ended;
  std::vector<v1::JournalLine> lines;  // once `ended`

  grpc::Status Report(grpc::ServerContext*, grpc::ServerReaderWriter<v1::ReportResponse, v1::ReportRequest>* stream) override {
    v1::ReportRequest request;
    if (!stream->Read(&request) || !request.has_hello()) return {grpc::StatusCode::INVALID_ARGUMENT, "no hello"};
    v1::ReportResponse response;
    response.set_acknowledged_sequence(known_);
    acknowledge.get_future().wait();
    stream->Write(response);
    read.get_future().wait();
    while (stream->Read(&request)) {
      lines.push_back(request.line());
      response.set_acknowledged_sequence(request.line().sequence());
      if (request.line().sequence() > known_) stream->Write(response);
    }
    ended.set_value();
    return grpc::Status::OK;
  }

 private:
  const std::int64_t known_;
};

TEST(ReporterTest, LinesThatTheServerAcknowledgedUnsentAreNotSent) {
  constexpr int kKnown = 40;
  // Longer than what the stream takes without a reader, so that most are not sent when they are acknowledged.
  const auto line = [](int sequence) { return base::StrCat(sequence, std::string(100'000, ' ')); };
  LateReader service(kKnown);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // The window stays at 64 KiB.
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  {
    Reporter reporter({.address = base::StrCat("127.0.0.1:", port), .job_id = "job-1", .attempt = 1, .token = "t"});
    for (int sequence = 1; sequence <= kKnown; ++sequence) reporter.Send(line(sequence));
    service.acknowledge.set_value();
    reporter.Flush(absl::Minutes(1));  // All are acknowledged, although nobody has read one.
    reporter.Send(line(kKnown + 1));
    service.read.set_value();
    reporter.Flush(absl::Minutes(1));
    EXPECT_FALSE(reporter.fenced());
  }
  service.ended.get_future().wait();
  ASSERT_FALSE(service.lines.empty());
  EXPECT_LT(service.lines.size(), static_cast<std::size_t>(kKnown));
  EXPECT_EQ(service.lines.back().sequence(), kKnown + 1);
  for (const v1::JournalLine& got : service.lines) {
    EXPECT_EQ(got.json(), line(static_cast<int>(got.sequence()))) << got.sequence();
  }
}

}  // namespace
}  // namespace nibble::trainer
