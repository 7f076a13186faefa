#include "server/kserve/statistics.h"

#include <gtest/gtest.h>

#include "server/base/strings.h"

namespace nibble::kserve {
namespace {

const Answered answered = {.began = absl::UnixEpoch() + absl::Milliseconds(1500),
                           .took = absl::Milliseconds(9),
                           .queued = absl::Milliseconds(2),
                           .computed = absl::Milliseconds(6)};

TEST(StatisticsTest, AddsCountsAndTimes) {
  Statistics statistics;
  statistics.Succeeded("m", answered);
  statistics.Succeeded("m", answered);
  statistics.Failed("m", absl::StatusCode::kCancelled, absl::Milliseconds(1));
  const inference::ModelStatistics of = statistics.Of("m");
  EXPECT_EQ(of.name(), "m");
  EXPECT_EQ(of.version(), "1");
  EXPECT_EQ(of.last_inference(), 1500u);
  EXPECT_EQ(of.inference_count(), 2u);
  EXPECT_EQ(of.inference_stats().success().count(), 2u);
  EXPECT_EQ(of.inference_stats().success().ns(), 18'000'000u);
  EXPECT_EQ(of.inference_stats().queue().ns(), 4'000'000u);
  EXPECT_EQ(of.inference_stats().compute_infer().ns(), 12'000'000u);
  EXPECT_EQ(of.inference_stats().fail().count(), 1u);
  EXPECT_EQ(of.execution_count(), 0u);
}

TEST(StatisticsTest, RequestsThatReachedNoModelAreNotCounted) {
  Statistics statistics;
  statistics.Failed("m", absl::StatusCode::kNotFound, absl::Milliseconds(1));
  statistics.Failed("m", absl::StatusCode::kInvalidArgument, absl::Milliseconds(1));
  EXPECT_EQ(statistics.Of("m").inference_stats().fail().count(), 0u);
  EXPECT_TRUE(statistics.Of("m").has_inference_stats());
}

TEST(StatisticsTest, InventedNamesDoNotDisplaceModels) {
  Statistics statistics;
  statistics.Succeeded("m", answered);
  for (std::size_t i = 0; i < 3 * Statistics::kMaxModels; ++i)
    statistics.Failed(base::StrCat("a", i), absl::StatusCode::kCancelled, absl::Milliseconds(1));
  EXPECT_EQ(statistics.Of("m").inference_count(), 1u);
  EXPECT_EQ(statistics.Of("a0").inference_stats().fail().count(), 0u);
}

}  // namespace
}  // namespace nibble::kserve
