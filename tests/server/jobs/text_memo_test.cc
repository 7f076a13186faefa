#include "server/jobs/text_memo.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble::jobs {
namespace {

class TextMemoTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::size_t> Length(const std::string& text) {
    const auto length = memo_.Get(text, [this](const std::string& parsed) -> absl::StatusOr<std::size_t> {
      ++num_parsed_;
      if (parsed == "bad") return absl::InvalidArgumentError("bad");
      return parsed.size();
    });
    if (!length.ok()) return length.status();
    return **length;
  }
  TextMemo<std::size_t> memo_;
  int num_parsed_ = 0;
};

TEST_F(TextMemoTest, TextIsParsedOnce) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(*Length("two"), 3u);
    EXPECT_EQ(*Length("three"), 5u);
  }
  EXPECT_EQ(num_parsed_, 2);
}

TEST_F(TextMemoTest, ErrorIsNotRemembered) {
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(absl::IsInvalidArgument(Length("bad").status()));
  EXPECT_EQ(num_parsed_, 2);
}

TEST_F(TextMemoTest, MemoryIsBounded) {
  const std::string longest(TextMemo<std::size_t>::kMaxTextBytes, 'x');
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(*Length(longest + "x"), longest.size() + 1) << "a longer text is parsed each time";
  EXPECT_EQ(num_parsed_, 2);
  EXPECT_EQ(memo_.size(), 0u);
  for (std::size_t i = 0; i < 2 * TextMemo<std::size_t>::kMaxTexts + 1; ++i) {
    EXPECT_EQ(*Length(std::to_string(i)), std::to_string(i).size());
    ASSERT_LE(memo_.size(), TextMemo<std::size_t>::kMaxTexts);
  }
  EXPECT_EQ(memo_.size(), 1u) << "a full memo is cleared before the next text";
}

}  // namespace
}  // namespace nibble::jobs
