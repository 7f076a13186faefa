// C4 (docs/faults.md): several principals in one engine, and the effect of preemption.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iostream>

#include "server/base/error.h"
#include "server/serve/onednn_library.h"
#include "tests/server/serve/engine_fixture.h"

namespace nibble::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

static_assert(kernels::kKvPageTokens == 32);
// Four pages of 32 tokens: two requests that grow to 96 tokens each begin together, but only one has room to finish.
EngineOptions FourPages() { return {.max_context = 128, .kv_tokens = 128}; }

Request Of(std::string principal, Request request, int priority = 0) {
  request.principal = std::move(principal);
  request.priority = priority;
  return request;
}

class FairnessTest : public EngineTest {
 protected:
  static Request Drawn(int prompt_tokens, int max_tokens, std::uint64_t seed) {
    Request request = Ask(prompt_tokens, max_tokens);
    request.sampling.temperature = 2;
    request.sampling.seed = seed;
    request.logprobs = true;
    return request;
  }
  // Submits the requests together and returns their answers.
  std::vector<std::shared_ptr<Sink>> Together(Engine& engine, const std::vector<Request>& requests) {
    std::vector<std::shared_ptr<Sink>> sinks;
    for (const Request& request : requests) {
      sinks.push_back(std::make_shared<Sink>());
      const absl::Status status = engine.Submit(request, sinks.back());
      EXPECT_TRUE(status.ok()) << status;
    }
    for (auto& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok()) << sink->finish.status;
    return sinks;
  }
  // Submits `requests` while another request runs, and returns the order in which they begin.
  std::vector<int> OrderOf(Engine& engine, const std::vector<Request>& requests) {
    std::vector<int> order;
    std::vector<std::shared_ptr<Sink>> sinks;
    auto first = std::make_shared<Sink>();
    first->on_delta = [&](std::size_t tokens) {
      if (tokens != 1) return;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        sinks.push_back(std::make_shared<Sink>());
        sinks.back()->on_start = [&order, i] { order.push_back(static_cast<int>(i)); };
        const absl::Status status = engine.Submit(requests[i], sinks.back());
        EXPECT_TRUE(status.ok()) << i << ": " << status;
      }
    };
    EXPECT_TRUE(engine.Submit(Ask(3, 3), first).ok());
    first->Wait();
    for (auto& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok());
    return order;
  }
};

TEST_F(FairnessTest, PreemptedRequestsAnswerBitForBitInInt8AndTernary) {
  for (const std::string& path : {models_.int8(), models_.ternary()}) {
    std::vector<Request> requests;
    for (std::uint64_t i = 0; i < 4; ++i) requests.push_back(Drawn(16 + static_cast<int>(i), 80, i));
    std::vector<std::shared_ptr<Sink>> alone;
    for (const Request& request : requests) alone.push_back(Answer(*Start({}, path), request));
    for (const std::int64_t chunk : {7, 256}) {
      EngineOptions options = FourPages();
      options.prefill_chunk = chunk;
      auto engine = Start(options, path);
      const auto sinks = Together(*engine, requests);
      EXPECT_GT(options.totals->preemptions, 0u) << "nothing was tested";
      for (std::size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(sinks[i]->ids, alone[i]->ids) << path << " " << i;
        EXPECT_EQ(sinks[i]->logprobs, alone[i]->logprobs) << path << " " << i;
        EXPECT_EQ(sinks[i]->text, alone[i]->text);
        EXPECT_EQ(sinks[i]->finish.usage.completion_tokens, 80);
      }
    }
  }
}

TEST_F(FairnessTest, AllOutputsOfAPreemptedRequestAnswerBitForBit) {
  Request several = Drawn(12, 48, 5);
  several.n = 2;
  const auto alone = Answer(*Start(), several);
  EngineOptions options = FourPages();
  auto engine = Start(options);
  const auto sinks = Together(*engine, {Drawn(16, 80, 1), several});
  EXPECT_GT(options.totals->preemptions, 0u);
  EXPECT_EQ(sinks[1]->ids, alone->ids);
  EXPECT_EQ(sinks[1]->logprobs, alone->logprobs);
  EXPECT_EQ(sinks[1]->others, alone->others);
}

