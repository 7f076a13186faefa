#include "server/openai/tokens.h"

#include <gtest/gtest.h>

namespace nibble::openai {
namespace {

using base::Json;

TEST(TokenizerInfoTest, TokensAreTheirTexts) {
  v1::GetTokenizerConfigResponse response;
  response.set_config_json(R"({"tokenizer_class":"Qwen2Tokenizer","bos_token":null,"add_bos_token":false,
      "eos_token":{"content":"</s>","lstrip":false},"additional_special_tokens":["<a>",{"content":"<b>"}],
      "added_tokens_decoder":{"0":{"content":"<unk>","special":true}},"extra":{"a":[1,{"b":2}]}})");
  response.set_chat_template("{{ messages }}");
  EXPECT_EQ(TokenizerInfoJson(response),
            base::ParseJson(R"({"tokenizer_class":"Qwen2Tokenizer","bos_token":null,"add_bos_token":false,
      "eos_token":"</s>","additional_special_tokens":["<a>","<b>"],"added_tokens_decoder":{"0":"<unk>"},
      "extra":{"a":[1,{"b":2}]},"chat_template":"{{ messages }}"})")
                .value());
}

TEST(TokenizerInfoTest, ModelWithoutTheFileHasAClassAndNoTemplate) {
  v1::GetTokenizerConfigResponse response;
  response.set_config_json("{}");
  EXPECT_EQ(TokenizerInfoJson(response),
            Json({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"chat_template", nullptr}}));
}

}  // namespace
}  // namespace nibble::openai
