#include "server/text/stream_decoder.h"

#include <random>

#include "gtest/gtest.h"
#include "server/text/utf8.h"
#include "tests/server/text/golden.h"

namespace nibble::text {
namespace {

using Ids = std::vector<std::int32_t>;

struct Streamed {
  std::vector<std::string> deltas;
  StreamDecoder::Tail tail;
  std::string all;  // deltas, tail and the sign for a cut character
};

Streamed Stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  Streamed streamed;
  StreamDecoder decoder(tokenizer, skip_special);
  for (const std::int32_t id : ids) {
    const auto delta = decoder.Append(id);
    EXPECT_TRUE(delta.ok()) << delta.status();
    EXPECT_TRUE(IsValidUtf8(*delta));
    streamed.deltas.push_back(*delta);
    streamed.all += *delta;
  }
  const auto tail = decoder.Finish();
  EXPECT_TRUE(tail.ok()) << tail.status();
  streamed.tail = *tail;
  streamed.all += tail->text;
  if (!tail->incomplete_utf8.empty()) streamed.all += "\uFFFD";
  return streamed;
}

Ids ByteTokens(const Tokenizer& tokenizer, std::string_view bytes) {
  constexpr char kHex[] = "0123456789ABCDEF";
  Ids ids;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    const std::string name = {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
    ids.push_back(tokenizer.TokenId(name).value());
  }
  return ids;
}

TEST(StreamDecoderTest, DeltasAreTheDecodedText) {
  const auto texts = ReadGolden("tiny_ids.json").at("texts");
  for (const char* vocabulary : {"byte_level", "sentence_piece"}) {
    const auto tokenizer = Load(TinyGguf(vocabulary, ""));
    for (const std::string text : texts) {
      const Ids ids = *tokenizer->Encode(text, true);
      for (const bool skip_special : {false, true}) {
        EXPECT_EQ(Stream(*tokenizer, ids, skip_special).all,
                  *tokenizer->Decode(ids, skip_special))
            << vocabulary << ": " << text;
      }
    }
  }
}

TEST(StreamDecoderTest, AnEmojiOverFourTokensComesWhole) {
  for (const char* vocabulary : {"byte_level", "sentence_piece"}) {
    const auto tokenizer = Load(TinyGguf(vocabulary, ""));
    const std::string llama = "\U0001f999";
    const Ids ids = std::string_view(vocabulary) == "byte_level"
                        ? *tokenizer->Encode(llama, false)
                        : ByteTokens(*tokenizer, llama);
    ASSERT_GE(ids.size(), 2u) << vocabulary;
    const Streamed streamed = Stream(*tokenizer, ids, true);
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      EXPECT_EQ(streamed.deltas[i], "");
    }
    EXPECT_EQ(streamed.deltas.back(), llama);
  }
}

TEST(StreamDecoderTest, ACutCharacterIsHandedOverAsItsBytes) {
  for (const char* vocabulary : {"byte_level", "sentence_piece"}) {
    const auto tokenizer = Load(TinyGguf(vocabulary, ""));
    const std::string bytes = "\U0001f999";
    Ids ids = std::string_view(vocabulary) == "byte_level"
                  ? *tokenizer->Encode(bytes, false)
                  : ByteTokens(*tokenizer, "\u4f60" + bytes);
    ids.pop_back();
    const Streamed streamed = Stream(*tokenizer, ids, true);
    EXPECT_FALSE(streamed.tail.incomplete_utf8.empty());
    EXPECT_EQ(streamed.tail.incomplete_utf8,
              bytes.substr(0, streamed.tail.incomplete_utf8.size()));
    EXPECT_EQ(streamed.all, *tokenizer->Decode(ids, true)) << vocabulary;
  }
}

