#include "server/serve/engine.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <future>

#include "server/base/error.h"
#include "server/base/json.h"
#include "tests/server/serve/engine_fixture.h"

namespace nibble::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Digests(const Sink& sink) {
  std::vector<std::string> digests;
  for (const TokenLogprob& token : sink.scored) digests.push_back(token.logits_digest);
  return digests;
}

TEST_F(EngineTest, TokensAreTheSameAloneBesideOthersAndForEveryChunk) {
  const auto alone = Answer(*Start(), Ask(40, 12))->ids;
  ASSERT_EQ(alone.size(), 12u);
  for (const std::int64_t chunk : {1, 7, 16, 64}) {
    auto engine = Start({.prefill_chunk = chunk});
    std::vector<std::shared_ptr<Sink>> sinks;
    for (int i = 0; i < 6; ++i) {
      sinks.push_back(std::make_shared<Sink>());
      ASSERT_TRUE(engine->Submit(i % 2 == 0 ? Ask(40, 12) : Ask(5 + i, 20), sinks.back()).ok());
    }
    for (auto& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok());
    for (int i = 0; i < 6; i += 2) EXPECT_EQ(sinks[static_cast<std::size_t>(i)]->ids, alone) << chunk;
  }
}

TEST_F(EngineTest, RequestsJoinAndLeaveBetweenSteps) {
  auto engine = Start();
  auto first = std::make_shared<Sink>();
  auto second = std::make_shared<Sink>();
  std::size_t first_had_when_second_began = 0, first_had_when_second_ended = 0;
  first->on_delta = [&](std::size_t tokens) {
    if (tokens != 5) return;
    ASSERT_TRUE(engine->Submit(Ask(3, 4), second).ok());
  };
  second->on_delta = [&](std::size_t tokens) {
    if (tokens == 1) first_had_when_second_began = first->ids.size();
  };
  second->on_finish = [&] { first_had_when_second_ended = first->ids.size(); };
  ASSERT_TRUE(engine->Submit(Ask(3, 40), first).ok());
  EXPECT_TRUE(second->Wait().status.ok());
  EXPECT_TRUE(first->Wait().status.ok());
  EXPECT_EQ(first->ids.size(), 40u);
  EXPECT_EQ(second->ids.size(), 4u);
  EXPECT_GE(first_had_when_second_began, 5u);
  EXPECT_LT(first_had_when_second_ended, 12u) << "the second waited for the first";
}

// A prompt of many chunks does not delay a request that decodes.
TEST_F(EngineTest, LongPromptIsFedWhileOthersDecode) {
  auto engine = Start({.prefill_chunk = 4});
  auto decoding = std::make_shared<Sink>();
  auto reading = std::make_shared<Sink>();
  std::size_t before = 0, after = 0;
  decoding->on_delta = [&](std::size_t tokens) {
    if (tokens != 1) return;
    ASSERT_TRUE(engine->Submit(Ask(80, 1), reading).ok());
  };
  reading->on_start = [&] { before = decoding->ids.size(); };
  reading->on_finish = [&] { after = decoding->ids.size(); };
  ASSERT_TRUE(engine->Submit(Ask(3, 60), decoding).ok());
  reading->Wait();
  decoding->Wait();
  EXPECT_GE(after - before, 80u / 4 - 1) << "the other request gets a token for every chunk";
}

TEST_F(EngineTest, CancelEndsRequestAtTheNextStepAndFreesItsPages) {
  auto engine = Start();
  auto sink = std::make_shared<Sink>();
  Request request = Ask(3, 100);
  base::CancelToken cancel = request.cancel;
  sink->on_delta = [&](std::size_t tokens) {
    if (tokens == 7) cancel.Cancel();
  };
  ASSERT_TRUE(engine->Submit(request, sink).ok());
  const Finish& finish = sink->Wait();
  EXPECT_TRUE(absl::IsCancelled(finish.status)) << finish.status;
  EXPECT_EQ(finish.reason, FinishReason::kCancelled);
  EXPECT_EQ(finish.usage.completion_tokens, 7);
  EXPECT_EQ(sink->ids.size(), 7u);
  // All pages are free for one request that needs them all.
  const std::int64_t all = std::min(engine->max_context(), engine->load().total_pages * kernels::kKvPageTokens);
  EXPECT_TRUE(Answer(*engine, Ask(3, static_cast<int>(all) - 3))->finish.status.ok());
}

