// Answers made from the callbacks of an engine: their pieces, readers that are too slow, errors of interrupted answers.
#include "server/rpc/answer_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "server/base/error.h"
#include "server/base/utf8.h"
#include "server/rpc/answer_size.h"
#include "server/rpc/slow_reader.h"
#include "server/rpc/status.h"
#include "tests/server/model/small_models.h"
#include "tests/server/rpc/status_details.h"

namespace nibble::rpc {
namespace {

// Simulates a reader that is behind and is checked every second. `takes(second)` returns the number of messages that
// the reader takes in that second. Returns the second in which the reader loses its request, or -1 if it still has its
// request after an hour.
int SecondOfLoss(SlowReader reader, const std::function<int(int)>& takes) {
  std::uint64_t taken = 0;
  for (int second = 0; second < 3600; ++second) {
    taken += static_cast<std::uint64_t>(takes(second));
    if (reader.TooSlow(taken, /*behind=*/true, absl::Seconds(1000 + second))) return second;
  }
  return -1;
}

TEST(SlowReaderRateTest, ReaderThatTakesNothingLosesItsRequest) {
  EXPECT_EQ(SecondOfLoss({absl::Seconds(30), 1}, [](int) { return 0; }), 30);
}

TEST(SlowReaderRateTest, ReaderOfAMessageNowAndThenIsTooSlow) {  // C12
  EXPECT_EQ(SecondOfLoss({absl::Seconds(30), 1}, [](int second) { return second % 29 == 28 ? 1 : 0; }), 30);
  EXPECT_EQ(SecondOfLoss({absl::Seconds(30), 0}, [](int second) { return second % 29 == 28 ? 1 : 0; }), -1)
      << "rate 0 allows it";
}

TEST(SlowReaderRateTest, SteadyReaderAtTheRateAndBurstsKeepTheirRequest) {
  EXPECT_EQ(SecondOfLoss({absl::Seconds(30), 1}, [](int) { return 1; }), -1);
  EXPECT_EQ(SecondOfLoss({absl::Seconds(30), 1}, [](int second) { return second % 20 == 19 ? 60 : 0; }), -1);
}

TEST(SlowReaderRateTest, RoomForAFewMessagesDoesNotBeginAnotherWindow) {
  SlowReader reader(absl::Seconds(30), 1);
  EXPECT_FALSE(reader.TooSlow(5, /*behind=*/false, absl::Seconds(10))) << "no window has begun";
  EXPECT_FALSE(reader.TooSlow(5, /*behind=*/true, absl::Seconds(100)));
  EXPECT_FALSE(reader.TooSlow(9, /*behind=*/false, absl::Seconds(120)));
  EXPECT_TRUE(reader.TooSlow(10, /*behind=*/true, absl::Seconds(130)));
}

TEST(SlowReaderRateTest, ReaderThatCaughtUpIsNotSlow) {
  SlowReader reader(absl::Seconds(30), 1);
  EXPECT_FALSE(reader.TooSlow(5, /*behind=*/true, absl::Seconds(100)));
  reader.CaughtUp();
  EXPECT_FALSE(reader.TooSlow(6, /*behind=*/true, absl::Seconds(200)));
  EXPECT_FALSE(reader.TooSlow(6, /*behind=*/true, absl::Seconds(229)));
  EXPECT_TRUE(reader.TooSlow(6, /*behind=*/true, absl::Seconds(230)));
}

using ::testing::ElementsAre;
using testing_support::Find;

constexpr std::int32_t kD = 70;  // "d" in the vocabulary of the small model

// Keeps the replies; calls `on_reply` on the engine's thread.
class Answer final : public AnswerSink {
 public:
  explicit Answer(AnswerContext context) : AnswerSink(std::move(context)) {}
  void Wait() { done_.get_future().wait(); }
  std::string text() const {
    std::string joined;
    for (const v1::GenerateReply& reply : replies) joined += reply.delta().text();
    return joined;
  }
  std::vector<std::int32_t> ids() const {
    std::vector<std::int32_t> all;
    for (const v1::GenerateReply& reply : replies) {
      all.insert(all.end(), reply.delta().token_ids().begin(), reply.delta().token_ids().end());
    }
    return all;
  }
  v1::GenerateFinish finish() const {
    for (const v1::GenerateReply& reply : replies) {
      if (reply.has_finish()) return reply.finish();
    }
    return {};
  }

