#include "server/text/tokenizer.h"

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/text/golden.h"
#include "tests/support/allocated_bytes.h"

namespace nibble::text {
namespace {

using ::testing::HasSubstr;
// The bool of Encode and EncodeWithSpans is add_special_tokens, that of Decode is skip_special_tokens.
using Ids = std::vector<std::int32_t>;

std::string SmallJson() {
  const auto files = TokenizerFilesFromGguf(TinyGguf("byte_level", "smollm"));
  EXPECT_TRUE(files.ok()) << files.status();
  return files->tokenizer_json;
}

// The golden ids and texts are those of transformers, for two tokenizer.json files in the styles of Llama 2 and Qwen 2.
TEST(TokenizerTest, IdsAndTextsMatchTransformers) {
  const base::Json golden = ReadGolden("hf_ids.json");
  const auto texts = golden.at("texts").get<std::vector<std::string>>();
  ASSERT_GE(texts.size(), 16u);
  for (const base::Json& row : golden.at("cases")) {
    const std::string file = row.at("file");
    const auto tokenizer = Tokenizer::FromJson(ReadFile(NIBBLE_SOURCE_DIR "/tests/golden/text/" + file));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto ids = (*tokenizer)->Encode(texts[i], true);
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, row.at("ids").at(i).get<Ids>()) << file << texts[i];
      const auto plain = (*tokenizer)->Encode(texts[i], false);
      ASSERT_TRUE(plain.ok()) << plain.status();
      EXPECT_EQ(*plain, row.at("plain_ids").at(i).get<Ids>()) << file << texts[i];
      const auto decoded = (*tokenizer)->Decode(*ids, false);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(*decoded, row.at("decoded").at(i)) << file;
      const auto skipping = (*tokenizer)->Decode(*ids, true);
      ASSERT_TRUE(skipping.ok()) << skipping.status();
      EXPECT_EQ(*skipping, row.at("decoded_skipping").at(i)) << file;
    }
  }
}

TEST(TokenizerTest, DecodeUndoesEncode) {
  const auto texts = ReadGolden("tiny_ids.json").at("texts");
  for (const char* vocabulary : {"byte_level", "sentence_piece"}) {
    const auto tokenizer = Load(TinyGguf(vocabulary, ""));
    ASSERT_NE(tokenizer, nullptr);
    for (const std::string text : texts) {
      const auto ids = tokenizer->Encode(text, false);
      ASSERT_TRUE(ids.ok()) << ids.status();
      // SentencePiece writes a space as U+2581 and reads <s> as a special token, so texts with either are not restored.
      const bool reserved = text.find("\u2581") != std::string::npos || text.find("<s>") != std::string::npos;
      if (std::string_view(vocabulary) == "sentence_piece" && reserved) continue;
      const auto decoded = tokenizer->Decode(*ids, false);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(*decoded, text);
    }
  }
}

std::string JoinedBytes(const Tokenizer& tokenizer, const Ids& ids) {
  std::string joined;
  for (const std::int32_t id : ids) joined += tokenizer.token_bytes().Of(id);
  return joined;
}

// SentencePiece puts a space before a text, which the model reads too. The first token's bytes include that space.
TEST(TokenizerTest, JoinedBytesOfTokensGiveTheText) {
  std::vector<std::unique_ptr<Tokenizer>> byte_level, byte_fallback;
  byte_level.push_back(Load(TinyGguf("byte_level", "smollm")));
  byte_fallback.push_back(Load(TinyGguf("sentence_piece", "")));
  const std::string golden = NIBBLE_SOURCE_DIR "/tests/golden/text/";
  byte_level.push_back(*Tokenizer::FromJson(ReadFile(golden + "hf_qwen.json")));
  byte_fallback.push_back(*Tokenizer::FromJson(ReadFile(golden + "hf_llama.json")));
  const std::vector<std::string> texts = {"In the year 1969",       "the  cat",    " a",
                                          "caf\u00e9 \u4f60\u597d", "\U0001f600!", "a\nb\tc"};
  for (const std::string& text : texts) {
    for (const auto& tokenizer : byte_level) {
      EXPECT_EQ(JoinedBytes(*tokenizer, *tokenizer->Encode(text, false)), text);
    }
    for (const auto& tokenizer : byte_fallback) {
      const std::string joined = JoinedBytes(*tokenizer, *tokenizer->Encode(text, false));
      EXPECT_TRUE(joined == text || joined == " " + text) << joined << " of " << text;
    }
  }
}

