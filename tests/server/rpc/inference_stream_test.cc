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
#include "tests/server/rpc/inference_service_fixture.h"

namespace nibble {
namespace {

// Bias and penalties change the logits of streams and of several outputs as they do in one unary answer.
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
  check(
      [&](auto& s) {
        bias(s, {{70, 100}, {71, 99}});
        s.set_frequency_penalty(2);
      },
      {70, 71, 70, 71, 70, 71});
  check(
      [&](auto& s) {
        bias(s, {{70, 100}, {71, 99.5}, {72, 99}});
        s.set_presence_penalty(2);
      },
      {70, 71, 72, 70, 70, 70});
  check(
      [&](auto& s) {
        bias(s, {{70, 100}, {71, 80}, {72, 60}});
        s.set_repetition_penalty(1000);
      },
      {70, 71, 72});
  // A prompt's tokens count for the repetition penalty: "a" is 67.
  check(
      [&](auto& s) {
        bias(s, {{67, 100}, {71, 80}, {72, 60}});
        s.set_repetition_penalty(1000);
      },
      {71, 72});
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
  EXPECT_TRUE(models_->UnloadModel(&context, request, &response).ok());
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
  // Options whose import root holds the model with an altered tokenizer.json: the first text of each pair is replaced
  // by the second.
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
    return OptionsWith(
        {{R"("single": [)", R"("single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},)"},
         {R"("special_tokens": {})", R"("special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}})"}});
  }
  // `add`: unset for the default, here and below.
  template <typename Request, typename Response>
  Response AskOfText(grpc::Status (v1::InferenceService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                        Response*),
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
  // A template writes its own special tokens: this one writes none. (It writes a newline, which the vocabulary does not
  // have.)
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
    return OptionsWith({{"\"u\": 87", "\"\\u00c3\": 87"},                // C3
                        {"\"v\": 88", "\"\\u00a9\\u00e2\": 88"},         // A9 E2
                        {"\"w\": 89", "\"\\u0124\": 89"},                // 82
                        {"\"x\": 90", "\"\\u00ac\\u00f0\\u0141\": 90"},  // AC F0 9F
                        {"\"y\": 91", "\"\\u013a\": 91"},                // 98
                        {"\"z\": 92", "\"\\u0122!\": 92"}});             // 80 21
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
    EXPECT_EQ(std::vector<std::int32_t>(whole.outputs(0).token_ids().begin(), whole.outputs(0).token_ids().end()),
              out.ids);
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
  const std::vector<std::pair<std::string, std::string>> wanted = {{"", "\xC3"},
                                                                   {kEAcute, "\xE2"},
                                                                   {kEAcute, "\xE2\x82"},
                                                                   {std::string(kEAcute) + kEuro, "\xF0\x9F"},
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
  // A stop string that differs from the text only in its last byte: the text is held back while it may match, then
  // shown.
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
  // Without these settings, the transport's window may grow until it takes a whole answer.
  void SetUp() override {
    InferenceServiceTest::SetUp();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 10);
    inference_ = v1::InferenceService::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(app_->grpc_port()), grpc::InsecureChannelCredentials(), arguments));
  }
  // A request whose answer is larger than what the transport takes while the client does not read.
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
  // The status may arrive before the end of the step that frees the blocks.
  while (Load().kv_blocks_used() > 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(Load().kv_blocks_used(), 0);
}

// Wherever the buffer fills up, even in the last step, an answer that ends with OK is complete.
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
