#include "server/serve/stop_matcher.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble::serve {
namespace {

TEST(StopMatcherTest, WithoutStopStringsTextIsShownImmediately) {
  StopMatcher matcher({}, /*include_stop=*/false);
  EXPECT_EQ(matcher.Push("abc"), "abc");
  EXPECT_EQ(matcher.Flush(), "");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcherTest, HoldsBackTextThatMayBeginAStopString) {
  StopMatcher matcher({"END"}, /*include_stop=*/false);
  EXPECT_EQ(matcher.Push("the E"), "the ");
  EXPECT_EQ(matcher.Push("N"), "");
  EXPECT_EQ(matcher.Push("tent"), "ENtent");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcherTest, StopStringSplitOverPushesIsNeverShown) {
  StopMatcher matcher({"</s>"}, /*include_stop=*/false);
  std::string shown;
  for (const char c : std::string("text</s>more")) shown += matcher.Push(std::string(1, c));
  EXPECT_EQ(shown, "text");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.matched_stop(), "</s>");
  EXPECT_EQ(matcher.Push("later"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcherTest, IncludeStopShowsTheMatch) {
  StopMatcher matcher({"."}, /*include_stop=*/true);
  EXPECT_EQ(matcher.Push("One. Two."), "One.");
}

TEST(StopMatcherTest, EarliestMatchWins) {
  StopMatcher matcher({"zz", "b"}, /*include_stop=*/false);
  EXPECT_EQ(matcher.Push("abzz"), "a");
  EXPECT_EQ(matcher.matched_stop(), "b");
}

TEST(StopMatcherTest, FlushReturnsTheHeldText) {
  StopMatcher matcher({"stop"}, /*include_stop=*/false);
  EXPECT_EQ(matcher.Push("go sto"), "go ");
  EXPECT_EQ(matcher.Flush(), "sto");
}

TEST(StopMatcherTest, HoldsBackTheLongestPossibleBeginning) {
  StopMatcher matcher({"aab"}, /*include_stop=*/false);
  EXPECT_EQ(matcher.Push("aaa"), "a");  // "aa" may still become "aab"
  EXPECT_EQ(matcher.Push("b"), "");
  EXPECT_TRUE(matcher.matched());
}

}  // namespace
}  // namespace nibble::serve
