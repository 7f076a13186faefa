#include "server/serve/stop_matcher.h"

#include <gtest/gtest.h>

namespace nibble::serve {
namespace {

TEST(StopMatcherTest, WithoutStopStringsTextIsShownImmediately) {
  StopMatcher matcher({}, false);
  EXPECT_EQ(matcher.Push("abc"), "abc");
  EXPECT_EQ(matcher.Flush(), "");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcherTest, HoldsBackTextThatMayBeginAStopString) {
  StopMatcher matcher({"END"}, false);
  EXPECT_EQ(matcher.Push("the E"), "the ");
  EXPECT_EQ(matcher.Push("N"), "");
  EXPECT_EQ(matcher.Push("tent"), "ENtent");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcherTest, StopStringSplitOverPiecesIsNeverShown) {
  StopMatcher matcher({"</s>"}, false);
  std::string shown;
  for (const char c : std::string("text</s>more")) shown += matcher.Push(std::string(1, c));
  EXPECT_EQ(shown, "text");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.matched_stop(), "</s>");
  EXPECT_EQ(matcher.Push("later"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcherTest, IncludeStopShowsTheMatch) {
  StopMatcher matcher({"."}, true);
  EXPECT_EQ(matcher.Push("One. Two."), "One.");
}

TEST(StopMatcherTest, TheEarliestMatchWins) {
  StopMatcher matcher({"zz", "b"}, false);
  EXPECT_EQ(matcher.Push("abzz"), "a");
  EXPECT_EQ(matcher.matched_stop(), "b");
}

TEST(StopMatcherTest, FlushReturnsTheHeldText) {
  StopMatcher matcher({"stop"}, false);
  EXPECT_EQ(matcher.Push("go sto"), "go ");
  EXPECT_EQ(matcher.Flush(), "sto");
}

TEST(StopMatcherTest, OverlappingBeginningsKeepTheLongest) {
  StopMatcher matcher({"aab"}, false);
  EXPECT_EQ(matcher.Push("aaa"), "a");  // "aa" may still become "aab"
  EXPECT_EQ(matcher.Push("b"), "");
  EXPECT_TRUE(matcher.matched());
}

}  // namespace
}  // namespace nibble::serve
