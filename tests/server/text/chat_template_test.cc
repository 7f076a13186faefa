#include "server/text/chat_template.h"

#include <chrono>
#include <ctime>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/text/golden.h"

namespace nibble::text {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::string> Render(std::string_view source, std::string_view messages = "[]",
                                   const RenderOptions& options = {}) {
  auto compiled = ChatTemplate::Compile(source, {});
  if (!compiled.ok()) return compiled.status();
  return (*compiled)->RenderJson(messages, options);
}

// The golden texts were rendered with transformers' own Jinja environment.
TEST(ChatTemplateTest, ConversationsRenderAsInTransformers) {
  const base::Json golden = ReadGolden("chat_templates.json");
  for (const base::Json& row : golden.at("cases")) {
    const std::string name = row.at("template");
    const std::string source = ReadFile(NIBBLE_SOURCE_DIR "/tests/golden/text/templates/" + name + ".jinja");
    ChatTemplate::SpecialTokens tokens;
    for (const auto& [key, value] : row.at("special_tokens").items()) {
      tokens.emplace_back(key, value);
    }
    const auto compiled = ChatTemplate::Compile(source, tokens);
    ASSERT_TRUE(compiled.ok()) << name << ": " << compiled.status();
    base::Json variables = row.at("options");
    RenderOptions options;
    if (variables.contains("tools")) {
      options.tools_json = base::Dump(variables.at("tools"));
      variables.erase("tools");
    }
    if (variables.contains("add_generation_prompt")) {
      options.add_generation_prompt = variables.at("add_generation_prompt");
      variables.erase("add_generation_prompt");
    }
    options.variables_json = base::Dump(variables);
    const auto text = (*compiled)->RenderJson(base::Dump(row.at("messages")), options);
    ASSERT_TRUE(text.ok()) << name << ": " << text.status();
    EXPECT_EQ(*text, row.at("rendered").get<std::string>()) << name;
  }
}

TEST(ChatTemplateTest, SnippetsRenderAsInTransformers) {
  const base::Json golden = ReadGolden("chat_templates.json");
  RenderOptions options;
  options.variables_json = base::Dump(golden.at("data"));
  for (const base::Json& row : golden.at("snippets")) {
    const std::string source = row.at("source");
    const auto text = Render(source, "[]", options);
    ASSERT_TRUE(text.ok()) << source << ": " << text.status();
    EXPECT_EQ(*text, row.at("rendered").get<std::string>()) << source;
  }
}

TEST(ChatTemplateTest, RefusesTemplatesThatTransformersRefuses) {
  const base::Json golden = ReadGolden("chat_templates.json");
  RenderOptions options;
  options.variables_json = base::Dump(golden.at("data"));
  for (const base::Json& row : golden.at("refused")) {
    const std::string source = row.at("source");
    const auto text = Render(source, "[]", options);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << source << " gave " << text.value_or("");
    EXPECT_THAT(std::string(text.status().message()), HasSubstr("chat_template: "));
  }
}

TEST(ChatTemplateTest, RendersMessagesOfTheStructLikeJson) {
  const std::string source = ReadFile(NIBBLE_SOURCE_DIR "/tests/golden/text/templates/chatml.jinja");
  const auto compiled = ChatTemplate::Compile(source, {});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const std::vector<ChatMessage> messages = {{"user", "\"\\\n\x01\x7f\u4f60\U0001f600</s>"}};
  const auto text = (*compiled)->Render(
      messages, {.add_generation_prompt = true, .tools_json = "", .variables_json = "", .now_unix_seconds = 0});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n" + messages[0].content +
                       "<|im_end|>\n<|im_start|>assistant\n");
  const std::vector<ChatMessage> broken = {{"user", "\xFF"}};
  EXPECT_EQ((*compiled)->Render(broken, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplateTest, StrftimeNowUsesTheGivenTime) {
  RenderOptions options;
  options.now_unix_seconds = 1763730000;
  const std::time_t now = 1763730000;
  std::tm calendar{};
  localtime_r(&now, &calendar);
  char expected[64];
  ASSERT_GT(std::strftime(expected, sizeof expected, "%d %b %Y %H:%M", &calendar), 0u);
  EXPECT_EQ(*Render("{{ strftime_now('%d %b %Y %H:%M') }}", "[]", options), expected);
  EXPECT_FALSE(Render("{{ strftime_now('%A' * 100) }}", "[]", options).ok());
}

TEST(ChatTemplateTest, SyntaxErrorsNameTheLine) {
  const auto compiled = ChatTemplate::Compile("a\nb\n{% if %}", {});
  EXPECT_EQ(compiled.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(compiled.status().message()), HasSubstr("chat_template:3"));
}

TEST(ChatTemplateTest, ErrorsNameFieldsOfTheWrongKind) {
  const auto expect = [](std::string_view messages, RenderOptions options, const char* message) {
    const auto text = Render("x", messages, options);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(text.status().message()), HasSubstr(message));
  };
  RenderOptions options;
  expect("{}", options, "messages: got an object, wanted an array");
  expect("[1]", options, "messages[0]: got a number, wanted an object");
  expect("[", options, "messages: not JSON");
  expect("", options, "messages: got an object, wanted an array");
  expect("[], \"x\": [", options, "messages: not JSON");
  expect(std::string(1000, '[') + std::string(1000, ']'), options, "messages: not JSON");
  options.tools_json = "3";
  expect("[]", options, "tools: got a number");
  options.tools_json = "";
  options.variables_json = "[]";
  expect("[]", options, "variables: got an array");
  options.variables_json = R"({"messages": []})";
  expect("[]", options, "variables: messages");
}

TEST(ChatTemplateTest, RaiseExceptionIsInvalidArgumentWithItsTextTruncated) {
  const auto text = Render("{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("roles must alternate"));
  for (const char* source :
       {"{{ raise_exception('x' * 1000000) }}", "{{ raise_exception() }}", "{{ raise_exception('\\ud83d') }}",
        "{{ raise_exception('%s%n{}') }}", "{{ raise_exception('\u4f60' * 1000000) }}",
        "{{ raise_exception(messages) }}", "{{ raise_exception(raise_exception) }}"}) {
    const auto raised = Render(source);
    EXPECT_EQ(raised.status().code(), absl::StatusCode::kInvalidArgument) << source;
    EXPECT_LT(raised.status().message().size(), 2000u);
  }
}

class BombTest : public ::testing::TestWithParam<const char*> {};

// Each template needs far more time, memory, output or stack than a template may use.
TEST_P(BombTest, BombIsRefusedSoon) {
  const auto start = std::chrono::steady_clock::now();
  const auto text = Render(GetParam());
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << text.status();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

INSTANTIATE_TEST_SUITE_P(
    Templates, BombTest,
    ::testing::Values("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}",
                      "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
                      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
                      "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
                      "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}"
                      "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s | length }}",
                      "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}"
                      "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}",
                      "{% set ns = namespace(s='a') %}{% for i in range(60) %}"
                      "{% set ns.s = ns.s | replace('a', 'aaaaaaaaaa') %}{% endfor %}",
                      "{% set ns = namespace(s=['a']) %}{% for i in range(60) %}"
                      "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | join('xx') }}",
                      "{% set ns = namespace(s=[]) %}{% for i in range(99999) %}"
                      "{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
                      "{% set ns = namespace(s=[]) %}{% for i in range(99999) %}"
                      "{% set ns.s = {'a': ns.s} %}{% endfor %}{{ ns.s | tojson }}",
                      "{% set ns = namespace(s=[]) %}{% for i in range(15000) %}"
                      "{% set ns.s = [ns.s, 1] %}{% endfor %}{{ ns.s ~ '' | length }}{{ ns.x.y }}",
                      "{% set ns = namespace(s=[]) %}{% for i in range(200) %}"
                      "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
                      "{{ 'a' * 100000000000 }}", "{{ ['a'] * 100000000000 }}", "{{ 'a\nb' | indent(10000000000) }}",
                      "{{ '%1000000000d' | format(1) }}", "{{ '{:>1000000000}'.format('x') }}",
                      "{{ range(100000) | list | tojson(indent=100000) }}{{ x.y }}",
                      "{{ 'aaaaaaaaaaaaaaaa' * 1000000 }}",
                      "{% for i in range(9999) %}{{ 'aaaaaaaaaaaaaaaa' * 1000 }}{% endfor %}",
                      "{% set x %}{% for i in range(9999) %}{{ 'aaaaaaaaaaaaaaaa' * 1000 }}"
                      "{% endfor %}{% endset %}"));

std::string MessageOf(std::size_t bytes) { return R"([{"role":"user","content":")" + std::string(bytes, 'x') + "\"}]"; }

class SlowInstructionTest : public ::testing::TestWithParam<const char*> {};

// Templates of few instructions that each read megabytes or more.
TEST_P(SlowInstructionTest, EndsAfterItsProcessorTime) {
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  const auto text = Render(GetParam(), MessageOf(2'000'000));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("ran out of fuel"));
  EXPECT_LT(after.tv_sec - before.tv_sec, 6);
}

INSTANTIATE_TEST_SUITE_P(
    Templates, SlowInstructionTest,
    ::testing::Values("{% for i in range(9999) %}{% for j in range(9999) %}"
                      "{% set q = messages[0].content | tojson %}{% endfor %}{% endfor %}",
                      "{% for i in range(9999) %}{% for j in range(9999) %}"
                      "{% if 'xxxxxxxxy' in messages[0].content %}{% endif %}{% endfor %}{% endfor %}",
                      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}"
                      "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}"));

