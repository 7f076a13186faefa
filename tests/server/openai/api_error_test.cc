#include "server/openai/api_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/base/error.h"
#include "server/base/json.h"

namespace nibble::openai {
namespace {

using ::testing::Contains;
using ::testing::Pair;

grpc::Status Status(grpc::StatusCode code, const std::string& message, const std::string& reason,
                    const std::string& field = "", int retry_ms = -1) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  details.add_details()->PackFrom(info);
  if (!field.empty()) {
    google::rpc::BadRequest bad;
    bad.add_field_violations()->set_field(field);
    details.add_details()->PackFrom(bad);
  }
  if (retry_ms >= 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_nanos(retry_ms * 1'000'000);
    details.add_details()->PackFrom(retry);
  }
  return {code, message, details.SerializeAsString()};
}

TEST(ApiErrorTest, StatusTypeAndCodeFollowTheReason) {
  struct Case {
    grpc::StatusCode code;
    const char* reason;
    unsigned status;
    const char* type;
    const char* error_code;
  };
  const std::vector<Case> cases = {
      {grpc::INVALID_ARGUMENT, "FIELD_VIOLATION", 400, "invalid_request_error", "invalid_value"},
      {grpc::INVALID_ARGUMENT, "PROMPT_TOO_LONG", 400, "invalid_request_error", "context_length_exceeded"},
      {grpc::UNAUTHENTICATED, "TOKEN_INVALID", 401, "authentication_error", "invalid_api_key"},
      {grpc::PERMISSION_DENIED, "ROLE", 403, "permission_error", "role"},
      {grpc::NOT_FOUND, "MODEL", 404, "not_found_error", "model_not_found"},
      {grpc::FAILED_PRECONDITION, "MODEL_LOADED", 409, "conflict_error", "model_loaded"},
      {grpc::RESOURCE_EXHAUSTED, "QUEUE_FULL", 429, "rate_limit_error", "rate_limit_exceeded"},
      {grpc::RESOURCE_EXHAUSTED, "KV_FULL", 400, "invalid_request_error", "kv_full"},
      {grpc::RESOURCE_EXHAUSTED, "OUT_OF_DEVICE_MEMORY", 503, "service_unavailable_error", "out_of_device_memory"},
      {grpc::CANCELLED, "", 499, "request_cancelled", ""},
      {grpc::DEADLINE_EXCEEDED, "", 504, "timeout_error", ""},
      {grpc::UNAVAILABLE, "DRAINING", 503, "service_unavailable_error", "draining"},
      {grpc::INTERNAL, "KERNEL_FAULT", 500, "server_error", "kernel_fault"},
      {grpc::UNIMPLEMENTED, "UNIMPLEMENTED", 400, "invalid_request_error", "unimplemented"},
  };
  for (const Case& one : cases) {
    const ApiError error = FromStatus(Status(one.code, "why", one.reason));
    EXPECT_EQ(error.status, one.status) << one.reason;
    EXPECT_EQ(error.type, one.type) << one.reason;
    EXPECT_EQ(error.code, one.error_code) << one.reason;
    EXPECT_EQ(error.message, "why");
  }
}

TEST(ApiErrorTest, FieldHasTheClientsName) {
  const ApiError error = FromStatus(
      Status(grpc::INVALID_ARGUMENT, "sampling.top_p: is 7, wanted at most 1", "FIELD_VIOLATION", "sampling.top_p"));
  EXPECT_EQ(error.param, "top_p");
  EXPECT_EQ(error.message, "top_p: is 7, wanted at most 1");
  EXPECT_EQ(PlainField("stopping.max_tokens"), "max_tokens");
  EXPECT_EQ(PlainField("chat.messages"), "messages");
  EXPECT_EQ(PlainField("token_ids"), "prompt");
  EXPECT_EQ(PlainField("model"), "model");
  EXPECT_EQ(FromStatus(Status(grpc::INVALID_ARGUMENT, "text: has 9 tokens", "PROMPT_TOO_LONG")).message,
            "prompt: has 9 tokens");
}

TEST(ApiErrorTest, OnlyAHelpfulRetryIsAskedFor) {
  const http::Reply full = ToReply(FromStatus(Status(grpc::RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", "", 250)));
  EXPECT_THAT(full.fields, Contains(Pair("x-should-retry", "true")));
  EXPECT_THAT(full.fields, Contains(Pair("retry-after-ms", "250")));
  EXPECT_THAT(full.fields, Contains(Pair("Retry-After", "1")));
  const http::Reply internal = ToReply(FromStatus(Status(grpc::INTERNAL, "bug", "KERNEL_FAULT")));
  EXPECT_THAT(internal.fields, Contains(Pair("x-should-retry", "false"))) << "the libraries retry every 5xx otherwise";
  const http::Reply draining = ToReply(FromStatus(Status(grpc::UNAVAILABLE, "away", "DRAINING")));
  EXPECT_THAT(draining.fields, Contains(Pair("x-should-retry", "true")));
  const http::Reply conflict = ToReply(FromStatus(Status(grpc::FAILED_PRECONDITION, "state", "STATE")));
  EXPECT_THAT(conflict.fields, Contains(Pair("x-should-retry", "false"))) << "the libraries retry every 409 otherwise";
}

TEST(ApiErrorTest, BodyAndEventHaveTheSameForm) {
  const ApiError error = FromStatus(base::FieldError("n", "is 0"));
  const base::Json json = base::ParseJson(ToJson(error)).value();
  EXPECT_EQ(json, base::Json::parse(R"({"error":{"message":"n: is 0","type":"invalid_request_error","param":"n",
                                        "code":"invalid_value"}})"));
  EXPECT_EQ(ToEvent(error), "data: " + ToJson(error) + "\n\n");
  EXPECT_EQ(base::ParseJson(ToJson(FromStatus(absl::InternalError("x")))).value()["error"]["param"], nullptr);
}

}  // namespace
}  // namespace nibble::openai
