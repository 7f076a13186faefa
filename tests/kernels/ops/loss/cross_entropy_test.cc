#include "kernels/ops/loss/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/philox.h"

namespace nibble::kernels {
namespace {

// The formula in f64, straight from its definition.
std::vector<double> Reference(const std::vector<float>& x, std::int64_t target, double scale, double* loss) {
  double max = x[0];
  for (const float v : x) max = std::max(max, static_cast<double>(v));
  double sum = 0;
  for (const float v : x) sum += std::exp(v - max);
  const double logsumexp = max + std::log(sum);
  *loss = logsumexp - x[static_cast<std::size_t>(target)];
  std::vector<double> gradient;
  for (std::size_t i = 0; i < x.size(); ++i) {
    gradient.push_back((std::exp(x[i] - logsumexp) - (static_cast<std::int64_t>(i) == target ? 1 : 0)) * scale);
  }
  return gradient;
}

std::vector<float> RandomRow(std::int64_t size, std::uint64_t seed) {
  std::vector<float> row;
  for (std::int64_t i = 0; i < size; ++i) {
    row.push_back(static_cast<float>(PhiloxUniform(seed, static_cast<std::uint64_t>(i)) * 40 - 20));
  }
  return row;
}

TEST(CrossEntropyTest, AgreesWithTheFormulaAndHasTheSameBitsOnEveryPath) {
  for (const std::int64_t size : {1, 7, 15, 16, 17, 33, 1000}) {
    const std::vector<float> row = RandomRow(size, static_cast<std::uint64_t>(size));
    for (const std::int32_t target : {0, static_cast<std::int32_t>(size - 1)}) {
      double want_loss = 0;
      const std::vector<double> want = Reference(row, target, 0.25, &want_loss);
      std::vector<float> plain;
      for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512}) {
        if (isa > DetectIsa()) continue;
        std::vector<float> logits = row;
        float loss = 0;
        ASSERT_TRUE(CrossEntropy({.logits = MakeMatrix(logits.data(), DType::kF32, 1, size),
                                  .target = &target,
                                  .grad_scale = 0.25f,
                                  .loss = &loss},
                                 {.isa = isa})
                        .ok());
        // logsumexp (below 32) is rounded by up to 1e-6, its difference from a logit (below 64) by up to 2e-6; exp is
        // off by at most 1 ulp.
        EXPECT_NEAR(loss, want_loss, 1e-5) << size;
        for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], want[i], 2e-6) << size << " at " << i;
        if (plain.empty()) plain = logits;
        EXPECT_EQ(std::memcmp(plain.data(), logits.data(), plain.size() * sizeof(float)), 0) << Name(isa);
      }
    }
  }
}

TEST(CrossEntropyTest, RefusesTargetsOutsideTheVocabulary) {
  std::vector<float> logits(4);
  float loss = 0;
  for (const std::int32_t target : {-1, 4}) {
    EXPECT_EQ(
        CrossEntropy({.logits = MakeMatrix(logits.data(), DType::kF32, 1, 4), .target = &target, .loss = &loss}, {})
            .code(),
        absl::StatusCode::kInvalidArgument);
  }
}

TEST(CrossEntropyTest, ExtremesStayFinite) {
  std::vector<float> logits = {1e30f, -1e30f, 0.0f};
  const std::int32_t target = 1;
  float loss = 0;
  ASSERT_TRUE(
      CrossEntropy({.logits = MakeMatrix(logits.data(), DType::kF32, 1, 3), .target = &target, .loss = &loss}, {})
          .ok());
  EXPECT_FLOAT_EQ(loss, 2e30f);
  EXPECT_EQ(logits, (std::vector<float>{1.0f, -1.0f, 0.0f}));
}

}  // namespace
}  // namespace nibble::kernels
