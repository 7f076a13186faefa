#include "server/text/gguf_tokenizer.h"

#include <cmath>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/text/golden.h"

namespace nibble::text {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

// The golden ids are those of llama.cpp with the same vocabulary, once for each pre-tokenizer.
TEST(GgufTokenizerTest, TokenIdsMatchLlamaCpp) {
  const base::Json golden = ReadGolden("tiny_ids.json");
  const auto texts = golden.at("texts").get<std::vector<std::string>>();
  std::size_t compared = 0;
  for (const base::Json& row : golden.at("cases")) {
    GgufTokenizer gguf = TinyGguf(row.at("vocabulary"), row.at("pre"));
    ApplyFlags(row.at("flags"), &gguf);
    const auto tokenizer = Load(gguf);
    ASSERT_NE(tokenizer, nullptr);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto ids = tokenizer->Encode(texts[i], true);
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, row.at("ids").at(i).get<Ids>())
          << row.at("vocabulary") << " pre=" << row.at("pre") << " flags=" << row.at("flags") << " text " << i << ": "
          << texts[i];
      ++compared;
    }
  }
  EXPECT_GE(compared, 100u);
}

// Checks the golden file: with equal ids, the test above could not tell pre-tokenizers apart.
TEST(GgufTokenizerTest, GoldenIdsDifferBetweenPreTokenizers) {
  const base::Json golden = ReadGolden("tiny_ids.json");
  const auto& cases = golden.at("cases");
  for (std::size_t i = 0; i < 5; ++i) {  // the first cases: one vocabulary with each pre-tokenizer
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_NE(cases.at(i).at("ids"), cases.at(j).at("ids")) << cases.at(i).at("pre") << " " << cases.at(j).at("pre");
    }
  }
}

TEST(GgufTokenizerTest, ConfigHoldsSpecialTokensAndTemplate) {
  GgufTokenizer gguf = TinyGguf("byte_level", "smollm");
  gguf.chat_template = "{{ \"a\\n\" }}\n\u4f60";
  gguf.pad_id = 2;
  const auto files = TokenizerFilesFromGguf(gguf);
  ASSERT_TRUE(files.ok()) << files.status();
  const auto config = base::ParseJson(files->tokenizer_config_json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->at("chat_template"), gguf.chat_template);
  EXPECT_EQ(config->at("bos_token"), "<|endoftext|>");
  EXPECT_EQ(config->at("eos_token"), "<|im_end|>");
  EXPECT_EQ(config->at("pad_token"), "<|im_end|>");
  EXPECT_EQ(config->at("add_bos_token"), false);
  EXPECT_TRUE(base::ParseJson(files->tokenizer_json).ok());
}

TEST(GgufTokenizerTest, ControlTokensAreSpecialAndUserDefinedOnesAreNot) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  ASSERT_NE(tokenizer, nullptr);
  const auto added = tokenizer->added_tokens();
  ASSERT_EQ(added.size(), 4u);
  EXPECT_EQ(added[1].content, "<|im_start|>");
  EXPECT_TRUE(added[1].special);
  EXPECT_EQ(added[3].content, "<user_defined>");
  EXPECT_FALSE(added[3].special);
}

struct Refused {
  const char* name;
  std::function<void(GgufTokenizer&)> spoil;
  const char* message;
};

class GgufRefusalTest : public ::testing::TestWithParam<Refused> {};

TEST_P(GgufRefusalTest, NamesTheKey) {
  GgufTokenizer gguf = TinyGguf("byte_level", "smollm");
  GetParam().spoil(gguf);
  const auto files = TokenizerFilesFromGguf(gguf);
  ASSERT_FALSE(files.ok());
  EXPECT_EQ(files.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(files.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Keys, GgufRefusalTest,
    ::testing::Values(
        Refused{"model", [](GgufTokenizer& g) { g.model = std::string("bert"); },
                "tokenizer.ggml.model: got \"bert\", supported: gpt2, llama"},
        Refused{"pre", [](GgufTokenizer& g) { g.pre = std::string("tekken"); },
                "tokenizer.ggml.pre: got \"tekken\", supported: default, gpt-2, smollm"},
        Refused{"no_tokens", [](GgufTokenizer& g) { g.tokens.clear(); }, "tokenizer.ggml.tokens: got 0"},
        Refused{"twice", [](GgufTokenizer& g) { g.tokens[9] = g.tokens[7]; }, "tokens 7 and 9 are both"},
        Refused{"not_utf8", [](GgufTokenizer& g) { g.tokens[9] = std::string("\xC3"); }, "token 9 is not UTF-8"},
        Refused{"long_token", [](GgufTokenizer& g) { g.tokens[9] = std::string(5000, 'x'); },
                "token 9 is not UTF-8 of at most"},
        Refused{"types", [](GgufTokenizer& g) { g.token_types.pop_back(); }, "tokenizer.ggml.token_type: got"},
        Refused{"type", [](GgufTokenizer& g) { g.token_types[3] = 7; }, "token 3: got 7"},
        Refused{"bos_high", [](GgufTokenizer& g) { g.bos_id = 100000; }, "tokenizer.ggml.bos_token_id: got 100000"},
        Refused{"eos_low", [](GgufTokenizer& g) { g.eos_id = -1; }, "tokenizer.ggml.eos_token_id: got -1"},
        Refused{"bos_absent",
                [](GgufTokenizer& g) {
                  g.bos_id.reset();
                  g.add_bos = true;
                },
                "tokenizer.ggml.bos_token_id: absent"},
        Refused{"merge_one", [](GgufTokenizer& g) { g.merges[2] = std::string("abc"); },
                "tokenizer.ggml.merges: merge 2"},
        Refused{"merge_unknown", [](GgufTokenizer& g) { g.merges[2] = std::string("qqq zzz"); },
                "\"qqq\" is not a token"},
        Refused{"merge_empty", [](GgufTokenizer& g) { g.merges[0].clear(); }, "tokenizer.ggml.merges: merge 0"},
        Refused{"scores",
                [](GgufTokenizer& g) {
                  g = TinyGguf("sentence_piece", "");
                  g.scores.pop_back();
                },
                "tokenizer.ggml.scores: got"},
        Refused{"score_nan",
                [](GgufTokenizer& g) {
                  g = TinyGguf("sentence_piece", "");
                  g.scores[5] = std::nanf("");
                },
                "tokenizer.ggml.scores: token 5"},
        Refused{"template", [](GgufTokenizer& g) { g.chat_template = std::string("\xFF"); },
                "tokenizer.chat_template"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nibble::text
