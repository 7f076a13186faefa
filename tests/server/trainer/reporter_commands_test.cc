// The reporter over TLS, the commands that it receives, and the limit of its memory.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nibble/internal/v1/trainer_report.grpc.pb.h"
#include "server/base/mutex.h"
#include "server/base/strings.h"
#include "server/trainer/reporter.h"
#include "tests/support/certificates.h"
#include "tests/support/soon.h"
#include "tests/support/temp_directory.h"

namespace nibble::trainer {
namespace {

namespace v1 = ::nibble::internal::v1;
using jobs::Control;
using testing::FileText;
using testing_support::Soon;

// Acknowledges each line that it receives, even if earlier ones are missing, and answers with a command. A line of
// these tests begins with its sequence. Never acknowledges a line that it has not received, because the reporter would
// then not send that line.
class Commander final : public v1::TrainerReportService::Service {
 public:
  grpc::Status Report(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::ReportResponse, v1::ReportRequest>* stream) override {
    v1::ReportRequest request;
    while (stream->Read(&request)) {
      base::MutexLock lock(mutex_);
      if (request.has_line()) {
        lines_.push_back(request.line().json());
        answer_.set_acknowledged_sequence(std::stoll(request.line().json()));
      }
      if (request.has_heartbeat()) ++heartbeats_;
      if (!stream->Write(answer_)) break;
    }
    return grpc::Status::OK;
  }
  void Command(v1::TrainerCommand command, bool keep = false, const std::string& request = "") {
    base::MutexLock lock(mutex_);
    answer_.set_command(command);
    answer_.set_keep_checkpoint(keep);
    answer_.set_checkpoint_request(request);
  }
  std::vector<std::string> lines() {
    base::MutexLock lock(mutex_);
    return lines_;
  }
  int heartbeats() {
    base::MutexLock lock(mutex_);
    return heartbeats_;
  }