TEST(TokenizerTest, BytesOfATokenAreItsTextNotItsSpelling) {
  const auto byte_level = Load(TinyGguf("byte_level", "smollm"));
  const auto ids = byte_level->Encode("\U0001f600", false);
  EXPECT_EQ(byte_level->token_bytes().Of(ids->front()).substr(0, 1), "\xf0") << "the first byte of the character";
  const std::int32_t blank = byte_level->Encode(" ", false)->front();
  EXPECT_EQ(*byte_level->Token(blank), "\u0120");
  EXPECT_EQ(byte_level->token_bytes().Of(blank), " ");
  EXPECT_EQ(byte_level->token_bytes().Of(*byte_level->TokenId("<|im_end|>")), "<|im_end|>") << "special";
  EXPECT_EQ(byte_level->token_bytes().Of(1 << 30), "") << "no such token";
  const auto llama = Tokenizer::FromJson(ReadFile(NIBBLE_SOURCE_DIR "/tests/golden/text/hf_llama.json"));
  ASSERT_TRUE(llama.ok());
  EXPECT_EQ((*llama)->token_bytes().Of(*(*llama)->TokenId("<0xE4>")), "\xe4");
  EXPECT_EQ((*llama)->token_bytes().Of(*(*llama)->TokenId("<s>")), "<s>");
  std::size_t blanks = 0;
  for (std::int32_t id = 0; id < static_cast<std::int32_t>((*llama)->vocab_size()); ++id) {
    const std::string spelling = (*llama)->Token(id).value_or("");
    if (!spelling.starts_with("\u2581")) continue;
    ++blanks;
    EXPECT_TRUE((*llama)->token_bytes().Of(id).starts_with(" ")) << spelling;
  }
  EXPECT_GT(blanks, 1u);
}

TEST(TokenBytesTest, LongestTokensBoundTheBytesOfDifferentTokens) {
  TokenBytes table;
  for (const auto& [id, bytes] : std::vector<std::pair<int, std::string>>{{0, "a"}, {2, "ccc"}, {7, "bb"}})
    table.Add(id, bytes);
  table.Add(9, std::string(2 * TokenBytes::kMaxBytes, 'x'));
  EXPECT_EQ(table.Of(0), "a");
  EXPECT_EQ(table.Of(1), "");
  EXPECT_EQ(table.Of(2), "ccc");
  EXPECT_EQ(table.Of(7), "bb");
  EXPECT_EQ(table.Of(9).size(), TokenBytes::kMaxBytes) << "truncated";
  EXPECT_EQ(table.Of(10), "");
  EXPECT_EQ(table.BytesOfLongest(0), 0u);
  EXPECT_EQ(table.BytesOfLongest(2), TokenBytes::kMaxBytes + 3);
  EXPECT_EQ(table.BytesOfLongest(20), TokenBytes::kMaxBytes + 6);
  EXPECT_EQ(table.longest_text_bytes(), TokenBytes::kMaxBytes);
  TokenBytes bytes;
  bytes.Add(0, "abcd");
  EXPECT_EQ(bytes.longest_text_bytes(), 4u);
  bytes.Add(1, "a\xC3");
  EXPECT_EQ(bytes.longest_text_bytes(), 4u) << "a letter and U+FFFD";
  bytes.Add(2, "\xE2\x82");
  EXPECT_EQ(bytes.longest_text_bytes(), 6u);
}

// T9 (docs/faults.md). hf_llama.json adds <s> before a text; hf_qwen.json adds one token on each side.
TEST(TokenizerTest, AddsNoSpecialTokenThatTheTextBeginsOrEndsWith) {
  const auto ids = [](const EncodedText& encoded) {
    Ids found;
    for (const TokenSpan& span : encoded.tokens) found.push_back(span.id);
    return found;
  };
  struct Case {
    const char *file, *before, *after;
  };
  for (const Case& c : {Case{"hf_llama.json", "<s>", ""}, Case{"hf_qwen.json", "<|im_start|>", "<|im_end|>"}}) {
    const auto tokenizer = Tokenizer::FromJson(ReadFile(std::string(NIBBLE_SOURCE_DIR "/tests/golden/text/") + c.file));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const std::string text = "in the year", whole = c.before + text + c.after;
    for (const std::string& row : {text, c.before + text, text + c.after, whole}) {
      const auto once = (*tokenizer)->EncodeWithSpans(row, true);
      ASSERT_TRUE(once.ok()) << once.status();
      const Ids found = ids(*once);
      EXPECT_EQ(found.front(), *(*tokenizer)->TokenId(c.before)) << row;
      EXPECT_NE(found.at(1), found.front()) << row;
      EXPECT_EQ(once->began_with_added, row.starts_with(c.before)) << row;
      if (*c.after != '\0') {
        EXPECT_EQ(found.back(), *(*tokenizer)->TokenId(c.after)) << row;
        EXPECT_NE(found.at(found.size() - 2), found.back()) << row;
      }
    }
    const auto none = (*tokenizer)->EncodeWithSpans(whole, false);
    ASSERT_TRUE(none.ok()) << none.status();
    EXPECT_EQ(ids(*none), *(*tokenizer)->Encode(whole, false));
    EXPECT_FALSE(none->began_with_added);
    EXPECT_EQ(ids(*(*tokenizer)->EncodeWithSpans("", true)), *(*tokenizer)->Encode("", true));
  }
}

