#include "server/text/prompt_length.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/error.h"
#include "tests/server/text/golden.h"

namespace nibble::text {
namespace {

using ::testing::HasSubstr;

std::string Repeated(std::string_view part, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += part;
  return text;
}

// Every style of tokenizer that other tests compare with golden ids: byte-level BPE, SentencePiece with a prefix, Llama
// 2, Qwen 2.
std::vector<std::unique_ptr<Tokenizer>> PromptTokenizers() {
  std::vector<std::unique_ptr<Tokenizer>> all;
  all.push_back(Load(TinyGguf("byte_level", "smollm")));
  all.push_back(Load(TinyGguf("sentence_piece", "")));
  for (const char* file : {"hf_llama.json", "hf_qwen.json"}) {
    auto tokenizer = Tokenizer::FromJson(ReadFile(std::string(NIBBLE_SOURCE_DIR "/tests/golden/text/") + file));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    if (tokenizer.ok()) all.push_back(*std::move(tokenizer));
  }
  return all;
}

// Texts of three pieces each: prose in several scripts from the golden files, and a repeated part with or without a
// blank.
std::vector<std::string> LargeTexts() {
  std::string prose;
  const auto golden = ReadGolden("tiny_ids.json");
  for (const auto& text : golden.at("texts")) prose += text.get<std::string>() + " ";
  std::vector<std::string> texts = {Repeated(prose, 70'000)};
  for (const std::string_view part : {"a", "the keeper ", "\u4f60\u597d"}) {
    texts.push_back(Repeated(part, 70'000));
  }
  return texts;
}

std::unique_ptr<Tokenizer> Unigram() {
  base::Json json = base::Json::parse(ReadFile(NIBBLE_SOURCE_DIR "/tests/golden/text/hf_llama.json"));
  json["model"] = base::Json::parse(R"({"type": "Unigram", "unk_id": 0, "byte_fallback": false,
                                        "vocab": [["<unk>", 0], ["a", -1], ["the", -2], [" ", -2]]})");
  json["added_tokens"] = base::Json::array();
  json["post_processor"] = nullptr;
  auto tokenizer = Tokenizer::FromJson(base::Dump(json));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// Covers texts that are cut into pieces, texts that are encoded as a whole, and a tokenizer whose texts are never cut.
TEST(PromptLengthTest, TokensAreThoseOfTheWholeText) {
  auto tokenizers = PromptTokenizers();
  tokenizers.push_back(Unigram());
  std::vector<std::string> texts = LargeTexts();
  texts.insert(texts.end(), {"", "the keeper", "<s>" + texts.front() + "</s>"});
  for (const auto& tokenizer : tokenizers) {
    ASSERT_NE(tokenizer, nullptr);
    for (const std::string& text : texts) {
      for (const bool add_special_tokens : {false, true}) {
        const auto whole = tokenizer->EncodeWithSpans(text, add_special_tokens);
        ASSERT_TRUE(whole.ok()) << whole.status();
        // An unknown token of the unigram model stands for more bytes than the longest token, so the text would
        // be refused if the limit were its number of tokens. The largest limit for which tokens are counted is
        // text.size() - 1. For "" this limit wraps, but the tokens of a small text are not counted.
        const std::size_t most = tokenizer->is_local() ? whole->tokens.size() : text.size() - 1;
        const PromptLimits limits = {.max_tokens = static_cast<std::int64_t>(most)};
        const auto ids = EncodePrompt(*tokenizer, text, add_special_tokens, limits);
        ASSERT_TRUE(ids.ok()) << ids.status();
        ASSERT_EQ(ids->size(), whole->tokens.size()) << text.substr(0, 20);
        for (std::size_t i = 0; i < ids->size(); ++i)
          ASSERT_EQ((*ids)[i], whole->tokens[i].id) << text.substr(0, 20) << " " << i;
      }
    }
  }
}

TEST(PromptLengthTest, RefusesTextInPiecesThatIsOneTokenTooLong) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  const std::string text = Repeated("the keeper ", 200'000);
  const auto whole = tokenizer->Encode(text, /*add_special_tokens=*/false);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto tokens = static_cast<std::int64_t>(whole->size());
  int pieces = 0;
  const PromptLimits limits = {.max_tokens = tokens - 1, .cancelled = [&] { return ++pieces < 0; }};
  const absl::Status refused = EncodePrompt(*tokenizer, text, /*add_special_tokens=*/false, limits).status();
  EXPECT_EQ(base::Reason(refused), "PROMPT_TOO_LONG") << refused;
  EXPECT_EQ(base::ReasonMetadata(refused)["tokens"], std::to_string(tokens));
  EXPECT_EQ(base::ReasonMetadata(refused)["max"], std::to_string(tokens - 1));
  EXPECT_LE(pieces, 8) << "pieces of 32 KiB: the text is encoded once";
}

// C2 (docs/faults.md). Counting tokens in pieces never refuses a text that fits as a whole.
TEST(PromptLengthTest, NeverRefusesTextThatFitsAsAWhole) {
  for (const auto& tokenizer : PromptTokenizers()) {
    ASSERT_NE(tokenizer, nullptr);
    for (const std::string& text : LargeTexts()) {
      const auto whole = tokenizer->Encode(text, /*add_special_tokens=*/false);
      ASSERT_TRUE(whole.ok()) << whole.status();
      const auto tokens = static_cast<std::int64_t>(whole->size());
      EXPECT_TRUE(EncodePrompt(*tokenizer, text, /*add_special_tokens=*/false, {.max_tokens = tokens}).ok())
          << text.substr(0, 20);
    }
  }
}

TEST(PromptLengthTest, RefusesTextOfFourTimesTheLimitAfterItsFirstPieces) {
  for (const auto& tokenizer : PromptTokenizers()) {
    ASSERT_NE(tokenizer, nullptr);
    for (const std::string& text : LargeTexts()) {
      const auto whole = tokenizer->Encode(text, /*add_special_tokens=*/false);
      ASSERT_TRUE(whole.ok()) << whole.status();
      const auto limit = static_cast<std::int64_t>(whole->size()) / 4;
      int pieces = 0;
      const PromptLimits limits = {.max_tokens = limit, .cancelled = [&] { return ++pieces < 0; }};
      const absl::Status refused = EncodePrompt(*tokenizer, text, /*add_special_tokens=*/false, limits).status();
      EXPECT_EQ(base::Reason(refused), "PROMPT_TOO_LONG") << refused;
      EXPECT_LE(pieces, 2) << "of three pieces";
    }
  }
}

TEST(PromptLengthTest, RefusesTextLargerThanMaxTokensCanHoldBeforeEncoding) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  const auto longest = static_cast<std::int64_t>(tokenizer->longest_token_bytes());
  ASSERT_GT(longest, 4);
  int pieces = 0;
  PromptLimits limits = {.field = "chat", .max_tokens = 200'000 / longest, .cancelled = [&] { return ++pieces < 0; }};
  const std::string text(200'000 + 2 * static_cast<std::size_t>(longest), 'a');
  const absl::Status refused = EncodePrompt(*tokenizer, text, /*add_special_tokens=*/false, limits).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_EQ(base::Reason(refused), "PROMPT_TOO_LONG");
  EXPECT_EQ(base::ReasonMetadata(refused)["bytes"], std::to_string(text.size()));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("chat: has "));
  EXPECT_EQ(pieces, 0);
}

TEST(PromptLengthTest, RefusesMoreThanMaxBytes) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  const PromptLimits limits = {.max_bytes = 100};
  EXPECT_TRUE(EncodePrompt(*tokenizer, std::string(100, 'a'), /*add_special_tokens=*/false, limits).ok());
  const absl::Status refused =
      EncodePrompt(*tokenizer, std::string(101, 'a'), /*add_special_tokens=*/false, limits).status();
  EXPECT_EQ(base::Reason(refused), "PROMPT_TOO_LONG");
  EXPECT_EQ(base::ReasonMetadata(refused)["max_bytes"], "100");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--max_prompt_bytes"));
}

TEST(PromptLengthTest, CancelStopsBetweenPieces) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  int pieces = 0;
  const PromptLimits limits = {.max_tokens = 1'000'000, .cancelled = [&] { return ++pieces == 3; }};
  const std::string text = Repeated("the keeper ", 500'000);
  EXPECT_TRUE(absl::IsCancelled(EncodePrompt(*tokenizer, text, /*add_special_tokens=*/false, limits).status()));
  EXPECT_EQ(pieces, 3);
}

TEST(PromptLengthTest, PiecesAreCutBetweenCharacters) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  for (const std::size_t shift : {0u, 1u, 2u, 3u}) {
    const std::string text = std::string(shift, 'a') + Repeated("\U0001f600", 100'000);
    const PromptLimits limits = {.max_tokens = 90'000};  // fewer than the bytes, so that parts are encoded first
    const auto ids = EncodePrompt(*tokenizer, text, /*add_special_tokens=*/false, limits);
    EXPECT_TRUE(ids.ok()) << ids.status();
  }
}

}  // namespace
}  // namespace nibble::text
