#include "server/text/prompt_length.h"

#include <string>
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

// Every style of tokenizer that is pinned elsewhere: byte-level BPE, SentencePiece with a prefix, Llama 2, Qwen 2.
std::vector<std::unique_ptr<Tokenizer>> Tokenizers() {
  std::vector<std::unique_ptr<Tokenizer>> all;
  all.push_back(Load(TinyGguf("byte_level", "smollm")));
  all.push_back(Load(TinyGguf("sentence_piece", "")));
  for (const char* file : {"hf_llama.json", "hf_qwen.json"}) {
    auto tokenizer = Tokenizer::FromJson(ReadFileOrDie(std::string(NIBBLE_SOURCE_DIR "/tests/golden/text/") + file));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    if (tokenizer.ok()) all.push_back(*std::move(tokenizer));
  }
  return all;
}

// Texts of five pieces of each kind: prose in several scripts from the golden files, and runs without a blank.
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

// C2 (docs/faults.md). The pieces only decide that a text is refused: one that fits as a whole never is.
TEST(PromptLengthTest, TextThatFitsAsAWholeIsNeverRefused) {
  for (const auto& tokenizer : Tokenizers()) {
    ASSERT_NE(tokenizer, nullptr);
    for (const std::string& text : LargeTexts()) {
      const auto whole = tokenizer->Encode(text, /*add_special_tokens=*/false);
      ASSERT_TRUE(whole.ok()) << whole.status();
      const auto tokens = static_cast<std::int64_t>(whole->size());
      EXPECT_TRUE(CheckPromptLength(*tokenizer, text, {.max_tokens = tokens}).ok()) << text.substr(0, 20);
    }
  }
}

TEST(PromptLengthTest, TextOfFourTimesTheTokensIsRefusedAfterItsFirstPieces) {
  for (const auto& tokenizer : Tokenizers()) {
    ASSERT_NE(tokenizer, nullptr);
    for (const std::string& text : LargeTexts()) {
      const auto whole = tokenizer->Encode(text, /*add_special_tokens=*/false);
      ASSERT_TRUE(whole.ok()) << whole.status();
      const auto limit = static_cast<std::int64_t>(whole->size()) / 4;
      int pieces = 0;
      const absl::Status refused =
          CheckPromptLength(*tokenizer, text, {.max_tokens = limit, .cancelled = [&] { return ++pieces < 0; }});
      EXPECT_EQ(base::Reason(refused), "PROMPT_TOO_LONG") << refused;
      EXPECT_LE(pieces, 2) << "of five";
    }
  }
}

TEST(PromptLengthTest, MoreBytesThanTheLongestTokensHaveAreRefusedUnread) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  const auto longest = static_cast<std::int64_t>(tokenizer->longest_token_bytes());
  ASSERT_GT(longest, 4);
  int pieces = 0;
  PromptLimits limits = {.field = "chat", .max_tokens = 200'000 / longest, .cancelled = [&] { return ++pieces < 0; }};
  const std::string text(200'000 + 2 * static_cast<std::size_t>(longest), 'a');
  const absl::Status refused = CheckPromptLength(*tokenizer, text, limits);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_EQ(base::Reason(refused), "PROMPT_TOO_LONG");
  EXPECT_EQ(base::ReasonMetadata(refused)["bytes"], std::to_string(text.size()));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("chat: has "));
  EXPECT_EQ(pieces, 0);
}

TEST(PromptLengthTest, BytesOfATextAreBounded) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  const PromptLimits limits = {.max_bytes = 100};
  EXPECT_TRUE(CheckPromptLength(*tokenizer, std::string(100, 'a'), limits).ok());
  const absl::Status refused = CheckPromptLength(*tokenizer, std::string(101, 'a'), limits);
  EXPECT_EQ(base::Reason(refused), "PROMPT_TOO_LONG");
  EXPECT_EQ(base::ReasonMetadata(refused)["max_bytes"], "100");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--max_prompt_bytes"));
}

TEST(PromptLengthTest, CancelEndsItBetweenPieces) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  int pieces = 0;
  const PromptLimits limits = {.max_tokens = 1'000'000, .cancelled = [&] { return ++pieces == 3; }};
  EXPECT_TRUE(absl::IsCancelled(CheckPromptLength(*tokenizer, Repeated("the keeper ", 500'000), limits)));
  EXPECT_EQ(pieces, 3);
}

TEST(PromptLengthTest, PiecesAreCutBetweenCharacters) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  for (const std::size_t shift : {0u, 1u, 2u, 3u}) {
    const std::string text = std::string(shift, 'a') + Repeated("\U0001f600", 100'000);
    EXPECT_TRUE(CheckPromptLength(*tokenizer, text, {.max_tokens = 10'000'000}).ok());
  }
}

}  // namespace
}  // namespace nibble::text
