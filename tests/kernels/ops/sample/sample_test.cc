#include "kernels/ops/sample/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "kernels/math.h"
#include "kernels/philox.h"
#include "tests/support/isas.h"
#include "tests/support/random.h"
#include "tests/support/uniform_table.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::Isas;

std::int32_t Draw(const std::vector<float>& logits, const SampleParams& params, Isa isa,
                  const std::uint32_t* allowed = nullptr) {
  std::int32_t token = -2;
  const absl::Status status =
      Sample({.logits = MakeConstMatrix(logits.data(), DType::kF32, 1, static_cast<std::int64_t>(logits.size())),
              .params = &params,
              .token = &token,
              .allowed = allowed},
             CpuStream(isa));
  EXPECT_TRUE(status.ok()) << status;
  return token;
}

// The definition in sample.h: a full sort, with weights from the op's own exp, summed in f64.
std::vector<std::pair<std::int32_t, double>> Reference(const std::vector<float>& logits, const SampleParams& p) {
  std::vector<std::int32_t> ids(logits.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  const float max = logit(ids[0]);
  if (p.top_k > 0 && static_cast<std::size_t>(p.top_k) < ids.size()) {
    const float kth = logit(ids[static_cast<std::size_t>(p.top_k) - 1]);
    std::erase_if(ids, [&](std::int32_t id) { return logit(id) < kth; });
  }
  std::vector<std::pair<std::int32_t, double>> pool;
  double total = 0;
  for (const std::int32_t id : ids) {
    pool.emplace_back(id, static_cast<double>(Exp((logit(id) - max) / p.temperature)));
    total += pool.back().second;
  }
  std::vector<std::pair<std::int32_t, double>> kept;
  double before = 0;
  for (const auto& [id, weight] : pool) {
    if (!kept.empty() && ((p.top_p < 1.0f && before >= static_cast<double>(p.top_p) * total) ||
                          weight < static_cast<double>(p.min_p) || weight == 0.0))
      break;
    kept.emplace_back(id, weight);
    before += weight;
  }
  return kept;
}

TEST(SampleTest, GreedyTakesTheLowerIdOfEqualLogits) {
  for (const std::int64_t size : {1, 5, 16, 33, 1024, 1025, 5000}) {
    std::vector<float> logits = support::NormalVector(static_cast<std::uint64_t>(size), size);
    const std::size_t first = static_cast<std::size_t>(size / 2);
    logits[first] = 10.0f;
    logits.back() = 10.0f;
    for (const Isa isa : Isas()) EXPECT_EQ(Draw(logits, {}, isa), static_cast<std::int32_t>(first)) << size;
  }
  for (const Isa isa : Isas()) {
    EXPECT_EQ(Draw({-1.0f, -0.0f, 0.0f}, {}, isa), 1);
    EXPECT_EQ(Draw({-1.0f, 0.0f, -0.0f}, {}, isa), 1);
    EXPECT_EQ(Draw({-HUGE_VALF, -HUGE_VALF, -5.0f}, {}, isa), 2);
  }
}

// Draws at u in the middle of a candidate's share, for up to 20 candidates, and at u near 1 for the last: a missing or
// an extra candidate moves these draws.
TEST(SampleTest, FilteredDrawsMatchTheDefinition) {
  const support::UniformTable uniform(/*seed=*/9);
  std::vector<SampleParams> all;
  for (const float temperature : {0.3f, 1.0f, 5.0f}) {
    for (const std::int32_t top_k : {0, 1, 5, 50, 4000}) {
      for (const float top_p : {1.0f, 0.9f, 0.3f, 0.0f}) {
        for (const float min_p : {0.0f, 0.05f, 1.0f}) {
          all.push_back({.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p});
        }
      }
    }
  }
  for (const std::int64_t size : {1, 40, 3000}) {
    std::vector<float> logits = support::NormalVector(1, size, 2.0f);
    for (float& x : logits) x = std::round(x * 4.0f) / 4.0f;  // many ties
    for (const SampleParams& p : all) {
      const bool top_k = p.top_k > 0 && p.top_k < size;
      if (!top_k && p.top_p == 1.0f && p.min_p == 0.0f) continue;  // no filter: tested separately
      const auto want = Reference(logits, p);
      double total = 0;
      for (const auto& [id, weight] : want) total += weight;
      double before = 0;
      std::vector<double> chosen = {1.0};
      for (std::size_t i = 0; i < want.size(); ++i) {
        if (i % (want.size() / 20 + 1) == 0) chosen.push_back((before + want[i].second / 2) / total);
        before += want[i].second;
      }
      for (const double u : chosen) {
        SampleParams drawn = p;
        drawn.seed = uniform.seed();
        drawn.counter = uniform.CounterAt(u);
        const double target = PhiloxUniform(drawn.seed, drawn.counter) * total;
        std::size_t at = 0;
        for (double sum = want[0].second; sum <= target && at + 1 < want.size(); sum += want[at].second) ++at;
        for (const Isa isa : Isas()) {
          ASSERT_EQ(Draw(logits, drawn, isa), want[at].first) << Name(isa) << " T " << p.temperature << " k " << p.top_k
                                                              << " p " << p.top_p << " min " << p.min_p << " u " << u;
        }
      }
    }
  }
}

TEST(SampleTest, MinPKeepsEqualWeightsAndTopPStopsWhereItsMassIsReached) {
  const support::UniformTable uniform(/*seed=*/9);
  const std::vector<float> logits = {0.0f, 1.0f, 1.0f};
  SampleParams min_p{.temperature = 1.0f, .min_p = 1.0f, .seed = uniform.seed()};
  SampleParams top_p{.temperature = 1.0f, .top_k = 2, .top_p = 0.5f, .seed = uniform.seed()};
  min_p.counter = top_p.counter = uniform.CounterAt(0.75);
  for (const Isa isa : Isas()) {
    EXPECT_EQ(Draw(logits, min_p, isa), 2) << Name(isa);
    EXPECT_EQ(Draw(logits, top_p, isa), 1) << Name(isa);
  }
}

TEST(SampleTest, DrawsAreEqualOnEveryPathAloneAndInABatch) {
  constexpr std::int64_t kVocabulary = 3001;
  constexpr std::int64_t kRows = 12;
  const std::vector<float> logits = support::NormalVector(3, kRows * kVocabulary, 2.0f);
  std::vector<SampleParams> params;
  for (std::int64_t t = 0; t < kRows; ++t) {
    params.push_back({.temperature = static_cast<float>(t) * 0.3f,
                      .top_k = static_cast<std::int32_t>(t % 3 * 20),
                      .top_p = t % 2 == 0 ? 1.0f : 0.8f,
                      .min_p = t % 4 == 0 ? 0.0f : 0.01f,
                      .seed = static_cast<std::uint64_t>(t) << 40,
                      .counter = static_cast<std::uint64_t>(t)});
  }
  std::vector<std::int32_t> plain;
  for (const Isa isa : Isas()) {
    ThreadPool pool(3);
    std::vector<std::int32_t> token(kRows);
    ASSERT_TRUE(Sample({.logits = MakeConstMatrix(logits.data(), DType::kF32, kRows, kVocabulary),
                        .params = params.data(),
                        .token = token.data()},
                       CpuStream(isa, &pool))
                    .ok());
    if (isa == Isa::kPlain) plain = token;
    EXPECT_EQ(token, plain) << Name(isa);
    for (std::size_t t = 0; t < kRows; ++t) {
      const std::vector<float> row(logits.begin() + static_cast<std::int64_t>(t) * kVocabulary,
                                   logits.begin() + (static_cast<std::int64_t>(t) + 1) * kVocabulary);
      EXPECT_EQ(Draw(row, params[t], isa), plain[t]);
    }
  }
}

// Chi-square of draws against the reference's probabilities; the seeds are fixed, so the result never changes.
TEST(SampleTest, DrawsFollowTheProbabilities) {
  const std::vector<float> logits = {0.0f, 1.5f, -1.0f, 0.7f, 0.7f, -3.0f, 1.0f, -HUGE_VALF};
  for (const SampleParams& base :
       {SampleParams{.temperature = 1.0f}, SampleParams{.temperature = 0.7f, .top_k = 4},
        SampleParams{.temperature = 1.3f, .top_p = 0.8f}, SampleParams{.temperature = 1.0f, .min_p = 0.2f}}) {
    const auto want = Reference(logits, base);
    double total = 0;
    for (const auto& [id, weight] : want) total += weight;
    std::map<std::int32_t, int> counts;
    constexpr int kDraws = 20000;
    SampleParams p = base;
    p.seed = 42;
    for (int i = 0; i < kDraws; ++i) {
      p.counter = static_cast<std::uint64_t>(i);
      ++counts[Draw(logits, p, Isas().back())];
    }
    double chi = 0;
    for (const auto& [id, weight] : want) {
      const double expected = weight / total * kDraws;
      chi += (counts[id] - expected) * (counts[id] - expected) / expected;
      counts.erase(id);
    }
    EXPECT_TRUE(counts.empty());  // nothing that a filter removed was drawn
    EXPECT_LT(chi, 30.0);         // at most 6 degrees of freedom: p <= 4e-5
  }
}

// An unfiltered draw stops sorting early; the full order must give the same token, or at a boundary its neighbour.
TEST(SampleTest, UnfilteredDrawsMatchTheFullOrder) {
  const std::vector<float> logits = support::NormalVector(8, 2500, 0.01f);  // nearly flat: long prefixes
  SampleParams p{.temperature = 1.0f, .seed = 5};
  const auto order = Reference(logits, p);
  std::set<std::int32_t> seen;
  for (std::uint64_t i = 0; i < 300; ++i) {
    p.counter = i;
    double total = 0, target = 0, sum = 0;
    for (const auto& [id, weight] : order) total += weight;
    target = PhiloxUniform(p.seed, i) * total;
    std::size_t at = 0;
    while (at + 1 < order.size() && (sum += order[at].second) <= target) ++at;
    const std::int32_t got = Draw(logits, p, Isas().back());
    seen.insert(got);
    // Total() sums in another order: at a boundary a neighbour may be drawn, but no other token.
    const bool near = got == order[at].first || (at > 0 && got == order[at - 1].first) ||
                      (at + 1 < order.size() && got == order[at + 1].first);
    EXPECT_TRUE(near) << i;
  }
  EXPECT_GT(seen.size(), 200u);
}

TEST(SampleTest, TinyTemperatureIsGreedyAndHugeDrawsEveryToken) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.999f};
  for (std::uint64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(Draw(logits, {.temperature = 1e-38f, .counter = i}, Isas().back()), 1);
  }
  std::set<std::int32_t> seen;
  for (std::uint64_t i = 0; i < 50; ++i) seen.insert(Draw(logits, {.temperature = 1e38f, .counter = i}, Isas().back()));
  EXPECT_EQ(seen.size(), 3u);
}

