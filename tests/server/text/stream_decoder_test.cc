#include "server/text/stream_decoder.h"

#include <random>

#include "gtest/gtest.h"
#include "server/base/utf8.h"
#include "tests/server/text/golden.h"

namespace nibble::text {
namespace {

// The bool of Encode is add_special_tokens; that of Decode, StreamDecoder and Stream is skip_special_tokens.
using Ids = std::vector<std::int32_t>;

struct Streamed {
  std::vector<std::string> deltas;
  StreamDecoder::Tail tail;
  std::string all;  // deltas, tail, and U+FFFD for an incomplete character
};

Streamed Stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  Streamed streamed;
  StreamDecoder decoder(tokenizer, skip_special);
  for (const std::int32_t id : ids) {
    const auto delta = decoder.Append(id);
    EXPECT_TRUE(delta.ok()) << delta.status();
    EXPECT_TRUE(base::IsValidUtf8(*delta));
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

// The tiny SentencePiece vocabulary with an additional empty token and the given
// decoder.
std::unique_ptr<Tokenizer> WithDecoder(const std::string& decoder) {
  const auto files = TokenizerFilesFromGguf(TinyGguf("sentence_piece", ""));
  EXPECT_TRUE(files.ok()) << files.status();
  auto json = base::ParseJson(files->tokenizer_json);
  EXPECT_TRUE(json.ok()) << json.status();
  (*json)["decoder"] = base::Json::parse(decoder);
  base::Json& vocabulary = (*json)["model"]["vocab"];
  vocabulary[""] = vocabulary.size();
  auto tokenizer = Tokenizer::FromJson(base::Dump(*json));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::string Sequence(const std::string& decoders) { return R"({"type":"Sequence","decoders":[)" + decoders + "]}"; }

std::string Strip(const std::string& content, int start) {
  return R"({"type":"Strip","content":")" + content + R"(","start":)" + std::to_string(start) + R"(,"stop":0})";
}

// Decoders of real models (Llama and Mistral, Gemma, T5), and decoders that strip more,
// leave a run of bytes in pieces or know no byte tokens.
std::vector<std::string> AllDecoders() {
  const std::string blanks = R"({"type":"Replace","pattern":{"String":"\u2581"},"content":" "},)"
                             R"({"type":"ByteFallback"})";
  const std::string fuse = blanks + R"(,{"type":"Fuse"})";
  return {
      Sequence(fuse + "," + Strip(" ", 1)),
      Sequence(fuse),
      R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true})",
      R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"never","split":true})",
      Sequence(fuse + "," + Strip(" ", 3)),
      Sequence(fuse + "," + Strip(" ", 1) + "," + Strip("a", 2)),
      Sequence(fuse + "," + Strip(" ", 1000)),
      Sequence(fuse + "," + Strip("\uFFFD", 2)),
      Sequence(blanks + "," + Strip(" ", 1)),
      Sequence(R"({"type":"Replace","pattern":{"String":"aa"},"content":"b"},)" + fuse),
      Strip(" ", 1),
      "null",
  };
}

// Sets of ids that a growing text repeats: blanks, empty tokens, special tokens, ids
// without a token, beginnings of characters, and all of these together.
std::vector<Ids> Alphabets(const Tokenizer& tokenizer) {
  const std::int32_t blank = tokenizer.TokenId("\u2581").value();
  const std::int32_t empty = tokenizer.TokenId("").value();
  Ids bytes = ByteTokens(tokenizer, "\u2581\U0001f999 aA\xF0\xE2\x80");
  Ids all = bytes;
  for (const char* token : {"a", "\u2581the", "<s>", "</s>", "<unk>"}) {
    all.push_back(tokenizer.TokenId(token).value());
  }
  for (const std::int32_t id : {blank, empty, 1 << 20}) all.push_back(id);
  return {{blank},
          {empty},
          {blank, empty},
          {tokenizer.TokenId("</s>").value()},
          {1 << 20},
          ByteTokens(tokenizer, "\xF0"),
          ByteTokens(tokenizer, " a"),
          bytes,
          all};
}

TEST(StreamDecoderTest, DeltasAreTheDecodedText) {
  const auto texts = ReadGolden("tiny_ids.json").at("texts");
  for (const char* vocabulary : {"byte_level", "sentence_piece"}) {
    const auto tokenizer = Load(TinyGguf(vocabulary, ""));
    for (const std::string text : texts) {
      const Ids ids = *tokenizer->Encode(text, true);
      for (const bool skip_special : {false, true}) {
        EXPECT_EQ(Stream(*tokenizer, ids, skip_special).all, *tokenizer->Decode(ids, skip_special))
            << vocabulary << ": " << text;
      }
    }
  }
}

TEST(StreamDecoderTest, EmojiOfSeveralTokensArrivesWhole) {
  for (const char* vocabulary : {"byte_level", "sentence_piece"}) {
    const auto tokenizer = Load(TinyGguf(vocabulary, ""));
    const std::string llama = "\U0001f999";
    const Ids ids =
        std::string_view(vocabulary) == "byte_level" ? *tokenizer->Encode(llama, false) : ByteTokens(*tokenizer, llama);
    ASSERT_GE(ids.size(), 2u) << vocabulary;
    const Streamed streamed = Stream(*tokenizer, ids, true);
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      EXPECT_EQ(streamed.deltas[i], "");
    }
    EXPECT_EQ(streamed.deltas.back(), llama);
  }
}

