// When the server acknowledges a line of a trainer's stream, the line is already an event of the job. The "trainer"
// here only sleeps and writes no journal, so the events can only come from the stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nibble/internal/v1/trainer_report.grpc.pb.h"
#include "server/base/files.h"
#include "server/base/strings.h"
#include "server/jobs/attempt.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/status_details.h"
#include "tests/server/rpc/tiny_job.h"
#include "tests/support/soon.h"

namespace nibble {
namespace {

using base::StrCat;
using ::testing::ElementsAre;
using testing_support::AppTest;
using testing_support::Find;
using testing_support::ReasonOf;

class TrainerReportTest : public AppTest {
 protected:
  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    options.trainer_path = directory_ + "/trainer";
    std::ofstream(options.trainer_path) << "#!/bin/sh\nexec /bin/sleep 600\n";
    std::filesystem::permissions(options.trainer_path, std::filesystem::perms::owner_all);
    return options;
  }
  void SetUp() override {
    AppTest::SetUp();
    Import("tiny");
    Upload("texts", testing_support::kTinyTexts);
    const grpc::Status created = Call(jobs_, &v1::FineTuneService::Stub::CreateJob, testing_support::TinyJob(), &job_);
    ASSERT_TRUE(created.ok()) << created.error_message();
    const std::string attempt = StrCat(directory_, "/state/jobs/", job_.name(), "/attempts/1");
    ASSERT_TRUE(testing_support::Soon([&] {
      auto order = jobs::ReadAttemptOrder(base::RealFileSystem(), attempt);
      if (order.ok()) order_ = *std::move(order);
      return !order_.token.empty();
    })) << "no attempt was begun";
    trainers_ = internal::v1::TrainerReportService::NewStub(
        grpc::CreateChannel(order_.report_address, grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    v1::CancelJobRequest cancel;
    cancel.set_name(job_.name());
    EXPECT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::CancelJob, cancel, &job_).ok());
    EXPECT_TRUE(testing_support::Soon([&] {
      job_ = Get();
      return job_.state() == v1::JOB_STATE_CANCELLED;
    })) << job_.DebugString();
    AppTest::TearDown();
  }
  v1::Job Get() {
    v1::GetJobRequest request;
    request.set_name(job_.name());
    v1::Job job;
    EXPECT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::GetJob, request, &job).ok());
    return job;
  }
  std::vector<std::string> Logged() {
    v1::ListJobEventsRequest request;
    request.set_name(job_.name());
    v1::ListJobEventsResponse page;
    EXPECT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::ListJobEvents, request, &page).ok());
    std::vector<std::string> texts;
    for (const v1::JobEvent& event : page.events()) {
      if (event.has_log()) texts.push_back(event.log().text());
    }
    return texts;
  }

  internal::v1::ReportRequest Hello(int attempt, const std::string& token) const {
    internal::v1::ReportRequest request;
    request.mutable_hello()->set_job_id(job_.name());
    request.mutable_hello()->set_attempt(attempt);
    request.mutable_hello()->set_token(token);
    return request;
  }
  static internal::v1::ReportRequest Line(int sequence, const std::string& fields) {
    internal::v1::ReportRequest request;
    request.mutable_line()->set_json(
        StrCat(R"({"sequence":)", sequence, R"(,"time":"2026-01-02T03:04:05Z",)", fields, "}"));
    return request;
  }
  static internal::v1::ReportRequest Log(int sequence, const std::string& text) {
    return Line(sequence, StrCat(R"("type":"log","message":")", text, "\""));
  }

  struct Answers {
    std::vector<std::int64_t> acknowledged;  // one sequence for each message, until the stream ended
    grpc::Status status;                     // of the stream
  };
  Answers Send(const std::vector<internal::v1::ReportRequest>& messages) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto stream = trainers_->Report(&context);
    Answers answers;
    internal::v1::ReportResponse response;
    for (const auto& message : messages) {
      if (!stream->Write(message) || !stream->Read(&response)) break;
      answers.acknowledged.push_back(response.acknowledged_sequence());
    }
    stream->WritesDone();
    answers.status = stream->Finish();
    return answers;
  }

  v1::Job job_;
  jobs::AttemptOrder order_;
  std::unique_ptr<internal::v1::TrainerReportService::Stub> trainers_;
};

TEST_F(TrainerReportTest, AcknowledgedLineIsAnEventOfTheJob) {
  const auto running = Line(1, R"("type":"state","state":"RUNNING","step":0,"max_steps":2)");
  const Answers first = Send({Hello(1, order_.token), running, Log(2, "one")});
  EXPECT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_THAT(first.acknowledged, ElementsAre(0, 1, 2));
  EXPECT_THAT(Logged(), ElementsAre("one"));
  EXPECT_EQ(Get().state(), v1::JOB_STATE_RUNNING);
  // After a lost connection, the trainer sends some lines again.
  const Answers second = Send({Hello(1, order_.token), Log(2, "one"), Log(3, "two")});
  EXPECT_TRUE(second.status.ok()) << second.status.error_message();
  EXPECT_THAT(second.acknowledged, ElementsAre(2, 2, 3));
  EXPECT_THAT(Logged(), ElementsAre("one", "two"));
}

TEST_F(TrainerReportTest, RejectsOtherTrainersAndGapsInTheSequence) {
  const Answers wrong_token = Send({Hello(1, "guess"), Log(1, "x")});
  EXPECT_EQ(wrong_token.status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(ReasonOf(wrong_token.status), "TOKEN_INVALID");
  const Answers fenced = Send({Hello(2, order_.token), Log(1, "x")});
  EXPECT_EQ(fenced.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(fenced.status), "FENCED");
  const auto failure = Find<google::rpc::PreconditionFailure>(testing_support::Details(fenced.status));
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->violations(0).subject(), job_.name());
  // Not FENCED: this server cannot know whether the job was deleted or belongs to another server.
  internal::v1::ReportRequest other_job = Hello(1, order_.token);
  other_job.mutable_hello()->set_job_id("job-x");
  const Answers unknown = Send({other_job, Log(1, "x")});
  EXPECT_EQ(unknown.status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ReasonOf(unknown.status), "JOB");
  const Answers without_hello = Send({Log(1, "x")});
  EXPECT_EQ(without_hello.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(testing_support::FieldOf(without_hello.status), "hello");
  const Answers gap = Send({Hello(1, order_.token), Log(2, "x")});
  EXPECT_EQ(gap.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(testing_support::FieldOf(gap.status), "sequence");
  EXPECT_THAT(Logged(), ElementsAre());
}

}  // namespace
}  // namespace nibble
