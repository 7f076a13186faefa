#include "server/rpc/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/model/text_assets.h"
#include "server/rpc/inference_input.h"
#include "tests/server/model/files.h"

namespace nibble::rpc {
namespace {

using ::testing::HasSubstr;

class TokensTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto assets = model::LoadTextAssets(NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16");
    ASSERT_TRUE(assets.ok()) << assets.status();
    model_.assets = *std::move(assets);
    tokenize_.set_text("the keeper of the light");
    v1::TokenizeResponse tokens;
    const absl::Status status = Tokenize(tokenize_, "", model_, Wide(), &tokens);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_GT(tokens.token_ids_size(), 5);
    *detokenize_.mutable_token_ids() = tokens.token_ids();
    v1::ChatInput chat;
    auto* message = chat.add_messages();
    message->set_role("user");
    message->set_content("who walks?");
    auto rendered = Render(chat, model_.assets, 1 << 20);
    ASSERT_TRUE(rendered.ok()) << rendered.status();
    rendered_ = *std::move(rendered);
  }

  static AnswerBounds Wide() { return {.cancelled = {}, .max_bytes = 1 << 20}; }
  // Bounds that report a cancel at the third check.
  AnswerBounds Counted() {
    asked_ = 0;
    return {.cancelled = [this] { return ++asked_ == 3; }, .max_bytes = 1 << 20};
  }
  // Runs `work(bounds, response)` with a limit that the answer just fits, and with two limits that it exceeds: by one
  // byte, and from the first bytes on.
  template <typename Response, typename Work>
  void ExpectBounded(const Work& work) {
    Response whole;
    ASSERT_TRUE(work(Wide(), &whole).ok());
    const std::size_t bytes = whole.ByteSizeLong();
    Response response;
    EXPECT_TRUE(work({.cancelled = {}, .max_bytes = bytes}, &response).ok());
    for (const std::size_t limit : {bytes - 1, std::size_t{3}}) {
      Response cut;
      const absl::Status refused = work({.cancelled = {}, .max_bytes = limit}, &cut);
      EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
      EXPECT_EQ(base::Reason(refused), "MESSAGE_TOO_LARGE");
      EXPECT_THAT(std::string(refused.message()), HasSubstr(std::to_string(limit) + " bytes of --max_send_bytes"));
    }
  }