TEST_F(FairnessTest, PreemptedScoreReportsEachTokenOnce) {
  Request score = Ask(90, 0);
  score.prompt_logprobs = score.logits_digests = true;
  score.score_chunk = 1;
  const auto alone = Answer(*Start(), score);
  EngineOptions options = {.max_context = 128, .kv_tokens = 160};
  auto engine = Start(options);
  const auto sinks = Together(*engine, {Ask(16, 100), score});
  EXPECT_GT(options.totals->preemptions, 0u);
  ASSERT_EQ(sinks[1]->scored.size(), 89u);
  ASSERT_EQ(alone->scored.size(), 89u);
  for (std::size_t i = 0; i < 89; ++i) {
    EXPECT_EQ(sinks[1]->scored[i].token, alone->scored[i].token) << i;
    EXPECT_EQ(sinks[1]->scored[i].logits_digest, alone->scored[i].logits_digest) << i;
  }
}

// Other formats do not promise bits; the test prints the difference.
TEST_F(FairnessTest, ReportsDifferenceAfterPreemptionInOtherFormats) {
  const auto library = MakeOneDnnLibrary();
  kernels::Stream stream = models_.stream();
  stream.library = library.get();
  const std::string path = models_.Path("f32");
  ASSERT_TRUE(
      model::ImportModel(base::RealFileSystem(), model::Golden("hf_tied_bf16"), path, kernels::DType::kF32).ok());
  const auto start = [&](const EngineOptions& options) {
    auto engine = Engine::Start(models_.Load(path), models_.tokenizer(), options, stream, clock_);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  };
  const std::vector<Request> requests = {Drawn(16, 80, 1), Drawn(18, 80, 2)};
  EngineOptions options = FourPages();
  auto engine = start(options);
  const auto sinks = Together(*engine, requests);
  EXPECT_GT(options.totals->preemptions, 0u);
  const auto alone = Answer(*start({}), requests[1]);
  ASSERT_EQ(sinks[1]->ids.size(), 80u);
  ASSERT_EQ(alone->ids.size(), 80u);
  double largest = 0;
  std::size_t same = 0;
  while (same < 80 && sinks[1]->ids[same] == alone->ids[same]) {
    largest = std::max(largest, std::abs(static_cast<double>(sinks[1]->logprobs[same] - alone->logprobs[same])));
    ++same;
  }
  std::cout << "f32: " << same << " of 80 tokens are the same, largest logprob difference " << largest << "\n";
}

TEST_F(FairnessTest, CancelEndsPreemptedRequest) {
  EngineOptions options = FourPages();
  auto engine = Start(options);
  auto old = std::make_shared<Sink>();
  auto young = std::make_shared<Sink>();
  Request request = Ask(18, 80);
  base::CancelToken cancel = request.cancel;
  old->on_delta = [&](std::size_t) {
    if (options.totals->preemptions == 1) cancel.Cancel();
  };
  ASSERT_TRUE(engine->Submit(Ask(16, 80), old).ok());
  ASSERT_TRUE(engine->Submit(request, young).ok());
  EXPECT_TRUE(absl::IsCancelled(young->Wait().status)) << young->finish.status;
  EXPECT_TRUE(old->Wait().status.ok());
  EXPECT_EQ(options.totals->preemptions, 1u);
  EXPECT_TRUE(Answer(*engine, Ask(8, 120))->finish.status.ok()) << "all pages are free again";
}

TEST_F(FairnessTest, PrincipalsTakeTurns) {
  auto engine = Start({.max_running = 1});
  const std::vector<Request> requests = {Of("flood", Ask(3, 2)), Of("flood", Ask(3, 2)), Of("flood", Ask(3, 2)),
                                         Of("quiet", Ask(3, 2)), Of("other", Ask(3, 2))};
  EXPECT_THAT(OrderOf(*engine, requests), ElementsAre(0, 3, 4, 1, 2));
}

TEST_F(FairnessTest, ShortPromptDoesNotWaitForLongPrompts) {
  auto engine = Start({.prefill_chunk = 8});
  auto quiet = std::make_shared<Sink>();
  std::vector<std::shared_ptr<Sink>> flood;
  std::atomic<int> ended{0};
  int ended_before = -1;
  quiet->on_finish = [&] { ended_before = ended; };
  auto first = std::make_shared<Sink>();
  first->on_delta = [&](std::size_t tokens) {
    if (tokens != 1) return;
    for (int i = 0; i < 6; ++i) {
      flood.push_back(std::make_shared<Sink>());
      flood.back()->on_finish = [&] { ++ended; };
      ASSERT_TRUE(engine->Submit(Of("flood", Ask(200, 1)), flood.back()).ok());
    }
    ASSERT_TRUE(engine->Submit(Of("quiet", Ask(3, 2)), quiet).ok());
  };
  ASSERT_TRUE(engine->Submit(Ask(3, 2), first).ok());
  first->Wait();
  EXPECT_TRUE(quiet->Wait().status.ok());
  for (auto& sink : flood) EXPECT_TRUE(sink->Wait().status.ok());
  EXPECT_EQ(ended_before, 0) << "the short prompt waited for a long one";
}

