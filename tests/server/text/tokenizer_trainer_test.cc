#include "server/text/tokenizer_trainer.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/json.h"
#include "server/text/tokenizer.h"
#include "tests/server/text/golden.h"

namespace nibble::text {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kNoLimit = 1 << 30;
std::vector<std::string> Special() { return {"<|endoftext|>", "<|im_end|>"}; }

std::string Train(const std::vector<std::string>& special, std::int64_t vocab_size, std::int64_t max_letters,
                  const std::vector<std::string>& texts) {
  const auto trainer = TokenizerTrainer::Make(special, vocab_size, max_letters);
  if (!trainer.ok()) return trainer.status().ToString();
  for (const std::string& text : texts) {
    const absl::Status counted = (*trainer)->Count(text);
    if (!counted.ok()) return counted.ToString();
  }
  const auto json = (*trainer)->Train();
  return json.ok() ? *json : json.status().ToString();
}

// The golden is made by the Python package `tokenizers`, with two vocabulary sizes: 300 ends the merges early, 100000
// is never reached.
TEST(TokenizerTrainerTest, TrainsAsThePythonPackage) {
  const base::Json golden = ReadGolden("trained_bpe.json");
  const auto texts = golden.at("texts").get<std::vector<std::string>>();
  const auto special = golden.at("special_tokens").get<std::vector<std::string>>();
  for (const base::Json& expected : golden.at("cases")) {
    const auto made = base::ParseJson(Train(special, expected.at("vocab_size"), kNoLimit, texts));
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(*made, expected.at("tokenizer")) << expected.at("vocab_size");
  }
}

TEST(TokenizerTrainerTest, ResultLoadsAndRestoresAnyText) {
  const std::string json = Train(Special(), 300, kNoLimit, {"the keeper of the light", "the boats of the harbour"});
  const auto tokenizer = Tokenizer::FromJson(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_LE((*tokenizer)->vocab_size(), 300u);
  EXPECT_EQ((*tokenizer)->TokenId("<|endoftext|>"), 0);
  EXPECT_TRUE((*tokenizer)->IsSpecial(1));
  for (const std::string text : {"the light", "\xe4\xbd\xa0\xe5\xa5\xbd, \xf0\x9f\x98\x80", " \n\t", ""}) {
    const auto ids = (*tokenizer)->Encode(text, true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*(*tokenizer)->Decode(*ids, false), text);
  }
  EXPECT_EQ((*tokenizer)->Encode("the", true)->size(), 1u);
}

TEST(TokenizerTrainerTest, NewWordsDoNotCountAtTheLimit) {
  // " xyzzy" is new when the six letters of "the" and " of" are counted; " of" counts again.
  const std::string limited = Train(Special(), 300, 6, {"the of", "the xyzzy xyzzy of"});
  EXPECT_EQ(limited, Train(Special(), 300, kNoLimit, {"the of", "the of"}));
  EXPECT_NE(limited, Train(Special(), 300, kNoLimit, {"the of", "the xyzzy xyzzy of"}));
}

TEST(TokenizerTrainerTest, WithoutTextsTheVocabularyIsTheBytes) {
  const auto tokenizer = Tokenizer::FromJson(Train(Special(), 1000, kNoLimit, {}));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 256u + Special().size());
}

TEST(TokenizerTrainerTest, RefusesASmallVocabularyAndTextThatIsNotUtf8) {
  EXPECT_THAT(Train(Special(), 257, kNoLimit, {}), HasSubstr("vocabulary size: got 257, wanted at least 258"));
  EXPECT_THAT(Train(Special(), 258, kNoLimit, {"\xff"}), HasSubstr("not UTF-8"));
}

// The allocator ends a training that needs more, so this fails if the estimate is too small for hard text: letters
// whose pairs are all different, and long words that merge again and again.
TEST(TokenizerTrainerTest, TrainsWithinItsEstimate) {
  std::string different, repeated;
  for (std::uint32_t i = 0, state = 1; i < 400'000; ++i) {
    state = state * 1664525 + 1013904223;  // Numerical Recipes' linear congruential generator
    different += static_cast<char>('a' + (state >> 16) % 26);
    if (i % 7 == 6) different += ' ';
  }
  for (int length = 0; length < 999; ++length) {
    repeated += ' ';
    for (int i = 0; i < length; ++i) repeated += i % 2 == 0 ? 'a' : 'b';
  }
  for (const std::string& text : {different, repeated}) {
    const auto made = base::ParseJson(Train(Special(), 4000, kNoLimit, {text}));
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_GT(made->at("model").at("vocab").size(), 258u);
  }
}

// Merging takes time quadratic in a word's length: a word of a million letters would take minutes.
TEST(TokenizerTrainerTest, LongWordsDoNotCount) {
  const std::string longest(1000, 'q'), longer(1'000'000, 'q');
  EXPECT_EQ(Train(Special(), 300, kNoLimit, {longer}), Train(Special(), 300, kNoLimit, {}));
  EXPECT_NE(Train(Special(), 300, kNoLimit, {longest}), Train(Special(), 300, kNoLimit, {}));
}

}  // namespace
}  // namespace nibble::text
