#include "server/text/tool_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace nibble::text {
namespace {

using ::testing::HasSubstr;

base::Json CitySchema() {
  return base::Json::parse(
      R"({"type":"object","properties":{"city":{"$ref":"#/$defs/c"}},"$defs":{"c":{"type":"string"}}})");
}

// `tokens`: the markers that are tokens.
ToolGrammarOptions GrammarOptions(ToolFormat format, std::map<std::string, std::int32_t, std::less<>> tokens = {}) {
  return {.format = format,
          .tools = {{.name = "weather", .parameters = CitySchema()}, {.name = "now"}},
          .required = true,
          .parallel = true,
          .token_id = [tokens](std::string_view marker) -> std::optional<std::int32_t> {
            const auto found = tokens.find(marker);
            return found == tokens.end() ? std::nullopt : std::optional(found->second);
          }};
}

constexpr char kWeather[] =
    R"(arguments_0: %json {"type":"object","properties":{"city":{"$ref":"#/$defs/c"}},"$defs":{"c":{"type":"string"}}})"
    "\n";
constexpr char kNow[] = R"(arguments_1: %json {"type":"object","properties":{},"additionalProperties":false})"
                        "\n";

TEST(ToolGrammarTest, HermesCallsAreBetweenTokens) {
  const auto options = GrammarOptions(ToolFormat::kHermes, {{"<tool_call>", 7}, {"</tool_call>", 8}});
  EXPECT_EQ(ToolGrammar(options),
            std::string("start: <[7]> \"\\n\" call \"\\n\" <[8]> (\"\\n\" <[7]> \"\\n\" call \"\\n\" <[8]>)*\n"
                        R"(call: "{\"name\": \"weather\", \"arguments\": " arguments_0 "}")"
                        "\n"
                        R"(  | "{\"name\": \"now\", \"arguments\": " arguments_1 "}")"
                        "\n") +
                kWeather + kNow);
}

TEST(ToolGrammarTest, MarkerThatIsNoTokenIsText) {
  EXPECT_THAT(ToolGrammar(GrammarOptions(ToolFormat::kHermes)),
              HasSubstr(R"(start: "<tool_call>" "\n" call "\n" "</tool_call>" ()"));
}

TEST(ToolGrammarTest, WithoutParallelCallsThereIsOne) {
  for (const ToolFormat format : {ToolFormat::kHermes, ToolFormat::kMistralList, ToolFormat::kMistralNamed}) {
    ToolGrammarOptions options = GrammarOptions(format);
    EXPECT_THAT(ToolGrammar(options), HasSubstr(")*"));
    options.parallel = false;
    EXPECT_THAT(ToolGrammar(options), ::testing::Not(HasSubstr(")*")));
  }
}

TEST(ToolGrammarTest, LlamaWritesOneCallWithParameters) {
  ToolGrammarOptions options = GrammarOptions(ToolFormat::kLlama3);
  options.tools.pop_back();
  EXPECT_EQ(ToolGrammar(options), std::string(R"(start: call
call: "{\"name\": \"weather\", \"parameters\": " arguments_0 "}"
)") + kWeather);
  options.required = false;
  EXPECT_THAT(
      ToolGrammar(options),
      HasSubstr("start: TEXT? | call\nTEXT: /[ \\t\\r\\n]+|[ \\t\\r\\n]*[^{ \\t\\r\\n](?s:.*)/ & ~(/[ \\t\\r\\n]*/ "
                "\"<|python_tag|>\" /(?s:.*)/)\n"));
}

TEST(ToolGrammarTest, MistralWritesAListOrNames) {
  const std::map<std::string, std::int32_t, std::less<>> tokens = {{"[TOOL_CALLS]", 5}, {"[ARGS]", 6}};
  EXPECT_THAT(ToolGrammar(GrammarOptions(ToolFormat::kMistralList, tokens)),
              HasSubstr(R"(start: <[5]> " "? "[" call (", " call)* "]")"
                        "\n"));
  const std::string named = ToolGrammar(GrammarOptions(ToolFormat::kMistralNamed, tokens));
  EXPECT_THAT(named, HasSubstr("start: <[5]> call (<[5]> call)*\n"));
  EXPECT_THAT(named, HasSubstr("call: \"weather\" <[6]> arguments_0\n  | \"now\" <[6]> arguments_1\n"));
}

TEST(ToolGrammarTest, AnswerThatMayCallMayAlsoBeText) {
  ToolGrammarOptions options = GrammarOptions(ToolFormat::kMistralNamed, {{"[TOOL_CALLS]", 5}});
  options.required = false;
  EXPECT_THAT(ToolGrammar(options), HasSubstr("start: TEXT? (<[5]> call (<[5]> call)*)?\n"
                                              "TEXT: /(?s:.+)/ & ~(/(?s:.*)/ \"[TOOL_CALLS]\" /(?s:.*)/)\n"));
  options = GrammarOptions(ToolFormat::kHermes);
  options.required = false;
  options.parallel = false;
  EXPECT_THAT(ToolGrammar(options), HasSubstr("start: TEXT? | begin \"\\n\" call \"\\n\" \"</tool_call>\"\n"
                                              "begin[lazy]: /(?s:.*)/ \"<tool_call>\"\n"
                                              "TEXT: /(?s:.+)/ & ~(/(?s:.*)/ \"<tool_call>\" /(?s:.*)/)\n"));
}

}  // namespace
}  // namespace nibble::text