TEST_F(EngineTest, DeadlineAppliesBetweenStepsAndInTheQueue) {
  auto engine = Start({.max_running = 1});
  auto running = std::make_shared<Sink>();
  auto waiting = std::make_shared<Sink>();
  auto patient = std::make_shared<Sink>();
  running->on_delta = [&](std::size_t tokens) {
    if (tokens == 2) {
      Request late = Ask(3, 4);
      late.deadline = clock_.Monotonic() + absl::Milliseconds(100);
      ASSERT_TRUE(engine->Submit(late, waiting).ok());
      ASSERT_TRUE(engine->Submit(Ask(3, 2), patient).ok());
    }
    if (tokens == 4) clock_.Advance(absl::Milliseconds(250));
    if (tokens == 6) clock_.Advance(absl::Seconds(10));
  };
  Request request = Ask(3, 100);
  request.deadline = clock_.Monotonic() + absl::Seconds(5);
  ASSERT_TRUE(engine->Submit(request, running).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(waiting->Wait().status));
  EXPECT_EQ(waiting->finish.reason, FinishReason::kDeadline);
  EXPECT_FALSE(waiting->started);
  EXPECT_TRUE(absl::IsDeadlineExceeded(running->Wait().status));
  EXPECT_EQ(running->ids.size(), 6u);
  EXPECT_TRUE(patient->Wait().status.ok());
  EXPECT_NEAR(patient->queued_ms, 10'250, 1e-6);
  EXPECT_NEAR(patient->finish.usage.queue_ms, 10'250, 1e-6);
  EXPECT_NEAR(running->queued_ms, 0, 1e-6);
}

// A client whose deadline has passed also cancels.
TEST_F(EngineTest, PassedDeadlineTakesPrecedenceOverCancel) {
  auto engine = Start({.max_running = 1});
  auto running = std::make_shared<Sink>();
  auto waiting = std::make_shared<Sink>();
  Request request = Ask(3, 100), late = Ask(3, 4);
  request.deadline = late.deadline = clock_.Monotonic() + absl::Seconds(5);
  base::CancelToken cancel = request.cancel, cancel_late = late.cancel;
  running->on_delta = [&](std::size_t tokens) {
    if (tokens == 2) {
      ASSERT_TRUE(engine->Submit(late, waiting).ok());
    }
    if (tokens != 4) return;
    clock_.Advance(absl::Seconds(5));
    cancel.Cancel();
    cancel_late.Cancel();
  };
  ASSERT_TRUE(engine->Submit(request, running).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(running->Wait().status)) << running->finish.status;
  EXPECT_EQ(running->finish.reason, FinishReason::kDeadline);
  EXPECT_TRUE(absl::IsDeadlineExceeded(waiting->Wait().status)) << waiting->finish.status;
  EXPECT_EQ(waiting->finish.reason, FinishReason::kDeadline);
}

TEST_F(EngineTest, QueueIsBounded) {
  auto engine = Start({.max_waiting = 2, .max_running = 1});
  auto first = std::make_shared<Sink>();
  std::vector<std::shared_ptr<Sink>> more = {std::make_shared<Sink>(), std::make_shared<Sink>()};
  absl::Status refused;
  first->on_delta = [&](std::size_t tokens) {
    if (tokens != 1) return;
    for (auto& sink : more) ASSERT_TRUE(engine->Submit(Ask(2, 2), sink).ok());
    refused = engine->Submit(Ask(2, 2), std::make_shared<Sink>());
  };
  ASSERT_TRUE(engine->Submit(Ask(3, 8), first).ok());
  first->Wait();
  for (auto& sink : more) EXPECT_TRUE(sink->Wait().status.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "QUEUE_FULL");
}

// A request with a free slot does not count as waiting, although the engine begins it only between two steps.
TEST_F(EngineTest, RequestThatFitsAFreeSlotIsNeverRefusedAsWaiting) {
  auto engine = Start({.max_waiting = 0, .max_running = 3});
  auto slow = std::make_shared<Sink>();
  slow->on_delta = [&](std::size_t) { clock_.Advance(absl::Seconds(30)); };
  ASSERT_TRUE(engine->Submit(Ask(3, 2), slow).ok());
  EXPECT_TRUE(slow->Wait().status.ok());
  auto first = std::make_shared<Sink>();
  auto second = std::make_shared<Sink>();
  auto third = std::make_shared<Sink>();
  auto next = std::make_shared<Sink>();
  absl::Status too_many, after;
  first->on_delta = [&](std::size_t tokens) {
    if (tokens != 1) return;
    ASSERT_TRUE(engine->Submit(Ask(3, 2), second).ok());
    Request hurried = Ask(3, 20);  // has less time than a request takes, but a free slot
    hurried.deadline = clock_.Monotonic() + absl::Seconds(1);
    ASSERT_TRUE(engine->Submit(hurried, third).ok());
    too_many = engine->Submit(Ask(3, 2), std::make_shared<Sink>());
  };
  // A client's next request may arrive as soon as the client learns of the end.
  second->on_finish = [&] { after = engine->Submit(Ask(3, 2), next); };
  ASSERT_TRUE(engine->Submit(Ask(3, 40), first).ok());
  EXPECT_TRUE(second->Wait().status.ok());
  EXPECT_EQ(base::Reason(too_many), "QUEUE_FULL") << too_many;
  EXPECT_TRUE(third->Wait().status.ok()) << third->finish.status;
  ASSERT_TRUE(after.ok()) << after;
  EXPECT_TRUE(next->Wait().status.ok());
  EXPECT_TRUE(first->Wait().status.ok());
}

TEST_F(EngineTest, WaitsAreCountedFromTheGivenArrival) {
  auto engine = Start();
  clock_.Advance(absl::Seconds(5));
  Request request = Ask(3, 2);
  request.arrived = clock_.Monotonic() - absl::Seconds(2);
  const auto sink = Answer(*engine, request);
  EXPECT_NEAR(sink->queued_ms, 2000, 1e-6);
  EXPECT_NEAR(sink->finish.usage.ttft_ms, 2000, 1e-6);
}

// 2 s before the first step, then 3 s until the first token, then 1 s for each token.
TEST_F(EngineTest, UsageTimesCoverWaitPromptAndLaterTokens) {
  auto engine = Start();
  clock_.Advance(absl::Seconds(5));
  auto sink = std::make_shared<Sink>();
  sink->on_start = [&] { clock_.Advance(absl::Seconds(3)); };
  sink->on_delta = [&](std::size_t) { clock_.Advance(absl::Seconds(1)); };
  Request request = Ask(3, 5);
  request.arrived = clock_.Monotonic() - absl::Seconds(2);
  ASSERT_TRUE(engine->Submit(request, sink).ok());
  Usage usage = sink->Wait().usage;
  EXPECT_EQ(usage.completion_tokens, 5);
  EXPECT_NEAR(usage.queue_ms, 2000, 1e-6);
  EXPECT_NEAR(usage.prefill_ms, 3000, 1e-6);
  EXPECT_NEAR(usage.ttft_ms, 5000, 1e-6);
  EXPECT_NEAR(usage.decode_ms, 4000, 1e-6);

  auto scored = std::make_shared<Sink>();
  scored->on_start = [&] { clock_.Advance(absl::Seconds(3)); };
  request = Ask(3, 0);
  request.prompt_logprobs = true;
  ASSERT_TRUE(engine->Submit(request, scored).ok());
  usage = scored->Wait().usage;
  EXPECT_EQ(usage.completion_tokens, 0);
  EXPECT_NEAR(usage.queue_ms, 0, 1e-6);
  EXPECT_NEAR(usage.prefill_ms, 3000, 1e-6);
  EXPECT_EQ(usage.ttft_ms, 0);
  EXPECT_EQ(usage.decode_ms, 0);
}

// Sequences take pages as they grow; no request is overtaken, and a preempted request completes.
TEST_F(EngineTest, RequestsThatDoNotFitTheCacheWaitInOrder) {
  auto engine = Start({.max_context = 64, .kv_tokens = 64});
  std::vector<int> order;
  std::vector<std::shared_ptr<Sink>> sinks;
  const int lengths[] = {60, 50, 2};
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<Sink>());
    sinks.back()->on_start = [&order, i] { order.push_back(i); };
  }
  sinks[0]->on_delta = [&](std::size_t tokens) {
    if (tokens != 1) return;
    for (std::size_t i : {1u, 2u}) ASSERT_TRUE(engine->Submit(Ask(4, lengths[i]), sinks[i]).ok());
  };
  ASSERT_TRUE(engine->Submit(Ask(4, lengths[0]), sinks[0]).ok());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(sinks[i]->Wait().status.ok());
    EXPECT_EQ(sinks[i]->ids.size(), static_cast<std::size_t>(lengths[i]));
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
}

