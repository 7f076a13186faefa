// Compares log_softmax_gather and sample with torch and transformers (tests/golden/kernels/sampling.txt).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/ops/loss/log_softmax_gather.h"
#include "kernels/ops/sample/sample.h"
#include "kernels/philox.h"
#include "tests/support/golden.h"
#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/uniform_table.h"

namespace nibble::kernels {
namespace {

using support::AllWithin;
using support::Gamma;
using support::kEpsF32;

const support::Golden& Values() {
  static const support::Golden golden("tests/golden/kernels/sampling.txt");
  return golden;
}

TEST(LogSoftmaxGoldenTest, MatchesTorchLogSoftmax) {
  std::vector<float> logits;
  for (const BF16 x : Values().Get<BF16>("log_softmax.logits")) logits.push_back(ToFloat(x));
  const auto target = Values().Get<std::int32_t>("log_softmax.target");
  const std::int64_t rows = static_cast<std::int64_t>(target.size());
  const std::int64_t vocabulary = static_cast<std::int64_t>(logits.size()) / rows;
  const auto want_top = Values().Get<double>("log_softmax.top_logprob");
  const std::int64_t top_n = static_cast<std::int64_t>(want_top.size()) / rows;
  std::vector<float> logprob(target.size()), logsumexp(target.size()), top_logprob(want_top.size());
  std::vector<std::int32_t> top_id(want_top.size());
  ASSERT_TRUE(LogSoftmaxGather({.logits = MakeConstMatrix(logits.data(), DType::kF32, rows, vocabulary),
                                .target = target.data(),
                                .logprob = logprob.data(),
                                .logsumexp = logsumexp.data(),
                                .top_n = top_n,
                                .top_id = top_id.data(),
                                .top_logprob = top_logprob.data()},
                               support::CpuStream(Isa::kPlain))
                  .ok());
  float largest = 0;
  for (const float x : logits) largest = std::max(largest, std::fabs(x));
  // The roundings of the sum are relative to the sum; those of the maximum and the differences to the maximum are
  // absolute.
  const double bound = Gamma(vocabulary / 16 + 12) + 6 * kEpsF32 * (2 * static_cast<double>(largest) + 10);
  const auto within = [&](std::size_t) { return bound; };
  EXPECT_TRUE(AllWithin(logprob, Values().Get<double>("log_softmax.logprob"), within));
  EXPECT_TRUE(AllWithin(logsumexp, Values().Get<double>("log_softmax.logsumexp"), within));
  EXPECT_TRUE(AllWithin(top_logprob, want_top, within));
}

// The candidates' shares of [0, 1) follow from the golden's probabilities and the order of the logits. Draws at u in
// the middle of each share, and near 1, must give its candidate; within the rounding of a border, the neighbour may be
// drawn.
TEST(SampleGoldenTest, DrawsFollowTheCandidatesAndProbabilitiesOfTransformers) {
  const support::UniformTable uniform(/*seed=*/4);
  const auto logits = Values().Get<float>("sample.logits");
  const auto params = Values().Get<float>("sample.params");
  ASSERT_GT(params.size(), 4u * 80u);
  for (std::size_t i = 0; i < params.size() / 4; ++i) {
    SampleParams p{.temperature = params[4 * i],
                   .top_k = static_cast<std::int32_t>(params[4 * i + 1]),
                   .top_p = params[4 * i + 2],
                   .min_p = params[4 * i + 3],
                   .seed = uniform.seed()};
    SCOPED_TRACE(::testing::Message() << "T " << p.temperature << " top_k " << p.top_k << " top_p " << p.top_p
                                      << " min_p " << p.min_p);
    const std::string name = "sample.case" + std::to_string(i);
    const auto ids = Values().Get<std::int16_t>(name + ".ids");
    const auto probabilities = Values().Get<float>(name + ".probabilities");
    std::vector<std::size_t> order(ids.size());
    std::iota(order.begin(), order.end(), 0);
    const auto logit = [&](std::size_t j) { return logits[static_cast<std::size_t>(ids[j])]; };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logit(a) > logit(b); });
    // sums[j] is where the share of candidate order[j] begins.
    std::vector<double> sums = {0.0};
    double bound = 0;
    for (const std::size_t j : order) {
      const double share = static_cast<double>(probabilities[j]);
      sums.push_back(sums.back() + share);
      // The exponent is rounded twice (difference, temperature), exp once, the golden once; the sum adds such weights.
      const double exponent = std::fabs(static_cast<double>(logit(j) - logit(order[0])) / p.temperature);
      bound += share * kEpsF32 * (4 * exponent + 60);
    }
    for (std::size_t j = 0; j <= order.size(); ++j) {
      p.counter = uniform.CounterAt(j == order.size() ? 1.0 : (sums[j] + sums[j + 1]) / 2 / sums.back());
      std::int32_t token = -1;
      ASSERT_TRUE(
          Sample({.logits = MakeConstMatrix(logits.data(), DType::kF32, 1, static_cast<std::int64_t>(logits.size())),
                  .params = &p,
                  .token = &token},
                 support::CpuStream(Isa::kPlain))
              .ok());
      const auto drawn = std::find_if(order.begin(), order.end(), [&](std::size_t at) { return ids[at] == token; });
      ASSERT_NE(drawn, order.end()) << token << " is not a candidate";
      const double target = PhiloxUniform(p.seed, p.counter) * sums.back();
      const auto at = static_cast<std::size_t>(drawn - order.begin());
      EXPECT_GE(target, sums[at] - bound) << token;
      EXPECT_LE(target, sums[at + 1] + bound) << token;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
