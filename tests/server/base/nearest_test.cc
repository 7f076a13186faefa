#include "server/base/nearest.h"

#include <gtest/gtest.h>

namespace nibble::base {
namespace {

const std::vector<std::string> kNames = {"models", "datasets", "jobs", "generate", "chat", "r", "alpha"};

TEST(NearestTest, FindsNamesThatDifferInAFewLetters) {
  EXPECT_EQ(Nearest("model", kNames), "models");  // deleted
  EXPECT_EQ(Nearest("jobss", kNames), "jobs");    // inserted
  EXPECT_EQ(Nearest("chot", kNames), "chat");     // replaced
  EXPECT_EQ(Nearest("hcat", kNames), "chat");     // swapped
  EXPECT_EQ(Nearest("genarete", kNames), "generate");
  EXPECT_EQ(Nearest("models", kNames), "models");
}

TEST(NearestTest, FindsTheLongestNameThatBeginsTheWord) {
  EXPECT_EQ(Nearest("rank", kNames), "r");
  EXPECT_EQ(Nearest("chatting", kNames), "chat");
}

TEST(NearestTest, FindsNothingIfNoNameIsNear) {
  for (const char* word : {"", "zip", "quantize", "x"}) EXPECT_EQ(Nearest(word, {"models", "jobs"}), "") << word;
  EXPECT_EQ(Nearest("models", {}), "");
  EXPECT_EQ(Nearest(std::string(1 << 20, 'm'), kNames), "");
  EXPECT_EQ(Nearest("models", {"", std::string(1 << 20, 'm')}), "");
}

TEST(NearestTest, SuggestionEndsAMessage) {
  EXPECT_EQ(DidYouMean("model", kNames), "; did you mean models?");
  EXPECT_EQ(DidYouMean("zip", {}), "");
  EXPECT_EQ(DidYouMeanOrList("model", {"models", "jobs"}), "; did you mean models?");
  EXPECT_EQ(DidYouMeanOrList("zip", {"models", "jobs"}), "; wanted one of models, jobs");
}

}  // namespace
}  // namespace nibble::base