TEST_F(EngineTest, StopStringsAreNeverShownAndMaySpanTokens) {
  auto engine = Start();
  const auto whole = Answer(*engine, Ask(6, 30));
  ASSERT_GT(whole->text.size(), 6u);
  const std::string stop = whole->text.substr(whole->text.size() / 2, 3);
  const std::string want = whole->text.substr(0, whole->text.find(stop));
  Request request = Ask(6, 30);
  request.stopping.strings = {"nowhere in it", stop};
  const auto stopped = Answer(*engine, request);
  EXPECT_EQ(stopped->text, want);
  EXPECT_EQ(stopped->finish.reason, FinishReason::kStop);
  EXPECT_EQ(stopped->ends.at(0).matched_stop, stop);
  EXPECT_LT(stopped->ids.size(), whole->ids.size());
  request.stopping.include_stop = true;
  EXPECT_EQ(Answer(*engine, request)->text, want + stop);
}

TEST_F(EngineTest, StopIdEndsTheAnswerAndIsMaskedByMinTokens) {
  auto engine = Start();
  const auto whole = Answer(*engine, Ask(6, 12));
  Request request = Ask(6, 12);
  request.stopping.token_ids = {whole->ids[0]};
  auto stopped = Answer(*engine, request);
  EXPECT_EQ(stopped->finish.reason, FinishReason::kStop);
  EXPECT_THAT(stopped->ids, ElementsAre(whole->ids[0]));
  EXPECT_EQ(stopped->text, "");
  request.stopping.min_tokens = 12;
  const auto masked = Answer(*engine, request);
  EXPECT_EQ(masked->ids.size(), 12u);
  EXPECT_THAT(masked->ids, testing::Each(testing::Ne(whole->ids[0])));
}