TEST(StreamDecoderTest, ANewLineByteTokenIsNotHeldBack) {
  const auto tokenizer = Load(TinyGguf("sentence_piece", ""));
  const Ids ids = ByteTokens(*tokenizer, "\n");
  EXPECT_EQ(Stream(*tokenizer, ids, true).deltas[0], "\n");
}

TEST(StreamDecoderTest, RandomIdsAgreeWithDecode) {
  std::mt19937 random(1);
  for (const char* vocabulary : {"byte_level", "sentence_piece"}) {
    const auto tokenizer = Load(TinyGguf(vocabulary, ""));
    const auto size = static_cast<std::int32_t>(tokenizer->vocab_size());
    for (int round = 0; round < 500; ++round) {
      Ids ids;
      for (int i = 0; i < 20; ++i) {
        // Some beyond the vocabulary, and many of the first 300: bytes.
        const std::int32_t limit = i % 2 == 0 ? 300 : size + 5;
        ids.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(limit)));
      }
      const bool skip_special = round % 2 == 0;
      ASSERT_EQ(Stream(*tokenizer, ids, skip_special).all,
                *tokenizer->Decode(ids, skip_special))
          << vocabulary << " " << ::testing::PrintToString(ids);
    }
  }
}

TEST(StreamDecoderTest, FinishBeginsANewText) {
  const auto tokenizer = Load(TinyGguf("sentence_piece", ""));
  const Ids ids = *tokenizer->Encode("hello world", false);
  StreamDecoder decoder(*tokenizer, true);
  for (int round = 0; round < 2; ++round) {
    std::string text;
    for (const std::int32_t id : ids) text += *decoder.Append(id);
    text += decoder.Finish()->text;
    EXPECT_EQ(text, "hello world");
  }
}

// A decoder that looks at the whole text (here: replaces across tokens) is held.
TEST(StreamDecoderTest, ADecoderThatChangesEarlierTextIsHeldToTheEnd) {
  auto files = TokenizerFilesFromGguf(TinyGguf("sentence_piece", ""));
  std::string& json = files->tokenizer_json;
  const std::string from = R"({"type":"Fuse"})";
  json.replace(json.find(from), from.size(),
               from + R"(,{"type":"Replace","pattern":{"String":"o w"},)"
                      R"("content":"0"})");
  const auto tokenizer = Tokenizer::FromJson(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const Ids ids = *(*tokenizer)->Encode("hello world", false);
  const Streamed streamed = Stream(**tokenizer, ids, true);
  EXPECT_EQ(streamed.deltas, std::vector<std::string>(ids.size()));
  EXPECT_EQ(streamed.all, "hell0orld");
}

TEST(StreamDecoderTest, NegativeIdsAreRefused) {
  const auto tokenizer = Load(TinyGguf("byte_level", ""));
  StreamDecoder decoder(*tokenizer, true);
  EXPECT_EQ(decoder.Append(-1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Utf8Test, MaximalInvalidPartsBecomeOneSignEach) {
  // Unicode 15, table 3-8 and its neighbours.
  const auto take = [](std::string_view bytes) {
    std::string text;
    const std::size_t taken = TakeWholeCharacters(bytes, &text);
    return text + "|" + std::string(bytes.substr(taken));
  };
  EXPECT_EQ(take("a\xC0\xAFz"), "a\uFFFD\uFFFDz|");
  EXPECT_EQ(take("\xED\xA0\x80z"), "\uFFFD\uFFFD\uFFFDz|");
  EXPECT_EQ(take("\xF0\x9F\xA6z"), "\uFFFDz|");
  EXPECT_EQ(take("\xF4\x91\x92\x93z"), "\uFFFD\uFFFD\uFFFD\uFFFDz|");
  EXPECT_EQ(take("z\xF0\x9F\xA6"), "z|\xF0\x9F\xA6");
  EXPECT_EQ(take("\xE4\xBD"), "|\xE4\xBD");
  EXPECT_EQ(take(""), "|");
}

}  // namespace
}  // namespace nibble::text
