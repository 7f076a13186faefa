#include "server/base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/base/strings.h"

namespace nibble::base {
namespace {

using ::testing::HasSubstr;

// Small and large objects detect duplicate keys differently.
TEST(ParseJsonTest, RejectsDuplicateKeyAtAnyPosition) {
  for (int keys = 1; keys <= 40; ++keys) {
    std::string object;
    for (int i = 0; i < keys; ++i) object += StrCat(i == 0 ? "{" : ",", "\"k", i, "\":{\"k0\":[{\"k0\":1}]}");
    const auto parsed = ParseJson(object + "}");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    ASSERT_EQ(parsed->size(), static_cast<std::size_t>(keys));
    EXPECT_EQ(parsed->back()["k0"][0]["k0"], 1);
    for (int i = 0; i < keys; ++i) {
      const auto refused = ParseJson(StrCat(object, ",\"k", i, "\":1}"));
      EXPECT_THAT(std::string(refused.status().message()), HasSubstr(StrCat("duplicate key \"k", i, "\""))) << keys;
    }
  }
}

TEST(ParseJsonTest, ErrorShowsOnlyTheBeginningOfALongKey) {
  std::string letters;
  for (int i = 0; i < 50'000; ++i) letters += "\u00e9";
  const auto refused = ParseJson(StrCat("{\"k", letters, "\":1,\"k", letters, "\":2}"));
  std::string message(refused.status().message());
  EXPECT_LT(message.size(), 200u);
  EXPECT_THAT(message, HasSubstr("duplicate key \"k\u00e9"));
  // The shown part of the key ends with a whole character.
  std::erase(message, '"');
  EXPECT_TRUE(ParseJson(StrCat("\"", message, "\"")).ok()) << message;
}

}  // namespace
}  // namespace nibble::base
