#include "server/base/log.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "server/base/json.h"

namespace nibble::base {
namespace {

Json Logged(LogFields fields) {
  ::testing::internal::CaptureStderr();
  LogInfo("m", fields);
  auto line = ParseJson(::testing::internal::GetCapturedStderr());
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? *std::move(line) : Json();
}

TEST(LogTest, NumbersAndBoolsKeepTheirType) {
  const Json line = Logged({{"int", -7},
                            {"unsigned", 7u},
                            {"port", std::uint16_t{50051}},
                            {"largest", std::numeric_limits<std::uint64_t>::max()},
                            {"smallest", std::numeric_limits<std::int64_t>::min()},
                            {"double", 0.25},
                            {"yes", true}});
  EXPECT_TRUE(line["int"].is_number_integer());
  EXPECT_EQ(line["int"], -7);
  EXPECT_EQ(line["unsigned"], 7);
  EXPECT_EQ(line["port"], 50051);
  EXPECT_EQ(line["largest"], std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(line["smallest"], std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(line["double"].is_number_float());
  EXPECT_EQ(line["double"], 0.25);
  EXPECT_TRUE(line["yes"].is_boolean());
}

TEST(LogTest, EveryKindOfTextIsAString) {
  const char* pointer = "c";
  const Json line = Logged({{"literal", "a"},
                            {"string", std::string("b")},
                            {"pointer", pointer},
                            {"view", std::string_view("d")},
                            {"digits", "12"}});
  EXPECT_EQ(line["literal"], "a");
  EXPECT_EQ(line["string"], "b");
  EXPECT_EQ(line["pointer"], "c");
  EXPECT_EQ(line["view"], "d");
  EXPECT_EQ(line["digits"], "12");
}

TEST(LogTest, NumberThatIsNotFiniteIsNull) {
  EXPECT_TRUE(Logged({{"value", std::numeric_limits<double>::quiet_NaN()}})["value"].is_null());
  EXPECT_TRUE(Logged({{"value", std::numeric_limits<double>::infinity()}})["value"].is_null());
}

}  // namespace
}  // namespace nibble::base