TEST(SampleTest, RejectsRowWithoutDistributionAndDrawsTheOthers) {
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    std::vector<float> logits(3 * 50, 0.0f);
    logits[20] = 1.0f;
    logits[2 * 50 + 3] = 1.0f;
    for (std::size_t i = 50; i < 100; ++i) logits[i] = i == 77 || bad < 0 ? bad : 0.0f;
    for (const float temperature : {0.0f, 1e-3f}) {
      const std::vector<SampleParams> params(3, SampleParams{.temperature = temperature});
      for (const Isa isa : Isas()) {
        std::vector<std::int32_t> token(3);
        const auto status = Sample({.logits = MakeConstMatrix(logits.data(), DType::kF32, 3, 50),
                                    .params = params.data(),
                                    .token = token.data()},
                                   CpuStream(isa));
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_NE(status.message().find("logits of row 1 hold NaN"), std::string::npos) << status;
        EXPECT_EQ(token, (std::vector<std::int32_t>{20, -1, 3}));
      }
    }
  }
}

// A mask of `size` tokens with the share of allowed ones.
std::vector<std::uint32_t> RandomMask(std::int64_t size, double share, std::uint64_t seed) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>((size + 31) / 32));
  for (std::int64_t i = 0; i < size; ++i) {
    const bool allowed = PhiloxUniform(seed, static_cast<std::uint64_t>(i)) < share;
    words[static_cast<std::size_t>(i / 32)] |= static_cast<std::uint32_t>(allowed) << (i % 32);
  }
  return words;
}

