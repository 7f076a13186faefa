#include "server/kube/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::kube {
namespace {

using ::testing::HasSubstr;

TEST(NamesTest, NameIsAnRfc1123Label) {
  for (const std::string& name : {std::string("a"), std::string("0"), std::string("job-7-a"), std::string(63, 'x')})
    EXPECT_TRUE(CheckName(name, "job").ok()) << name;
  for (const char* name : {"", "-a", "a-", "A", "a.b", "a/b", "../x", "a b", "a?b", "a%2f", "\xC3\xA9", "a\n"})
    EXPECT_TRUE(absl::IsInvalidArgument(CheckName(name, "job"))) << name;
  EXPECT_FALSE(CheckName(std::string(64, 'x'), "job").ok());
  EXPECT_FALSE(CheckName(std::string("a\0b", 3), "job").ok());
}

TEST(NamesTest, RefusalNamesFieldAndText) {
  const std::string message(CheckName("A\n", "namespace").message());
  EXPECT_THAT(message, HasSubstr("namespace: \"A%0A\", wanted 1 to 63")) << message;
  EXPECT_LT(CheckName(std::string(1 << 20, '/'), "job").message().size(), 500u);
}

TEST(NamesTest, LabelsMayHaveUpperCaseDotsAndAPrefix) {
  for (const char* key : {"a", "A_b.c-d", "nibble.io/job", "a-b.c/X"}) EXPECT_TRUE(CheckLabelKey(key).ok()) << key;
  for (const char* key : {"", "/a", "a/", "a/b/c", "A.io/x", "-a", "a=b", "a,b"})
    EXPECT_TRUE(absl::IsInvalidArgument(CheckLabelKey(key))) << key;
  for (const char* value : {"", "a", "A_b.c-d", "0"}) EXPECT_TRUE(CheckLabelValue(value).ok()) << value;
  for (const char* value : {"-", "a,b", "a=b", "a b", "a/b", "_a"})
    EXPECT_TRUE(absl::IsInvalidArgument(CheckLabelValue(value))) << value;
  EXPECT_FALSE(CheckLabelValue(std::string(64, 'x')).ok());
}

TEST(NamesTest, SelectorIsEncodedForAQuery) {
  EXPECT_EQ(*LabelSelector({}), "");
  EXPECT_EQ(*LabelSelector({{"nibble.io/job", "a-1"}, {"x", ""}}), "nibble.io%2Fjob%3Da-1%2Cx%3D");
  EXPECT_TRUE(absl::IsInvalidArgument(LabelSelector({{"x", "a&watch=1"}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(LabelSelector({{"x y", ""}}).status()));
}

}  // namespace
}  // namespace nibble::kube
