#include "kernels/weight_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace nibble::kernels {
namespace {

TEST(WeightBufferTest, IsZeroedAlignedAndWritable) {
  for (const std::int64_t size :
       {std::int64_t{1}, std::int64_t{65}, std::int64_t{2} << 20, (std::int64_t{4} << 20) + 1}) {
    WeightBuffer buffer(size);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.size(), size);
    const std::uintptr_t alignment = size >= (2 << 20) ? 2 << 20 : 64;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment, 0u);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + size, [](std::uint8_t b) { return b == 0; }));
    std::fill(buffer.data(), buffer.data() + size, std::uint8_t{7});
  }
}

TEST(WeightBufferTest, ImpossibleSizeGivesEmptyBuffer) {
  for (const std::int64_t size : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 62, INT64_MAX}) {
    const WeightBuffer buffer(size);
    EXPECT_EQ(buffer.data(), nullptr) << size;
    EXPECT_EQ(buffer.size(), 0) << size;
  }
}

TEST(WeightBufferTest, MovedFromBufferIsEmpty) {
  WeightBuffer a(100);
  std::uint8_t* data = a.data();
  const WeightBuffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(b.size(), 100);
  EXPECT_EQ(a.size(), 0);  // NOLINT(bugprone-use-after-move): the subject of this test
}

}  // namespace
}  // namespace nibble::kernels