TEST(TokenizerTest, SpansCoverTheText) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  const std::string text = "In 1969 \u4f60\u597d <|im_end|> \U0001f600!";
  const auto spans = tokenizer->EncodeWithSpans(text, false);
  ASSERT_TRUE(spans.ok()) << spans.status();
  const auto ids = tokenizer->Encode(text, false);
  ASSERT_EQ(spans->tokens.size(), ids->size());
  std::uint32_t covered = 0;
  for (std::size_t i = 0; i < spans->tokens.size(); ++i) {
    const TokenSpan& span = spans->tokens[i];
    EXPECT_EQ(span.id, (*ids)[i]);
    EXPECT_LE(span.begin, covered);  // the tokens of one character share its bytes
    covered = std::max(covered, span.end);
  }
  EXPECT_EQ(covered, text.size());
}

TEST(TokenizerTest, DecodeOmitsSpecialTokensOnlyWhenAsked) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  const auto ids = tokenizer->Encode("<|im_start|>hi<|im_end|>", false);
  EXPECT_EQ(*tokenizer->Decode(*ids, true), "hi");
  EXPECT_EQ(*tokenizer->Decode(*ids, false), "<|im_start|>hi<|im_end|>");
  EXPECT_TRUE(tokenizer->IsSpecial(*tokenizer->TokenId("<|im_start|>")));
  EXPECT_FALSE(tokenizer->IsSpecial(*tokenizer->TokenId("h")));
}

TEST(TokenizerTest, IdsAndTokensMapBothWays) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  const GgufTokenizer gguf = TinyGguf("byte_level", "smollm");
  ASSERT_EQ(tokenizer->vocab_size(), gguf.tokens.size());
  for (std::size_t i = 0; i < gguf.tokens.size(); ++i) {
    EXPECT_EQ(tokenizer->TokenId(gguf.tokens[i]), static_cast<int>(i));
    EXPECT_EQ(tokenizer->Token(static_cast<int>(i)), gguf.tokens[i]);
  }
  EXPECT_EQ(tokenizer->TokenId("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->TokenId("\xFF"), std::nullopt);
  EXPECT_EQ(tokenizer->Token(-1), std::nullopt);
  EXPECT_EQ(tokenizer->Token(1 << 30), std::nullopt);
}

TEST(TokenizerTest, IdsWithoutTokenDecodeToNothingAndNegativeOnesAreRefused) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  const std::int32_t a = *tokenizer->TokenId("a");
  EXPECT_EQ(*tokenizer->Decode(Ids{a, 1 << 20, a}, false), "aa");
  const auto refused = tokenizer->Decode(Ids{a, -5}, false);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TokenizerTest, TextThatIsNotUtf8IsRefused) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  for (const char* text : {"\xFF", "a\xC3", "\xED\xA0\x80", "\xC0\x80"}) {
    const auto ids = tokenizer->Encode(text, false);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(ids.status().message()), HasSubstr("not UTF-8"));
  }
}

