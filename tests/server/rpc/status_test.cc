#include "server/rpc/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "server/base/error.h"
#include "server/base/strings.h"
#include "tests/server/rpc/status_details.h"

namespace nibble::rpc {
namespace {

using ::testing::HasSubstr;
using testing_support::Find;

google::rpc::Status Details(const grpc::Status& status) {
  google::rpc::Status out;
  EXPECT_TRUE(out.ParseFromString(status.error_details()));
  return out;
}

TEST(StatusTest, EveryCodeKeepsItsNumberAndCarriesErrorInfo) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status mapped = ToGrpcStatus(status);
    EXPECT_EQ(mapped.error_code(), code);
    EXPECT_EQ(mapped.error_message(), "why");
    const google::rpc::Status details = Details(mapped);
    EXPECT_EQ(details.code(), code);
    const auto info = Find<google::rpc::ErrorInfo>(details);
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->domain(), "nibble");
    EXPECT_EQ(info->reason(), CodeName(status.code()));
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
}

TEST(StatusTest, FieldErrorNamesItsField) {
  const auto details = Details(ToGrpcStatus(base::FieldError("optim.lr", "is 0, wanted a number above 0")));
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(details)->reason(), "FIELD_VIOLATION");
  const auto bad = Find<google::rpc::BadRequest>(details);
  ASSERT_TRUE(bad.has_value());
  ASSERT_EQ(bad->field_violations_size(), 1);
  EXPECT_EQ(bad->field_violations(0).field(), "optim.lr");
  EXPECT_THAT(bad->field_violations(0).description(), HasSubstr("wanted a number above 0"));
}

TEST(StatusTest, SeveralViolationsAreAllNamed) {
  const auto status = base::WithReason(absl::InvalidArgumentError("two things"), "FIELD_VIOLATION",
                                       {{"field", "qlora.r"}, {"qlora.r", "is 0"}, {"optim.lr", "is -1"}});
  const auto bad = Find<google::rpc::BadRequest>(Details(ToGrpcStatus(status)));
  ASSERT_TRUE(bad.has_value());
  ASSERT_EQ(bad->field_violations_size(), 2);
  EXPECT_EQ(bad->field_violations(0).field(), "optim.lr");
  EXPECT_EQ(bad->field_violations(1).field(), "qlora.r");
}

TEST(StatusTest, LinesOfADatasetAreViolations) {
  const auto status =
      base::WithReason(absl::InvalidArgumentError("line 3: not a JSON object; line 9: no \"text\""), "DATASET_FORMAT");
  const auto bad = Find<google::rpc::BadRequest>(Details(ToGrpcStatus(status)));
  ASSERT_TRUE(bad.has_value());
  ASSERT_EQ(bad->field_violations_size(), 2);
  EXPECT_EQ(bad->field_violations(0).field(), "line 3");
  EXPECT_EQ(bad->field_violations(1).description(), "no \"text\"");
}

TEST(StatusTest, EachRangeOfLinesOfADatasetIsAViolation) {
  const auto status = base::WithReason(
      absl::InvalidArgumentError("lines 3, 5-9: no \"text\"; line 4: not a JSON object"), "DATASET_FORMAT");
  const auto bad = Find<google::rpc::BadRequest>(Details(ToGrpcStatus(status)));
  ASSERT_TRUE(bad.has_value());
  ASSERT_EQ(bad->field_violations_size(), 3);
  EXPECT_EQ(bad->field_violations(0).field(), "line 3");
  EXPECT_EQ(bad->field_violations(1).field(), "lines 5-9");
  EXPECT_EQ(bad->field_violations(1).description(), "no \"text\"");
  EXPECT_EQ(bad->field_violations(2).field(), "line 4");
}

TEST(StatusTest, NotFoundNamesTheResource) {
  const auto status = base::WithReason(absl::NotFoundError("there is no model"), "MODEL", {{"name", "gpt"}});
  const auto details = Details(ToGrpcStatus(status));
  EXPECT_EQ(Find<google::rpc::ResourceInfo>(details)->resource_type(), "model");
  EXPECT_EQ(Find<google::rpc::ResourceInfo>(details)->resource_name(), "gpt");
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(details)->metadata().at("name"), "gpt");
}