  registry::ModelText model_;
  v1::TokenizeRequest tokenize_;
  v1::DetokenizeRequest detokenize_;
  std::string rendered_;  // a chat as its template renders it
  int asked_ = 0;
};

TEST_F(TokensTest, EachCallEndsWhereItIsCancelled) {
  v1::TokenizeResponse tokens;
  EXPECT_TRUE(absl::IsCancelled(Tokenize(tokenize_, "", model_, Counted(), &tokens)));
  EXPECT_EQ(tokens.token_ids_size(), 1) << "one check before the text is encoded, then one before each token";
  EXPECT_EQ(asked_, 3);
  v1::DetokenizeResponse text;
  EXPECT_TRUE(absl::IsCancelled(Detokenize(detokenize_, model_, Counted(), &text)));
  EXPECT_EQ(asked_, 3);
  EXPECT_LT(text.text().size(), tokenize_.text().size());
  v1::RenderTemplateResponse rendered;
  const AnswerBounds gone{.cancelled = [] { return true; }, .max_bytes = 1 << 20};
  EXPECT_TRUE(absl::IsCancelled(RenderTemplate(rendered_, model_, gone, &rendered)));
  EXPECT_EQ(rendered.token_ids_size(), 0);
}

TEST_F(TokensTest, AnAnswerThatCannotBeSentIsRefused) {
  ExpectBounded<v1::TokenizeResponse>(
      [&](const AnswerBounds& bounds, auto* out) { return Tokenize(tokenize_, "", model_, bounds, out); });
  ExpectBounded<v1::DetokenizeResponse>(
      [&](const AnswerBounds& bounds, auto* out) { return Detokenize(detokenize_, model_, bounds, out); });
  ExpectBounded<v1::RenderTemplateResponse>(
      [&](const AnswerBounds& bounds, auto* out) { return RenderTemplate(rendered_, model_, bounds, out); });
  ExpectBounded<v1::GetTokenizerConfigResponse>(
      [&](const AnswerBounds& bounds, auto* out) { return GetTokenizerConfig(model_, bounds, out); });
}

TEST_F(TokensTest, TokenizerConfigHasTheFilesOfTheModel) {
  v1::GetTokenizerConfigResponse response;
  ASSERT_TRUE(GetTokenizerConfig(model_, Wide(), &response).ok());
  const auto config = base::ParseJson(response.config_json());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["bos_token"], "<s>");
  EXPECT_EQ((*config)["tokenizer_class"], "TokenizersBackend");
  EXPECT_EQ(response.chat_template(),
            model::ReadBytes(NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16/chat_template.jinja"));
  EXPECT_EQ(response.num_tokens(), model_.assets.tokenizer->vocab_size());
}

TEST_F(TokensTest, WorkOnAnAnswerThatIsTooLargeEndsAtOnce) {
  detokenize_.clear_token_ids();
  const std::int32_t id = model_.assets.tokenizer->TokenId("t").value();
  for (int i = 0; i < 10'000; ++i) detokenize_.add_token_ids(id);
  int asked = 0;  // counted by a callback that never cancels
  const AnswerBounds narrow{.cancelled = [&asked] { return ++asked < 0; }, .max_bytes = 100};
  v1::DetokenizeResponse text;
  EXPECT_EQ(base::Reason(Detokenize(detokenize_, model_, narrow, &text)), "MESSAGE_TOO_LARGE");
  EXPECT_EQ(asked, 101) << "one check before each id, and an id is one byte of text";
  asked = 0;
  tokenize_.set_text(std::string(10'000, 't'));
  v1::TokenizeResponse tokens;
  EXPECT_EQ(base::Reason(Tokenize(tokenize_, "", model_, narrow, &tokens)), "MESSAGE_TOO_LARGE");
  EXPECT_EQ(asked, 27) << "once before the text is encoded, then before each of 26 tokens: 25 tokens fill 100 bytes, "
                          "because each is an id, a tag, a length and a letter, 4 bytes";
}

// C2 (docs/faults.md): Tokenize does not limit a text to the context length of a model, but it does not encode all of
// the text if the answer cannot hold its tokens.
TEST_F(TokensTest, TextOfMoreTokensThanAnAnswerHoldsIsNotEncodedEntirely) {
  const std::string large(1 << 20, 't');  // one token per byte
  v1::TokenizeResponse tokens;
  int asked = 0;
  AnswerBounds narrow{.cancelled = [&asked] { return ++asked < 0; }, .max_bytes = 10'000};
  tokenize_.set_text(large);
  EXPECT_EQ(base::Reason(Tokenize(tokenize_, "", model_, narrow, &tokens)), "MESSAGE_TOO_LARGE");
  // Each token takes at least 3 bytes of the answer: an id, and the tag and length of its text. The model's longest
  // token has 5 bytes.
  EXPECT_EQ(asked, 0) << "3333 tokens of at most 5 bytes cannot hold 1 MiB, so nothing is encoded";
  // 233,333 tokens of 5 bytes could hold 1 MiB, so parts are encoded until they have too many tokens.
  narrow.max_bytes = 700'000;
  EXPECT_EQ(base::Reason(Tokenize(tokenize_, "", model_, narrow, &tokens)), "MESSAGE_TOO_LARGE");
  EXPECT_LT(asked, 16) << "one check before each part, and the text has 32 parts of 32 KiB";
  asked = 0;
  tokenize_.mutable_chat();
  EXPECT_EQ(base::Reason(Tokenize(tokenize_, large, model_, narrow, &tokens)), "MESSAGE_TOO_LARGE");
  EXPECT_LT(asked, 16);
  EXPECT_EQ(tokens.token_ids_size(), 0);
  const AnswerBounds bytes{.cancelled = {}, .max_bytes = 10'000, .max_text_bytes = 1000};
  EXPECT_EQ(base::Reason(Tokenize(tokenize_, large, model_, bytes, &tokens)), "PROMPT_TOO_LONG");
}

// An encoding of the whole text at once could not be cancelled.
TEST_F(TokensTest, EncodingOfALargeTextIsCancelledBetweenPieces) {
  std::string large;
  while (large.size() < 400'000) large += "the keeper of the light walks. ";
  int asked = 0;
  AnswerBounds bounds{.cancelled = [&asked] { return ++asked == 5; }, .max_bytes = 16 << 20};
  v1::RenderTemplateResponse rendered;
  EXPECT_TRUE(absl::IsCancelled(RenderTemplate(large, model_, bounds, &rendered)));
  EXPECT_EQ(asked, 5);
  bounds.cancelled = [&asked] { return ++asked < 0; };
  ASSERT_TRUE(RenderTemplate(large, model_, bounds, &rendered).ok());
  const auto whole = model_.assets.tokenizer->Encode(large, /*add_special_tokens=*/false);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_TRUE(std::equal(whole->begin(), whole->end(), rendered.token_ids().begin(), rendered.token_ids().end()));
}

// The check for a cancel comes before a small text is encoded, because its encoding is not interrupted.
TEST_F(TokensTest, CancelledTextIsNotEncoded) {
  const AnswerBounds gone{.cancelled = [] { return true; }, .max_bytes = 1 << 20};
  tokenize_.set_text("\xff");  // an encoder would refuse it
  v1::TokenizeResponse tokens;
  EXPECT_TRUE(absl::IsCancelled(Tokenize(tokenize_, "", model_, gone, &tokens)));
}

TEST_F(TokensTest, DetokenizeRefusesMoreIdsThanASequenceHas) {
  detokenize_.clear_token_ids();
  for (int i = 0; i <= kMaxDetokenizedIds; ++i) detokenize_.add_token_ids(1 << 20);  // beyond the vocabulary: no text
  v1::DetokenizeResponse text;
  const absl::Status refused = Detokenize(detokenize_, model_, Counted(), &text);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(base::ReasonMetadata(refused)["field"], "token_ids");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("has 1048577 ids, wanted at most 1048576"));
  EXPECT_EQ(asked_, 0) << "nothing was begun";
  detokenize_.mutable_token_ids()->RemoveLast();
  EXPECT_TRUE(absl::IsCancelled(Detokenize(detokenize_, model_, Counted(), &text))) << "the work begins";
}

}  // namespace
}  // namespace nibble::rpc
