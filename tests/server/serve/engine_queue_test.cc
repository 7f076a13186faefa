#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "server/base/error.h"
#include "server/serve/engine.h"
#include "tests/server/serve/engine_fixture.h"

namespace nibble::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(EngineTest, SeedAloneDecidesTheDrawnTokens) {
  auto engine = Start();
  Request request = Ask(6, 20);
  request.sampling.temperature = 2.0f;
  request.sampling.seed = 7;
  const auto one = Answer(*engine, request)->ids;
  EXPECT_EQ(Answer(*engine, request)->ids, one);
  request.sampling.seed = 8;
  EXPECT_NE(Answer(*engine, request)->ids, one);
}

TEST_F(EngineTest, LoadCountsRequestFromItsStart) {
  auto engine = Start({.max_running = 1});
  auto sink = std::make_shared<Sink>();
  EngineLoad at_start, at_first_word;
  sink->on_start = [&] { at_start = engine->load(); };
  sink->on_delta = [&](std::size_t tokens) {
    if (tokens == 1) at_first_word = engine->load();
  };
  ASSERT_TRUE(engine->Submit(Ask(3, 3), sink).ok());
  ASSERT_TRUE(sink->Wait().status.ok());
  for (const EngineLoad& load : {at_start, at_first_word}) {
    EXPECT_EQ(load.running, 1);
    EXPECT_EQ(load.waiting, 0);
    EXPECT_EQ(load.used_pages, 1);
  }
}

TEST_F(EngineTest, DestroyedEngineEndsRunningAndWaitingRequests) {
  auto running = std::make_shared<Sink>();
  auto waiting = std::make_shared<Sink>();
  std::promise<void> both;
  auto engine = Start({.max_running = 1});
  running->on_delta = [&](std::size_t tokens) {
    if (tokens != 1) return;
    ASSERT_TRUE(engine->Submit(Ask(3, 3), waiting).ok());
    both.set_value();
  };
  // Nearly fills the model's context of 256 tokens, so that it probably still runs when the destructor ends it between
  // two steps.
  ASSERT_TRUE(engine->Submit(Ask(3, 250), running).ok());
  both.get_future().wait();
  engine.reset();
  for (const auto& sink : {running, waiting}) {
    const absl::Status status = sink->Wait().status;
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
  }
}

// The prompt is read once; every output draws its own tokens, and output 0 equals the output of a request with n = 1.
TEST_F(EngineTest, OutputsShareThePromptAndDifferByTheirRandomNumbers) {
  EngineOptions options;
  auto engine = Start(options);
  Request request = Ask(40, 10);
  request.sampling.temperature = 3.0f;
  request.sampling.seed = 5;
  const auto alone = Answer(*engine, request)->ids;
  const std::uint64_t read = options.totals->prompt_tokens;
  request.n = 4;
  const auto sink = Answer(*engine, request);
  ASSERT_TRUE(sink->finish.status.ok()) << sink->finish.status;
  EXPECT_EQ(options.totals->prompt_tokens - read, 40u);
  EXPECT_EQ(sink->ids, alone);
  ASSERT_EQ(sink->others.size(), 3u);
  for (const auto& other : sink->others) {
    EXPECT_EQ(other.size(), 10u);
    EXPECT_NE(other, alone);
  }
  EXPECT_NE(sink->others[0], sink->others[1]);
  EXPECT_EQ(sink->ends.size(), 4u);
  EXPECT_EQ(sink->finish.usage.completion_tokens, 40);
  EXPECT_EQ(sink->finish.usage.prompt_tokens, 40);
  // Greedy outputs are equal, from copies of the same K and V.
  request.sampling = {};
  const auto greedy = Answer(*engine, request);
  for (const auto& other : greedy->others) EXPECT_EQ(other, greedy->ids);
  EXPECT_EQ(greedy->ids, Answer(*engine, Ask(40, 10))->ids);
}

TEST_F(EngineTest, RejectsMoreOutputsThanMayRunOrFitTheCache) {
  auto engine = Start({.max_running = 4, .max_context = 64, .kv_tokens = 128});
  Request request = Ask(4, 60);
  request.n = 5;
  auto sink = std::make_shared<Sink>();
  EXPECT_TRUE(absl::IsInvalidArgument(engine->Submit(request, sink)));
  request.n = 3;
  const absl::Status full = engine->Submit(request, sink);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(base::Reason(full), "KV_FULL");
  request.n = 2;
  EXPECT_TRUE(Answer(*engine, request)->finish.status.ok());
}

