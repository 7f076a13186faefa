// The engine with grammars that constrain its outputs.
#include <gmock/gmock.h>

#include <set>

#include "kernels/thread_pool.h"
#include "server/base/error.h"
#include "tests/server/serve/engine_fixture.h"

namespace nibble::serve {
namespace {

TEST_F(EngineTest, GrammarMasksTokensAfterPenaltiesButNotTheirLogprobs) {
  auto engine = Start();
  Request request = Ask(6, 12);
  request.stopping.ignore_eos = false;
  request.n = 2;
  request.logprobs = true;
  request.penalties.bias = {{70, 100.0f}};  // "d", which the grammar does not allow
  const auto grammar = engine->grammars().Compile({text::GrammarKind::kRegex, "[ab]{4}"}, "regex");
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  request.grammar = *grammar;
  const auto sink = Answer(*engine, request);
  ASSERT_TRUE(sink->finish.status.ok()) << sink->finish.status;
  EXPECT_THAT(sink->text, testing::MatchesRegex("[ab]{4}"));
  EXPECT_EQ(sink->finish.reason, FinishReason::kEos);
  ASSERT_EQ(sink->others.size(), 1u);
  EXPECT_EQ(sink->others[0], sink->ids) << "greedy outputs are equal, and each has its own place in the grammar";
  Request score = Ask(6, 0);
  score.prompt.insert(score.prompt.end(), sink->ids.begin(), sink->ids.end());
  score.prompt_logprobs = true;
  const auto scored = Answer(*engine, score);
  for (std::size_t i = 0; i < sink->ids.size(); ++i) EXPECT_EQ(sink->logprobs[i], scored->scored[5 + i].logprob) << i;
}

TEST_F(EngineTest, GrammarExcludesMinTokensAndIgnoredEndTokens) {
  auto engine = Start();
  const auto grammar = engine->grammars().Compile({text::GrammarKind::kRegex, "a"}, "regex");
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  Request request = Ask(6, 4);  // ignores end tokens
  request.grammar = *grammar;
  EXPECT_EQ(base::ReasonMetadata(engine->Submit(request, std::make_shared<Sink>()))["field"], "stopping.ignore_eos");
  request.stopping.ignore_eos = false;
  request.stopping.min_tokens = 1;
  EXPECT_EQ(base::ReasonMetadata(engine->Submit(request, std::make_shared<Sink>()))["field"], "stopping.min_tokens");
}

TEST_F(EngineTest, OutputsDrawnByFourThreadsAreThoseOfOne) {
  Request request = Ask(6, 40);
  request.stopping.ignore_eos = false;
  request.n = 8;
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 5;
  request.logprobs = true;
  request.top_logprobs = 2;
  request.penalties.presence = 0.5f;
  const auto answer = [&](int threads) {
    kernels::ThreadPool pool(threads);
    kernels::Stream stream = models_.stream();
    stream.pool = &pool;
    auto engine = Engine::Start(models_.Load(models_.int8()), models_.tokenizer(), {}, stream, clock_);
    EXPECT_TRUE(engine.ok()) << engine.status();
    const auto grammar = (*engine)->grammars().Compile({text::GrammarKind::kRegex, "([ab]{3}[c-z]{2}){1,8}"}, "regex");
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    request.grammar = *grammar;
    return Answer(**engine, request);
  };
  const auto one = answer(1), four = answer(4);
  ASSERT_TRUE(one->finish.status.ok()) << one->finish.status;
  EXPECT_GT(std::set(one->others.begin(), one->others.end()).size(), 1u) << "outputs differ";
  EXPECT_EQ(four->ids, one->ids);
  EXPECT_EQ(four->others, one->others);
  EXPECT_EQ(four->logprobs, one->logprobs);
}

}  // namespace
}  // namespace nibble::serve