TEST(StatusTest, AlreadyExistsNamesTheResourceByItsKind) {
  const auto status =
      base::WithReason(absl::AlreadyExistsError("taken"), "NAME_TAKEN", {{"kind", "dataset"}, {"name", "page"}});
  const auto details = Details(ToGrpcStatus(status));
  EXPECT_EQ(Find<google::rpc::ResourceInfo>(details)->resource_type(), "dataset");
  EXPECT_EQ(Find<google::rpc::ResourceInfo>(details)->resource_name(), "page");
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(details)->reason(), "NAME_TAKEN");
}

TEST(StatusTest, RetryInfoIsGivenOnlyWhereARetryHelps) {
  EXPECT_TRUE(Find<google::rpc::RetryInfo>(ToRpcStatus(absl::UnavailableError("x"))).has_value());
  EXPECT_TRUE(
      Find<google::rpc::RetryInfo>(ToRpcStatus(base::WithReason(absl::ResourceExhaustedError("x"), "QUEUE_FULL"))));
  EXPECT_TRUE(
      Find<google::rpc::RetryInfo>(ToRpcStatus(base::WithReason(absl::ResourceExhaustedError("x"), "TENANT_QUOTA"))));
  EXPECT_FALSE(
      Find<google::rpc::RetryInfo>(ToRpcStatus(base::WithReason(absl::ResourceExhaustedError("x"), "DISK_FULL"))));
  EXPECT_FALSE(Find<google::rpc::RetryInfo>(
      ToRpcStatus(base::WithReason(absl::ResourceExhaustedError("x"), "MESSAGE_TOO_LARGE"))));
  EXPECT_FALSE(Find<google::rpc::RetryInfo>(ToRpcStatus(absl::InternalError("x"))));
}

TEST(StatusTest, ResourceExhaustedNamesItsQuotaAndTheEstimatedDelay) {
  const auto details = Details(ToGrpcStatus(base::WithReason(
      absl::ResourceExhaustedError("64 requests are already waiting"), "QUEUE_FULL", {{"retry_ms", "2500"}})));
  const auto quota = Find<google::rpc::QuotaFailure>(details);
  ASSERT_TRUE(quota.has_value());
  EXPECT_EQ(quota->violations(0).subject(), "QUEUE_FULL");
  EXPECT_THAT(quota->violations(0).description(), HasSubstr("64 requests"));
  const auto retry = Find<google::rpc::RetryInfo>(details);
  ASSERT_TRUE(retry.has_value());
  EXPECT_EQ(retry->retry_delay().seconds(), 2);
  EXPECT_EQ(retry->retry_delay().nanos(), 500'000'000);
  // Waiting does not help if the request exceeds the total.
  const auto never = Details(ToGrpcStatus(base::WithReason(absl::ResourceExhaustedError("too large"), "KV_FULL")));
  EXPECT_TRUE(Find<google::rpc::QuotaFailure>(never).has_value());
  EXPECT_FALSE(Find<google::rpc::RetryInfo>(never).has_value());
}

TEST(StatusTest, FailedPreconditionNamesTheViolation) {
  const auto details = Details(ToGrpcStatus(
      base::WithReason(absl::FailedPreconditionError("the model is in use"), "MODEL_IN_USE", {{"name", "m"}})));
  const auto failure = Find<google::rpc::PreconditionFailure>(details);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->violations(0).type(), "MODEL_IN_USE");
  EXPECT_EQ(failure->violations(0).subject(), "m");
  EXPECT_THAT(failure->violations(0).description(), HasSubstr("in use"));
}

