#include "server/model/module_pattern.h"

#include <gtest/gtest.h>

#include "server/base/strings.h"

namespace nibble::model {
namespace {

constexpr char kQ[] = "model.layers.1.self_attn.q_proj";

bool MatchesPath(const char* text, const std::string& path) {
  const auto pattern = ModulePattern::Create(text);
  EXPECT_TRUE(pattern.ok()) << pattern.status();
  return pattern.ok() && pattern->MatchesPath(path);
}
bool MatchesEnd(const char* text, const std::string& path) {
  const auto pattern = ModulePattern::Create(text);
  EXPECT_TRUE(pattern.ok()) << pattern.status();
  return pattern.ok() && pattern->MatchesEnd(path);
}

TEST(ModulePatternTest, PathMustMatchAsAWhole) {
  EXPECT_TRUE(MatchesPath(kQ, kQ));
  EXPECT_TRUE(MatchesPath(R"(.*\.layers\.\d+\.self_attn\.(?:q|v)_proj)", kQ));
  EXPECT_TRUE(MatchesPath("^model[.]layers[.][^02][.].{3,30}$", kQ));
  EXPECT_TRUE(MatchesPath("x|model.*", kQ));
  EXPECT_FALSE(MatchesPath("q_proj", kQ));
  EXPECT_FALSE(MatchesPath("model.layers.1", kQ));
}

TEST(ModulePatternTest, EndMustFollowADot) {
  EXPECT_TRUE(MatchesEnd("q_proj", kQ));
  EXPECT_TRUE(MatchesEnd("self_attn.q_proj", kQ));
  EXPECT_TRUE(MatchesEnd("o_proj|q_proj", kQ));
  EXPECT_TRUE(MatchesEnd("^model.layers.1.*", kQ));
  EXPECT_TRUE(MatchesEnd("[kq]_proj$", kQ));
  EXPECT_FALSE(MatchesEnd("_proj", kQ));
  EXPECT_FALSE(MatchesEnd("self_attn", kQ));
  EXPECT_FALSE(MatchesEnd("^self_attn.q_proj", kQ));
  EXPECT_FALSE(MatchesEnd("layers.11.self_attn.q_proj", kQ));
}

// RE2 or Python refuses these, or may read them differently. A pattern must also have 1 to 256 bytes.
TEST(ModulePatternTest, RefusesSyntaxThatPythonAndRe2DoNotShare) {
  for (const char* text : {"",         "(q_proj",
                           "q_proj)",  "[q",
                           "*",        "a**",
                           "a{2}{3}",  "a*+",
                           "(?i)q",    "(?=q)q",
                           "(?P<n>q)", "(?<n>q)",
                           R"(\1)",    R"(\Z)",
                           R"(\x41)",  R"(\pL)",
                           "\\",       "[[:alpha:]]",
                           "[a[b]",    "a{,2}",
                           "^*",       "$+",
                           R"(\b?)",   "a{1001}",
                           "q\n",      "((a{100}){100}){100}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ModulePattern::Create(text).status())) << text;
  }
  EXPECT_FALSE(ModulePattern::Create(std::string(257, 'a')).ok());
  EXPECT_TRUE(ModulePattern::Create(std::string(256, 'a')).ok());
  EXPECT_TRUE(ModulePattern::Create("[]^[]").status().code() == absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(MatchesPath("[]a]", "]"));
}

}  // namespace
}  // namespace nibble::model