// Truncation and padding are the caller's choice, whatever a tokenizer.json specifies.
TEST(TokenizerTest, IgnoresTruncationAndPaddingOfTheFile) {
  std::string json = SmallJson();
  const std::string none = R"("truncation":null,"padding":null)";
  const std::string some = R"("truncation":{"direction":"Right","max_length":2,"strategy":)"
                           R"("LongestFirst","stride":0},"padding":{"strategy":{"Fixed":64},)"
                           R"("direction":"Right","pad_to_multiple_of":null,"pad_id":0,)"
                           R"("pad_type_id":0,"pad_token":"<|endoftext|>"})";
  ASSERT_NE(json.find(none), std::string::npos);
  json.replace(json.find(none), none.size(), some);
  const auto tokenizer = Tokenizer::FromJson(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto plain = Tokenizer::FromJson(SmallJson());
  EXPECT_EQ(*(*tokenizer)->Encode("q w e r t y", true), *(*plain)->Encode("q w e r t y", true));
}

TEST(TokenizerTest, MalformedFilesAreRefusedWithAReason) {
  const std::string json = SmallJson();
  std::vector<std::string> bad = {"",
                                  "{",
                                  "null",
                                  "[]",
                                  "{}",
                                  "\xFF\xFE",
                                  "{\"model\":{}}",
                                  "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":3}}",
                                  std::string(100000, '['),
                                  std::string(1000, '\0')};
  const auto add_bad = [&](std::string_view from, std::string_view to) {
    std::string copy = json;
    const std::size_t place = copy.find(from);
    EXPECT_NE(place, std::string::npos) << from;
    copy.replace(place, from.size(), to);
    bad.push_back(copy);
  };
  add_bad("\"BPE\"", "\"NoSuchModel\"");
  add_bad("\"ByteLevel\"", "\"NoSuchStep\"");
  add_bad("\\\\p{N}", "(((");
  add_bad("\\\\p{N}", "(?:\\\\p{L}{1000}){1000}");
  add_bad("[\"", "[\"no such token ");
  add_bad("\"id\":0", "\"id\":-7");
  add_bad("\"id\":0", "\"id\":1e300");
  for (const std::string& text : bad) {
    const auto tokenizer = Tokenizer::FromJson(text);
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 100);
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("tokenizer.json: "));
  }
}

TEST(TokenizerTest, TruncatedAndCorruptedFilesNeverCrash) {
  const std::string json = SmallJson();
  std::size_t refused = 0;
  for (std::size_t size = 0; size < json.size(); size += 97) {
    refused += Tokenizer::FromJson(json.substr(0, size)).ok() ? 0 : 1;
  }
  EXPECT_EQ(refused, (json.size() + 96) / 97);
  for (std::size_t place = 0; place < json.size(); place += 61) {
    std::string copy = json;
    copy[place] = static_cast<char>(copy[place] ^ 0x15);
    const auto tokenizer = Tokenizer::FromJson(copy);
    if (tokenizer.ok()) {
      (void)(*tokenizer)->Encode("In 1969 <|im_end|>", true);
    }
  }
}

// A normalizer may turn every letter into a megabyte.
TEST(TokenizerTest, RefusesEncodeThatWouldFillTheMemory) {
  std::string json = SmallJson();
  const std::string from = R"("normalizer":null)";
  json.replace(json.find(from), from.size(),
               R"("normalizer":{"type":"Replace","pattern":{"String":"a"},)"
               R"("content":")" +
                   std::string(1 << 20, 'b') + "\"}");
  const auto tokenizer = Tokenizer::FromJson(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids = (*tokenizer)->Encode(std::string(100000, 'a'), false);
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("more memory"));
  EXPECT_TRUE((*tokenizer)->Encode("bcd", false).ok());
}

std::string JsonOfModel(std::string_view model) {
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)"
         R"("pre_tokenizer":null,"post_processor":null,"decoder":null,"model":)" +
         std::string(model) + "}";
}

// WordPiece takes time cubic in the length of a word.
TEST(TokenizerTest, RefusesWordPieceThatAllowsLongWords) {
  const auto load = [](std::string_view max_chars) {
    return Tokenizer::FromJson(
        JsonOfModel(R"({"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##",)"
                    R"("vocab":{"[UNK]":0,"a":1,"##a":2},"max_input_chars_per_word":)" +
                    std::string(max_chars) + "}"));
  };
  const auto refused = load("1001");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("max_input_chars_per_word: got 1001, wanted at most 1000"));
  const auto tokenizer = load("1000");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode(std::string(1000, 'a'), false)->size(), 1000u);
  EXPECT_EQ((*tokenizer)->Encode(std::string(1001, 'a'), false)->size(), 1u);
}

TEST(TokenizerTest, RefusesBpeThatDropsNearlyAllMerges) {
  const auto load = [](std::string_view dropout) {
    return Tokenizer::FromJson(JsonOfModel(R"({"type":"BPE","vocab":{"a":0,"aa":1},"merges":[["a","a"]],"dropout":)" +
                                           std::string(dropout) + "}"));
  };
  const auto refused = load("0.9998");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("dropout: got 0.9998, wanted at most 0.9"));
  EXPECT_TRUE(load("0.1").ok()) << load("0.1").status();
}

