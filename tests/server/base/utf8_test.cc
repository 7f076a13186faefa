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

}  // namespace
}  // namespace nibble::base
