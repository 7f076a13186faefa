#include "server/base/nearest.h"

#include <gtest/gtest.h>

namespace nibble::base {
namespace {

std::vector<std::string> Names() { return {"models", "datasets", "jobs", "generate", "chat", "r", "alpha"}; }

TEST(NearestTest, FindsNamesThatDifferInAFewLetters) {
  EXPECT_EQ(Nearest("model", Names()), "models");  // deleted
  EXPECT_EQ(Nearest("jobss", Names()), "jobs");    // inserted
  EXPECT_EQ(Nearest("chot", Names()), "chat");     // replaced
  EXPECT_EQ(Nearest("hcat", Names()), "chat");     // swapped
  EXPECT_EQ(Nearest("genarete", Names()), "generate");
  EXPECT_EQ(Nearest("models", Names()), "models");
}

TEST(NearestTest, FindsTheLongestNameThatBeginsTheWord) {
  EXPECT_EQ(Nearest("rank", Names()), "r");
  EXPECT_EQ(Nearest("chatting", Names()), "chat");
}

TEST(NearestTest, FindsNothingIfNoNameIsNear) {
  for (const char* word : {"", "zip", "quantize", "x"}) EXPECT_EQ(Nearest(word, {"models", "jobs"}), "") << word;
  EXPECT_EQ(Nearest("models", {}), "");
  EXPECT_EQ(Nearest(std::string(1 << 20, 'm'), Names()), "");
  EXPECT_EQ(Nearest("models", {"", std::string(1 << 20, 'm')}), "");
}

TEST(NearestTest, SuggestionEndsAMessage) {
  EXPECT_EQ(DidYouMean("model", Names()), "; did you mean models?");
  EXPECT_EQ(DidYouMean("zip", {}), "");
  EXPECT_EQ(DidYouMeanOrList("model", {"models", "jobs"}), "; did you mean models?");
  EXPECT_EQ(DidYouMeanOrList("zip", {"models", "jobs"}), "; wanted one of models, jobs");
}

}  // namespace
}  // namespace nibble::base