// The limit on processor time is checked when memory is allocated. Code that only searches a long text allocates
// nothing, so only the limit on the size of the code bounds its time.
TEST(ChatTemplateTest, RefusesMoreCodeThanRealTemplatesHave) {
  std::string source;
  while (source.size() < (200 << 10)) source += "{% if 'xxxxxxxxy' in messages[0].content %}{% endif %}";
  const auto text = Render(source);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("bytes of code, wanted at most 65536"));
}

TEST(ChatTemplateTest, RendererWorksAfterManyBombs) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(Render("{{ 'a' * 100000000000 }}").ok());
    EXPECT_EQ(*Render("{{ 'a' * 3 }}"), "aaa");
  }
}

// Parsing, compiling and freeing a nested template recurses.
TEST(ChatTemplateTest, DeeplyNestedSourcesDoNotOverflowTheStack) {
  const auto repeat = [](std::string_view text, std::size_t bytes) {
    std::string repeated;
    while (repeated.size() + text.size() <= bytes) repeated += text;
    return repeated;
  };
  const std::size_t most = 250 << 10;
  for (const std::string& source : std::vector<std::string>{
           "{{ 1" + repeat("+1", most) + " }}", "{{ a" + repeat("~a", most) + " }}",
           "{{ a" + repeat(".a", most) + " }}", "{{ a" + repeat("|e", most) + " }}",
           "{{ a" + repeat("[0]", most) + " }}", "{{ " + repeat("(", most) + " }}", "{{ " + repeat("[", most) + " }}",
           "{{ " + repeat("not ", most) + "a }}", "{{ " + repeat("-", most) + "1 }}", repeat("{% if a %}", most),
           repeat("{% for a in a %}", most), "{% if a %}" + repeat("{% elif a %}", most) + "{% endif %}",
           "{{ a" + repeat(" if a else a", most) + " }}", repeat("{{ a }}", most), repeat("{% generation %}", most),
           repeat("{%", most)}) {
    const auto start = std::chrono::steady_clock::now();
    const auto text = Render(source);
    if (!text.ok()) {
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << source.substr(0, 40) << text.status();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << source.substr(0, 40);
  }
  EXPECT_FALSE(Render(std::string(300 << 10, 'x')).ok());
}

// Compiling takes time quadratic in the length of an expression.
TEST(ChatTemplateTest, RefusesLongExpressionsEvenIfHidden) {
  std::string chain = "a";
  while (chain.size() < 100000) chain += "~a";
  for (const std::string& source : std::vector<std::string>{
           "{{ " + chain + " }}", "{%- set x = " + chain + " -%}", "{% raw %}{{ ' {%- endraw -%}{{ " + chain + " }}",
           "{# {{ ' #}{{ " + chain + " }}", "{{ [{'a': {}}, " + chain + "] }}", "{{ '\\\\' ~ " + chain + " }}",
           "{{ \"'\" ~ " + chain + " }}", "{ {{ " + chain + " }}"}) {
    const auto start = std::chrono::steady_clock::now();
    const auto text = Render(source);
    EXPECT_THAT(std::string(text.status().message()), HasSubstr("too long")) << source.substr(0, 40);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  }
  const std::string prompt(60000, 'x');
  EXPECT_EQ(*Render("{{ '" + prompt + "' }}{# " + chain + " #}"), prompt);
}

TEST(ChatTemplateTest, LongConversationsStayWithinTheLimits) {
  const std::string source = ReadFile(NIBBLE_SOURCE_DIR "/tests/golden/text/templates/llama3.jinja");
  const auto compiled = ChatTemplate::Compile(source, {{"bos_token", "<s>"}});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  std::vector<ChatMessage> messages;
  for (int i = 0; i < 20000; ++i) messages.push_back({"user", "hi"});
  const auto text = (*compiled)->Render(messages, {});
  EXPECT_TRUE(text.ok()) << text.status();
  const std::vector<ChatMessage> one = {{"user", std::string(20 << 20, 'x')}};
  const auto big = (*compiled)->Render(one, {});
  EXPECT_TRUE(big.ok()) << big.status();
  messages.assign(1000, {"user", std::string(2048, 'x')});
  const auto many = (*compiled)->Render(messages, {});
  EXPECT_TRUE(many.ok()) << many.status();
}

TEST(ChatTemplateTest, LongMessageWithSystemPromptAndToolsIsRendered) {
  const std::string source = ReadFile(NIBBLE_SOURCE_DIR "/tests/golden/text/templates/qwen.jinja");
  const auto compiled = ChatTemplate::Compile(source, {});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  RenderOptions options;
  options.tools_json = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  const std::vector<ChatMessage> messages = {{"system", "Be brief."}, {"user", std::string(2 << 20, 'x')}};
  const auto text = (*compiled)->Render(messages, options);
  EXPECT_TRUE(text.ok()) << text.status();
}

TEST(ChatTemplateTest, NothingOutsideTheVariablesIsReachable) {
  for (const char* source :
       {"{{ messages.__class__ }}", "{{ self.__init__ }}", "{{ namespace.__globals__ }}", "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}", "{% extends '/etc/passwd' %}",
        "{{ cycler.__init__.__globals__.os.popen('id') }}", "{{ raise_exception.__globals__ }}", "{{ lipsum() }}"}) {
    const auto text = Render(source);
    EXPECT_EQ(text.value_or(""), "") << source;
  }
}

}  // namespace
}  // namespace nibble::text