TEST_F(EngineTest, MinTokensMasksEndTokensAndStopIdsButNotTheirLogprobs) {
  auto engine = Start();
  for (const float temperature : {0.0f, 1.0f}) {
    Request request = Ask(6, 12);
    request.sampling.temperature = temperature;
    request.sampling.seed = 5;
    request.stopping.ignore_eos = false;
    request.stopping.token_ids = {70};
    request.penalties.bias = {{1, 100.0f}, {70, 90.0f}};  // draws "</s>" or else "d", whatever comes before
    request.stopping.min_tokens = 3;
    request.logprobs = true;
    const auto masked = Answer(*engine, request);
    ASSERT_EQ(masked->ids.size(), 4u);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NE(masked->ids[i], 1);
      EXPECT_NE(masked->ids[i], 70);
    }
    EXPECT_EQ(masked->ids[3], 1);
    EXPECT_EQ(masked->finish.reason, FinishReason::kEos);
    // The same tokens have the same logprobs as prompt tokens, which are not masked.
    Request score = Ask(6, 0);
    score.prompt.insert(score.prompt.end(), masked->ids.begin(), masked->ids.end());
    score.prompt_logprobs = true;
    const auto scored = Answer(*engine, score);
    ASSERT_EQ(scored->scored.size(), 9u);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(masked->logprobs[i], scored->scored[5 + i].logprob) << i;
  }
}