  std::vector<v1::GenerateReply> replies;
  absl::Status status;
  std::function<void(const v1::GenerateReply&)> on_reply;

 private:
  void Emit(v1::GenerateReply& reply) override {
    replies.push_back(reply);
    if (on_reply) on_reply(reply);
  }
  void End(const absl::Status& ended) override {
    status = ended;
    done_.set_value();
  }
  std::promise<void> done_;
};

class AnswerSinkTest : public ::testing::Test {
 protected:
  // An engine that has released its last answer no longer uses the fixture.
  void TearDown() override {
    while (environment_.live_answers > 0) std::this_thread::yield();
  }
  void Start() {
    auto resident = std::make_shared<serve::Resident>();
    resident->name = "tiny";
    tokenizer_ = models_.tokenizer();
    auto engine = serve::Engine::Start(models_.Load(models_.int8()), tokenizer_, {}, models_.stream(), clock_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    resident->engine = *std::move(engine);
    resident_ = std::move(resident);
  }
  // A request whose answer is "d" at every step, unless the test changes it.
  static serve::Request Ask(std::int64_t max_tokens) {
    serve::Request request;
    request.prompt = {5, 6, 7};
    request.stopping.max_tokens = max_tokens;
    request.penalties.bias = {{kD, 100.0f}};
    return request;
  }
  std::shared_ptr<Answer> Make(const serve::Request& request, std::string echo = "",
                               std::optional<text::ToolParser::Options> tools = std::nullopt) {
    if (resident_ == nullptr) Start();
    GenerateOptions options;
    options.request = request;
    options.tools = std::move(tools);
    return std::make_shared<Answer>(AnswerContext{.environment = environment_,
                                                  .resident = resident_,
                                                  .options = options,
                                                  .request_id = "mine",
                                                  .echo_text = std::move(echo),
                                                  .prompt = request.prompt,
                                                  .entry = nullptr});
  }
  std::shared_ptr<Answer> Run(const serve::Request& request,
                              std::function<void(const v1::GenerateReply&)> on_reply = {}) {
    auto answer = Make(request);
    answer->on_reply = std::move(on_reply);
    const absl::Status status = resident_->engine->Submit(request, answer);
    EXPECT_TRUE(status.ok()) << status;
    if (status.ok()) answer->Wait();
    return answer;
  }

  model::SmallModels models_;
  base::FakeClock clock_{absl::UnixEpoch()};
  std::atomic<bool> draining_{false};
  telemetry::Metrics metrics_{{}, {}};
  base::WorkerPool workers_{1, 8};
  CallEnvironment environment_{metrics_, workers_, clock_, draining_};
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::shared_ptr<const serve::Resident> resident_;
};

TEST_F(AnswerSinkTest, JoinedDeltasEqualTheDecodedTokens) {
  serve::Request request = Ask(60);
  request.penalties.bias.clear();
  for (std::int32_t id = 103; id < 112; ++id) request.penalties.bias.emplace_back(id, -100.0f);  // ids without a token
  request.stopping.ignore_eos = true;
  request.sampling.temperature = 2;
  request.sampling.seed = 3;
  request.stopping.strings = {"no such text"};  // text is held back for it, but it never occurs
  const auto answer = Run(request);
  ASSERT_TRUE(answer->status.ok()) << answer->status;
  const auto ids = answer->ids();
  ASSERT_EQ(ids.size(), 60u);
  EXPECT_EQ(answer->text(), tokenizer_->Decode(ids, /*skip_special_tokens=*/true).value_or("not decoded"));
  ASSERT_GE(answer->replies.size(), 4u);
  EXPECT_TRUE(answer->replies.front().has_start());
  EXPECT_TRUE(answer->replies[answer->replies.size() - 2].has_finish());
  EXPECT_TRUE(answer->replies.back().has_usage());
}

// By default, a client accepts messages of 4 MiB.
TEST_F(AnswerSinkTest, EchoOfALongPromptComesInPiecesCutBetweenCharacters) {
  std::string echo = "x";
  while (echo.size() < 2 * kMaxPieceBytes) echo += "\xF0\x9F\x98\x80";
  serve::Request request = Ask(2);
  request.n = 2;
  const auto answer = Make(request, echo);
  ASSERT_TRUE(resident_->engine->Submit(request, answer).ok());
  answer->Wait();
  ASSERT_TRUE(answer->status.ok()) << answer->status;
  std::map<int, std::string> texts;
  std::map<int, int> pieces;
  for (const v1::GenerateReply& reply : answer->replies) {
    EXPECT_LE(reply.ByteSizeLong(), kMaxPieceBytes);
    if (!reply.has_delta()) continue;
    EXPECT_TRUE(base::IsValidUtf8(reply.delta().text()));
    texts[reply.delta().index()] += reply.delta().text();
    if (reply.delta().token_ids().empty()) ++pieces[reply.delta().index()];
  }
  for (const int index : {0, 1}) {
    EXPECT_TRUE(texts[index] == echo + "dd") << index;
    EXPECT_EQ(pieces[index], 3) << index;
  }
}

TEST(AnswerSizeTest, EchoOfMoreMessagesThanAStreamBuffersIsRefused) {
  EXPECT_TRUE(CheckStreamedEcho(0, 16, 16, 128).ok());
  EXPECT_EQ(MaxPieces(0, 1000), 0u);
  for (const std::size_t max_bytes : {std::size_t{1}, std::size_t{100}, std::size_t{1000}, 2 * kMaxPieceBytes}) {
    std::string text;
    while (text.size() < 5000) text += "x\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80";
    std::size_t pieces = 0;
    for (std::string_view left = text; !left.empty(); ++pieces) left.remove_prefix(FirstPiece(left, max_bytes).size());
    EXPECT_LE(pieces, MaxPieces(text.size(), max_bytes)) << max_bytes;
    const std::size_t messages = 2 * (kMessagesOfAStep + MaxPieces(text.size(), max_bytes));
    EXPECT_TRUE(CheckStreamedEcho(text.size(), max_bytes, 2, messages + 1).ok());
    const absl::Status refused = CheckStreamedEcho(text.size(), max_bytes, 2, messages);
    EXPECT_EQ(base::Reason(refused), "MESSAGE_TOO_LARGE") << refused;
  }
}

TEST_F(AnswerSinkTest, PossibleBeginningOfAStopStringIsHeldBack) {
  serve::Request request = Ask(12);
  request.stopping.strings = {"ddx"};
  const auto answer = Run(request);
  ASSERT_TRUE(answer->status.ok()) << answer->status;
  std::size_t tokens = 0, shown = 0;
  for (const v1::GenerateReply& reply : answer->replies) {
    if (!reply.has_delta()) continue;
    tokens += static_cast<std::size_t>(reply.delta().token_ids_size());
    shown += reply.delta().text().size();
    // Until the answer ends, the last two tokens may begin the stop string.
    if (reply.delta().token_ids_size() == 0) continue;  // text that was held back to the end
    EXPECT_EQ(shown, tokens - std::min<std::size_t>(tokens, 2)) << tokens;
  }
  EXPECT_EQ(tokens, 12u);
  EXPECT_EQ(answer->text(), std::string(12, 'd'));
  EXPECT_EQ(answer->finish().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer->finish().matched(), "");
  EXPECT_FALSE(answer->finish().has_matched_token_id());
}

TEST_F(AnswerSinkTest, FinishNamesTheStopStringOrTheStopToken) {
  serve::Request request = Ask(12);
  request.stopping.strings = {"x", "dddd"};
  auto answer = Run(request);
  EXPECT_EQ(answer->text(), "");
  EXPECT_EQ(answer->ids().size(), 4u);
  EXPECT_EQ(answer->finish().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(answer->finish().matched(), "dddd");
  EXPECT_FALSE(answer->finish().has_matched_token_id());

  request.stopping.include_stop = true;
  EXPECT_EQ(Run(request)->text(), "dddd");

  request = Ask(12);
  request.stopping.token_ids = {3, kD};
  answer = Run(request);
  EXPECT_THAT(answer->ids(), ElementsAre(kD));
  EXPECT_EQ(answer->text(), "");
  EXPECT_EQ(answer->finish().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(answer->finish().matched(), "");
  ASSERT_TRUE(answer->finish().has_matched_token_id());
  EXPECT_EQ(answer->finish().matched_token_id(), kD);
}

// Even if the text of the end token is a stop string, the token ended the answer.
TEST_F(AnswerSinkTest, EndTokenIsNotReportedAsAMatch) {
  serve::Request request = Ask(12);
  request.penalties.bias = {{1, 100.0f}};  // "</s>"
  request.include_special_tokens = true;
  for (const bool shown : {false, true}) {
    if (shown) request.stopping.strings = {"</s>"};
    const auto answer = Run(request);
    ASSERT_TRUE(answer->status.ok()) << answer->status;
    EXPECT_THAT(answer->ids(), ElementsAre(1));
    EXPECT_EQ(answer->finish().reason(), v1::FINISH_REASON_EOS);
    EXPECT_EQ(answer->finish().matched(), "");
    EXPECT_FALSE(answer->finish().has_matched_token_id());
  }
}

// The tokenizer has the two bytes of an accented e in two tokens, which bias and penalty select one after the other.
TEST_F(AnswerSinkTest, CharactersAreShownWholeAndAnUnfinishedOneIsReturnedAsBytes) {
  const std::string source = models_.Path("source");
  std::filesystem::copy(model::Golden("hf_tied_bf16"), source);
  std::string tokenizer = model::ReadBytes(source + "/tokenizer.json");
  const auto replace = [&](const std::string& from, const std::string& to) {
    const std::size_t at = tokenizer.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    tokenizer.replace(at, from.size(), to);
  };
  replace(R"("y": 91)", "\"\xC3\x83\": 91");  // how byte-level vocabularies write byte C3
  replace(R"("z": 92)", "\"\xC2\xA9\": 92");  // and A9
  model::WriteBytes(source + "/tokenizer.json", tokenizer);
  std::filesystem::remove_all(models_.bf16());
  const auto report = model::ImportModel(base::RealFileSystem(), source, models_.bf16(), kernels::DType::kBF16);
  ASSERT_TRUE(report.ok()) << report.status();
  serve::Request request = Ask(2);
  request.penalties.bias = {{91, 100.0f}, {92, 50.0f}};
  request.penalties.repetition = 1000;
  const auto whole = Run(request);
  ASSERT_TRUE(whole->status.ok()) << whole->status;
  ASSERT_THAT(whole->ids(), ElementsAre(91, 92));
  std::vector<std::string> pieces;
  for (const v1::GenerateReply& reply : whole->replies) {
    if (reply.has_delta()) pieces.push_back(reply.delta().text());
  }
  EXPECT_THAT(pieces, ElementsAre("", "\xC3\xA9"));
  EXPECT_EQ(whole->finish().incomplete_utf8(), "");

  request.stopping.max_tokens = 1;
  const auto half = Run(request);
  ASSERT_TRUE(half->status.ok()) << half->status;
  EXPECT_EQ(half->text(), "");
  EXPECT_EQ(half->finish().incomplete_utf8(), "\xC3");
}

// Row DEADLINE_EXCEEDED / CANCELLED of docs/errors.md. An answer that had begun reports its usage.
TEST_F(AnswerSinkTest, InterruptedAnswerReportsItsStageAndTokens) {
  const struct {
    bool started;
    std::int64_t tokens;
    std::string stage;
  } cases[] = {{false, 0, "QUEUE"}, {true, 0, "PREFILL"}, {true, 7, "DECODE"}};
  for (const auto& one : cases) {
    for (const absl::Status& why : {absl::CancelledError("cut"), absl::DeadlineExceededError("cut")}) {
      const auto answer = Make(Ask(12));
      if (one.started) answer->OnStart(1);
      answer->OnFinish({why, serve::FinishReason::kCancelled, {.prompt_tokens = 3, .completion_tokens = one.tokens}});
      const auto details = ToRpcStatus(answer->status);
      EXPECT_EQ(details.code(), static_cast<int>(why.code()));
      const auto info = Find<google::rpc::ErrorInfo>(details);
      ASSERT_TRUE(info.has_value());
      EXPECT_EQ(info->reason(), CodeName(why.code()));
      EXPECT_EQ(info->metadata().at("stage"), one.stage);
      EXPECT_EQ(info->metadata().at("tokens"), std::to_string(one.tokens));
      const auto usage = Find<v1::Usage>(details);
      ASSERT_EQ(usage.has_value(), one.started);
      EXPECT_EQ(usage.value_or(v1::Usage()).completion_tokens(), one.tokens);
      for (const v1::GenerateReply& reply : answer->replies) EXPECT_FALSE(reply.has_usage()) << "not in the replies";
    }
  }
}

TEST_F(AnswerSinkTest, AFaultAfterPartialOutputCarriesItsUsageAndItsOwnReason) {
  const auto answer = Make(Ask(12));
  answer->OnStart(1);
  const serve::TokenLogprob token = {kD, 0, {}};
  answer->OnDelta(0, "d", {&token, 1});
  answer->OnFinish({base::WithReason(absl::InternalError("a step failed"), "KERNEL_FAULT"),
                    serve::FinishReason::kCancelled,
                    {.prompt_tokens = 3, .completion_tokens = 1}});
  const auto details = ToRpcStatus(answer->status);
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(details)->reason(), "KERNEL_FAULT");
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(details)->metadata().count("stage"), 0u);
  ASSERT_TRUE(Find<v1::Usage>(details).has_value());
  EXPECT_EQ(Find<v1::Usage>(details)->completion_tokens(), 1);
  EXPECT_EQ(answer->text(), "d");
}

TEST_F(AnswerSinkTest, DeadlineDuringAnAnswerReportsTheTokensMade) {
  serve::Request request = Ask(200);
  request.deadline = clock_.Monotonic() + absl::Seconds(5);
  const auto answer = Run(request, [&](const v1::GenerateReply& reply) {
    if (reply.has_delta()) clock_.Advance(absl::Seconds(2));
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer->status)) << answer->status;
  const auto details = ToRpcStatus(answer->status);
  const auto info = Find<google::rpc::ErrorInfo>(details);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->metadata().at("stage"), "DECODE");
  EXPECT_EQ(info->metadata().at("tokens"), "3");
  ASSERT_TRUE(Find<v1::Usage>(details).has_value());
  EXPECT_EQ(Find<v1::Usage>(details)->completion_tokens(), 3);
  EXPECT_EQ(answer->text(), "ddd");
}

class ToolAnswerTest : public AnswerSinkTest {
 protected:
  // The answer to an output whose pieces of text are `texts`, each of one token.
  std::shared_ptr<Answer> Write(const std::vector<std::string>& texts, serve::FinishReason reason) {
    auto answer = Make(Ask(12), "", text::ToolParser::Options{.names = {"now"}});
    answer->OnStart(1);
    const serve::TokenLogprob token = {kD, 0, {}};
    for (const std::string& text : texts) answer->OnDelta(0, text, {&token, 1});
    answer->OnOutputEnd({0, reason, "", ""});
    answer->OnFinish({absl::OkStatus(), reason, {}});
    EXPECT_TRUE(answer->status.ok()) << answer->status;
    EXPECT_EQ(answer->ids().size(), texts.size()) << "tokens of calls are tokens of the answer";
    return answer;
  }
  static std::vector<v1::ToolCallDelta> CallsOf(const Answer& answer) {
    std::vector<v1::ToolCallDelta> calls;
    for (const v1::GenerateReply& reply : answer.replies) {
      calls.insert(calls.end(), reply.delta().tool_calls().begin(), reply.delta().tool_calls().end());
    }
    return calls;
  }
};

TEST_F(ToolAnswerTest, CallsAreSeparatedFromTheText) {
  const std::vector<std::string> texts = {
      "I look. ", "<tool_call>", "\n{\"name\": \"now\"", ", \"arguments\": {", "\"a\": 1}}", "\n</tool_", "call>"};
  const auto answer = Write(texts, serve::FinishReason::kEos);
  EXPECT_EQ(answer->text(), "I look.");
  const auto calls = CallsOf(*answer);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].name(), "now");
  EXPECT_EQ(calls[0].id().size(), 21u);
  EXPECT_EQ(calls[0].arguments(), "{");
  EXPECT_EQ(calls[1].arguments(), "\"a\": 1}");
  EXPECT_TRUE(calls[1].id().empty() && calls[1].name().empty());
  EXPECT_EQ(answer->finish().reason(), v1::FINISH_REASON_TOOL_CALLS);
}