// At each letter of the text, 2'000 tokens of up to 2'000 letters begin. Encoding 64 KiB would take half a minute.
TEST(TokenizerTest, EncodeThatTakesTooLongIsRefused) {
  std::string vocab = R"(["<unk>",0])";
  for (int i = 1; i <= 2000; ++i) vocab += ",[\"" + std::string(static_cast<std::size_t>(i), 'a') + "\",-1]";
  const auto tokenizer = Tokenizer::FromJson(JsonOfModel(R"({"type":"Unigram","unk_id":0,"vocab":[)" + vocab + "]}"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids = (*tokenizer)->Encode(std::string(64 << 10, 'a'), false);
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("processor time"));
  EXPECT_EQ((*tokenizer)->Encode("aaa", false)->size(), 1u);
}

TEST(TokenizerTest, LongRunsOfOneCharacterAreEncodedCompletely) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  for (const std::string part : {" ", "a", "1", "\n", "!", "\U0001f600"}) {
    std::string text;
    while (text.size() < 200000) text += part;
    const auto ids = tokenizer->Encode(text, false);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*tokenizer->Decode(*ids, false), text);
  }
}

// These tests do not run with sanitizers: AllocatedBytes() does not see their allocators.
#if !defined(NIBBLE_ASAN) && !defined(NIBBLE_TSAN)
std::string ManyWords() {
  std::string text;
  for (int i = 0; i < 2000; ++i) {  // no digits: each would be a word of its own
    text += " word";
    for (int left = i; left > 0; left /= 26) text += static_cast<char>('a' + left % 26);
  }
  return text;
}

// C15 (docs/faults.md)
TEST(TokenizerTest, DroppedTokenizersLeaveNothingInMemory) {
  const std::string json = SmallJson(), text = ManyWords();
  const auto use = [&] {
    const auto tokenizer = Tokenizer::FromJson(json);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    ASSERT_TRUE((*tokenizer)->Encode(text, false).ok());
  };
  for (int i = 0; i < 4; ++i) use();
  const std::int64_t before = ::nibble::testing::AllocatedBytes();
  for (int i = 0; i < 50; ++i) use();
  EXPECT_LT(::nibble::testing::AllocatedBytes() - before, 1 << 20);  // measured: 100 kB; if words were cached, 43 MB
}

TEST(TokenizerTest, WordCacheChangesNoTokensAndEndsWithItsThread) {
  const std::string text = ManyWords();
  const auto tokenizer = Tokenizer::FromJson(SmallJson());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto want = (*tokenizer)->Encode(text, false);
  const auto use = [&] {
    std::thread([&] {
      const auto cached = (*tokenizer)->WithWordCache();
      ASSERT_TRUE(cached.ok()) << cached.status();
      for (int i = 0; i < 2; ++i) EXPECT_EQ(*(*cached)->Encode(text, false), *want);
    }).join();
  };
  for (int i = 0; i < 4; ++i) use();
  const std::int64_t before = ::nibble::testing::AllocatedBytes();
  for (int i = 0; i < 50; ++i) use();
  EXPECT_LT(::nibble::testing::AllocatedBytes() - before, 1 << 20);
}

// The crate `tokenizers` caches words of up to 255 bytes. Letters without a merge stay single symbols, so these words
// take the most memory.
TEST(TokenizerTest, WordCacheOfTheLongestWordsIsBounded) {
  const auto tokenizer = Tokenizer::FromJson(SmallJson());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::thread([&] {
    const auto cached = (*tokenizer)->WithWordCache();
    ASSERT_TRUE(cached.ok()) << cached.status();
    const std::int64_t before = ::nibble::testing::AllocatedBytes();
    for (int i = 0; i < 12'000; ++i) {
      std::string word(250, 'x');
      for (int left = i, at = 0; left > 0; left /= 26, ++at)
        word[static_cast<std::size_t>(at)] = static_cast<char>('a' + left % 26);
      ASSERT_TRUE((*cached)->Encode(word, false).ok());
    }
    const std::int64_t grown = ::nibble::testing::AllocatedBytes() - before;
    EXPECT_GT(grown, 40 << 20) << "words are cached";
    EXPECT_LT(grown, 84 << 20);  // data::kWordCacheBytes
  }).join();
}
#endif

TEST(TokenizerTest, ThreadsShareOneTokenizer) {
  const auto tokenizer = Load(TinyGguf("byte_level", "smollm"));
  const std::string text = "hello world 1969 \u4f60\u597d \U0001f600";
  const Ids expected = *tokenizer->Encode(text, true);
  std::vector<int> equal(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        equal[t] += *tokenizer->Encode(text, true) == expected ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ::testing::Each(50));
}

}  // namespace
}  // namespace nibble::text