TEST(SampleTest, TokensThatAreNotAllowedCountAsMinusInfinity) {
  std::vector<SampleParams> all;
  for (const float temperature : {0.0f, 0.3f, 5.0f}) {
    for (const std::int32_t top_k : {0, 3, 400}) {
      for (const float top_p : {1.0f, 0.9f}) {
        for (const float min_p : {0.0f, 0.05f}) all.push_back({temperature, top_k, top_p, min_p, /*seed=*/7});
      }
    }
  }
  for (const std::int64_t size : {1, 15, 16, 31, 33, 1024, 1041, 5000}) {
    std::vector<float> logits = support::NormalVector(static_cast<std::uint64_t>(size), size, 2.0f);
    for (float& x : logits) x = std::round(x * 4.0f) / 4.0f;  // many ties, also between allowed and other tokens
    for (const double share : {0.0, 0.002, 0.5, 0.99}) {
      std::vector<std::uint32_t> mask = RandomMask(size, share, /*seed=*/3);
      mask.back() |= 1u << ((size - 1) % 32);  // at least one
      std::vector<float> masked = logits, unused = logits;
      for (std::size_t i = 0; i < logits.size(); ++i) {
        if ((mask[i / 32] >> (i % 32) & 1) != 0) continue;
        masked[i] = -HUGE_VALF;
        unused[i] = i % 3 == 0 ? std::nanf("") : i % 3 == 1 ? HUGE_VALF : logits[i];
      }
      for (SampleParams p : all) {
        for (p.counter = 0; p.counter < 4; ++p.counter) {
          const std::int32_t want = Draw(masked, p, Isa::kPlain);
          for (const Isa isa : Isas()) {
            ASSERT_EQ(Draw(logits, p, isa, mask.data()), want) << Name(isa) << " V " << size << " share " << share;
            ASSERT_EQ(Draw(unused, p, isa, mask.data()), want) << Name(isa) << " V " << size << " share " << share;
          }
        }
      }
    }
  }
}