TEST(StreamDecoderTest, TailHoldsTheBytesOfACutCharacter) {
  for (const char* vocabulary : {"byte_level", "sentence_piece"}) {
    const auto tokenizer = Load(TinyGguf(vocabulary, ""));
    const std::string bytes = "\U0001f999";
    Ids ids = std::string_view(vocabulary) == "byte_level" ? *tokenizer->Encode(bytes, false)
                                                           : ByteTokens(*tokenizer, "\u4f60" + bytes);
    ids.pop_back();
    const Streamed streamed = Stream(*tokenizer, ids, true);
    EXPECT_FALSE(streamed.tail.incomplete_utf8.empty());
    EXPECT_EQ(streamed.tail.incomplete_utf8, bytes.substr(0, streamed.tail.incomplete_utf8.size()));
    EXPECT_EQ(streamed.all, *tokenizer->Decode(ids, true)) << vocabulary;
  }
}

TEST(StreamDecoderTest, NewLineByteTokenIsNotHeldBack) {
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
        // Some ids are beyond the vocabulary, and many are among the first 300, which include the byte tokens.
        const std::int32_t limit = i % 2 == 0 ? 300 : size + 5;
        ids.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(limit)));
      }
      const bool skip_special = round % 2 == 0;
      ASSERT_EQ(Stream(*tokenizer, ids, skip_special).all, *tokenizer->Decode(ids, skip_special))
          << vocabulary << " " << ::testing::PrintToString(ids);
    }
  }
}

TEST(StreamDecoderTest, DeltasAreTheDecodedTextUnderEveryDecoder) {
  std::mt19937 random(2);
  for (const std::string& decoder : AllDecoders()) {
    const auto tokenizer = WithDecoder(decoder);
    ASSERT_NE(tokenizer, nullptr) << decoder;
    for (const Ids& alphabet : Alphabets(*tokenizer)) {
      for (const int size : {1, 2, 3, 4, 7, 20, 63, 64, 65, 66, 200}) {
        for (int round = 0; round < 8; ++round) {
          Ids ids;
          for (int i = 0; i < size; ++i) {
            ids.push_back(alphabet[random() % alphabet.size()]);
          }
          // Adds text after the stripped part, or an incomplete character at the end.
          if (round % 4 == 1) ids.push_back(tokenizer->TokenId("a").value());
          if (round % 4 == 2) ids.push_back(ByteTokens(*tokenizer, "\xE2")[0]);
          const bool skip_special = round % 2 == 0;
          ASSERT_EQ(Stream(*tokenizer, ids, skip_special).all, *tokenizer->Decode(ids, skip_special))
              << decoder << " " << ::testing::PrintToString(ids);
        }
      }
    }
  }
}

// A million tokens of one blank each (Mistral has such a token) once occupied a thread for days: each one decoded all
// earlier ones again.
TEST(StreamDecoderTest, CostOfAnIdDoesNotGrow) {
  constexpr std::int64_t kIds = 4000;
  // For each id the decoder may decode 64 stripped ids, the tokenizer's anchor (a token that is put before others, so
  // that their text is not stripped) and twice the id itself; one is to spare. Decoding all earlier ids again for each
  // id would cost 8,000,000.
  constexpr std::int64_t kMost = 68 * kIds;
  for (const std::string& decoder : AllDecoders()) {
    const auto tokenizer = WithDecoder(decoder);
    ASSERT_NE(tokenizer, nullptr) << decoder;
    for (const Ids& alphabet : Alphabets(*tokenizer)) {
      for (const bool text_before : {false, true}) {
        StreamDecoder stream(*tokenizer, false);
        if (text_before) {
          ASSERT_TRUE(stream.Append(tokenizer->TokenId("a").value()).ok());
        }
        for (std::size_t i = 0; i < kIds; ++i) {
          ASSERT_TRUE(stream.Append(alphabet[i % alphabet.size()]).ok());
        }
        ASSERT_TRUE(stream.Finish().ok());
        EXPECT_LE(stream.num_decoded(), kMost) << decoder << " " << ::testing::PrintToString(alphabet);
      }
    }
  }
  // Once there is text, the decoder of Llama and Mistral decodes only two ids for each new id: the anchor and the new
  // id.
  const auto mistral = WithDecoder(AllDecoders().front());
  StreamDecoder stream(*mistral, false);
  const std::int32_t blank = mistral->TokenId("\u2581").value();
  for (std::int64_t i = 0; i < kIds; ++i) {
    const auto delta = stream.Append(blank);
    ASSERT_TRUE(delta.ok()) << delta.status();
    EXPECT_EQ(*delta, i == 0 ? "" : " ");
  }
  EXPECT_LE(stream.num_decoded(), 2 * kIds + 8);
}

// Bytes that can no longer become a character are shown at once, and not only when the run of byte tokens ends.
TEST(StreamDecoderTest, BrokenBytesAreNotHeldBack) {
  const auto tokenizer = Load(TinyGguf("sentence_piece", ""));
  const Streamed streamed = Stream(*tokenizer, ByteTokens(*tokenizer, "\xF0\xF0\xF0"), true);
  EXPECT_EQ(streamed.deltas, (std::vector<std::string>{"", "\uFFFD", "\uFFFD"}));
  EXPECT_EQ(streamed.tail.incomplete_utf8, "\xF0");
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

// Text is held back if the decoder needs the whole text (here: it replaces across tokens).
TEST(StreamDecoderTest, HoldsTextToTheEndIfTheDecoderChangesEarlierText) {
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
  EXPECT_EQ(decoder.Append(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::text