TEST_F(EngineTest, EndOfOneOutputLeavesTheOthersRunning) {
  auto engine = Start();
  Request request = Ask(6, 20);
  request.n = 3;
  request.sampling.temperature = 3.0f;
  request.sampling.seed = 11;
  const auto free = Answer(*engine, request);
  // A token that output 0 draws early and the other outputs do not.
  std::int32_t stop = -1;
  for (std::size_t i = 0; i < 8 && stop < 0; ++i) {
    const auto has = [&](const auto& ids) { return std::find(ids.begin(), ids.end(), free->ids[i]) != ids.end(); };
    if (!has(free->others[0]) && !has(free->others[1])) stop = free->ids[i];
  }
  ASSERT_GE(stop, 0);
  request.stopping.token_ids = {stop};
  const auto stopped = Answer(*engine, request);
  EXPECT_LT(stopped->ids.size(), 20u);
  EXPECT_EQ(stopped->ids.back(), stop);
  EXPECT_EQ(stopped->others, free->others);
  EXPECT_EQ(stopped->ends.front().index, 0);
  EXPECT_EQ(stopped->ends.front().reason, FinishReason::kStop);
  EXPECT_EQ(stopped->ends.back().reason, FinishReason::kLength);
}

TEST_F(EngineTest, BiasAndPenaltiesChangeWhatIsDrawnButNotTheLogprobs) {
  auto engine = Start();
  Request request = Ask(6, 6);
  request.logprobs = true;
  request.penalties.bias = {{42, 100.0f}};
  const auto biased = Answer(*engine, request);
  EXPECT_EQ(biased->ids, std::vector<std::int32_t>(6, 42));
  // The same tokens have the same logprobs as prompt tokens, which get no bias.
  Request score = Ask(6, 0);
  score.prompt.insert(score.prompt.end(), biased->ids.begin(), biased->ids.end());
  score.prompt_logprobs = true;
  const auto scored = Answer(*engine, score);
  ASSERT_EQ(scored->scored.size(), 11u);
  ASSERT_EQ(biased->logprobs.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(biased->logprobs[i], scored->scored[5 + i].logprob) << i;
  // After one or two draws of a token, its penalties outweigh its bias.
  request.penalties.presence = 2;
  request.penalties.frequency = 2;
  request.penalties.bias = {{42, 3.5f}, {43, 3.4f}};
  const auto ids = Answer(*engine, request)->ids;
  for (const std::int32_t token : {42, 43}) EXPECT_LE(std::count(ids.begin(), ids.end(), token), 2);
}

TEST_F(EngineTest, HigherPrioritiesBeginFirst) {
  auto engine = Start({.max_running = 1});
  std::vector<int> order;
  auto first = std::make_shared<Sink>();
  std::vector<std::shared_ptr<Sink>> sinks;
  const int priorities[] = {0, -5, 7, 0};
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(std::make_shared<Sink>());
    sinks.back()->on_start = [&order, i] { order.push_back(i); };
  }
  first->on_delta = [&](std::size_t tokens) {
    if (tokens != 1) return;
    for (std::size_t i = 0; i < 4; ++i) {
      Request request = Ask(3, 2);
      request.priority = priorities[i];
      ASSERT_TRUE(engine->Submit(request, sinks[i]).ok());
    }
  };
  ASSERT_TRUE(engine->Submit(Ask(3, 3), first).ok());
  for (auto& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok());
  EXPECT_THAT(order, ElementsAre(2, 0, 3, 1));
}

TEST_F(EngineTest, QueueTimeoutEndsOnlyTheWait) {
  auto engine = Start({.max_running = 1});
  auto running = std::make_shared<Sink>();
  auto waiting = std::make_shared<Sink>();
  running->on_delta = [&](std::size_t tokens) {
    if (tokens == 1) {
      Request request = Ask(3, 2);
      request.queue_deadline = clock_.Monotonic() + absl::Seconds(1);
      ASSERT_TRUE(engine->Submit(request, waiting).ok());
    }
    if (tokens == 2) clock_.Advance(absl::Seconds(2));
  };
  Request request = Ask(3, 5);
  request.queue_deadline = clock_.Monotonic() + absl::Seconds(1);
  ASSERT_TRUE(engine->Submit(request, running).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(waiting->Wait().status));
  EXPECT_EQ(base::Reason(waiting->finish.status), "QUEUE_FULL");
  EXPECT_EQ(base::ReasonMetadata(waiting->finish.status)["retry_ms"], "100") << "the shortest: no request has ended";
  EXPECT_TRUE(running->Wait().status.ok());
}

TEST_F(EngineTest, RejectsTooLongWaitImmediatelyWithAnEstimate) {
  auto engine = Start({.max_running = 1});
  ServeForTenSeconds(*engine);
  auto running = std::make_shared<Sink>();
  auto waiting = std::make_shared<Sink>();
  absl::Status refused;
  running->on_delta = [&](std::size_t tokens) {
    if (tokens != 1) return;
    ASSERT_TRUE(engine->Submit(Ask(3, 2), waiting).ok());
    Request request = Ask(3, 2);
    request.deadline = clock_.Monotonic() + absl::Seconds(15);
    refused = engine->Submit(request, std::make_shared<Sink>());
  };
  ASSERT_TRUE(engine->Submit(Ask(3, 2), running).ok());
  waiting->Wait();
  EXPECT_EQ(base::Reason(refused), "QUEUE_FULL") << refused;
  EXPECT_EQ(base::ReasonMetadata(refused)["retry_ms"], "20000");
}

