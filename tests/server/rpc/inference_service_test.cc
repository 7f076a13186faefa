#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tests/server/rpc/app_fixture.h"

namespace nibble {
namespace {

using testing::HasSubstr;
using testing_support::AppTest;
using testing_support::FieldOf;
using testing_support::ReasonOf;

class InferenceServiceTest : public AppTest {
 protected:
  void SetUp() override {
    AppTest::SetUp();
    Import("tiny");
  }
  grpc::Status Generate(const v1::GenerateRequest& request, v1::GenerateResponse* response) {
    grpc::ClientContext context;
    return inference_->Generate(&context, request, response);
  }
  v1::ServerLoad Load() {
    grpc::ClientContext context;
    v1::ServerLoad load;
    EXPECT_TRUE(server_->GetLoad(&context, {}, &load).ok());
    return load;
  }
};

TEST_F(InferenceServiceTest, GenerateLoadsTheModelAndAnswers) {
  v1::GenerateResponse response;
  const auto status = Generate(Prompt("tiny", "a b c", 8), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_EQ(response.outputs(0).token_ids_size(), 8);
  EXPECT_EQ(response.outputs(0).finish().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(response.usage().completion_tokens(), 8);
  EXPECT_GT(response.usage().prompt_tokens(), 0);
  EXPECT_GT(response.usage().kernel_launches(), 0);
  EXPECT_EQ(response.start().model_version(), "tiny");
  EXPECT_EQ(response.start().weights_digest().size(), 64u);
  EXPECT_FALSE(response.start().request_id().empty());
}

TEST_F(InferenceServiceTest, AStreamIsOneStartDeltasOneFinishOneUsageAndTheUnaryText) {
  v1::GenerateResponse whole;
  ASSERT_TRUE(Generate(Prompt("tiny", "a b c", 12), &whole).ok());
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Prompt("tiny", "a b c", 12);
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, request);
  std::vector<v1::GenerateReply> replies;
  for (v1::GenerateReply reply; reader->Read(&reply);) replies.push_back(reply);
  const auto status = reader->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_GE(replies.size(), 4u);
  EXPECT_TRUE(replies.front().has_start());
  EXPECT_TRUE(replies.back().has_usage());
  EXPECT_TRUE(replies[replies.size() - 2].has_finish());
  std::string text;
  std::vector<std::int32_t> ids;
  for (std::size_t i = 1; i + 2 < replies.size(); ++i) {
    ASSERT_TRUE(replies[i].has_delta()) << i;
    text += replies[i].delta().text();
    ids.insert(ids.end(), replies[i].delta().token_ids().begin(), replies[i].delta().token_ids().end());
  }
  EXPECT_EQ(text, whole.outputs(0).text());
  EXPECT_EQ(ids, std::vector<std::int32_t>(whole.outputs(0).token_ids().begin(), whole.outputs(0).token_ids().end()));
}

TEST_F(InferenceServiceTest, LogprobsComeWithEveryTokenAndOfThePrompt) {
  auto request = Prompt("tiny", "a b c", 4);
  request.mutable_output()->set_logprobs(2);
  request.mutable_output()->set_prompt_logprobs(1);
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(request, &response).ok());
  ASSERT_EQ(response.outputs(0).logprobs_size(), 4);
  for (const auto& token : response.outputs(0).logprobs()) {
    EXPECT_LT(token.logprob(), 0);
    ASSERT_EQ(token.top_size(), 2);
    EXPECT_EQ(token.top(0).token_id(), token.token_id());  // greedy
    EXPECT_GE(token.top(0).logprob(), token.top(1).logprob());
  }
  const auto& prompt = response.start().prompt_logprobs();
  ASSERT_EQ(prompt.size(), response.usage().prompt_tokens());
  EXPECT_FALSE(prompt[0].has_logprob());
  EXPECT_TRUE(prompt[1].has_logprob());
  EXPECT_EQ(prompt[1].top_size(), 1);
}

TEST_F(InferenceServiceTest, ScoreGivesEveryTokenButTheFirstALogprob) {
  v1::ScoreRequest request;
  request.set_model("tiny");
  for (const int id : {5, 6, 7, 8}) request.mutable_token_ids()->add_ids(id);
  v1::ScoreResponse response;
  grpc::ClientContext context;
  const auto status = inference_->Score(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.tokens_size(), 4);
  double sum = 0;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(response.tokens(i).token_id(), 5 + i);
    EXPECT_EQ(response.tokens(i).has_logprob(), i > 0);
    sum += response.tokens(i).logprob();
  }
  EXPECT_NEAR(response.mean_loss(), -sum / 3, 1e-6);
}

TEST_F(InferenceServiceTest, ScoreOfOneTokenHasNoLogprobAndNoLoss) {
  v1::ScoreRequest request;
  request.set_model("tiny");
  request.mutable_token_ids()->add_ids(5);
  v1::ScoreResponse response;
  grpc::ClientContext context;
  const auto status = inference_->Score(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.tokens_size(), 1);
  EXPECT_FALSE(response.tokens(0).has_logprob());
  EXPECT_EQ(response.mean_loss(), 0);
}

// The bits of an int8 model do not depend on how many positions go through it at once.
TEST_F(InferenceServiceTest, Int8LogitsAreTheSameForEveryChunk) {
  v1::ConvertModelRequest convert;
  convert.set_model("tiny");
  convert.set_name("tiny8");
  convert.set_target(v1::MODEL_FORMAT_INT8);
  google::longrunning::Operation operation;
  grpc::ClientContext convert_context;
  ASSERT_TRUE(models_->ConvertModel(&convert_context, convert, &operation).ok());
  ASSERT_TRUE(Wait(operation).has_response());
  std::vector<std::string> digests[3];
  const int chunks[] = {1, 7, 64};
  for (std::size_t run = 0; run < 3; ++run) {
    v1::ScoreRequest request;
    request.set_model("tiny8");
    for (int i = 0; i < 40; ++i) request.mutable_token_ids()->add_ids(3 + i * 7 % 100);
    request.set_logits_digests(true);
    request.set_chunk_tokens(chunks[run]);
    v1::ScoreResponse response;
    grpc::ClientContext context;
    const auto status = inference_->Score(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.tokens_size(), 40);
    EXPECT_EQ(response.tokens(0).logits_digest(), "");
    for (int i = 1; i < 40; ++i) digests[run].push_back(response.tokens(i).logits_digest());
    EXPECT_EQ(digests[run].front().size(), 64u);
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_EQ(digests[0], digests[2]);
}

TEST_F(InferenceServiceTest, TokenizeAndDetokenizeAreInverse) {
  v1::TokenizeRequest request;
  request.set_model("tiny");
  request.set_text("a b c");
  v1::TokenizeResponse tokens;
  grpc::ClientContext context;
  ASSERT_TRUE(inference_->Tokenize(&context, request, &tokens).ok());
  ASSERT_GT(tokens.token_ids_size(), 0);
  EXPECT_EQ(tokens.tokens_size(), tokens.token_ids_size());
  v1::DetokenizeRequest back;
  back.set_model("tiny");
  *back.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext context2;
  ASSERT_TRUE(inference_->Detokenize(&context2, back, &text).ok());
  EXPECT_EQ(text.text(), "a b c");
}

TEST_F(InferenceServiceTest, ErrorsNameTheirReason) {
  v1::GenerateResponse response;
  auto status = Generate(Prompt("nobody", "a", 1), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ReasonOf(status), "MODEL");

  status = Generate(Prompt("tiny", "a", 0), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FieldOf(status), "stopping.max_tokens");

  auto hot = Prompt("tiny", "a", 1);
  hot.mutable_sampling()->set_temperature(-1);
  status = Generate(hot, &response);
  EXPECT_EQ(FieldOf(status), "sampling.temperature");

  auto longer = Prompt("tiny", "", 1);
  for (int i = 0; i < 300; ++i) longer.mutable_token_ids()->add_ids(5);
  status = Generate(longer, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(status), "PROMPT_TOO_LONG");
  EXPECT_THAT(status.error_message(), HasSubstr("300"));

  auto outside = Prompt("tiny", "", 1);
  outside.mutable_token_ids()->add_ids(1'000'000);
  EXPECT_EQ(Generate(outside, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  v1::GenerateRequest nothing;
  nothing.set_model("tiny");
  EXPECT_EQ(FieldOf(Generate(nothing, &response)), "input");
}

TEST_F(InferenceServiceTest, FieldsThatAreNotBuiltAreNamedNotIgnored) {
  const auto expect = [&](const v1::GenerateRequest& request, const std::string& name) {
    v1::GenerateResponse response;
    const auto status = Generate(request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << name;
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  };
  auto request = Prompt("tiny", "a", 1);
  request.mutable_sampling()->set_n(2);
  expect(request, "Sampling.n");
  request = Prompt("tiny", "a", 1);
  request.set_regex("a*");
  expect(request, "GenerateRequest.regex");
  request = Prompt("tiny", "a", 1);
  (*request.mutable_sampling()->mutable_logit_bias())[3] = 1;
  expect(request, "Sampling.logit_bias");
  request = Prompt("tiny", "a", 1);
  request.set_priority(3);
  expect(request, "GenerateRequest.priority");
}

TEST_F(InferenceServiceTest, ACancelledStreamFreesItsSlot) {
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Prompt("tiny", "a b c", 240);
  {
    grpc::ClientContext context;
    auto reader = inference_->GenerateStream(&context, request);
    v1::GenerateReply reply;
    ASSERT_TRUE(reader->Read(&reply));
    context.TryCancel();
    while (reader->Read(&reply)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while ((Load().requests_running() > 0 || Load().kv_blocks_used() > 0) && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  EXPECT_EQ(Load().requests_running(), 0);
  EXPECT_EQ(Load().kv_blocks_used(), 0);
  v1::GenerateResponse response;
  EXPECT_TRUE(Generate(Prompt("tiny", "a", 2), &response).ok());
}

TEST_F(InferenceServiceTest, ADeadlineEndsARequest) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(1));
  v1::GenerateResponse response;
  EXPECT_EQ(inference_->Generate(&context, Prompt("tiny", "a", 200), &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(InferenceServiceTest, ManyAtOnceAnswerAsOneAlone) {
  v1::GenerateResponse alone;
  ASSERT_TRUE(Generate(Prompt("tiny", "a b c", 20), &alone).ok());
  std::vector<std::thread> threads;
  std::vector<v1::GenerateResponse> answers(8);
  std::vector<grpc::Status> statuses(8);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    threads.emplace_back([&, i] { statuses[i] = Generate(Prompt("tiny", "a b c", 20), &answers[i]); });
  }
  for (auto& thread : threads) thread.join();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(statuses[i].ok()) << statuses[i].error_message();
    EXPECT_EQ(answers[i].outputs(0).finish().reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(answers[i].usage().completion_tokens(), 20);
  }
}

TEST_F(InferenceServiceTest, UnloadLetsARunningRequestEnd) {
  std::thread running([&] {
    v1::GenerateResponse response;
    const auto status = Generate(Prompt("tiny", "a b c", 200), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.usage().completion_tokens(), 200);
  });
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (Load().requests_running() == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  v1::UnloadModelRequest request;
  request.set_name("tiny");
  v1::UnloadModelResponse response;
  grpc::ClientContext context;
  models_->UnloadModel(&context, request, &response);
  running.join();
  EXPECT_EQ(Load().residents().models_size(), 0);
}

TEST_F(InferenceServiceTest, ChatNeedsAConversation) {
  v1::ChatRequest request;
  *request.mutable_request() = Prompt("tiny", "a", 4);
  v1::GenerateResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(FieldOf(inference_->Chat(&context, request, &response)), "chat");
  auto* message = request.mutable_request()->mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("a b");
  grpc::ClientContext context2;
  const auto status = inference_->Chat(&context2, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.usage().completion_tokens(), 4);
}

}  // namespace
}  // namespace nibble