TEST_F(EngineTest, RefusesMinTokensWhenEveryTokenIsMasked) {
  auto engine = Start();
  Request request = Ask(6, 4);
  request.stopping.ignore_eos = false;
  const std::int64_t vocab = models_.Load(models_.int8())->config().vocab_size;
  for (std::int32_t token = 0; token < vocab; ++token) {
    if (token != 1) request.stopping.token_ids.push_back(token);  // "</s>" is masked as the model's end token
  }
  EXPECT_EQ(Answer(*engine, request)->ids.size(), 1u);  // without min_tokens no token is masked
  request.stopping.min_tokens = 1;
  const absl::Status refused = engine->Submit(request, std::make_shared<Sink>());
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(base::ReasonMetadata(refused)["field"], "stopping.stop_token_ids");
  request.stopping.ignore_eos = true;  // now "</s>" is not masked
  EXPECT_EQ(Answer(*engine, request)->ids.at(0), 1);
}

TEST_F(EngineTest, EndTokenEndsTheAnswerUnlessIgnored) {
  auto engine = Start();
  Request request = Ask(6, 12);
  request.stopping.ignore_eos = false;
  request.penalties.bias = {{1, 100.0f}};  // draws "</s>", whatever comes before
  auto sink = Answer(*engine, request);
  ASSERT_TRUE(sink->finish.status.ok()) << sink->finish.status;
  EXPECT_THAT(sink->ids, ElementsAre(1));
  EXPECT_EQ(sink->text, "");
  EXPECT_EQ(sink->finish.reason, FinishReason::kEos);
  ASSERT_EQ(sink->ends.size(), 1u);
  EXPECT_EQ(sink->ends[0].reason, FinishReason::kEos);
  EXPECT_EQ(sink->ends[0].matched_stop, "");
  EXPECT_EQ(sink->finish.usage.prompt_tokens, 6);
  EXPECT_EQ(sink->finish.usage.completion_tokens, 1);
  request.include_special_tokens = true;
  EXPECT_EQ(Answer(*engine, request)->text, "</s>");
  request.stopping.min_tokens = 3;
  sink = Answer(*engine, request);
  ASSERT_EQ(sink->ids.size(), 4u);
  EXPECT_THAT(std::span(sink->ids).first(3), testing::Each(testing::Ne(1)));
  EXPECT_EQ(sink->ids[3], 1);
  request.stopping.ignore_eos = true;
  sink = Answer(*engine, request);
  EXPECT_EQ(sink->ids, std::vector<std::int32_t>(12, 1));
  EXPECT_EQ(sink->finish.reason, FinishReason::kLength);
  EXPECT_EQ(sink->finish.usage.completion_tokens, 12);
}

