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

#include "server/text/grammar.h"
#include "tests/server/model/files.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/inference_service_fixture.h"

namespace nibble {
namespace {

v1::ScoreRequest LongScore(int tokens) {
  v1::ScoreRequest request;
  request.set_model("tiny");
  for (int i = 0; i < tokens; ++i) request.mutable_token_ids()->add_ids(3 + i * 7 % 100);
  request.set_top_n(20);
  request.set_logits_digests(true);
  return request;
}

// Joins the pieces of a stream, and checks that each begins where the previous one ended and has at most `max_bytes`.
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

// The deadline of the server passes before anything can be answered. tests/e2e/test_limits.py tests deadlines that pass
// later.
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

  auto below_zero = Prompt("tiny", "a", 1);
  below_zero.mutable_sampling()->set_temperature(-1);
  status = Generate(below_zero, &response);
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

// C2 (docs/faults.md). The model accepts 256 tokens. An error that gives the size in bytes, not in tokens, shows that
// the text was not encoded.
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

// C2: a request that waits for a load keeps its memory, so a large prompt is refused first. The model does not exist: a
// request that waited for it would get another error.
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

// C2: the number of ids is compared with the context first. The last id is invalid: if the ids were decoded first, the
// error would be about this id.
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
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED)
        << field << " " << name << ": " << status.error_message();
    EXPECT_EQ(ReasonOf(status), "UNIMPLEMENTED") << field;
    EXPECT_THAT(status.error_message(), HasSubstr(field));
    EXPECT_THAT(status.error_message(),
                HasSubstr(name.find('@') != std::string::npos ? "one version" : "its own name"));
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
    v1::GetTokenizerConfigRequest config;
    config.set_model(name);
    v1::GetTokenizerConfigResponse configured;
    expect(Call(inference_, &Stub::GetTokenizerConfig, config, &configured), "GetTokenizerConfigRequest.model", name);
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

// The tiny model is random; only the constraint makes its answers texts of this form.
TEST_F(InferenceServiceTest, ConstraintsHoldForEveryOutput) {
  auto request = Prompt("tiny", "a b c", 64);
  request.mutable_stopping()->clear_ignore_eos();
  request.mutable_sampling()->set_n(3);
  request.mutable_sampling()->set_temperature(5);
  request.mutable_sampling()->set_seed(7);
  request.set_regex("[a-d]{3,9}");
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(request, &response).ok());
  ASSERT_EQ(response.outputs_size(), 3);
  for (const v1::GenerateOutput& output : response.outputs()) {
    EXPECT_THAT(output.text(), testing::MatchesRegex("[a-d]{3,9}"));
    EXPECT_EQ(output.finish().reason(), v1::FINISH_REASON_EOS);
  }
  request.mutable_choice()->add_choices("abba");
  request.mutable_choice()->add_choices("dada");
  response.Clear();
  ASSERT_TRUE(Generate(request, &response).ok());
  for (const v1::GenerateOutput& output : response.outputs())
    EXPECT_THAT(output.text(), testing::AnyOf("abba", "dada"));
}

TEST_F(InferenceServiceTest, ConstraintsThatCannotBeUsedAreRefusedByField) {
  const auto field = [&](const v1::GenerateRequest& request) {
    v1::GenerateResponse response;
    const auto status = Generate(request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(ReasonOf(status), "FIELD_VIOLATION");
    return status.error_message().substr(0, status.error_message().find(':'));
  };
  auto request = Prompt("tiny", "a", 1);
  request.mutable_stopping()->clear_ignore_eos();
  request.set_regex("(a");
  EXPECT_EQ(field(request), "regex");
  request.set_json_schema(R"({"not": {}})");
  EXPECT_EQ(field(request), "json_schema");
  request.set_lark("");
  EXPECT_EQ(field(request), "lark");
  request.mutable_choice();
  EXPECT_EQ(field(request), "choice");
  request.set_regex(std::string(text::GrammarSource::kMaxBytes + 1, 'a'));
  EXPECT_EQ(field(request), "regex");
  request.set_regex("a");
  request.mutable_stopping()->set_min_tokens(1);
  EXPECT_EQ(field(request), "stopping.min_tokens");
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

}  // namespace
}  // namespace nibble
