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

#include "server/base/json.h"
#include "tests/server/model/files.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/inference_service_fixture.h"

namespace nibble {
namespace {

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

TEST_F(InferenceServiceTest, TokenizerConfigHasTheTemplateThatRendersChats) {
  v1::GetTokenizerConfigRequest request;
  request.set_model("tiny");
  v1::GetTokenizerConfigResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(inference_->GetTokenizerConfig(&context, request, &response).ok());
  EXPECT_TRUE(base::Json::parse(response.config_json()).is_object());
  EXPECT_THAT(response.chat_template(), testing::HasSubstr("message"));
  EXPECT_GT(response.num_tokens(), 50);
  request.set_model("missing");
  grpc::ClientContext other;
  EXPECT_EQ(ReasonOf(inference_->GetTokenizerConfig(&other, request, &response)), "MODEL");
}

// An echoed prompt shows its special tokens only with include_special_tokens, as generated text does, whether the
// prompt was sent as ids or as a conversation.
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

}  // namespace
}  // namespace nibble