TEST(SampleTest, EachRowHasItsOwnMaskAndOneWithoutTokensIsRejected) {
  constexpr std::int64_t kVocabulary = 45;
  const std::vector<float> logits(3 * kVocabulary, 1.0f);
  const std::vector<std::uint32_t> masks = {0, 1u << 12, 0, 0, 1u << 3, 1u << 12};
  const std::vector<SampleParams> params(3);
  for (const Isa isa : Isas()) {
    std::vector<std::int32_t> token(3);
    const auto status = Sample({.logits = MakeConstMatrix(logits.data(), DType::kF32, 3, kVocabulary),
                                .params = params.data(),
                                .token = token.data(),
                                .allowed = masks.data()},
                               CpuStream(isa));
    EXPECT_NE(status.message().find("logits of row 1 hold"), std::string::npos) << status;
    EXPECT_EQ(token, (std::vector<std::int32_t>{44, -1, 3})) << Name(isa);
  }
}

TEST(SampleTest, NamesTheRejectedParameter) {
  const std::vector<float> logits(5);
  const auto message = [&](const SampleParams& p) {
    std::int32_t token = 0;
    const auto status =
        Sample({.logits = MakeConstMatrix(logits.data(), DType::kF32, 1, 5), .params = &p, .token = &token},
               CpuStream(Isa::kPlain));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_NE(message({.temperature = -0.5f}).find("temperature of row 0 is -0.5"), std::string::npos);
  EXPECT_NE(message({.temperature = std::nanf("")}).find("temperature"), std::string::npos);
  EXPECT_NE(message({.top_k = -1}).find("top_k of row 0 is -1"), std::string::npos);
  EXPECT_NE(message({.top_p = 1.5f}).find("top_p of row 0 is 1.5, wanted 0 to 1"), std::string::npos);
  EXPECT_NE(message({.min_p = std::nanf("")}).find("min_p"), std::string::npos);
}

}  // namespace
}  // namespace nibble::kernels
