#include "server/text/piece_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/server/text/golden.h"

namespace nibble::text {
namespace {

struct Named {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
};

std::unique_ptr<Tokenizer> FromGolden(const std::string& file, const std::function<void(base::Json&)>& change = {}) {
  base::Json json = base::Json::parse(ReadFile(std::string(NIBBLE_SOURCE_DIR "/tests/golden/text/") + file));
  if (change) change(json);
  auto tokenizer = Tokenizer::FromJson(base::Dump(json));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// Every kind of tokenizer that other tests compare with golden ids, and two variants of Qwen 2: byte-level BPE with
// several pre-tokenizers, SentencePiece with a prefix, Llama 2 with a BOS, Qwen 2 with a special token on each side,
// Qwen 2 with a blank before each text, Qwen 2 with added tokens that take the blanks around them.
std::vector<Named> Tokenizers() {
  std::vector<Named> all;
  for (const char* pre : {"default", "gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    all.push_back({pre, Load(TinyGguf("byte_level", pre))});
  }
  all.push_back({"sentence_piece", Load(TinyGguf("sentence_piece", ""))});
  all.push_back({"hf_llama", FromGolden("hf_llama.json")});
  all.push_back({"hf_qwen", FromGolden("hf_qwen.json")});
  all.push_back({"prefix", FromGolden("hf_qwen.json", [](base::Json& json) {
                   json["pre_tokenizer"] =
                       base::Json::parse(R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true})");
                 })});
  all.push_back({"added tokens that take blanks", FromGolden("hf_qwen.json", [](base::Json& json) {
                   for (base::Json& token : json["added_tokens"]) token["lstrip"] = token["rstrip"] = true;
                 })});
  return all;
}

// Golden texts in several scripts, digits, special tokens, their fragments, and runs of one of these, in random order.
// One run in twenty is long.
std::string RandomText(std::mt19937& random, std::size_t bytes) {
  static const std::vector<std::string> golden =
      ReadGolden("tiny_ids.json").at("texts").get<std::vector<std::string>>();
  const std::vector<std::string> parts = {"the keeper ",  "walked\n",    "\n\n",
                                          "   ",          "\t",          "a",
                                          "1234567",      "0",           " \u4f60\u597d\u3002",
                                          "\u4f60\u597d", "<s>",         "</s>",
                                          "<|im_start|>", "<|im_end|> ", "<|im_",
                                          "...",          "!? ",         "\u2581",
                                          "\U0001f600",   "e\u0301"};
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  std::string text;
  while (text.size() < bytes) {
    switch (below(4)) {
      case 0: text += golden[below(golden.size())]; break;
      case 1: text += golden[below(golden.size())] + " "; break;
      case 2: text += parts[below(parts.size())]; break;
      default: {
        const std::string& part = parts[below(parts.size())];
        for (std::size_t i = below(below(20) == 0 ? 2000 : 30); i-- > 0;) text += part;
      }
    }
  }
  return text;
}

struct Joined {
  EncodedText text;  // the tokens of all pieces
  EncodedPieces pieces;
  int num_pieces = 0;
};

Joined EncodeAndJoin(const Tokenizer& tokenizer, std::string_view text, const PieceOptions& options) {
  Joined joined;
  const auto pieces = EncodeInPieces(tokenizer, text, options, [&](std::span<const TokenSpan> tokens) {
    joined.text.tokens.insert(joined.text.tokens.end(), tokens.begin(), tokens.end());
    ++joined.num_pieces;
  });
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  if (pieces.ok()) joined.pieces = *pieces;
  joined.text.began_with_added = joined.pieces.began_with_added;
  return joined;
}

void ExpectSame(const EncodedText& got, const EncodedText& want, const std::string& where) {
  ASSERT_EQ(got.tokens.size(), want.tokens.size()) << where;
  for (std::size_t i = 0; i < want.tokens.size(); ++i) {
    ASSERT_EQ(got.tokens[i].id, want.tokens[i].id) << where << " token " << i;
    ASSERT_EQ(got.tokens[i].begin, want.tokens[i].begin) << where << " token " << i;
    ASSERT_EQ(got.tokens[i].end, want.tokens[i].end) << where << " token " << i;
  }
  EXPECT_EQ(got.began_with_added, want.began_with_added) << where;
}

// T6 (docs/faults.md)
TEST(PieceEncoderTest, PiecesHaveTheTokensOfTheWhole) {
  std::mt19937 random(7);
  int num_texts = 0, num_pieces = 0;
  for (const Named& named : Tokenizers()) {
    ASSERT_NE(named.tokenizer, nullptr) << named.name;
    ASSERT_TRUE(named.tokenizer->is_local()) << named.name;
    for (int round = 0; round < 10; ++round) {
      std::string text = RandomText(random, 30'000);
      if (round == 0) text = "<s>" + text + "</s>";
      if (round == 5) text = "<|im_start|>" + text + "<|im_end|>";
      for (const bool add_special_tokens : {false, true}) {
        const auto want = named.tokenizer->EncodeWithSpans(text, add_special_tokens);
        ASSERT_TRUE(want.ok()) << want.status();
        const Joined got =
            EncodeAndJoin(*named.tokenizer, text, {.add_special_tokens = add_special_tokens, .piece_bytes = 3000});
        const std::string where = named.name + " round " + std::to_string(round);
        ASSERT_TRUE(got.pieces.complete) << where;
        ExpectSame(got.text, *want, where);
        if (HasFatalFailure()) return;
        ++num_texts;
        num_pieces += got.num_pieces;
      }
    }
  }
  EXPECT_GT(num_pieces, 5 * num_texts) << "texts of 30,000 bytes are cut into pieces of 3000";
}

TEST(PieceEncoderTest, ProseIsCutIntoPiecesOfTheWantedSize) {
  const auto tokenizer = Load(TinyGguf("byte_level", "llama-bpe"));
  std::string text;
  while (text.size() < 500'000) text += "the keeper of the light walked down to the harbour\n";
  int num_encoded = 0;
  std::size_t largest_admitted = 0;
  const auto count = [&] {  // called before each piece
    ++num_encoded;
    return false;
  };
  const auto admit = [&](std::size_t bytes) {
    largest_admitted = std::max(largest_admitted, bytes);
    return absl::OkStatus();
  };
  const Joined got = EncodeAndJoin(*tokenizer, text, {.piece_bytes = 8 << 10, .cancelled = count, .admit = admit});
  EXPECT_TRUE(got.pieces.complete);
  EXPECT_EQ(largest_admitted, 0u) << "no piece is larger";
  EXPECT_GT(num_encoded, 60);
  EXPECT_LT(num_encoded, 100) << "the overlap is small";
  ExpectSame(got.text, *tokenizer->EncodeWithSpans(text, false), "prose");
}

// A run without a blank becomes one piece, and the rest of the text is still cut.
TEST(PieceEncoderTest, LargerPieceNeedsAdmission) {
  for (const Named& named : Tokenizers()) {
    std::string prose;
    while (prose.size() < 20'000) prose += "the keeper walked ";
    const std::string text = prose + std::string(20'000, 'x') + " " + prose + std::string(40'000, '7') + prose;
    std::vector<std::size_t> admitted;
    const auto admit = [&](std::size_t bytes) {
      admitted.push_back(bytes);
      return absl::OkStatus();
    };
    const Joined got =
        EncodeAndJoin(*named.tokenizer, text, {.add_special_tokens = true, .piece_bytes = 4000, .admit = admit});
    ASSERT_TRUE(got.pieces.complete) << named.name;
    ExpectSame(got.text, *named.tokenizer->EncodeWithSpans(text, true), named.name);
    ASSERT_GE(admitted.size(), 2u) << named.name;
    for (const std::size_t bytes : admitted) {
      EXPECT_LT(bytes, 60'000u) << named.name << ": not the whole of " << text.size();
    }
    const auto refuse = [](std::size_t) { return absl::ResourceExhaustedError("no room"); };
    const auto refused = EncodeInPieces(*named.tokenizer, text, {.piece_bytes = 4000, .admit = refuse},
                                        [](std::span<const TokenSpan>) {});
    EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  }
}

TEST(PieceEncoderTest, CancelStopsBetweenPieces) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  std::string text;
  while (text.size() < 300'000) text += "the keeper ";
  int num_checks = 0;
  const auto cancelled = [&] { return ++num_checks == 4; };
  const auto stopped = EncodeInPieces(*tokenizer, text, {.cancelled = cancelled}, [](std::span<const TokenSpan>) {});
  EXPECT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
  EXPECT_EQ(num_checks, 4);
}

// The tokens of a piece would differ from those of the whole text: a unigram model weighs the whole text, FixedLength
// counts from the start of the text, and dropout is random each time.
TEST(PieceEncoderTest, DoesNotCutTextsOfNonLocalTokenizers) {
  const auto unigram = FromGolden("hf_llama.json", [](base::Json& json) {
    json["model"] = base::Json::parse(R"({"type": "Unigram", "unk_id": 0, "byte_fallback": false,
                                          "vocab": [["<unk>", 0], ["a", -1], [" ", -2]]})");
    json["added_tokens"] = base::Json::array();
    json["post_processor"] = nullptr;
  });
  const auto fixed_length = FromGolden("hf_qwen.json", [](base::Json& json) {
    json["pre_tokenizer"] =
        base::Json::parse(R"({"type": "Sequence", "pretokenizers": [{"type": "FixedLength", "length": 7},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})");
  });
  const auto dropout = FromGolden("hf_qwen.json", [](base::Json& json) { json["model"]["dropout"] = 0.1; });
  for (const auto* tokenizer : {&unigram, &fixed_length, &dropout}) {
    ASSERT_NE(*tokenizer, nullptr);
    EXPECT_FALSE((*tokenizer)->is_local());
    std::string text;
    while (text.size() < 100'000) text += "a a ";
    const Joined got = EncodeAndJoin(**tokenizer, text, {});
    EXPECT_FALSE(got.pieces.complete);
    EXPECT_EQ(got.num_pieces, 0);
  }
}

}  // namespace
}  // namespace nibble::text
