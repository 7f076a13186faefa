#include "kernels/philox.h"

#include <gtest/gtest.h>

namespace nibble::kernels {
namespace {

// The known answers of Random123's kat_vectors, philox4x32 with 10 rounds.
TEST(PhiloxTest, MatchesKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, SeedIndexAndStreamAllMatter) {
  EXPECT_NE(PhiloxWords(1, 0), PhiloxWords(2, 0));
  EXPECT_NE(PhiloxWords(1, 0), PhiloxWords(1, 1));
  EXPECT_NE(PhiloxWords(1, 0), PhiloxWords(1, 0, 1));
  EXPECT_NE(PhiloxWords(std::uint64_t{1} << 32, 0), PhiloxWords(0, 0));
  EXPECT_NE(PhiloxWords(0, std::uint64_t{1} << 32), PhiloxWords(0, 0));
}

TEST(PhiloxTest, UniformLiesInItsIntervalAndHasItsMean) {
  double sum = 0;
  constexpr int kDraws = 100000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const double u = PhiloxUniform(7, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * 0.2887 / 316.0);  // five standard errors
}

}  // namespace
}  // namespace nibble::kernels
