#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/base/json_file.h"
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

std::string FileError(const std::string& text) {
  const auto refused = ParseJsonFile(text, "spec.json");
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << text;
  return std::string(refused.status().message());
}

TEST(ParseJsonTest, FileErrorNamesLineAndColumn) {
  EXPECT_EQ(FileError("{\n \"lora\": {\"r\": 4,}\n}"), "spec.json, line 2, column 18: malformed JSON");
  EXPECT_EQ(FileError("x"), "spec.json, line 1, column 1: malformed JSON");
  EXPECT_EQ(FileError("{\n"), "spec.json, line 2, column 1: malformed JSON") << "cut short";
  EXPECT_EQ(FileError(""), "spec.json, line 1, column 1: malformed JSON");
  EXPECT_EQ(FileError("{}\n\n  y"), "spec.json, line 3, column 3: malformed JSON");
  EXPECT_EQ(FileError("{\"\u00e9\u00e9\": x}"), "spec.json, line 1, column 8: malformed JSON") << "in characters";
  EXPECT_EQ(FileError(std::string("{}\n\0", 4)), "spec.json, line 2, column 1: malformed JSON");
  EXPECT_EQ(FileError("{\"a\": 1, \"a\": 2}"), "spec.json: duplicate key \"a\"");
  const auto parsed = ParseJsonFile("{\"a\": [1]}", "spec.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ((*parsed)["a"][0], 1);
}

TEST(ParseJsonTest, ErrorSaysThatTextIsNotUtf8) {
  EXPECT_EQ(ParseJson("{\"text\": \"caf\xe9\"}").status().message(), "not UTF-8, wanted JSON in UTF-8");
  EXPECT_EQ(FileError("{\"text\": \"caf\xe9\"}"), "spec.json: not UTF-8, wanted JSON in UTF-8");
  EXPECT_EQ(ParseJson("{\"text\": \"caf\u00e9\",}").status().message(), "malformed JSON at byte 18");
  EXPECT_EQ(ParseJson(std::string("[1,\0]", 5)).status().message(), "malformed JSON at byte 4");
}

}  // namespace
}  // namespace nibble::base