TEST_F(FairnessTest, LowerPriorityBeginsEventually) {
  auto owner = Start({.max_running = 1});
  Engine& engine = *owner;
  auto patient = std::make_shared<Sink>();
  std::vector<std::shared_ptr<Sink>> flood;
  std::size_t began_after = 0;
  patient->on_start = [&] { began_after = flood.size(); };
  // Each request of the flood takes a second. Before it ends, the next one is already waiting.
  std::function<void()> next = [&] {
    if (flood.size() >= 40) return;
    flood.push_back(std::make_shared<Sink>());
    flood.back()->on_delta = [&, is_first = flood.size() == 1](std::size_t tokens) {
      if (tokens != 1) return;
      // This runs on the engine's thread, like all code below; the test's thread touches nothing after the first
      // Submit.
      if (is_first) {
        EXPECT_TRUE(engine.Submit(Of("quiet", Ask(3, 2), 0), patient).ok());
      }
      clock_.Advance(absl::Seconds(1));
      next();
    };
    const absl::Status status = engine.Submit(Of("flood", Ask(3, 2), 100), flood.back());
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;  // the test is over
  };
  next();
  EXPECT_TRUE(patient->Wait().status.ok());
  EXPECT_GE(began_after, 8u);
  EXPECT_LE(began_after, 14u) << "ageing by 100 levels takes ten seconds";
  owner.reset();
}

// A principal's limits: three quarters of the running requests, a quarter of the waiting ones, three quarters of the
// tokens.
TEST_F(FairnessTest, OnePrincipalCannotTakeAllSlotsOrTheWholeQueue) {
  auto engine = Start({.max_waiting = 8, .max_running = 4});
  std::vector<std::shared_ptr<Sink>> flood;
  auto quiet = std::make_shared<Sink>();
  auto first = std::make_shared<Sink>();
  absl::Status refused;
  std::size_t flood_began = 0, flood_began_before_quiet = 0;
  quiet->on_start = [&] { flood_began_before_quiet = flood_began; };
  first->on_delta = [&](std::size_t tokens) {
    if (tokens != 1) return;
    while (true) {
      auto sink = std::make_shared<Sink>();
      sink->on_start = [&] { ++flood_began; };
      refused = engine->Submit(Of("flood", Ask(3, 30)), sink);
      if (!refused.ok()) break;
      flood.push_back(sink);
      ASSERT_LT(flood.size(), 20u);
    }
    ASSERT_TRUE(engine->Submit(Of("quiet", Ask(3, 2)), quiet).ok());
  };
  ASSERT_TRUE(engine->Submit(Of("flood", Ask(3, 60)), first).ok());
  EXPECT_TRUE(quiet->Wait().status.ok());
  EXPECT_LE(flood_began_before_quiet, 2u) << "three slots of four, of which the first request has one";
  EXPECT_EQ(base::Reason(refused), "QUEUE_FULL");
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(base::ReasonMetadata(refused)["flag"], "--max_waiting_requests_per_principal");
  EXPECT_EQ(base::ReasonMetadata(refused)["max"], "2");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2 requests of flood are already waiting"));
  for (auto& sink : flood) EXPECT_TRUE(sink->Wait().status.ok());
  EXPECT_TRUE(first->Wait().status.ok());
}

TEST_F(FairnessTest, EnforcesPrincipalsLimitsOnOutputsAndPages) {
  auto engine = Start(
      {.max_running = 4, .max_context = 128, .kv_tokens = 512, .of_principal = {.max_running = 2, .kv_tokens = 192}});
  Request several = Ask(3, 2);
  several.n = 3;
  const absl::Status refused = engine->Submit(Of("a", several), std::make_shared<Sink>());
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("is 3, wanted 1 to 2, the limit --max_running_requests_per_principal"));
  EXPECT_TRUE(Answer(*engine, several)->finish.status.ok())
      << "a request without a principal has no limits of a principal";
  several.n = 2;
  several.stopping.max_tokens = 100;
  const absl::Status full = engine->Submit(Of("a", several), std::make_shared<Sink>());
  EXPECT_EQ(base::Reason(full), "KV_FULL") << full;
  EXPECT_EQ(base::ReasonMetadata(full)["have"], "6");
  // The limit is six pages, a request needs four: the second waits for the first, another principal's does not.
  const std::vector<Request> requests = {Of("a", Ask(8, 112)), Of("a", Ask(8, 112)), Of("b", Ask(8, 112))};
  EXPECT_THAT(OrderOf(*engine, requests), ElementsAre(0, 2, 1));
}

}  // namespace
}  // namespace nibble::serve