TEST(StatusTest, FailedPreconditionNamesTheObjectOfTheCallUnlessItNamesAnother) {
  const auto subject = [](const absl::Status& status) {
    return Find<google::rpc::PreconditionFailure>(ToRpcStatus(base::About(status, "m")))->violations(0).subject();
  };
  absl::Status status = base::WithReason(absl::FailedPreconditionError("x"), "NO_RECORD", {{"tensor", "t"}});
  status.SetPayload("type.googleapis.com/google.rpc.RequestInfo", absl::Cord(""));
  EXPECT_EQ(subject(status), "m");
  const google::rpc::Status details = ToRpcStatus(base::About(status, "m"));
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(details)->reason(), "NO_RECORD");
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(details)->metadata().at("tensor"), "t");
  EXPECT_TRUE(Find<google::rpc::RequestInfo>(details).has_value()) << "other payloads stay";
  EXPECT_EQ(subject(absl::FailedPreconditionError("x")), "m");
  EXPECT_EQ(subject(base::WithReason(absl::FailedPreconditionError("x"), "MODEL_IN_USE", {{"name", "n"}})), "n");
  // A field error already has a metadata entry for each field, so About adds no entry.
  EXPECT_EQ(base::About(base::FieldError("r", "is 0"), "m"), base::FieldError("r", "is 0"));
  EXPECT_TRUE(base::About(absl::OkStatus(), "m").ok());
}

TEST(StatusTest, LongTextsAndManyFieldsFitIntoMetadata) {
  std::map<std::string, std::string> metadata = {{"field", "f0"}};
  for (int i = 0; i < 100; ++i) metadata[base::StrCat("f", i)] = std::string(1000, 'x');
  const grpc::Status status = ToGrpcStatus(
      base::WithReason(absl::InvalidArgumentError(std::string(100'000, 'm')), "FIELD_VIOLATION", metadata));
  EXPECT_LE(status.error_message().size(), 1024u);
  // The details, in Base64 in the worst case, and the message are together below 8 KiB.
  EXPECT_LE(status.error_details().size() * 4 / 3 + status.error_message().size(), 8000u);
  EXPECT_TRUE(Find<google::rpc::ErrorInfo>(Details(status)).has_value());
}

TEST(StatusTest, InvalidUtf8InATextIsReplaced) {
  const grpc::Status status = ToGrpcStatus(absl::InvalidArgumentError("bad \xff byte \xf0\x9f"));
  EXPECT_THAT(status.error_message(), HasSubstr("bad \xEF\xBF\xBD byte"));
  EXPECT_EQ(Details(status).message(), status.error_message());
}

TEST(StatusTest, ToUtf8CutsBetweenCharacters) {
  EXPECT_EQ(ToUtf8("aé", 2), "a");
  EXPECT_EQ(ToUtf8("aé", 3), "aé");
  EXPECT_EQ(ToUtf8("😀😀", 5), "😀");
}

TEST(StatusTest, OnlyCancelledAndLateStatusesGetAStage) {
  for (const absl::Status& cut : {absl::CancelledError("x"), absl::DeadlineExceededError("x")}) {
    const auto info = Find<google::rpc::ErrorInfo>(ToRpcStatus(StoppedAt(cut, kStagePrefill, 5)));
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->reason(), CodeName(cut.code()));
    EXPECT_EQ(info->metadata().at("stage"), "PREFILL");
    EXPECT_EQ(info->metadata().at("tokens"), "5");
  }
  EXPECT_EQ(StoppedAt(absl::NotFoundError("x"), kStageQueue, 0), absl::NotFoundError("x"));
  EXPECT_TRUE(StoppedAt(absl::OkStatus(), kStageQueue, 0).ok());
}

TEST(StatusTest, UnimplementedNamesTheFeature) {
  const auto details = Details(ToGrpcStatus(Unimplemented("Sampling.n")));
  EXPECT_EQ(details.code(), static_cast<int>(grpc::StatusCode::UNIMPLEMENTED));
  EXPECT_THAT(details.message(), HasSubstr("Sampling.n"));
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(details)->metadata().at("name"), "Sampling.n");
}

}  // namespace
}  // namespace nibble::rpc
