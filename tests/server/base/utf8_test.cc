#include "server/base/utf8.h"

#include <gtest/gtest.h>

namespace nibble::base {
namespace {

TEST(Utf8Test, ValidityFollowsRfc3629) {
  for (const char* good :
       {"", "abc", "\xC3\xA4", "\xE2\x98\x83", "\xF0\x9F\x98\x80", "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(IsValidUtf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xC3", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x98", "\xFF"}) {
    EXPECT_FALSE(IsValidUtf8(bad)) << bad;
  }
  EXPECT_TRUE(IsValidUtf8(std::string_view("a\0b", 3)));
}

TEST(Utf8Test, EachMaximalInvalidPartBecomesOneReplacementCharacter) {
  // Unicode 15, table 3-8 and its neighbours.
  const auto take = [](std::string_view bytes) {
    std::string text;
    const std::size_t taken = TakeWholeCharacters(bytes, &text);
    return text + "|" + std::string(bytes.substr(taken));
  };
  EXPECT_EQ(take("a\xC0\xAFz"), "a\uFFFD\uFFFDz|");
  EXPECT_EQ(take("\xED\xA0\x80z"), "\uFFFD\uFFFD\uFFFDz|");
  EXPECT_EQ(take("\xF0\x9F\xA6z"), "\uFFFDz|");
  EXPECT_EQ(take("\xF4\x91\x92\x93z"), "\uFFFD\uFFFD\uFFFD\uFFFDz|");
  EXPECT_EQ(take("z\xF0\x9F\xA6"), "z|\xF0\x9F\xA6");
  EXPECT_EQ(take("\xE4\xBD"), "|\xE4\xBD");
  EXPECT_EQ(take(""), "|");
}

}  // namespace
}  // namespace nibble::base
