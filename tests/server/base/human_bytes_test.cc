#include "server/base/human_bytes.h"

#include <gtest/gtest.h>

namespace nibble::base {
namespace {

TEST(HumanBytesTest, UsesTheLargestUnitBelowTheValue) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(-1536), "-1.5 KiB");
  EXPECT_EQ(HumanBytes(5ll << 40), "5.0 TiB");
}

}  // namespace
}  // namespace nibble::base
