// One request's failure, or an excessive value in it, must not affect the others.
#include <gmock/gmock.h>

#include "server/base/error.h"
#include "tests/server/serve/engine_fixture.h"

namespace nibble::serve {
namespace {

using testing::HasSubstr;

// Adds penalties that make a row of logits from which no token can be drawn.
Request WithoutADistribution(Request request) {
  request.penalties.bias = {{request.prompt.front(), 100.0f}};
  request.penalties.repetition = 1e-40f;  // the biased logit becomes +inf
  return request;
}

TEST_F(EngineTest, RequestWithoutADistributionEndsAlone) {
  const auto alone = Answer(*Start(), Ask(5, 30))->ids;
  auto engine = Start();
  auto good = std::make_shared<Sink>();
  auto bad = std::make_shared<Sink>();
  auto after = std::make_shared<Sink>();
  good->on_delta = [&](std::size_t tokens) {
    if (tokens != 3) return;
    EXPECT_TRUE(engine->Submit(WithoutADistribution(Ask(4, 30)), bad).ok());
    EXPECT_TRUE(engine->Submit(Ask(5, 30), after).ok());
  };
  ASSERT_TRUE(engine->Submit(Ask(5, 30), good).ok());
  const absl::Status fault = bad->Wait().status;
  EXPECT_TRUE(absl::IsInternal(fault)) << fault;
  EXPECT_EQ(base::Reason(fault), "KERNEL_FAULT");
  EXPECT_THAT(std::string(fault.message()), HasSubstr("inf"));
  EXPECT_TRUE(bad->ids.empty());
  for (const auto& sink : {good, after}) {
    EXPECT_TRUE(sink->Wait().status.ok()) << sink->finish.status;
    EXPECT_EQ(sink->ids, alone);
  }
}

// With several outputs: when the first output cannot draw, the others are not drawn.
TEST_F(EngineTest, FailedRequestEndsAllItsOutputsAndFreesTheirPages) {
  auto engine = Start({.max_context = 64, .kv_tokens = 128});
  Request request = WithoutADistribution(Ask(4, 60));
  request.n = 2;
  EXPECT_TRUE(absl::IsInternal(Answer(*engine, request)->finish.status));
  request.penalties = {};
  EXPECT_TRUE(Answer(*engine, request)->finish.status.ok()) << "this request needs every page";
}

TEST_F(EngineTest, TopLogprobsAreLimitedToTheVocabulary) {
  auto engine = Start();
  Request request = Ask(5, 3);
  request.logprobs = request.prompt_logprobs = true;
  request.top_logprobs = 1000;
  const auto sink = Answer(*engine, request);
  ASSERT_TRUE(sink->finish.status.ok()) << sink->finish.status;
  ASSERT_EQ(sink->scored.size(), 4u);
  for (const TokenLogprob& token : sink->scored) EXPECT_EQ(token.top.size(), 112u);
}

}  // namespace
}  // namespace nibble::serve
