// T8 (docs/faults.md): text, tokens and mask of conversations equal those of transformers, for templates that behave
// like those of known models (tests/golden/text/make_chat_golden.py), with and without {% generation %}.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>

#include "server/base/json.h"
#include "server/data/example.h"
#include "server/data/rendered_chat.h"

namespace nibble::data {
namespace {

const base::Json& Golden() {
  static const base::Json golden = [] {
    std::ifstream in(NIBBLE_SOURCE_DIR "/tests/golden/text/chat_masks.json");
    return base::Json::parse(in);
  }();
  return golden;
}

class ChatGoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::ifstream in(NIBBLE_SOURCE_DIR "/tests/golden/text/chat/tokenizer.json");
    auto tokenizer = text::Tokenizer::FromJson(std::string(std::istreambuf_iterator<char>(in), {}));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    text_.tokenizer = *std::move(tokenizer);
  }
  void UseTemplate(const base::Json& source) {
    text::ChatTemplate::SpecialTokens tokens;
    for (const auto& [name, token] : Golden().at("special_tokens").items()) tokens.emplace_back(name, token);
    auto compiled = text::ChatTemplate::Compile(source.get<std::string>(), tokens);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    text_.chat_template = *std::move(compiled);
    EXPECT_EQ(text_.chat_template->has_generation(), std::string(GetParam()) == "annotated");
  }
  Example One(const base::Json& messages, const base::Json& golden, bool train_on_prompt = false) {
    base::Json json = {{"messages", messages}};
    if (golden.contains("tools")) json["tools"] = golden.at("tools");
    const auto row = ParseRow(base::Dump(json), RowFormat::kChat);
    EXPECT_TRUE(row.ok()) << row.status();
    const auto pieces =
        Tokenize(*row, RowFormat::kChat, text_, {}, {.max_seq_len = 100'000, .train_on_prompt = train_on_prompt});
    EXPECT_TRUE(pieces.ok()) << pieces.status();
    return pieces.ok() && !pieces->empty() ? pieces->front() : Example();
  }

  model::TextAssets text_;
};

TEST_P(ChatGoldenTest, TextTokensAndMaskEqualThoseOfTransformers) {
  int cases = 0;
  for (const base::Json& chat : Golden().at("templates")) {
    UseTemplate(chat.at(GetParam()));
    for (const base::Json& golden : chat.at("cases")) {
      SCOPED_TRACE(chat.at("name").get<std::string>() + ", " + golden.at("name").get<std::string>());
      const Example example = One(golden.at("messages"), golden);
      EXPECT_EQ(text_.tokenizer->Decode(example.tokens, false).value_or(""),
                text_.tokenizer->Decode(golden.at("ids").get<std::vector<std::int32_t>>(), false).value_or("?"));
      EXPECT_EQ(example.tokens, golden.at("ids").get<std::vector<std::int32_t>>());
      EXPECT_EQ(example.trained, golden.at("mask").get<std::vector<std::uint8_t>>());
      ++cases;
    }
  }
  EXPECT_GT(cases, 60);
}

// Checks each answer alone, in two ways: "train": false on all other answers leaves only this answer; and with
// train_on_prompt, "train": false on this answer leaves everything else.
TEST_P(ChatGoldenTest, EachAnswerHasItsOwnPartOfTheMask) {
  for (const base::Json& chat : Golden().at("templates")) {
    UseTemplate(chat.at(GetParam()));
    for (const base::Json& golden : chat.at("cases")) {
      SCOPED_TRACE(chat.at("name").get<std::string>() + ", " + golden.at("name").get<std::string>());
      const auto mask = golden.at("mask").get<std::vector<std::uint8_t>>();
      std::vector<std::vector<std::uint8_t>> parts;  // one per run of ones
      for (std::size_t i = 0; i < mask.size(); ++i) {
        if (mask[i] == 0) continue;
        if (i == 0 || mask[i - 1] == 0) parts.emplace_back(mask.size(), 0);
        parts.back()[i] = 1;
      }
      std::size_t answers = 0;
      for (const base::Json& message : golden.at("messages")) answers += message.at("role") == "assistant" ? 1 : 0;
      ASSERT_EQ(parts.size(), answers);
      for (std::size_t wanted = 0; wanted < answers; ++wanted) {
        base::Json kept = golden.at("messages"), dropped = kept;
        std::size_t answer = 0;
        for (std::size_t i = 0; i < kept.size(); ++i) {
          if (kept[i].at("role") != "assistant") continue;
          (answer == wanted ? dropped : kept)[i]["train"] = false;
          ++answer;
        }
        EXPECT_EQ(One(kept, golden).trained, parts[wanted]) << wanted;
        if (answers == 1) continue;  // no trained answer would remain
        std::vector<std::uint8_t> rest(mask.size());
        std::transform(parts[wanted].begin(), parts[wanted].end(), rest.begin(),
                       [](std::uint8_t bit) { return bit == 0 ? 1 : 0; });
        // A token that crosses either end of the answer also covers trained text.
        std::vector<std::uint8_t> got = One(dropped, golden, /*train_on_prompt=*/true).trained;
        ASSERT_EQ(got.size(), rest.size());
        const auto begin = std::find(rest.begin(), rest.end(), 0), end = std::find(begin, rest.end(), 1);
        for (const auto edge : {begin, end - 1}) got[static_cast<std::size_t>(edge - rest.begin())] = 0;
        EXPECT_EQ(got, rest) << wanted;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Templates, ChatGoldenTest, ::testing::Values("plain", "annotated"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nibble::data
