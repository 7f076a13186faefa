#include "server/openai/query_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/base/error.h"

namespace nibble::openai {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::string Field(const absl::Status& status) { return base::ReasonMetadata(status)["field"]; }

TEST(QueryFieldsTest, ReadsEncodedValues) {
  QueryFields fields("after=a%2Fb+c&limit=20&metadata%5Bteam%5D=blue&metadata[x]=&&empty");
  EXPECT_EQ(fields.Text("after"), "a/b c");
  EXPECT_EQ(fields.Int("limit", 1, 100), 20);
  EXPECT_THAT(fields.Map("metadata"), UnorderedElementsAre(Pair("team", "blue"), Pair("x", "")));
  EXPECT_EQ(fields.Text("empty"), "");
  EXPECT_EQ(fields.Text("absent"), std::nullopt);
  EXPECT_TRUE(fields.Finish().ok());
}

TEST(QueryFieldsTest, WrongValuesAreNamed) {
  for (const std::string query : {"limit=0", "limit=101", "limit=x", "limit=", "limit=1.5", "limit=1&limit=2"}) {
    QueryFields fields(query);
    fields.Int("limit", 1, 100);
    EXPECT_EQ(Field(fields.Finish()), "limit") << query;
  }
  QueryFields twice("m[a]=1&m[a]=2");
  twice.Map("m");
  EXPECT_EQ(Field(twice.Finish()), "m[a]");
  QueryFields malformed("after=%FF");
  malformed.Text("after");
  EXPECT_THAT(std::string(malformed.Finish().message()), HasSubstr("not UTF-8"));
}

TEST(QueryFieldsTest, UnknownParametersAreRefused) {
  QueryFields fields("limti=3");
  fields.Int("limit", 1, 100);
  const absl::Status status = fields.Finish();
  EXPECT_EQ(Field(status), "limti");
  EXPECT_THAT(std::string(status.message()), HasSubstr("limit"));
}

}  // namespace
}  // namespace nibble::openai