TEST_F(ToolAnswerTest, AnswerThatReachesItsLimitKeepsThisReason) {
  const std::string call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(Write({call}, serve::FinishReason::kStop)->finish().reason(), v1::FINISH_REASON_TOOL_CALLS);
  EXPECT_EQ(Write({call}, serve::FinishReason::kLength)->finish().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(Write({"Hi."}, serve::FinishReason::kEos)->finish().reason(), v1::FINISH_REASON_EOS);
}

TEST_F(ToolAnswerTest, IncompleteCallBecomesTextBeforeTheFinish) {
  const auto answer = Write({"<tool_call>", "{\"name\": \"now\", \"arguments\": {"}, serve::FinishReason::kEos);
  EXPECT_EQ(answer->text(), "<tool_call>{\"name\": \"now\", \"arguments\": {");
  const auto calls = CallsOf(*answer);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_TRUE(calls[1].malformed());
  EXPECT_EQ(answer->finish().reason(), v1::FINISH_REASON_EOS);
  EXPECT_TRUE(answer->replies[answer->replies.size() - 2].has_finish());
}

// The stream's buffer has room for one delta between the last token and the finish.
TEST_F(ToolAnswerTest, AllTextHeldBackToTheEndIsOneMessage) {
  for (const std::string& last : {std::string("\"a\": 1}}<tool_"), std::string("oops")}) {
    auto answer = Make(Ask(12), "", text::ToolParser::Options{.names = {"now"}});
    answer->OnStart(1);
    const serve::TokenLogprob token = {kD, 0, {}};
    answer->OnDelta(0, "<tool_call>{\"name\": \"now\", \"arguments\": {", {&token, 1});
    answer->OnDelta(0, last, {});
    answer->OnOutputEnd({0, serve::FinishReason::kEos, "", ""});
    ASSERT_EQ(answer->replies.size(), 4u);  // start, two deltas, finish
    EXPECT_EQ(answer->replies[2].delta().tool_calls_size(), 1);
    const bool complete = last != "oops";
    EXPECT_EQ(answer->replies[2].delta().tool_calls(0).malformed(), !complete);
    EXPECT_EQ(answer->finish().reason(), complete ? v1::FINISH_REASON_TOOL_CALLS : v1::FINISH_REASON_EOS);
    answer->OnFinish({absl::OkStatus(), serve::FinishReason::kEos, {}});
  }
}

TEST_F(ToolAnswerTest, LongTextThatWasHeldBackComesInPieces) {
  std::string call = "<tool_call>{\"name\": \"now\", \"x\": \"";
  while (call.size() < 2 * kMaxPieceBytes) call += "\xF0\x9F\x98\x80";
  const auto answer = Write({call}, serve::FinishReason::kEos);
  EXPECT_TRUE(answer->text() == call);
  for (const v1::GenerateReply& reply : answer->replies) EXPECT_LE(reply.ByteSizeLong(), kMaxPieceBytes);
}

}  // namespace
}  // namespace nibble::rpc