// No request waits yet; only the slots are full.
TEST_F(EngineTest, RejectsFirstWaitBeyondDeadlineOrQueueTimeoutImmediately) {
  auto engine = Start({.max_running = 1});
  ServeForTenSeconds(*engine);
  auto running = std::make_shared<Sink>();
  auto patient = std::make_shared<Sink>();
  std::vector<absl::Status> refused;
  running->on_delta = [&](std::size_t tokens) {
    if (tokens != 1) return;
    for (const auto limit : {&Request::deadline, &Request::queue_deadline}) {
      Request request = Ask(3, 2);
      request.*limit = clock_.Monotonic() + absl::Seconds(9);
      refused.push_back(engine->Submit(request, std::make_shared<Sink>()));
    }
    Request request = Ask(3, 2);
    request.deadline = request.queue_deadline = clock_.Monotonic() + absl::Seconds(11);
    ASSERT_TRUE(engine->Submit(request, patient).ok());
  };
  ASSERT_TRUE(engine->Submit(Ask(3, 2), running).ok());
  EXPECT_TRUE(running->Wait().status.ok());
  EXPECT_TRUE(patient->Wait().status.ok()) << patient->finish.status;
  ASSERT_EQ(refused.size(), 2u);
  for (const absl::Status& status : refused) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(base::Reason(status), "QUEUE_FULL") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("longer than the request may wait"));
    EXPECT_EQ(base::ReasonMetadata(status)["retry_ms"], "10000");
  }
}

TEST_F(EngineTest, WaitingPromptsAreBoundedByTheirTokens) {
  auto engine = Start({.max_waiting_tokens = 100, .max_running = 1});
  auto first = std::make_shared<Sink>();
  auto second = std::make_shared<Sink>();
  absl::Status refused;
  first->on_delta = [&](std::size_t tokens) {
    if (tokens != 1) return;
    ASSERT_TRUE(engine->Submit(Ask(80, 2), second).ok());
    refused = engine->Submit(Ask(30, 2), std::make_shared<Sink>());
  };
  ASSERT_TRUE(engine->Submit(Ask(3, 3), first).ok());
  EXPECT_TRUE(second->Wait().status.ok());
  EXPECT_EQ(base::Reason(refused), "QUEUE_FULL") << refused;
}

// A slow reader stops only its own request.
TEST_F(EngineTest, RequestWithASlowReaderTakesNoStep) {
  auto engine = Start();
  auto stalled = std::make_shared<Sink>();
  auto other = std::make_shared<Sink>();
  std::atomic<bool> caught_up{false};
  stalled->ready = [&] { return caught_up.load() || stalled->ids.size() < 3; };
  ASSERT_TRUE(engine->Submit(Ask(3, 10), stalled).ok());
  ASSERT_TRUE(engine->Submit(Ask(5, 50), other).ok());
  EXPECT_TRUE(other->Wait().status.ok());
  const auto paused_at = stalled->ids.size();
  EXPECT_LE(paused_at, 3u);
  caught_up = true;
  EXPECT_TRUE(stalled->Wait().status.ok());
  EXPECT_EQ(stalled->ids, Answer(*engine, Ask(3, 10))->ids);
}

// A slow reader also pauses the scoring of its prompt. Otherwise unread logprobs would accumulate.
TEST_F(EngineTest, PromptIsScoredNoFasterThanItsReader) {
  auto engine = Start();
  auto stalled = std::make_shared<Sink>();
  std::atomic<bool> caught_up{false};
  stalled->ready = [&] { return caught_up.load() || stalled->scored.empty(); };
  Request request = Ask(40, 0);
  request.prompt_logprobs = true;
  request.score_chunk = 10;
  ASSERT_TRUE(engine->Submit(request, stalled).ok());
  EXPECT_TRUE(Answer(*engine, Ask(5, 50))->finish.status.ok());
  EXPECT_EQ(stalled->scored.size(), 10u) << "one step, until the reader catches up";
  caught_up = true;
  EXPECT_TRUE(stalled->Wait().status.ok());
  EXPECT_EQ(stalled->scored.size(), 39u);
}

TEST_F(EngineTest, TotalsCountRequestsAndTokens) {
  EngineOptions options;
  {
    auto engine = Start(options);
    Answer(*engine, Ask(10, 4));
    Answer(*engine, Ask(5, 3));
  }
  auto another = Start(options);
  Answer(*another, Ask(2, 1));
  EXPECT_EQ(options.totals->requests, 3u);
  EXPECT_EQ(options.totals->prompt_tokens, 17u);
  EXPECT_EQ(options.totals->generated_tokens, 8u);
}

}  // namespace
}  // namespace nibble::serve
