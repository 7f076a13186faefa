#include "server/openai/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/base/error.h"

namespace nibble::openai {
namespace {

using ::testing::HasSubstr;

base::Json Parse(const char* text) { return base::ParseJson(text).value(); }

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

TEST(JsonFieldsTest, ReadsEachTypeAndTreatsNullAsAbsent) {
  const base::Json json = Parse(R"({"s":"x","b":true,"n":0.5,"i":3,"f":1e3,"a":[1],"null":null})");
  JsonFields fields(json);
  EXPECT_EQ(fields.String("s"), "x");
  EXPECT_EQ(fields.Bool("b"), true);
  EXPECT_EQ(fields.Number("n"), 0.5);
  EXPECT_EQ(fields.Int("i"), 3);
  EXPECT_EQ(fields.Int("f"), 1000) << "a whole number in any spelling";
  ASSERT_NE(fields.Array("a"), nullptr);
  EXPECT_EQ(fields.String("null"), std::nullopt);
  EXPECT_EQ(fields.Int("absent"), std::nullopt);
  EXPECT_TRUE(fields.Finish().ok());
}

TEST(JsonFieldsTest, WrongTypesNameFieldAndBothTypes) {
  const base::Json json = Parse(R"({"s":1,"b":"true","n":"1","i":1.5,"a":{}})");
  const auto error = [&](auto read) {
    JsonFields fields(json, "outer.");
    read(fields);
    return MessageOf(fields.Finish());
  };
  EXPECT_EQ(error([](JsonFields& f) { f.String("s"); }), "outer.s: is a number, wanted a string");
  EXPECT_EQ(error([](JsonFields& f) { f.Bool("b"); }), "outer.b: is a string, wanted true or false");
  EXPECT_EQ(error([](JsonFields& f) { f.Number("n"); }), "outer.n: is a string, wanted a number");
  EXPECT_EQ(error([](JsonFields& f) { f.Int("i"); }), "outer.i: is 1.5, wanted a whole number of 64 bits");
  EXPECT_EQ(error([](JsonFields& f) { f.Array("a"); }), "outer.a: is an object, wanted an array");
}

TEST(JsonFieldsTest, RefusesNumbersThatDoNotFit64Bits) {
  const base::Json json = Parse(R"({"u":18446744073709551615,"f":1e300,"min":-9223372036854775808})");
  for (const char* name : {"u", "f"}) {
    JsonFields fields(json);
    EXPECT_EQ(fields.Int(name), std::nullopt) << name;
    EXPECT_TRUE(fields.failed());
  }
  JsonFields fields(json);
  EXPECT_EQ(fields.Int("min"), INT64_MIN);
}

TEST(JsonFieldsTest, RefusesAFieldThatWasNotReadAndSuggestsTheNearest) {
  const base::Json json = Parse(R"({"temprature":1})");
  JsonFields fields(json);
  fields.Number("temperature");
  const absl::Status status = fields.Finish();
  EXPECT_EQ(MessageOf(status), "temprature: is not a field of this request; did you mean temperature?");
  EXPECT_EQ(base::ReasonMetadata(status).at("field"), "temprature");
}

TEST(JsonFieldsTest, UnsupportedFieldsMayHaveOnlyANeutralValue) {
  const auto check = [](const char* text) {
    const base::Json json = Parse(text);
    JsonFields fields(json);
    fields.Neutral("best_of", 1);
    fields.Unsupported("tools");
    fields.Ignore("user");
    return MessageOf(fields.Finish());
  };
  EXPECT_EQ(check(R"({"best_of":1,"tools":[],"user":{"any":"value"}})"), "");
  EXPECT_EQ(check(R"({"best_of":null,"tools":null})"), "");
  EXPECT_THAT(check(R"({"best_of":2})"), HasSubstr("best_of: is not supported"));
  EXPECT_THAT(check(R"({"tools":[{}]})"), HasSubstr("tools: is not supported"));
}

TEST(JsonFieldsTest, BodyMustBeAnObject) {
  const base::Json json = Parse("[1]");
  JsonFields fields(json);
  EXPECT_EQ(fields.String("model"), std::nullopt);
  EXPECT_EQ(MessageOf(fields.Finish()), "body: is an array, wanted an object");
}

TEST(JsonFieldsTest, FirstErrorWins) {
  const base::Json json = Parse(R"({"a":1,"b":2})");
  JsonFields fields(json);
  fields.String("b");
  fields.String("a");
  EXPECT_THAT(MessageOf(fields.Finish()), HasSubstr("b: "));
}

}  // namespace
}  // namespace nibble::openai