// An end token's text matches no stop string. When shown, it is shown completely, after the text held back before it.
TEST_F(EngineTest, ShownEndTokenMatchesNoStopString) {
  auto engine = Start();
  Request request = Ask(6, 12);
  request.stopping.ignore_eos = false;
  request.include_special_tokens = true;
  request.penalties.bias = {{1, 100.0f}};  // "</s>"
  for (const char* stop : {"</s>", "/s", "<", ">"}) {
    request.stopping.strings = {stop};
    const auto sink = Answer(*engine, request);
    EXPECT_EQ(sink->text, "</s>") << stop;
    ASSERT_EQ(sink->ends.size(), 1u);
    EXPECT_EQ(sink->ends[0].reason, FinishReason::kEos) << stop;
    EXPECT_EQ(sink->ends[0].matched_stop, "") << stop;
  }
  // "d", then "</s>": the repetition penalty keeps a drawn token from being drawn again.
  request.penalties.bias = {{70, 100.0f}, {1, 50.0f}};
  request.penalties.repetition = 1000;
  for (const char* stop : {"d</s>", "d<"}) {
    request.stopping.strings = {stop};
    request.include_special_tokens = true;
    auto sink = Answer(*engine, request);
    EXPECT_THAT(sink->ids, ElementsAre(70, 1)) << stop;
    EXPECT_EQ(sink->text, "d</s>") << stop;
    EXPECT_EQ(sink->finish.reason, FinishReason::kEos) << stop;
    request.include_special_tokens = false;
    sink = Answer(*engine, request);
    EXPECT_EQ(sink->text, "d") << stop;
    EXPECT_EQ(sink->finish.reason, FinishReason::kEos) << stop;
  }
  // If the end token is ignored, its text is like any other.
  request.include_special_tokens = true;
  request.stopping.ignore_eos = true;
  request.stopping.strings = {"d</s>"};
  const auto sink = Answer(*engine, request);
  EXPECT_EQ(sink->text, "");
  EXPECT_EQ(sink->finish.reason, FinishReason::kStop);
  EXPECT_EQ(sink->ends[0].matched_stop, "d</s>");
}

// Some decoders show a text only as a whole, together with the end token. Stop strings are matched without the end
// token.
TEST_F(EngineTest, StopStringsMatchTextThatComesWithTheEndToken) {
  auto tokenizer_json = base::ParseJson(model::ReadBytes(models_.bf16() + "/tokenizer.json"));
  ASSERT_TRUE(tokenizer_json.ok()) << tokenizer_json.status();
  (*tokenizer_json)["decoder"] = base::Json::parse(
      R"({"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Replace","pattern":{"String":"zz"},"content":"z"}]})");
  auto tokenizer = text::Tokenizer::FromJson(base::Dump(*tokenizer_json));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  auto engine = Engine::Start(models_.Load(models_.int8()), *std::move(tokenizer), {}, models_.stream(), clock_);
  ASSERT_TRUE(engine.ok()) << engine.status();
  // "d", "e", then "</s>": the repetition penalty keeps a drawn token from being drawn again.
  Request request = Ask(6, 12);
  request.stopping.ignore_eos = false;
  request.include_special_tokens = true;
  request.penalties.bias = {{70, 100.0f}, {71, 75.0f}, {1, 50.0f}};
  request.penalties.repetition = 1000;
  auto sink = Answer(**engine, request);
  EXPECT_THAT(sink->ids, ElementsAre(70, 71, 1));
  EXPECT_EQ(sink->text, "de</s>");
  EXPECT_EQ(sink->finish.reason, FinishReason::kEos);
  for (const bool shown : {false, true}) {
    request.include_special_tokens = shown;
    for (const char* stop : {"e", "de"}) {
      request.stopping.strings = {stop};
      sink = Answer(**engine, request);
      EXPECT_EQ(sink->text, stop == std::string("e") ? "d" : "") << stop;
      ASSERT_EQ(sink->ends.size(), 1u);
      EXPECT_EQ(sink->ends[0].reason, FinishReason::kStop) << stop;
      EXPECT_EQ(sink->ends[0].matched_stop, stop);
    }
    for (const char* stop : {"</s>", "e<", "e</s>", "s"}) {
      request.stopping.strings = {stop};
      sink = Answer(**engine, request);
      EXPECT_EQ(sink->text, shown ? "de</s>" : "de") << stop;
      ASSERT_EQ(sink->ends.size(), 1u);
      EXPECT_EQ(sink->ends[0].reason, FinishReason::kEos) << stop;
      EXPECT_EQ(sink->ends[0].matched_stop, "") << stop;
    }
  }
}

