#include "server/base/stream_slots.h"

#include <gtest/gtest.h>

#include "server/base/error.h"

namespace nibble::base {
namespace {

TEST(StreamSlotsTest, OnePrincipalDoesNotTakeAllPlaces) {  // C4
  StreamSlots slots("--max_watches", 3, "--max_watches_per_principal", 2);
  const auto first = slots.Take("ann");
  auto second = slots.Take("ann");
  ASSERT_TRUE(second.ok());
  const absl::Status refused = slots.Take("ann").status();
  EXPECT_EQ(Reason(refused), "STREAMS_FULL");
  EXPECT_EQ(ReasonMetadata(refused)["flag"], "--max_watches_per_principal");
  EXPECT_EQ(ReasonMetadata(refused)["max"], "2");
  {
    const auto other = slots.Take("bob");
    EXPECT_TRUE(other.ok());
    EXPECT_EQ(ReasonMetadata(slots.Take("eve").status())["flag"], "--max_watches");
  }
  second = absl::CancelledError();
  EXPECT_TRUE(slots.Take("ann").ok());
  // Without tokens there are no principals.
  StreamSlots all("--max_watches", 3, "--max_watches_per_principal", 1);
  const auto one = all.Take(), two = all.Take();
  EXPECT_TRUE(one.ok() && two.ok());
}

}  // namespace
}  // namespace nibble::base
