#include "server/base/log_limit.h"

#include <gtest/gtest.h>

namespace nibble::base {
namespace {

TEST(LogLimitTest, EachSecondAllowsTheLimitAndTheNextLineSaysHowManyWereLeftOut) {
  LogLimit limit(2);
  const absl::Duration start = absl::Seconds(100);
  EXPECT_EQ(limit.Take(start), 0);
  EXPECT_EQ(limit.Take(start + absl::Milliseconds(999)), 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(limit.Take(start + absl::Milliseconds(999)), std::nullopt);
  EXPECT_EQ(limit.Take(start + absl::Seconds(1)), 5);
  EXPECT_EQ(limit.Take(start + absl::Seconds(1)), 0);
  EXPECT_EQ(limit.Take(start + absl::Seconds(1)), std::nullopt);
  EXPECT_EQ(limit.Take(start + absl::Hours(1)), 1);
}

}  // namespace
}  // namespace nibble::base
