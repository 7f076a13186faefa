#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "tests/server/model/files.h"
#include "tests/server/rpc/app_fixture.h"

namespace nibble {
namespace {

using testing::ElementsAre;
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
  // "tiny8"
  void MakeInt8() {
    v1::ConvertModelRequest convert;
    convert.set_model("tiny");
    convert.set_name("tiny8");
    convert.set_target(v1::MODEL_FORMAT_INT8);
    google::longrunning::Operation operation;
    grpc::ClientContext context;
    ASSERT_TRUE(models_->ConvertModel(&context, convert, &operation).ok());
    ASSERT_TRUE(Wait(operation).has_response());
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

TEST_F(InferenceServiceTest, StreamHasStartDeltasFinishUsageAndTheUnaryText) {
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

// One start, deltas, one finish for each output, one usage last; the deltas joined are the unary text.
TEST_F(InferenceServiceTest, AStreamOfSeveralOutputsKeepsItsOrder) {
  auto ask = Prompt("tiny", "a b c", 10);
  ask.mutable_sampling()->set_n(3);
  ask.mutable_sampling()->set_temperature(2);
  ask.mutable_sampling()->set_seed(4);
  ask.mutable_output()->set_echo(true);
  v1::GenerateResponse whole;
  const auto unary = Generate(ask, &whole);
  ASSERT_TRUE(unary.ok()) << unary.error_message();
  ASSERT_EQ(whole.outputs_size(), 3);
  EXPECT_EQ(whole.usage().completion_tokens(), 30);
  EXPECT_EQ(whole.start().seed(), 4);
  v1::GenerateStreamRequest request;
  *request.mutable_request() = ask;
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, request);
  std::vector<std::string> text(3);
  std::vector<int> finishes(3, 0);
  int starts = 0, usages = 0;
  bool first = true;
  for (v1::GenerateReply reply; reader->Read(&reply); first = false) {
    EXPECT_EQ(usages, 0) << "something came after the usage";
    EXPECT_EQ(reply.has_start(), first);
    starts += reply.has_start();
    usages += reply.has_usage();
    if (reply.has_delta()) {
      ASSERT_LT(reply.delta().index(), 3);
      EXPECT_EQ(finishes[static_cast<std::size_t>(reply.delta().index())], 0);
      text[static_cast<std::size_t>(reply.delta().index())] += reply.delta().text();
    }
    if (reply.has_finish()) ++finishes[static_cast<std::size_t>(reply.finish().index())];
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(starts, 1);
  EXPECT_EQ(usages, 1);
  EXPECT_EQ(finishes, std::vector<int>(3, 1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(whole.outputs(i).index(), i);
    EXPECT_EQ(text[static_cast<std::size_t>(i)], whole.outputs(i).text());
    EXPECT_EQ(whole.outputs(i).text().rfind("a b c", 0), 0u) << "echo";
    EXPECT_EQ(whole.outputs(i).token_ids_size(), 10);
  }
  EXPECT_NE(text[0], text[1]);
}

TEST_F(InferenceServiceTest, AStopStringIsHeldBackAndNeverShown) {
  v1::GenerateResponse whole;
  auto ask = Prompt("tiny", "a b c", 40);
  ASSERT_TRUE(Generate(ask, &whole).ok());
  const std::string text = whole.outputs(0).text();
  ASSERT_GT(text.size(), 12u);
  const std::string stop = text.substr(text.size() / 2, 4);
  ask.mutable_stopping()->add_stop(stop);
  v1::GenerateStreamRequest request;
  *request.mutable_request() = ask;
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, request);
  std::string shown;
  v1::GenerateFinish finish;
  for (v1::GenerateReply reply; reader->Read(&reply);) {
    shown += reply.delta().text();
    EXPECT_EQ(text.rfind(shown, 0), 0u) << "shown text changed";
    if (reply.has_finish()) finish = reply.finish();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(shown, text.substr(0, text.find(stop)));
  EXPECT_EQ(finish.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(finish.matched(), stop);
}

TEST_F(InferenceServiceTest, ChatStreamAnswersAsChat) {
  v1::ChatRequest chat;
  auto& ask = *chat.mutable_request();
  ask.set_model("tiny");
  ask.mutable_stopping()->set_max_tokens(8);
  auto* message = ask.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("a b");
  v1::GenerateResponse whole;
  grpc::ClientContext unary_context;
  ASSERT_TRUE(inference_->Chat(&unary_context, chat, &whole).ok());
  v1::ChatStreamRequest request;
  *request.mutable_request() = ask;
  grpc::ClientContext context;
  auto reader = inference_->ChatStream(&context, request);
  std::string text;
  for (v1::GenerateReply reply; reader->Read(&reply);) text += reply.delta().text();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, whole.outputs(0).text());

  v1::RenderTemplateRequest render;
  render.set_model("tiny");
  *render.mutable_chat() = ask.chat();
  v1::RenderTemplateResponse rendered;
  grpc::ClientContext render_context;
  ASSERT_TRUE(inference_->RenderTemplate(&render_context, render, &rendered).ok());
  EXPECT_EQ(rendered.text(), "user: a b\n");
  EXPECT_EQ(rendered.token_ids_size(), whole.usage().prompt_tokens());
}

// An echoed prompt shows its special tokens only where the text does, whether it was sent as ids or as a conversation.
TEST_F(InferenceServiceTest, EchoHasSpecialTokensOnlyOnRequest) {
  v1::TokenizeRequest tokenize;
  tokenize.set_model("tiny");
  tokenize.set_text("<s>a b");
  tokenize.set_add_special_tokens(false);
  v1::TokenizeResponse tokens;
  grpc::ClientContext context;
  ASSERT_TRUE(inference_->Tokenize(&context, tokenize, &tokens).ok());
  v1::GenerateRequest ids = Prompt("tiny", "", 1);
  *ids.mutable_token_ids()->mutable_ids() = tokens.token_ids();
  v1::GenerateRequest chat = Prompt("tiny", "", 1);
  auto* message = chat.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("<s>a b");
  for (v1::GenerateRequest* request : {&ids, &chat}) {
    request->mutable_output()->set_echo(true);
    for (const bool shown : {false, true}) {
      request->mutable_output()->set_include_special_tokens(shown);
      v1::GenerateResponse response;
      const auto status = Generate(*request, &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      const std::string prompt = std::string(request == &chat ? "user: " : "") + (shown ? "<s>a b" : "a b");
      EXPECT_EQ(response.outputs(0).text().rfind(prompt, 0), 0u) << response.outputs(0).text();
    }
  }
}

TEST_F(InferenceServiceTest, PenaltiesAndBiasOutsideTheirBoundsAreRefused) {
  const auto refuse = [&](const std::function<void(v1::Sampling&)>& change, const std::string& field) {
    auto request = Prompt("tiny", "a", 1);
    change(*request.mutable_sampling());
    v1::GenerateResponse response;
    const auto status = Generate(request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(FieldOf(status), field);
  };
  refuse([](auto& s) { s.set_n(0); }, "sampling.n");
  refuse([](auto& s) { s.set_n(17); }, "sampling.n");
  for (const double penalty : {0.0, 1e-40, 1e-4, 1001.0, std::nan("")}) {
    refuse([penalty](auto& s) { s.set_repetition_penalty(penalty); }, "sampling.repetition_penalty");
  }
  refuse([](auto& s) { s.set_top_p(1e-60); }, "sampling.top_p");  // 0 in f32
  refuse([](auto& s) { s.set_presence_penalty(2.5); }, "sampling.presence_penalty");
  refuse([](auto& s) { s.set_frequency_penalty(-3); }, "sampling.frequency_penalty");
  refuse([](auto& s) { (*s.mutable_logit_bias())[3] = 101; }, "sampling.logit_bias");
  refuse([](auto& s) { (*s.mutable_logit_bias())[112] = 1; }, "sampling.logit_bias");
  auto request = Prompt("tiny", "a", 5);
  (*request.mutable_sampling()->mutable_logit_bias())[70] = 100;
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(request, &response).ok());
  EXPECT_EQ(response.outputs(0).text(), "ddddd");
}

// At this temperature all tokens are about equally likely, so the greedy answer can only come from the filter.
TEST_F(InferenceServiceTest, EachFilterAtItsNarrowestLeavesTheGreedyAnswer) {
  const auto ids = [&](const std::function<void(v1::Sampling&)>& change) -> std::vector<std::int32_t> {
    auto request = Prompt("tiny", "a b c", 12);
    change(*request.mutable_sampling());
    v1::GenerateResponse response;
    const auto status = Generate(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (response.outputs_size() != 1) return {};
    return {response.outputs(0).token_ids().begin(), response.outputs(0).token_ids().end()};
  };
  const auto hot = [&](const std::function<void(v1::Sampling&)>& filter) {
    return ids([&](v1::Sampling& s) {
      s.set_temperature(30);
      s.set_seed(3);
      filter(s);
    });
  };
  const auto greedy = ids([](auto&) {});
  ASSERT_EQ(greedy.size(), 12u);
  const auto free = hot([](auto&) {});
  EXPECT_EQ(free.size(), 12u);
  EXPECT_NE(free, greedy);
  EXPECT_EQ(hot([](auto& s) { s.set_top_k(1); }), greedy);
  EXPECT_EQ(hot([](auto& s) { s.set_top_p(1e-6); }), greedy);
  EXPECT_EQ(hot([](auto& s) { s.set_min_p(1); }), greedy);
  // At their widest, the filters change nothing.
  EXPECT_EQ(hot([](auto& s) { s.set_top_k(112); }), free);
  EXPECT_EQ(hot([](auto& s) { s.set_top_p(1); }), free);
  EXPECT_EQ(hot([](auto& s) { s.set_min_p(0); }), free);
}

TEST_F(InferenceServiceTest, AStopTokenOfTheRequestEndsTheAnswerAtOnce) {
  auto ask = Prompt("tiny", "a b c", 12);
  v1::GenerateResponse whole, stopped;
  ASSERT_TRUE(Generate(ask, &whole).ok());
  const std::int32_t first = whole.outputs(0).token_ids(0);
  ask.mutable_stopping()->add_stop_token_ids(first);
  const auto status = Generate(ask, &stopped);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(stopped.outputs(0).token_ids(), ElementsAre(first));
  EXPECT_EQ(stopped.outputs(0).text(), "");
  EXPECT_EQ(stopped.outputs(0).finish().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(stopped.outputs(0).finish().matched(), "");
  EXPECT_EQ(stopped.usage().completion_tokens(), 1);
}

TEST_F(InferenceServiceTest, AbortEndsTheRequestsOfAnId) {
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Prompt("tiny", "a b c", 240);
  request.mutable_request()->set_request_id("mine");
  v1::AbortRequest abort;
  abort.add_request_ids("mine");
  abort.add_request_ids("nobody's");
  v1::AbortResponse aborted;
  grpc::Status status;
  // The request may end before the abort, and is then tried again.
  for (int round = 0; round < 20 && aborted.aborted_request_ids_size() == 0; ++round) {
    grpc::ClientContext context;
    auto reader = inference_->GenerateStream(&context, request);
    v1::GenerateReply reply;
    ASSERT_TRUE(reader->Read(&reply));
    EXPECT_EQ(reply.start().request_id(), "mine");
    grpc::ClientContext abort_context;
    ASSERT_TRUE(inference_->Abort(&abort_context, abort, &aborted).ok());
    while (reader->Read(&reply)) {
    }
    status = reader->Finish();
    if (aborted.aborted_request_ids_size() == 0) {
      EXPECT_TRUE(status.ok()) << status.error_message();
    }
  }
  EXPECT_THAT(aborted.aborted_request_ids(), ElementsAre("mine"));
  if (!status.ok()) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
    bool has_usage = false;
    const auto details = testing_support::Details(status);
    for (const auto& detail : details.details()) has_usage |= detail.Is<v1::Usage>();
    EXPECT_TRUE(has_usage);
  }
  grpc::ClientContext none;
  EXPECT_EQ(inference_->Abort(&none, {}, &aborted).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(InferenceServiceTest, ARequestWhoseModelDoesNotLoadIsForgotten) {
  auto request = Prompt("nobody", "a", 1);
  request.set_request_id("mine");
  v1::GenerateResponse response;
  EXPECT_EQ(ReasonOf(Generate(request, &response)), "MODEL");
  v1::AbortRequest abort;
  abort.add_request_ids("mine");
  v1::AbortResponse aborted;
  grpc::ClientContext context;
  ASSERT_TRUE(inference_->Abort(&context, abort, &aborted).ok());
  EXPECT_EQ(aborted.aborted_request_ids_size(), 0);
}

TEST_F(InferenceServiceTest, EveryTokenAndThePromptHaveLogprobs) {
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
  const auto& prompt = response.prompt_logprobs();
  ASSERT_EQ(prompt.size(), response.usage().prompt_tokens());
  EXPECT_FALSE(prompt[0].has_logprob());
  EXPECT_TRUE(prompt[1].has_logprob());
  EXPECT_EQ(prompt[1].top_size(), 1);
  // The bytes of the tokens are those of the text, "a b c".
  std::string bytes;
  for (const auto& token : prompt) bytes += token.token();
  EXPECT_THAT(bytes, testing::EndsWith("a b c"));
  std::string made;
  for (const auto& token : response.outputs(0).logprobs()) {
    made += token.token();
    EXPECT_EQ(token.top(0).token(), token.token());
  }
  EXPECT_EQ(made, response.outputs(0).text());
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
    EXPECT_FALSE(response.tokens(i).token().empty()) << i;
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

v1::ScoreRequest LongScore(int tokens) {
  v1::ScoreRequest request;
  request.set_model("tiny");
  for (int i = 0; i < tokens; ++i) request.mutable_token_ids()->add_ids(3 + i * 7 % 100);
  request.set_top_n(20);
  request.set_logits_digests(true);
  return request;
}

// Joins a stream; every piece begins where the one before ended and has at most max_bytes.
grpc::Status ReadScore(v1::InferenceService::Stub* stub, const v1::ScoreRequest& score, std::size_t max_bytes,
                       v1::ScoreResponse* joined, int* pieces) {
  v1::ScoreStreamRequest request;
  *request.mutable_request() = score;
  grpc::ClientContext context;
  auto reader = stub->ScoreStream(&context, request);
  *pieces = 0;
  for (v1::ScoreReply reply; reader->Read(&reply);) {
    EXPECT_LE(reply.ByteSizeLong(), max_bytes);
    if (reply.has_tokens()) {
      EXPECT_EQ(reply.tokens().first_position(), joined->tokens_size());
      joined->mutable_tokens()->MergeFrom(reply.tokens().tokens());
      ++*pieces;
    } else {
      joined->set_mean_loss(reply.finish().mean_loss());
      joined->set_perplexity(reply.finish().perplexity());
      joined->set_weights_digest(reply.finish().weights_digest());
    }
  }
  return reader->Finish();
}

TEST_F(InferenceServiceTest, JoinedScoreStreamEqualsScore) {
  const auto request = LongScore(200);
  v1::ScoreResponse whole, joined;
  const auto unary = Call(inference_, &v1::InferenceService::Stub::Score, request, &whole);
  ASSERT_TRUE(unary.ok()) << unary.error_message();
  int pieces = 0;
  const auto status = ReadScore(inference_.get(), request, 2 << 20, &joined, &pieces);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(pieces, 1);
  whole.clear_usage();
  EXPECT_EQ(joined.SerializeAsString(), whole.SerializeAsString());
  v1::ScoreRequest bad = request;
  bad.set_top_n(21);
  EXPECT_EQ(FieldOf(ReadScore(inference_.get(), bad, 2 << 20, &joined, &pieces)), "top_n");
}

template <int kMaxSendBytes>
class MessagesTest : public InferenceServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = InferenceServiceTest::Options();
    options.max_send_bytes = kMaxSendBytes;
    return options;
  }
  // Expects a refusal before any step, whose message names the streaming method.
  void ExpectTooLarge(const grpc::Status& refused, const std::string& method) {
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
    EXPECT_EQ(ReasonOf(refused), "MESSAGE_TOO_LARGE");
    EXPECT_THAT(refused.error_message(), HasSubstr("use " + method));
    EXPECT_EQ(Load().requests_total(), 0);
  }
};
using SmallMessagesTest = MessagesTest<16 << 10>;
using TinyMessagesTest = MessagesTest<4 << 10>;

TEST_F(SmallMessagesTest, ScoreIsRefusedBeforeAnyStepAndScoreStreamAnswersInPieces) {
  const auto request = LongScore(200);
  v1::ScoreResponse whole, joined;
  ExpectTooLarge(Call(inference_, &v1::InferenceService::Stub::Score, request, &whole), "ScoreStream");
  int pieces = 0;
  const auto status = ReadScore(inference_.get(), request, 16 << 10, &joined, &pieces);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(joined.tokens_size(), 200);
  EXPECT_GT(pieces, 4);
}

TEST_F(SmallMessagesTest, PromptLogprobsComeBetweenTheStartAndTheDeltasInPieces) {
  auto request = Prompt("tiny", "", 4);
  for (int i = 0; i < 200; ++i) request.mutable_token_ids()->add_ids(3 + i * 7 % 100);
  request.mutable_output()->set_prompt_logprobs(20);
  request.mutable_output()->set_echo(true);
  v1::GenerateResponse whole;
  ExpectTooLarge(Generate(request, &whole), "GenerateStream");
  v1::GenerateStreamRequest stream;
  *stream.mutable_request() = request;
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, stream);
  std::string order;
  int scored = 0;
  for (v1::GenerateReply reply; reader->Read(&reply);) {
    EXPECT_LE(reply.ByteSizeLong(), 16u << 10);
    const char kind = reply.has_start() ? 's' : reply.has_prompt_logprobs() ? 'p' : reply.has_delta() ? 'd' : 'e';
    if (order.empty() || order.back() != kind) order += kind;
    if (!reply.has_prompt_logprobs()) continue;
    EXPECT_EQ(reply.prompt_logprobs().first_position(), scored);
    for (const auto& token : reply.prompt_logprobs().tokens()) EXPECT_EQ(token.token_id(), 3 + scored++ * 7 % 100);
  }
  const auto status = reader->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(order, "spde");
  EXPECT_EQ(scored, 200);
}

// Without the check, an answer without logprobs would be computed whole and then dropped by gRPC.
TEST_F(TinyMessagesTest, UnaryAnswerThatMayNotFitIsRefusedBeforeAnyStep) {
  auto echo = Prompt("tiny", std::string(240, 'a'), 4);
  echo.mutable_sampling()->set_n(8);
  echo.mutable_output()->set_echo(true);
  auto tokens = Prompt("tiny", "a", 200);
  tokens.mutable_sampling()->set_n(2);
  for (const v1::GenerateRequest& request : {echo, tokens}) {
    v1::GenerateResponse response;
    ExpectTooLarge(Generate(request, &response), "GenerateStream");
  }
  v1::GenerateStreamRequest stream;
  *stream.mutable_request() = echo;
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, stream);
  std::size_t bytes = 0;
  for (v1::GenerateReply reply; reader->Read(&reply);) bytes += reply.ByteSizeLong();
  const auto streamed = reader->Finish();
  EXPECT_TRUE(streamed.ok()) << streamed.error_message();
  EXPECT_GT(bytes, 8u * 240) << "each output has its echo";
  echo.mutable_sampling()->set_n(1);
  v1::GenerateResponse response;
  const auto status = Generate(echo, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// The deadline of the server passes before anything can be answered. Later stages: tests/e2e/test_limits.py.
class ServerDeadlineTest : public InferenceServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = InferenceServiceTest::Options();
    options.generate_deadline_s = 1e-6;
    return options;
  }
};

TEST_F(ServerDeadlineTest, AppliesOnlyWithoutADeadlineOfTheClient) {
  const v1::GenerateRequest ask = Prompt("tiny", "a b c", 8);
  v1::ChatRequest chat;
  chat.mutable_request()->set_model("tiny");
  chat.mutable_request()->mutable_stopping()->set_max_tokens(8);
  auto* message = chat.mutable_request()->mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("a b");
  v1::GenerateStreamRequest stream;
  *stream.mutable_request() = ask;
  v1::ChatStreamRequest chat_stream;
  *chat_stream.mutable_request() = chat.request();
  v1::ScoreRequest score;
  score.set_model("tiny");
  for (const int id : {5, 6, 7}) score.mutable_token_ids()->add_ids(id);
  const auto wait = [](auto reader) {
    for (v1::GenerateReply reply; reader->Read(&reply);) {
    }
    return reader->Finish();
  };
  v1::GenerateResponse answer;
  v1::ScoreResponse scored;
  const std::vector<std::function<grpc::Status(grpc::ClientContext&)>> calls = {
      [&](grpc::ClientContext& context) { return inference_->Generate(&context, ask, &answer); },
      [&](grpc::ClientContext& context) { return inference_->Chat(&context, chat, &answer); },
      [&](grpc::ClientContext& context) { return inference_->Score(&context, score, &scored); },
      [&](grpc::ClientContext& context) { return wait(inference_->GenerateStream(&context, stream)); },
      [&](grpc::ClientContext& context) { return wait(inference_->ChatStream(&context, chat_stream)); }};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    grpc::ClientContext none;
    const grpc::Status late = calls[i](none);
    EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << i << ": " << late.error_message();
    EXPECT_EQ(ReasonOf(late), "DEADLINE_EXCEEDED") << i << ": the server ended the call";
    grpc::ClientContext own;
    own.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    const grpc::Status status = calls[i](own);
    EXPECT_TRUE(status.ok()) << i << ": " << status.error_message();
  }
}

// The bits of an int8 model do not depend on how many positions go through it at once.
TEST_F(InferenceServiceTest, Int8LogitsDoNotDependOnTheChunk) {
  MakeInt8();
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
  for (int i = 0; i < (1 << 20); ++i) back.add_token_ids(5);
  const grpc::Status refused = Call(inference_, &v1::InferenceService::Stub::Detokenize, back, &text);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FieldOf(refused), "token_ids");
  EXPECT_THAT(refused.error_message(), HasSubstr("wanted at most 1048576"));
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
  status = Generate(outside, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FieldOf(status), "token_ids");

  v1::GenerateRequest nothing;
  nothing.set_model("tiny");
  EXPECT_EQ(FieldOf(Generate(nothing, &response)), "input");
}

// C2 (docs/faults.md). An error that names bytes is about a text that was not encoded; the model takes 256 tokens.
TEST_F(InferenceServiceTest, C2LargePromptsAreRefusedBeforeTheyAreEncoded) {
  const std::string large(3 << 20, 'a');
  const auto expect_unread = [](const grpc::Status& status, const std::string& field) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(ReasonOf(status), "PROMPT_TOO_LONG");
    EXPECT_THAT(status.error_message(), HasSubstr(field + ": has 3145"));
    EXPECT_THAT(status.error_message(), HasSubstr(" bytes, "));
  };
  v1::GenerateResponse response;
  expect_unread(Generate(Prompt("tiny", large, 1), &response), "text");
  v1::GenerateStreamRequest stream;
  *stream.mutable_request() = Prompt("tiny", large, 1);
  grpc::ClientContext stream_context;
  expect_unread(inference_->GenerateStream(&stream_context, stream)->Finish(), "text");
  v1::ScoreRequest score;
  score.set_model("tiny");
  score.set_text(large);
  v1::ScoreResponse scored;
  grpc::ClientContext score_context;
  expect_unread(inference_->Score(&score_context, score, &scored), "text");
  v1::TokenizeRequest tokenize;
  tokenize.set_model("tiny");
  tokenize.set_text(large);
  v1::TokenizeResponse tokens;
  grpc::ClientContext tokenize_context;
  expect_unread(inference_->Tokenize(&tokenize_context, tokenize, &tokens), "text");
  v1::RenderTemplateRequest render;
  render.set_model("tiny");
  auto* message = render.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content(large);
  v1::RenderTemplateResponse rendered;
  grpc::ClientContext render_context;
  const grpc::Status refused = inference_->RenderTemplate(&render_context, render, &rendered);
  EXPECT_EQ(ReasonOf(refused), "PROMPT_TOO_LONG") << refused.error_message();
  EXPECT_TRUE(Generate(Prompt("tiny", "a b c", 2), &response).ok());
}

// C2: a request that waits for a load keeps its memory. The model does not exist, which only a wait would find out.
TEST_F(InferenceServiceTest, C2LargePromptsDoNotWaitForTheModel) {
  v1::GenerateRequest request = Prompt("absent", std::string(3 << 20, 'a'), 1);
  v1::GenerateResponse response;
  EXPECT_EQ(ReasonOf(Generate(request, &response)), "PROMPT_TOO_LONG");
  v1::GenerateStreamRequest stream;
  *stream.mutable_request() = request;
  grpc::ClientContext context;
  EXPECT_EQ(ReasonOf(inference_->GenerateStream(&context, stream)->Finish()), "PROMPT_TOO_LONG");
  v1::ScoreRequest score;
  score.set_model("absent");
  for (int i = 0; i < (1 << 20) + 1; ++i) score.mutable_token_ids()->add_ids(5);
  v1::ScoreResponse scored;
  grpc::ClientContext score_context;
  EXPECT_EQ(ReasonOf(inference_->Score(&score_context, score, &scored)), "PROMPT_TOO_LONG");
  v1::ScoreStreamRequest scores;
  *scores.mutable_request() = score;
  grpc::ClientContext scores_context;
  EXPECT_EQ(ReasonOf(inference_->ScoreStream(&scores_context, scores)->Finish()), "PROMPT_TOO_LONG");
}

// C2: the number of ids is compared with the context first. The last id is invalid, which a decoder would have found.
TEST_F(InferenceServiceTest, C2TooManyTokenIdsAreRefusedBeforeTheyAreDecoded) {
  v1::GenerateRequest request;
  request.set_model("tiny");
  request.mutable_output()->set_echo(true);
  for (int i = 0; i < 1'000'000; ++i) request.mutable_token_ids()->add_ids(5);
  request.mutable_token_ids()->add_ids(-1);
  v1::GenerateResponse response;
  const grpc::Status generated = Generate(request, &response);
  EXPECT_EQ(ReasonOf(generated), "PROMPT_TOO_LONG") << generated.error_message();
  EXPECT_THAT(generated.error_message(), HasSubstr("token_ids: has 1000001 tokens, the model takes 256"));
  v1::ScoreRequest score;
  score.set_model("tiny");
  *score.mutable_token_ids() = request.token_ids();
  v1::ScoreResponse scored;
  grpc::ClientContext context;
  const grpc::Status refused = inference_->Score(&context, score, &scored);
  EXPECT_EQ(ReasonOf(refused), "PROMPT_TOO_LONG") << refused.error_message();
}

// No model can have such a name: the error says what the name means, and what to use instead.
TEST_F(InferenceServiceTest, VersionOrAdapterInANameIsUnimplemented) {
  using Stub = v1::InferenceService::Stub;
  const auto expect = [&](const grpc::Status& status, const std::string& field, const std::string& name) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << field << " " << name << ": " << status.error_message();
    EXPECT_EQ(ReasonOf(status), "UNIMPLEMENTED") << field;
    EXPECT_THAT(status.error_message(), HasSubstr(field));
    EXPECT_THAT(status.error_message(), HasSubstr(name.find('@') != std::string::npos ? "one version" : "its own name"));
  };
  const auto drained = [](auto reader) {
    for (v1::GenerateReply reply; reader->Read(&reply);) {
    }
    return reader->Finish();
  };
  for (const std::string name : {"tiny@2", "tiny+french"}) {
    v1::GenerateRequest ask = Prompt(name, "a", 1);
    v1::GenerateResponse answer;
    expect(Generate(ask, &answer), "GenerateRequest.model", name);
    v1::GenerateStreamRequest stream;
    *stream.mutable_request() = ask;
    grpc::ClientContext stream_context;
    expect(drained(inference_->GenerateStream(&stream_context, stream)), "GenerateRequest.model", name);
    auto* message = ask.mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content("a");
    v1::ChatRequest chat;
    *chat.mutable_request() = ask;
    expect(Call(inference_, &Stub::Chat, chat, &answer), "GenerateRequest.model", name);
    v1::ScoreRequest score;
    score.set_model(name);
    score.set_text("a");
    v1::ScoreResponse scored;
    expect(Call(inference_, &Stub::Score, score, &scored), "ScoreRequest.model", name);
    v1::TokenizeRequest tokenize;
    tokenize.set_model(name);
    tokenize.set_text("a");
    v1::TokenizeResponse tokens;
    expect(Call(inference_, &Stub::Tokenize, tokenize, &tokens), "TokenizeRequest.model", name);
    v1::DetokenizeRequest detokenize;
    detokenize.set_model(name);
    v1::DetokenizeResponse text;
    expect(Call(inference_, &Stub::Detokenize, detokenize, &text), "DetokenizeRequest.model", name);
    v1::RenderTemplateRequest render;
    render.set_model(name);
    *render.mutable_chat() = ask.chat();
    v1::RenderTemplateResponse rendered;
    expect(Call(inference_, &Stub::RenderTemplate, render, &rendered), "RenderTemplateRequest.model", name);
    v1::LoadModelRequest load;
    load.set_name(name);
    v1::LoadModelResponse loaded;
    expect(Call(models_, &v1::ModelService::Stub::LoadModel, load, &loaded), "LoadModelRequest.name", name);
  }
  for (const char* name : {"@", "tiny@", "+tiny", "a@b@c", "a b@2", "../tiny@2"}) {
    v1::GenerateResponse answer;
    EXPECT_EQ(ReasonOf(Generate(Prompt(name, "a", 1), &answer)), "MODEL") << name;
  }
}

TEST_F(InferenceServiceTest, UnbuiltFieldsAreRefusedByName) {
  const auto expect = [&](const v1::GenerateRequest& request, const std::string& name) {
    v1::GenerateResponse response;
    const auto status = Generate(request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << name;
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  };
  auto request = Prompt("tiny", "a", 1);
  request.set_regex("a*");
  expect(request, "GenerateRequest.regex");
  request = Prompt("tiny", "a", 1);
  request.mutable_choice()->add_choices("a");
  expect(request, "GenerateRequest.choice");
}

// The text of the end token is shown with special tokens, but is not a match.
TEST_F(InferenceServiceTest, EndTokenWhoseTextIsAStopStringIsNotAMatch) {
  v1::GenerateRequest ask = Prompt("tiny", "a b c", 8);
  ask.mutable_stopping()->set_ignore_eos(false);
  ask.mutable_stopping()->add_stop("</s>");
  (*ask.mutable_sampling()->mutable_logit_bias())[1] = 100;
  for (const bool shown : {false, true}) {
    ask.mutable_output()->set_include_special_tokens(shown);
    v1::GenerateResponse response;
    const auto status = Generate(ask, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_THAT(response.outputs(0).token_ids(), ElementsAre(1));
    EXPECT_EQ(response.outputs(0).text(), shown ? "</s>" : "");
    EXPECT_EQ(response.outputs(0).finish().reason(), v1::FINISH_REASON_EOS);
    EXPECT_EQ(response.outputs(0).finish().matched(), "");
    EXPECT_FALSE(response.outputs(0).finish().has_matched_token_id());
  }
}

// Streams and several outputs change logits as one unary answer does.
TEST_F(InferenceServiceTest, PenaltiesAndBiasHoldInStreamsAndForEveryOutput) {
  const auto check = [&](const std::function<void(v1::Sampling&)>& change, const std::vector<std::int32_t>& wanted) {
    v1::GenerateStreamRequest request;
    auto& ask = *request.mutable_request();
    ask = Prompt("tiny", "a b c", static_cast<int>(wanted.size()));
    change(*ask.mutable_sampling());
    ask.mutable_sampling()->set_n(3);
    v1::GenerateResponse whole;
    const auto unary = Generate(ask, &whole);
    ASSERT_TRUE(unary.ok()) << unary.error_message();
    ASSERT_EQ(whole.outputs_size(), 3);
    std::vector<std::vector<std::int32_t>> streamed(3);
    std::vector<std::string> text(3);
    grpc::ClientContext context;
    auto reader = inference_->GenerateStream(&context, request);
    for (v1::GenerateReply reply; reader->Read(&reply);) {
      if (!reply.has_delta()) continue;
      ASSERT_LT(reply.delta().index(), 3);
      const auto index = static_cast<std::size_t>(reply.delta().index());
      streamed[index].insert(streamed[index].end(), reply.delta().token_ids().begin(), reply.delta().token_ids().end());
      text[index] += reply.delta().text();
    }
    const auto status = reader->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    for (std::size_t i = 0; i < 3; ++i) {
      const v1::GenerateOutput& output = whole.outputs(static_cast<int>(i));
      EXPECT_EQ(std::vector<std::int32_t>(output.token_ids().begin(), output.token_ids().end()), wanted) << i;
      EXPECT_EQ(streamed[i], wanted) << i;
      EXPECT_EQ(text[i], output.text()) << i;
    }
  };
  // No logit of this model is above 1: only the bias and the penalties decide.
  const auto bias = [](v1::Sampling& s, std::map<std::int32_t, double> biases) {
    for (const auto& one : biases) (*s.mutable_logit_bias())[one.first] = one.second;
  };
  check([&](auto& s) { bias(s, {{70, 100}}); }, {70, 70, 70, 70});
  check([&](auto& s) { bias(s, {{70, 100}, {71, 99}}); s.set_frequency_penalty(2); }, {70, 71, 70, 71, 70, 71});
  check([&](auto& s) { bias(s, {{70, 100}, {71, 99.5}, {72, 99}}); s.set_presence_penalty(2); }, {70, 71, 72, 70, 70, 70});
  check([&](auto& s) { bias(s, {{70, 100}, {71, 80}, {72, 60}}); s.set_repetition_penalty(1000); }, {70, 71, 72});
  // A prompt's tokens count for the repetition penalty: "a" is 67.
  check([&](auto& s) { bias(s, {{67, 100}, {71, 80}, {72, 60}}); s.set_repetition_penalty(1000); }, {71, 72});
}

TEST_F(InferenceServiceTest, ACancelledStreamFreesItsSlot) {
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Prompt("tiny", "a b c", 240);
  grpc::Status ended;
  for (int i = 0; i < 20 && ended.ok(); ++i) {  // an answer may be complete before it is cancelled
    grpc::ClientContext context;
    auto reader = inference_->GenerateStream(&context, request);
    v1::GenerateReply reply;
    ASSERT_TRUE(reader->Read(&reply));
    context.TryCancel();
    while (reader->Read(&reply)) {
    }
    ended = reader->Finish();
  }
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::CANCELLED);
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

TEST_F(InferenceServiceTest, ConcurrentRequestsAnswerAsEachAlone) {
  MakeInt8();
  const auto prompt = [this](std::size_t i) {
    v1::GenerateRequest request = Prompt("tiny8", std::string(1 + 2 * i, 'a'), 20);
    request.mutable_output()->set_logprobs(1);
    return request;
  };
  constexpr std::size_t kMany = 8;
  std::vector<v1::GenerateResponse> alone(kMany), together(kMany);
  for (std::size_t i = 0; i < kMany; ++i) ASSERT_TRUE(Generate(prompt(i), &alone[i]).ok());
  std::vector<std::thread> threads;
  std::vector<grpc::Status> statuses(kMany);
  for (std::size_t i = 0; i < kMany; ++i) {
    threads.emplace_back([&, i] { statuses[i] = Generate(prompt(i), &together[i]); });
  }
  for (auto& thread : threads) thread.join();
  for (std::size_t i = 0; i < kMany; ++i) {
    ASSERT_TRUE(statuses[i].ok()) << statuses[i].error_message();
    EXPECT_EQ(together[i].usage().completion_tokens(), 20);
    EXPECT_EQ(together[i].outputs(0).SerializeAsString(), alone[i].outputs(0).SerializeAsString());
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

// "tiny" has a tokenizer in which some text is replaced.
class AlteredTokenizerTest : public InferenceServiceTest {
 protected:
  // Options with an import root whose model has the tokenizer with each first text replaced by its second.
  AppOptions OptionsWith(const std::vector<std::pair<std::string, std::string>>& replaced) {
    AppOptions options = InferenceServiceTest::Options();
    options.import_root = directory_ + "/root";
    const std::string source = options.import_root + "/hf_tied_bf16";
    std::filesystem::create_directory(options.import_root);
    std::filesystem::copy(model::Golden("hf_tied_bf16"), source);
    std::string tokenizer = model::ReadBytes(source + "/tokenizer.json");
    for (const auto& [from, to] : replaced) tokenizer.replace(tokenizer.find(from), from.size(), to);
    model::WriteBytes(source + "/tokenizer.json", tokenizer);
    return options;
  }
};

// "tiny" has a tokenizer that puts <s> (id 0) before a text.
class AddedTokenTest : public AlteredTokenizerTest {
 protected:
  AppOptions Options() override {
    return OptionsWith({{R"("single": [)", R"("single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},)"},
                        {R"("special_tokens": {})", R"("special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}})"}});
  }
  // `add`: unset for the default, here and below.
  template <typename Request, typename Response>
  Response AskOfText(grpc::Status (v1::InferenceService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                     std::optional<bool> add, const char* text = "a b c") {
    Request request;
    request.set_model("tiny");
    request.set_text(text);
    if (add.has_value()) request.set_add_special_tokens(*add);
    Response response;
    const auto status = Call(inference_, method, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  std::vector<std::int32_t> Tokens(std::optional<bool> add) {
    const auto response = AskOfText<v1::TokenizeRequest>(&v1::InferenceService::Stub::Tokenize, add);
    return {response.token_ids().begin(), response.token_ids().end()};
  }
  std::vector<std::int32_t> Scored(std::optional<bool> add) {
    const auto response = AskOfText<v1::ScoreRequest>(&v1::InferenceService::Stub::Score, add);
    EXPECT_EQ(response.usage().prompt_tokens(), response.tokens_size());
    std::vector<std::int32_t> ids;
    for (const auto& token : response.tokens()) ids.push_back(token.token_id());
    return ids;
  }
};

TEST_F(AddedTokenTest, TextGetsTheTokenUnlessTheRequestForbidsIt) {
  const auto with = ElementsAre(0, 67, 97, 68, 97, 69);
  const auto without = ElementsAre(67, 97, 68, 97, 69);
  EXPECT_THAT(Tokens({}), with);
  EXPECT_THAT(Tokens(true), with);
  EXPECT_THAT(Tokens(false), without);
  EXPECT_THAT(Scored({}), with);
  EXPECT_THAT(Scored(true), with);
  EXPECT_THAT(Scored(false), without);
}

// T9 (docs/faults.md): training encodes a row that begins with the token in the same way.
TEST_F(AddedTokenTest, TextThatBeginsWithTheTokenHasItOnce) {
  for (const std::optional<bool> add : {std::optional<bool>(), std::optional(true), std::optional(false)}) {
    const auto tokenized = AskOfText<v1::TokenizeRequest>(&v1::InferenceService::Stub::Tokenize, add, "<s>a b c");
    EXPECT_THAT(tokenized.token_ids(), ElementsAre(0, 67, 97, 68, 97, 69));
    const auto scored = AskOfText<v1::ScoreRequest>(&v1::InferenceService::Stub::Score, add, "<s>a b c");
    EXPECT_EQ(scored.tokens_size(), 6);
  }
  v1::GenerateResponse response;
  const auto status = Generate(Prompt("tiny", "<s>a b c", 1), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.usage().prompt_tokens(), 6);
}

TEST_F(AddedTokenTest, OnlyATextPromptGetsTheToken) {
  const auto prompt = [&](const v1::GenerateRequest& request) {
    v1::GenerateResponse response;
    const auto status = Generate(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::int32_t> ids;
    for (const auto& token : response.prompt_logprobs()) ids.push_back(token.token_id());
    EXPECT_EQ(response.start().prompt_tokens(), static_cast<int>(ids.size()));
    EXPECT_EQ(response.usage().prompt_tokens(), static_cast<int>(ids.size()));
    return ids;
  };
  auto request = Prompt("tiny", "a b c", 1);
  request.mutable_output()->set_prompt_logprobs(0);
  EXPECT_THAT(prompt(request), ElementsAre(0, 67, 97, 68, 97, 69));
  for (const int id : {67, 97, 68}) request.mutable_token_ids()->add_ids(id);
  EXPECT_THAT(prompt(request), ElementsAre(67, 97, 68));
  // A template writes its own special tokens: this one writes none. (The vocabulary does not have its newline.)
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("a");
  message->set_content("b");
  EXPECT_THAT(prompt(request), ElementsAre(67, 28, 97, 68));  // "a: b"
}

// "tiny" has tokens that hold pieces of characters, and answers with them one after the other: with this penalty a
// token is hardly ever drawn twice, and the bias falls from token to token.
class PiecesOfCharactersTest : public AlteredTokenizerTest {
 protected:
  AppOptions Options() override {
    // Byte-level names: 82 is U+0124, 98 U+013A, 9F U+0141, 80 U+0122, the others stand for themselves.
    return OptionsWith({{"\"u\": 87", "\"\\u00c3\": 87"},                 // C3
                        {"\"v\": 88", "\"\\u00a9\\u00e2\": 88"},          // A9 E2
                        {"\"w\": 89", "\"\\u0124\": 89"},                 // 82
                        {"\"x\": 90", "\"\\u00ac\\u00f0\\u0141\": 90"},   // AC F0 9F
                        {"\"y\": 91", "\"\\u013a\": 91"},                 // 98
                        {"\"z\": 92", "\"\\u0122!\": 92"}});              // 80 21
  }
  v1::GenerateRequest Ask(int max_tokens) {
    v1::GenerateRequest request = Prompt("tiny", "a b c", max_tokens);
    for (int id = 87; id <= 92; ++id) (*request.mutable_sampling()->mutable_logit_bias())[id] = 100 - 15 * (id - 87);
    request.mutable_sampling()->set_repetition_penalty(1000);
    return request;
  }
  struct Streamed {
    std::vector<std::string> deltas;  // deltas with tokens, and the one at the end
    std::string text;
    std::vector<std::int32_t> ids;
    v1::GenerateFinish finish;
  };
  // The streamed answer, after a check that it equals the unary one.
  Streamed Stream(const v1::GenerateRequest& ask) {
    v1::GenerateStreamRequest request;
    *request.mutable_request() = ask;
    grpc::ClientContext context;
    auto reader = inference_->GenerateStream(&context, request);
    Streamed out;
    for (v1::GenerateReply reply; reader->Read(&reply);) {
      if (reply.has_finish()) out.finish = reply.finish();
      if (!reply.has_delta()) continue;
      out.deltas.push_back(reply.delta().text());
      out.text += reply.delta().text();
      out.ids.insert(out.ids.end(), reply.delta().token_ids().begin(), reply.delta().token_ids().end());
    }
    const auto status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    v1::GenerateResponse whole;
    const auto unary = Generate(ask, &whole);
    EXPECT_TRUE(unary.ok()) << unary.error_message();
    EXPECT_EQ(whole.outputs_size(), 1);
    if (whole.outputs_size() != 1) return out;
    EXPECT_EQ(whole.outputs(0).text(), out.text);
    EXPECT_EQ(std::vector<std::int32_t>(whole.outputs(0).token_ids().begin(), whole.outputs(0).token_ids().end()), out.ids);
    EXPECT_EQ(whole.outputs(0).finish().SerializeAsString(), out.finish.SerializeAsString());
    return out;
  }
};

constexpr char kEAcute[] = "\xC3\xA9", kEuro[] = "\xE2\x82\xAC", kGrin[] = "\xF0\x9F\x98\x80";

TEST_F(PiecesOfCharactersTest, DeltasAreWholeCharactersAndJoinToTheText) {
  const Streamed all = Stream(Ask(6));
  EXPECT_THAT(all.ids, ElementsAre(87, 88, 89, 90, 91, 92));
  EXPECT_EQ(all.text, std::string(kEAcute) + kEuro + kGrin + "!");
  EXPECT_THAT(all.deltas, ElementsAre("", kEAcute, "", kEuro, "", std::string(kGrin) + "!"));
  EXPECT_EQ(all.finish.incomplete_utf8(), "");
  v1::DetokenizeRequest request;
  request.set_model("tiny");
  for (const std::int32_t id : all.ids) request.add_token_ids(id);
  v1::DetokenizeResponse text;
  ASSERT_TRUE(Call(inference_, &v1::InferenceService::Stub::Detokenize, request, &text).ok());
  EXPECT_EQ(text.text(), all.text);
}

TEST_F(PiecesOfCharactersTest, EndWithinACharacterReportsItsBytes) {
  const std::vector<std::pair<std::string, std::string>> wanted = {
      {"", "\xC3"}, {kEAcute, "\xE2"}, {kEAcute, "\xE2\x82"}, {std::string(kEAcute) + kEuro, "\xF0\x9F"},
      {std::string(kEAcute) + kEuro, "\xF0\x9F\x98"}};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Streamed cut = Stream(Ask(static_cast<int>(i) + 1));
    EXPECT_EQ(cut.text, wanted[i].first) << i;
    EXPECT_EQ(cut.finish.incomplete_utf8(), wanted[i].second) << i;
    EXPECT_EQ(cut.finish.reason(), v1::FINISH_REASON_LENGTH) << i;
  }
}

TEST_F(PiecesOfCharactersTest, AStopStringOfSeveralCharactersIsFoundAcrossTokens) {
  const std::string both = std::string(kEuro) + kGrin;
  for (const std::string& stop : {std::string(kEuro), both, std::string(kGrin)}) {
    for (const bool include : {false, true}) {
      v1::GenerateRequest ask = Ask(6);
      ask.mutable_stopping()->add_stop(stop);
      ask.mutable_stopping()->set_include_stop(include);
      const Streamed stopped = Stream(ask);
      const std::string before = stop == kGrin ? std::string(kEAcute) + kEuro : kEAcute;
      EXPECT_EQ(stopped.text, before + (include ? stop : "")) << stop;
      EXPECT_EQ(stopped.finish.reason(), v1::FINISH_REASON_STOP) << stop;
      EXPECT_EQ(stopped.finish.matched(), stop);
      EXPECT_EQ(stopped.ids.size(), stop == kEuro ? 4u : 6u) << stop;
    }
  }
  // Differs from the text only in its last byte: the text is held back while it may match, then shown.
  v1::GenerateRequest ask = Ask(6);
  ask.mutable_stopping()->add_stop(std::string(kEuro) + "\xF0\x9F\x98\x81");
  const Streamed all = Stream(ask);
  EXPECT_EQ(all.text, std::string(kEAcute) + both + "!");
  EXPECT_THAT(all.deltas, ElementsAre("", kEAcute, "", "", "", both + "!"));
  EXPECT_EQ(all.finish.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(all.finish.matched(), "");
}

// "tiny" has a template that writes nothing, and at most two outputs run at once.
class RefusedByTheEngineTest : public InferenceServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = InferenceServiceTest::Options();
    options.import_root = directory_ + "/root";
    const std::string source = options.import_root + "/hf_tied_bf16";
    std::filesystem::create_directory(options.import_root);
    std::filesystem::copy(model::Golden("hf_tied_bf16"), source);
    model::WriteBytes(source + "/chat_template.jinja", "{# nothing #}");
    options.engine.max_running = 2;
    return options;
  }
  // Expects that Generate, and Score with the same input, refuse this field.
  void Refused(const v1::GenerateRequest& request, const std::string& field) {
    v1::GenerateResponse response;
    const grpc::Status generate = Generate(request, &response);
    EXPECT_EQ(generate.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(ReasonOf(generate), "FIELD_VIOLATION") << field;
    EXPECT_EQ(FieldOf(generate), field);
    v1::ScoreRequest score;
    score.set_model("tiny");
    if (request.has_text()) score.set_text(request.text());
    if (request.has_token_ids()) *score.mutable_token_ids() = request.token_ids();
    if (request.has_chat()) *score.mutable_chat() = request.chat();
    v1::ScoreResponse scored;
    const grpc::Status status = Call(inference_, &v1::InferenceService::Stub::Score, score, &scored);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(ReasonOf(status), "FIELD_VIOLATION") << field;
    EXPECT_EQ(FieldOf(status), field);
  }
};

TEST_F(RefusedByTheEngineTest, RefusalNamesTheInputThatWasSent) {
  auto request = Prompt("tiny", "", 1);
  Refused(request, "text");
  request.mutable_token_ids();
  Refused(request, "token_ids");
  for (const int id : {5, 112}) request.mutable_token_ids()->add_ids(id);  // the vocabulary ends before the second
  Refused(request, "token_ids");
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("a b");
  Refused(request, "chat");
}

TEST_F(RefusedByTheEngineTest, MoreOutputsThanRunAtOnceAreRefused) {
  auto request = Prompt("tiny", "a", 1);
  request.mutable_sampling()->set_n(3);
  v1::GenerateResponse response;
  const grpc::Status refused = Generate(request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FieldOf(refused), "sampling.n");
  EXPECT_THAT(refused.error_message(), HasSubstr("is 3, wanted 1 to 2"));
  request.mutable_sampling()->set_n(2);
  const grpc::Status status = Generate(request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// A small buffer, and a short time limit for slow readers.
class SlowReaderTest : public InferenceServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = InferenceServiceTest::Options();
    options.stream_buffer = 64;
    options.slow_reader_s = 0.3;
    options.engine.kv_tokens = 8192;
    return options;
  }
  // Otherwise the transport's window grows with the machine and takes a whole answer.
  void SetUp() override {
    InferenceServiceTest::SetUp();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 10);
    inference_ = v1::InferenceService::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(app_->grpc_port()), grpc::InsecureChannelCredentials(), arguments));
  }
  // More than the transport takes while the client does not read.
  v1::GenerateStreamRequest Large() {
    v1::GenerateStreamRequest request;
    *request.mutable_request() = Prompt("tiny", "a b c", 240);
    request.mutable_request()->mutable_output()->set_logprobs(20);
    request.mutable_request()->mutable_sampling()->set_n(16);
    return request;
  }
};

TEST_F(SlowReaderTest, ReaderThatTakesNothingLosesItsRequestAndGetsItsUsage) {
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, Large());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (Load().requests_total() == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  v1::GenerateReply reply;
  while (reader->Read(&reply)) {
  }
  const auto status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_EQ(ReasonOf(status), "SLOW_CONSUMER");
  v1::Usage usage;
  const auto details = testing_support::Details(status);
  for (const auto& detail : details.details()) detail.UnpackTo(&usage);
  EXPECT_GT(usage.completion_tokens(), 0);
  EXPECT_LT(usage.completion_tokens(), 16 * 240);
  // The status may arrive before the end of the step that frees them.
  while (Load().kv_blocks_used() > 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(Load().kv_blocks_used(), 0);
}

// Wherever the buffer fills up, also in the last step: an answer with OK is complete.
TEST_F(SlowReaderTest, TruncatedAnswerIsNeverOk) {
  int whole = 0, lost = 0;
  for (int tokens = 2; tokens < 60 && lost < 3; ++tokens) {
    v1::GenerateStreamRequest request = Large();
    auto& ask = *request.mutable_request();
    ask.mutable_stopping()->set_max_tokens(tokens);
    (*ask.mutable_sampling()->mutable_logit_bias())[70] = 100;  // "ddd...", held back to the end by the string below
    ask.mutable_stopping()->add_stop(std::string(200, 'd'));
    const std::int64_t before = Load().requests_total();
    grpc::ClientContext context;
    auto reader = inference_->GenerateStream(&context, request);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (Load().requests_total() == before && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    int ids = 0, finishes = 0, usages = 0;
    std::size_t bytes = 0;
    for (v1::GenerateReply reply; reader->Read(&reply);) {
      ids += reply.delta().token_ids_size();
      bytes += reply.delta().text().size();
      finishes += reply.has_finish();
      usages += reply.has_usage();
    }
    const auto status = reader->Finish();
    if (!status.ok()) {
      EXPECT_EQ(ReasonOf(status), "SLOW_CONSUMER") << status.error_message();
      ++lost;
      continue;
    }
    ++whole;
    EXPECT_EQ(ids, 16 * tokens);
    EXPECT_EQ(bytes, 16u * static_cast<std::size_t>(tokens));
    EXPECT_EQ(finishes, 16);
    EXPECT_EQ(usages, 1);
  }
  EXPECT_GT(whole, 0);
  EXPECT_EQ(lost, 3) << "the buffer never filled up";
}

TEST_F(SlowReaderTest, ReaderThatReadsGetsEverything) {
  grpc::ClientContext context;
  auto reader = inference_->GenerateStream(&context, Large());
  int tokens = 0, finishes = 0;
  for (v1::GenerateReply reply; reader->Read(&reply);) {
    tokens += reply.delta().token_ids_size();
    finishes += reply.has_finish();
  }
  const auto status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(tokens, 16 * 240);
  EXPECT_EQ(finishes, 16);
}

}  // namespace
}  // namespace nibble
