#include "server/rpc/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/base/error.h"
#include "server/model/text_assets.h"

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
    const absl::Status status = Tokenize(tokenize_, model_, Wide(), &tokens);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_GT(tokens.token_ids_size(), 5);
    *detokenize_.mutable_token_ids() = tokens.token_ids();
    auto* message = render_.mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content("who walks?");
  }

  static AnswerBounds Wide() { return {.cancelled = {}, .max_bytes = 1 << 20}; }
  // Cancelled when it is asked for the third time.
  AnswerBounds Counted() {
    asked_ = 0;
    return {.cancelled = [this] { return ++asked_ == 3; }, .max_bytes = 1 << 20};
  }
  // `work` on its request, with an answer one byte larger than may be sent and with one that just fits.
  template <typename Response, typename Request>
  void ExpectBounded(absl::Status (*work)(const Request&, const ModelText&, const AnswerBounds&, Response*), const Request& request) {
    Response whole;
    ASSERT_TRUE(work(request, model_, Wide(), &whole).ok());
    const std::size_t bytes = whole.ByteSizeLong();
    Response response;
    EXPECT_TRUE(work(request, model_, {.cancelled = {}, .max_bytes = bytes}, &response).ok());
    for (const std::size_t limit : {bytes - 1, std::size_t{3}}) {
      Response cut;
      const absl::Status refused = work(request, model_, {.cancelled = {}, .max_bytes = limit}, &cut);
      EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
      EXPECT_EQ(base::Reason(refused), "MESSAGE_TOO_LARGE");
      EXPECT_THAT(std::string(refused.message()), HasSubstr(std::to_string(limit) + " bytes of --max_send_bytes"));
    }
  }

  ModelText model_;
  v1::TokenizeRequest tokenize_;
  v1::DetokenizeRequest detokenize_;
  v1::RenderTemplateRequest render_;
  int asked_ = 0;
};

TEST_F(TokensTest, EachEndsWhereItIsCancelled) {
  v1::TokenizeResponse tokens;
  EXPECT_TRUE(absl::IsCancelled(Tokenize(tokenize_, model_, Counted(), &tokens)));
  EXPECT_EQ(tokens.token_ids_size(), 2);
  EXPECT_EQ(asked_, 3);
  v1::DetokenizeResponse text;
  EXPECT_TRUE(absl::IsCancelled(Detokenize(detokenize_, model_, Counted(), &text)));
  EXPECT_EQ(asked_, 3);
  EXPECT_LT(text.text().size(), tokenize_.text().size());
  v1::RenderTemplateResponse rendered;
  const AnswerBounds gone{.cancelled = [] { return true; }, .max_bytes = 1 << 20};
  EXPECT_TRUE(absl::IsCancelled(RenderTemplate(render_, model_, gone, &rendered)));
  EXPECT_EQ(rendered.token_ids_size(), 0);
}

TEST_F(TokensTest, AnAnswerThatCannotBeSentIsRefused) {
  ExpectBounded(&Tokenize, tokenize_);
  ExpectBounded(&Detokenize, detokenize_);
  ExpectBounded(&RenderTemplate, render_);
}

TEST_F(TokensTest, WorkOnAnAnswerThatIsTooLargeEndsAtOnce) {
  detokenize_.clear_token_ids();
  const std::int32_t id = model_.assets.tokenizer->TokenId("t").value();
  for (int i = 0; i < 10'000; ++i) detokenize_.add_token_ids(id);
  int asked = 0;
  const AnswerBounds narrow{.cancelled = [&asked] { return ++asked < 0; }, .max_bytes = 100};
  v1::DetokenizeResponse text;
  EXPECT_EQ(base::Reason(Detokenize(detokenize_, model_, narrow, &text)), "MESSAGE_TOO_LARGE");
  EXPECT_EQ(asked, 101);
  asked = 0;
  tokenize_.set_text(std::string(10'000, 't'));
  v1::TokenizeResponse tokens;
  EXPECT_EQ(base::Reason(Tokenize(tokenize_, model_, narrow, &tokens)), "MESSAGE_TOO_LARGE");
  EXPECT_LE(asked, 34) << "an id, a tag, a length and a letter are at least 4 bytes, an answer has 100";
}

TEST_F(TokensTest, DetokenizeTakesAsManyIdsAsASequenceHas) {
  detokenize_.clear_token_ids();
  for (int i = 0; i <= kMaxDetokenizedIds; ++i) detokenize_.add_token_ids(1 << 20);  // beyond the vocabulary: no text
  v1::DetokenizeResponse text;
  const absl::Status refused = Detokenize(detokenize_, model_, Counted(), &text);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(base::ReasonMetadata(refused)["field"], "token_ids");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("has 1048577 ids, wanted at most 1048576"));
  EXPECT_EQ(asked_, 0) << "nothing was begun";
  detokenize_.mutable_token_ids()->RemoveLast();
  EXPECT_TRUE(absl::IsCancelled(Detokenize(detokenize_, model_, Counted(), &text))) << "it is begun";
}

}  // namespace
}  // namespace nibble::rpc