 private:
  base::Mutex mutex_;
  v1::ReportResponse answer_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  int heartbeats_ ABSL_GUARDED_BY(mutex_) = 0;
};

class ReporterCommandsTest : public ::testing::Test {
 protected:
  // Listens on `port`, 0 for any; sets port_.
  void Listen(const std::shared_ptr<grpc::ServerCredentials>& credentials, int port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(base::StrCat("127.0.0.1:", port), credentials, &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  std::shared_ptr<grpc::ServerCredentials> Tls() {
    testing::MakeAuthority(temp_ / "ca");
    testing::MakeAuthority(temp_ / "foreign");
    testing::MakeCertificate(temp_ / "server", temp_ / "ca", "DNS:localhost");
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({FileText(temp_ / "server.key"), FileText(temp_ / "server.crt")});
    return grpc::SslServerCredentials(options);
  }
  Reporter::Options Options(const std::string& host = "127.0.0.1", const std::string& ca = "") const {
    Reporter::Options options;
    options.address = base::StrCat(host, ":", port_);
    options.job_id = "job-1";
    options.attempt = 1;
    options.token = "t";
    options.ca = ca.empty() ? "" : FileText(temp_ / (ca + ".crt"));
    options.heartbeat = absl::Milliseconds(20);
    return options;
  }

  testing::TempDirectory temp_;
  Commander service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

TEST_F(ReporterCommandsTest, SendsLinesOverTlsToAServerOfItsAuthority) {
  Listen(Tls());
  Reporter reporter(Options("localhost", "ca"));
  reporter.Send("1");
  reporter.Flush(absl::Minutes(1));
  EXPECT_EQ(service_.lines(), std::vector<std::string>{"1"});
}

TEST_F(ReporterCommandsTest, ServerThatItCannotVerifyReceivesNothing) {
  Listen(Tls());
  Reporter::Options options[] = {Options("localhost", "foreign"), Options("127.0.0.1", "ca"), Options("localhost")};
  for (Reporter::Options& one : options) {
    Reporter reporter(std::move(one));
    reporter.Send("1");
    reporter.Flush(absl::Seconds(2));
    EXPECT_FALSE(reporter.fenced()) << "the journal on disk is enough to continue";
  }
  EXPECT_TRUE(service_.lines().empty());
  EXPECT_EQ(service_.heartbeats(), 0);
}

TEST_F(ReporterCommandsTest, HeartbeatsReceiveCommandsWithoutLines) {
  Listen(grpc::InsecureServerCredentials());
  Reporter reporter(Options());
  EXPECT_TRUE(Soon([&] { return service_.heartbeats() > 0; }));
  EXPECT_FALSE(reporter.stop().has_value());
  EXPECT_EQ(reporter.checkpoint_request(), "");
  service_.Command(v1::TRAINER_COMMAND_CHECKPOINT, /*keep=*/false, "request-1");
  EXPECT_TRUE(Soon([&] { return reporter.checkpoint_request() == "request-1"; }));
  EXPECT_FALSE(reporter.stop().has_value());
  service_.Command(v1::TRAINER_COMMAND_PAUSE);
  EXPECT_TRUE(Soon([&] { return reporter.stop() == Control::kPause; }));
  service_.Command(v1::TRAINER_COMMAND_CANCEL, /*keep=*/true);
  EXPECT_TRUE(Soon([&] { return reporter.stop() == Control::kCancelKeeping; }));
  service_.Command(v1::TRAINER_COMMAND_CANCEL);
  EXPECT_TRUE(Soon([&] { return reporter.stop() == Control::kCancel; }));
  service_.Command(v1::TRAINER_COMMAND_UNSPECIFIED);
  const int before = service_.heartbeats();
  EXPECT_TRUE(Soon([&] { return service_.heartbeats() > before + 2; }));
  EXPECT_EQ(reporter.stop(), Control::kCancel) << "an answer without a command withdraws none";
}

TEST_F(ReporterCommandsTest, AsksForTheCommandAtOnce) {
  Listen(grpc::InsecureServerCredentials());
  Reporter::Options options = Options();
  options.heartbeat = absl::Hours(1);
  Reporter reporter(std::move(options));
  reporter.Send("1");
  EXPECT_TRUE(Soon([&] { return !service_.lines().empty(); }));
  service_.Command(v1::TRAINER_COMMAND_PAUSE);
  EXPECT_EQ(service_.heartbeats(), 0);
  reporter.Ask(absl::Minutes(1));
  EXPECT_EQ(reporter.stop(), Control::kPause);
  EXPECT_EQ(service_.heartbeats(), 1);
  server_->Shutdown(std::chrono::system_clock::now());
  server_ = nullptr;
  const auto began = std::chrono::steady_clock::now();
  reporter.Ask(absl::Minutes(1));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30)) << "without a server";
}

TEST_F(ReporterCommandsTest, DropsItsOldestLinesWhileTheServerIsAway) {
  Listen(grpc::InsecureServerCredentials());
  Reporter::Options options = Options();
  options.max_queued_bytes = 1000;
  server_->Shutdown();
  server_ = nullptr;
  Reporter reporter(std::move(options));
  const auto line = [](int sequence) { return base::StrCat(sequence, std::string(100, ' ')); };
  for (int sequence = 1; sequence <= 100; ++sequence) reporter.Send(line(sequence));
  Listen(grpc::InsecureServerCredentials(), port_);
  reporter.Flush(absl::Minutes(1));
  reporter.Send(line(101));
  reporter.Flush(absl::Minutes(1));
  // Of the lines sent without a server, the last nine (102 or 103 bytes each) fit into 1000 bytes.
  std::vector<std::string> wanted;
  for (int sequence = 92; sequence <= 101; ++sequence) wanted.push_back(line(sequence));
  EXPECT_EQ(service_.lines(), wanted);
}

}  // namespace
}  // namespace nibble::trainer
