#include "kernels/ops/loss/log_softmax_gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::Isas;

struct Output {
  std::vector<float> logprob, logsumexp, top_logprob;
  std::vector<std::int32_t> top_id;
};

Output Gather(const std::vector<float>& logits, std::int64_t vocabulary, const std::vector<std::int32_t>& target,
              std::int64_t top_n, const Stream& stream) {
  const std::int64_t rows = static_cast<std::int64_t>(target.size());
  Output out{std::vector<float>(target.size()), std::vector<float>(target.size()),
             std::vector<float>(static_cast<std::size_t>(rows * top_n)),
             std::vector<std::int32_t>(static_cast<std::size_t>(rows * top_n))};
  const absl::Status status = LogSoftmaxGather({.logits = MakeConstMatrix(logits.data(), DType::kF32, rows, vocabulary),
                                                .target = target.data(),
                                                .logprob = out.logprob.data(),
                                                .logsumexp = out.logsumexp.data(),
                                                .top_n = top_n,
                                                .top_id = out.top_id.data(),
                                                .top_logprob = out.top_logprob.data()},
                                               stream);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

TEST(LogSoftmaxGatherTest, AgreesWithF64AndIsEqualOnEveryPath) {
  for (const std::int64_t vocabulary : {1, 15, 16, 17, 1000, 1025, 5000}) {
    for (const float spread : {0.01f, 3.0f, 200.0f}) {
      std::vector<float> logits = support::NormalVector(1, 3 * vocabulary, spread);
      if (vocabulary > 20) logits[3] = -HUGE_VALF;  // a forbidden id
      const std::vector<std::int32_t> target = {0, static_cast<std::int32_t>(vocabulary - 1), -1};
      const std::int64_t top_n = std::min<std::int64_t>(vocabulary, 20);
      const Output plain = Gather(logits, vocabulary, target, top_n, CpuStream(Isa::kPlain));
      for (std::size_t t = 0; t < 3; ++t) {
        const float* row = logits.data() + static_cast<std::int64_t>(t) * vocabulary;
        const double max = *std::max_element(row, row + vocabulary);
        double sum = 0;
        for (std::int64_t i = 0; i < vocabulary; ++i) sum += std::exp(static_cast<double>(row[i]) - max);
        const double want = max + std::log(sum);
        // The sum rounds along the chain of a lane and in the tree; the log, each subtraction and each addition round
        // once. The differences to the maximum are rounded before exp: their size counts where the weight is not
        // negligible.
        const double bound =
            support::Gamma(vocabulary / 16 + 10) + 2 * support::kEpsF32 * (std::fabs(max) + std::log(sum) + 20);
        EXPECT_NEAR(plain.logsumexp[t], want, bound);
        if (target[t] >= 0) {
          EXPECT_NEAR(plain.logprob[t], row[target[t]] - want,
                      bound + support::kEpsF32 * std::fabs(row[target[t]] - want));
        } else {
          EXPECT_EQ(plain.logprob[t], 0.0f);
        }
        std::vector<std::int32_t> order(static_cast<std::size_t>(vocabulary));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return row[a] > row[b]; });
        for (std::size_t i = 0; i < static_cast<std::size_t>(top_n); ++i) {
          const std::size_t at = t * static_cast<std::size_t>(top_n) + i;
          ASSERT_EQ(plain.top_id[at], order[i]) << i;
          ASSERT_EQ(plain.top_logprob[at], row[order[i]] - plain.logsumexp[t]);
        }
      }
      ThreadPool pool(2);
      for (const Isa isa : Isas()) {
        const Output got = Gather(logits, vocabulary, target, top_n, CpuStream(isa, &pool));
        EXPECT_TRUE(support::BytesEqual(got.logprob.data(), plain.logprob.data(), 12)) << Name(isa);
        EXPECT_TRUE(support::BytesEqual(got.logsumexp.data(), plain.logsumexp.data(), 12)) << Name(isa);
        EXPECT_EQ(got.top_id, plain.top_id) << Name(isa);
        EXPECT_EQ(got.top_logprob, plain.top_logprob) << Name(isa);
      }
    }
  }
}

TEST(LogSoftmaxGatherTest, EqualLogitsRankByLowerId) {
  std::vector<float> logits(2000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 3);  // 2 at 2, 5, 8, ...
  for (const Isa isa : Isas()) {
    const Output got = Gather(logits, 2000, {0}, 700, CpuStream(isa));
    for (std::size_t i = 0; i < 666; ++i) ASSERT_EQ(got.top_id[i], static_cast<std::int32_t>(3 * i + 2));
    EXPECT_EQ(got.top_id[666], 1);
    EXPECT_EQ(got.top_id[667], 4);
  }
}

TEST(LogSoftmaxGatherTest, TopIdsOfAscendingRowAreSortedUpToTheWholeRow) {
  std::vector<float> logits(3000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i) * 0.01f;
  for (const Isa isa : Isas()) {
    for (const std::int64_t n : {1, 100, 2999, 3000}) {
      const Output got = Gather(logits, 3000, {0}, n, CpuStream(isa));
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(got.top_id[static_cast<std::size_t>(i)], 2999 - i);
    }
  }
}

TEST(LogSoftmaxGatherTest, RowWithoutDistributionGivesNaNAndDoesNotAffectOthers) {
  for (const float bad : {std::nanf(""), HUGE_VALF}) {
    std::vector<float> logits(200, 1.0f);
    logits[137] = bad;
    for (const Isa isa : Isas()) {
      const Output got = Gather(logits, 100, {5, 5}, 2, CpuStream(isa));
      EXPECT_NEAR(got.logprob[0], -std::log(100.0), 1e-5);
      EXPECT_EQ(got.top_id[1], 1);
      EXPECT_TRUE(std::isnan(got.logprob[1]));
      EXPECT_TRUE(std::isnan(got.logsumexp[1]));
      EXPECT_EQ(got.top_id[2], -1);
    }
  }
}

TEST(LogSoftmaxGatherTest, NamesTheRejectedArgument) {
  const std::vector<float> logits(10);
  std::vector<float> logprob(2), top_logprob(20);
  std::vector<std::int32_t> top_id(20), target = {0, 5};
  LogSoftmaxGatherArgs args{.logits = MakeConstMatrix(logits.data(), DType::kF32, 2, 5),
                            .target = target.data(),
                            .logprob = logprob.data(),
                            .logsumexp = nullptr,
                            .top_n = 0,
                            .top_id = top_id.data(),
                            .top_logprob = top_logprob.data()};
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_NE(LogSoftmaxGather(args, stream).message().find("target[1] is 5, wanted -1 to 4"), std::string::npos);
  target[1] = 4;
  args.top_n = 6;
  EXPECT_NE(LogSoftmaxGather(args, stream).message().find("top_n is 6, wanted 0 to 5"), std::string::npos);
}

}  // namespace
}  // namespace nibble::kernels