// Some models have an end token that their tokenizer shows as text.
TEST_F(EngineTest, NonSpecialEndTokenIsNotShown) {
  const std::string source = models_.Path("source");
  std::filesystem::copy(model::Golden("hf_tied_bf16"), source);
  model::WriteBytes(source + "/generation_config.json", R"({"eos_token_id": [1, 70]})");
  std::filesystem::remove_all(models_.bf16());
  const auto report = model::ImportModel(base::RealFileSystem(), source, models_.bf16(), kernels::DType::kBF16);
  ASSERT_TRUE(report.ok()) << report.status();
  auto engine = Start();
  Request request = Ask(6, 12);
  request.penalties.bias = {{70, 100.0f}};  // "d"
  EXPECT_EQ(Answer(*engine, request)->text, std::string(12, 'd'));
  request.stopping.ignore_eos = false;
  const auto sink = Answer(*engine, request);
  EXPECT_THAT(sink->ids, ElementsAre(70));
  EXPECT_EQ(sink->text, "");
  EXPECT_EQ(sink->finish.reason, FinishReason::kEos);
  request.include_special_tokens = true;
  EXPECT_EQ(Answer(*engine, request)->text, "d");
}

TEST_F(EngineTest, StopStringsMatchFromMinTokensOn) {
  auto engine = Start();
  Request request = Ask(6, 12);
  request.penalties.bias = {{70, 100.0f}};  // draws "d", whatever comes before
  ASSERT_EQ(Answer(*engine, request)->text, std::string(12, 'd'));
  request.stopping.strings = {"ddd"};
  EXPECT_EQ(Answer(*engine, request)->ids.size(), 3u);
  // The fifth token may end the answer: the text of the four tokens before it is not part of a match.
  request.stopping.min_tokens = 5;
  const auto stopped = Answer(*engine, request);
  EXPECT_EQ(stopped->ids.size(), 7u);
  EXPECT_EQ(stopped->text, "dddd");
  EXPECT_EQ(stopped->finish.reason, FinishReason::kStop);
  request.stopping.min_tokens = 100;
  const auto whole = Answer(*engine, request);
  EXPECT_EQ(whole->text, std::string(12, 'd'));
  EXPECT_EQ(whole->finish.reason, FinishReason::kLength);
}

TEST_F(EngineTest, RejectsInvalidRequestsImmediately) {
  auto engine = Start();
  auto sink = std::make_shared<Sink>();
  const auto field = [&](const Request& request) {
    const absl::Status refused = engine->Submit(request, sink);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    return base::ReasonMetadata(refused)["field"];
  };
  Request empty = Ask(0, 1);
  EXPECT_EQ(field(empty), "prompt");
  empty.prompt_field = "chat";
  EXPECT_EQ(field(empty), "chat");
  absl::Status status = engine->Submit(Ask(257, 1), sink);
  EXPECT_EQ(base::Reason(status), "PROMPT_TOO_LONG");
  EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("257"), HasSubstr("256")));
  EXPECT_EQ(base::Reason(engine->Submit(Ask(256, 1), sink)), "PROMPT_TOO_LONG") << "there is no room for an answer";
  EXPECT_EQ(field(Ask(3, -1)), "stopping.max_tokens");
  for (const std::int32_t token : {-1, 112}) {
    Request request = Ask(3, 1);
    request.prompt[1] = token;
    request.prompt_field = "token_ids";
    EXPECT_EQ(field(request), "token_ids") << token;
    request = Ask(3, 1);
    request.penalties.bias = {{token, 1.0f}};
    EXPECT_EQ(field(request), "sampling.logit_bias") << token;
  }
  Request request = Ask(3, 1);
  request.stopping.strings = {""};
  EXPECT_EQ(field(request), "stopping.stop");
  for (const int outputs : {0, 17}) {
    request = Ask(3, 1);
    request.n = outputs;
    EXPECT_EQ(field(request), "sampling.n") << outputs;
  }
  EXPECT_EQ(engine->load().waiting, 0);
}

