#include "server/kube/backoff.h"

#include <gtest/gtest.h>

namespace nibble::kube {
namespace {

TEST(BackoffTest, DoublesUpToTheMaximumLessJitter) {
  Backoff backoff(absl::Milliseconds(500), absl::Seconds(30), /*seed=*/7);
  double wanted = 0.5;
  for (int i = 0; i < 100; ++i) {
    const double pause = absl::ToDoubleSeconds(backoff.Next());
    EXPECT_LE(pause, wanted) << i;
    EXPECT_GT(pause, wanted / 2) << i;
    wanted = std::min(wanted * 2, 30.0);
  }
  EXPECT_EQ(backoff.num_failures(), 100);
  backoff.Reset();
  EXPECT_LE(backoff.Next(), absl::Milliseconds(500));
}

TEST(BackoffTest, SeedsDeterminePauses) {
  Backoff one(absl::Seconds(1), absl::Seconds(1), 1), same(absl::Seconds(1), absl::Seconds(1), 1),
      other(absl::Seconds(1), absl::Seconds(1), 2);
  const absl::Duration first = one.Next();
  EXPECT_EQ(same.Next(), first);
  EXPECT_NE(other.Next(), first);
  EXPECT_NE(one.Next(), first);
}

TEST(BackoffTest, WaitsAtLeastAsLongAsTheServerAsks) {
  Backoff backoff(absl::Milliseconds(500), absl::Seconds(30), 1);
  EXPECT_EQ(backoff.Next(absl::Seconds(60)), absl::Seconds(60));
  for (int i = 0; i < 10; ++i) backoff.Next();
  EXPECT_GT(backoff.Next(absl::Seconds(1)), absl::Seconds(15));
}

}  // namespace
}  // namespace nibble::kube
