// Calls, retries, operations and token streams.
#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/base/error.h"
#include "tests/client/fake_server.h"

namespace nibble::client {
namespace {

using google::longrunning::GetOperationRequest;
using google::longrunning::Operation;
using google::longrunning::WaitOperationRequest;
using ::testing::ElementsAre;
using v1::ModelService;
using ReplyWrite = std::function<bool(const v1::GenerateReply&)>;

class ClientTest : public ::testing::Test {
 protected:
  FakeServer server_;
  Client client_{server_.Channel(), FastOptions()};
};

TEST_F(ClientTest, RetriesOnlyUnavailable) {
  int calls = 0;
  server_.get_model.answer = [&](const v1::GetModelRequest&, v1::Model* model) {
    model->set_name("m");
    return ++calls < 3 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining") : grpc::Status::OK;
  };
  const auto model = client_.Call(&ModelService::Stub::GetModel, v1::GetModelRequest());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(calls, 3);
  for (const auto code :
       {grpc::StatusCode::INTERNAL, grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::ABORTED}) {
    server_.get_model.asked.clear();
    server_.get_model.Fails(grpc::Status(code, "no"));
    EXPECT_FALSE(client_.Call(&ModelService::Stub::GetModel, v1::GetModelRequest()).ok());
    EXPECT_EQ(server_.get_model.asked.size(), 1u);
  }
}

TEST_F(ClientTest, GivesUpAfterItsAttempts) {
  server_.get_model.Fails(grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining"));
  EXPECT_EQ(client_.Call(&ModelService::Stub::GetModel, v1::GetModelRequest()).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.get_model.asked.size(), 4u);
}

TEST_F(ClientTest, KeepsReasonMetadataAndViolations) {
  server_.get_model.Fails(Error(grpc::StatusCode::INVALID_ARGUMENT, "got 0", "FIELD_VIOLATION", "qlora.r"));
  const absl::Status status = client_.Call(&ModelService::Stub::GetModel, v1::GetModelRequest()).status();
  EXPECT_EQ(base::Reason(status), "FIELD_VIOLATION");
  EXPECT_EQ(base::ReasonMetadata(status)["field"], "qlora.r");
  ASSERT_EQ(Violations(status).size(), 1u);
  EXPECT_EQ(Violations(status)[0].field, "qlora.r");
}

TEST_F(ClientTest, DropsMalformedDetails) {
  server_.get_model.Fails(grpc::Status(grpc::StatusCode::NOT_FOUND, "no model m", "\xff\xff garbage"));
  const absl::Status status = client_.Call(&ModelService::Stub::GetModel, v1::GetModelRequest()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "no model m");
  EXPECT_EQ(base::Reason(status), "");
  EXPECT_TRUE(Violations(status).empty());
}

Operation Running(std::int64_t done) {
  Operation operation;
  operation.set_name("operations/1");
  v1::ModelOperationMetadata metadata;
  metadata.set_stage("quantize");
  metadata.set_done(done);
  metadata.set_total(4);
  operation.mutable_metadata()->PackFrom(metadata);
  return operation;
}

TEST_F(ClientTest, WaitsForAnOperationAndReportsItsProgress) {
  int calls = 0;
  server_.wait_operation.answer = [&](const WaitOperationRequest&, Operation* operation) {
    *operation = Running(++calls);
    if (calls == 2) {
      operation->set_done(true);
      operation->mutable_response()->PackFrom(Proto<v1::Model>("name: 'new'"));
    }
    return grpc::Status::OK;
  };
  std::vector<std::int64_t> seen;
  const auto model =
      client_.Wait<v1::Model>(Running(0), [&](const std::string& stage, std::int64_t done, std::int64_t total) {
        EXPECT_EQ(stage, "quantize");
        EXPECT_EQ(total, 4);
        seen.push_back(done);
      });
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->name(), "new");
  EXPECT_THAT(seen, ElementsAre(0, 1, 2));
}

TEST_F(ClientTest, PollsAServerWithoutWaitOperation) {
  server_.get_operation.answer = [](const GetOperationRequest& request, Operation* operation) {
    operation->set_name(request.name());
    operation->set_done(true);
    operation->mutable_error()->set_code(9);
    operation->mutable_error()->set_message("tolerance");
    return grpc::Status::OK;
  };
  const auto model = client_.Wait<v1::Model>(Running(0), nullptr);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(model.status().message(), "tolerance");
  EXPECT_EQ(server_.get_operation.asked.at(0).name(), "operations/1");
}

TEST_F(ClientTest, RejectsOperationWithWrongResponse) {
  Operation operation = Running(4);
  operation.set_done(true);
  EXPECT_EQ(client_.Wait<v1::Model>(operation, nullptr).status().code(), absl::StatusCode::kDataLoss);
  operation.mutable_response()->PackFrom(v1::Dataset());
  EXPECT_EQ(client_.Wait<v1::Model>(operation, nullptr).status().code(), absl::StatusCode::kDataLoss);
}

class StreamTest : public ClientTest {
 protected:
  absl::Status Stream(std::vector<v1::GenerateReply> replies, grpc::Status end = grpc::Status::OK) {
    server_.generate_stream.answer = [replies, end](const v1::GenerateStreamRequest&, const ReplyWrite& write) {
      for (const auto& reply : replies) write(reply);
      return end;
    };
    text_.clear();
    return client_.GenerateStream(v1::GenerateRequest(), /*chat=*/false, [&](const v1::GenerateReply& reply) {
      text_ += reply.delta().text();
      return absl::OkStatus();
    });
  }
  std::string text_;
};

TEST_F(StreamTest, PassesOnTheTextInOrder) {
  EXPECT_TRUE(Stream(Replies({"The", " capital", ""})).ok());
  EXPECT_EQ(text_, "The capital");
}

TEST_F(StreamTest, RejectsMessagesOutOfOrder) {
  const auto good = Replies({"a", "b"});  // start, delta, delta, finish, usage
  for (const std::vector<int>& order : std::vector<std::vector<int>>{{1, 0, 2, 3, 4},
                                                                     {0, 0, 1, 3, 4},
                                                                     {0, 1, 3, 2, 4},
                                                                     {0, 1, 4},
                                                                     {0, 1, 3, 4, 4},
                                                                     {0, 1, 3},
                                                                     {0, 3, 3, 4},
                                                                     {}}) {
    std::vector<v1::GenerateReply> replies;
    for (const int i : order) replies.push_back(good[static_cast<std::size_t>(i)]);
    EXPECT_EQ(Stream(replies).code(), absl::StatusCode::kDataLoss) << ::testing::PrintToString(order);
  }
  auto empty = good;
  empty[1].clear_event();
  EXPECT_EQ(Stream(empty).code(), absl::StatusCode::kDataLoss);
  auto other = good;
  other[1].mutable_delta()->set_index(1);
  EXPECT_EQ(Stream(other).code(), absl::StatusCode::kDataLoss);
}

TEST_F(StreamTest, DoesNotRetryAfterTheFirstMessage) {
  const grpc::Status lost(grpc::StatusCode::UNAVAILABLE, "lost");
  EXPECT_EQ(Stream({Replies({"a"})[0], Replies({"a"})[1]}, lost).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.generate_stream.asked.size(), 1u);
  EXPECT_EQ(text_, "a");
  EXPECT_EQ(Stream({}, lost).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.generate_stream.asked.size(), 1u + 4u);
}

}  // namespace
}  // namespace nibble::client