TEST_F(EngineTest, ScoresHaveTheSameBitsForEveryChunk) {
  auto engine = Start();
  std::vector<std::string> first;
  for (const std::int64_t chunk : {0, 1, 7, 33}) {
    Request request = Ask(50, 0);
    request.prompt_logprobs = true;
    request.logits_digests = true;
    request.score_chunk = chunk;
    const auto sink = Answer(*engine, request);
    ASSERT_TRUE(sink->finish.status.ok()) << sink->finish.status;
    ASSERT_EQ(sink->scored.size(), 49u);
    EXPECT_TRUE(sink->ids.empty());
    const std::vector<std::string> digests = Digests(*sink);
    for (std::size_t i = 0; i < 49; ++i) EXPECT_EQ(sink->scored[i].token, request.prompt[i + 1]);
    if (first.empty()) first = digests;
    EXPECT_EQ(digests, first) << chunk;
  }
}

// Prompts of 300 tokens in total, 64 per step: while some are scored, others already decode.
TEST_F(EngineTest, EightConcurrentRequestsGetTheSameBitsAsAlone) {
  constexpr std::size_t kMany = 8;
  const auto ask = [](std::size_t i) {
    const int number = static_cast<int>(i);
    Request request = Ask(20 + 5 * number, 24);
    for (std::int32_t& token : request.prompt) token = 3 + (token + 13 * number) % 100;
    request.prompt_logprobs = request.logits_digests = request.logprobs = true;
    return request;
  };
  auto engine = Start();
  std::vector<std::shared_ptr<Sink>> alone, together;
  for (std::size_t i = 0; i < kMany; ++i) alone.push_back(Answer(*engine, ask(i)));
  std::size_t begun = 0, begun_before_one_ended = 0;
  for (std::size_t i = 0; i < kMany; ++i) {
    together.push_back(std::make_shared<Sink>());
    together[i]->on_delta = [&](std::size_t tokens) { begun += tokens == 1; };
    together[i]->on_finish = [&] {
      if (begun_before_one_ended == 0) begun_before_one_ended = begun;
    };
  }
  auto first = std::make_shared<Sink>();
  first->on_delta = [&](std::size_t tokens) {
    if (tokens != 1) return;
    for (std::size_t i = 0; i < kMany; ++i) ASSERT_TRUE(engine->Submit(ask(i), together[i]).ok());
  };
  ASSERT_TRUE(engine->Submit(Ask(3, 12), first).ok());
  EXPECT_TRUE(first->Wait().status.ok());
  ASSERT_FALSE(HasFatalFailure());
  for (auto& sink : together) EXPECT_TRUE(sink->Wait().status.ok()) << sink->finish.status;
  EXPECT_EQ(begun_before_one_ended, kMany) << "one request ended before another had its first token";
  for (std::size_t i = 0; i < kMany; ++i) {
    const std::vector<std::string> digests = Digests(*alone[i]);
    ASSERT_EQ(digests.size(), 19 + 5 * i);
    EXPECT_EQ(digests.front().size(), 64u);
    EXPECT_EQ(Digests(*together[i]), digests) << i;
    EXPECT_EQ(alone[i]->ids.size(), 24u);
    EXPECT_EQ(together[i]->ids, alone[i]->ids) << i;
    EXPECT_EQ(together[i]->logprobs, alone[i]->logprobs) << i;
  }
  EXPECT_NE(Digests(*alone[0]).front(), Digests(*alone[1]).front()) << "the prompts begin alike";
}

}  // namespace
}  // namespace nibble::serve
