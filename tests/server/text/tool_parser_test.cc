#include "server/text/tool_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/base/json.h"

namespace nibble::text {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Call = std::pair<std::string, std::string>;  // name and arguments

// What a client has after the last piece.
struct Joined {
  std::string content;
  std::vector<Call> calls;  // those that are not malformed
  int num_calls = 0;        // as the parser counts them
  bool operator==(const Joined&) const = default;
};

class Reader {
 public:
  explicit Reader(ToolParser::Options options) : parser_(std::move(options)) {}
  void Push(std::string_view text) { Take(parser_.Push(text)); }
  Joined Finish() {
    Take(parser_.Finish());
    Joined joined{.content = content_, .calls = {}, .num_calls = parser_.num_calls()};
    for (const auto& [index, call] : calls_) joined.calls.push_back(call);
    return joined;
  }

 private:
  void Take(const ToolParser::Result& result) {
    content_ += result.content;
    for (const ToolParser::CallPart& part : result.calls) {
      if (!part.name.empty()) {
        EXPECT_EQ(begun_.count(part.index), 0u) << "the name comes once";
        EXPECT_EQ(part.index, static_cast<int>(begun_.size())) << "indices ascend from 0";
        begun_[part.index] = true;
      }
      EXPECT_TRUE(begun_[part.index]) << "the name comes first";
      Call& call = calls_[part.index];
      if (!part.name.empty()) call.first = part.name;
      call.second += part.arguments;
      if (part.malformed) calls_.erase(part.index);
    }
  }

  ToolParser parser_;
  std::string content_;
  std::map<int, Call> calls_;
  std::map<int, bool> begun_;
};

ToolParser::Options Options(ToolFormat format, bool parallel = true) {
  return {.format = format, .names = {"weather", "now"}, .parallel = parallel};
}

Joined Parse(ToolFormat format, std::string_view text, bool parallel = true) {
  Reader reader(Options(format, parallel));
  reader.Push(text);
  return reader.Finish();
}

constexpr auto kHermes = ToolFormat::kHermes;
constexpr auto kLlama3 = ToolFormat::kLlama3;
constexpr auto kMistralList = ToolFormat::kMistralList;
constexpr auto kMistralNamed = ToolFormat::kMistralNamed;
constexpr char kParis[] = R"({"city": "Parí\"s\"", "days": 2})";

std::string Hermes(const std::string& object) { return "<tool_call>\n" + object + "\n</tool_call>"; }
std::string Object(const std::string& arguments, const std::string& key = "arguments") {
  return R"({"name": "weather", ")" + key + R"(": )" + arguments + "}";
}

TEST(ToolParserTest, ReadsTheFormOfEachFormat) {
  const std::vector<std::pair<ToolFormat, std::string>> texts = {
      {kHermes, Hermes(Object(kParis))},
      {kHermes, "<tool_call>" + Object(kParis)},  // the end marker may be missing at the end
      {kHermes, Hermes(R"({"arguments": )" + std::string(kParis) + R"(, "name": "weather"})")},
      {kLlama3, Object(kParis, "parameters")},
      {kLlama3, "\n<|python_tag|>" + Object(kParis, "parameters")},
      {kLlama3, R"({"type": "function", "name": "weather", "parameters": )" + std::string(kParis) + "}"},
      {kMistralList, "[TOOL_CALLS] [" + Object(kParis) + "]"},
      {kMistralList, R"([TOOL_CALLS][{"name": "weather", "arguments": )" + std::string(kParis) + R"(, "id": "a1"}])"},
      {kMistralList, "[TOOL_CALLS]" + Object(kParis)},
      {kMistralNamed, "[TOOL_CALLS]weather[ARGS]" + std::string(kParis)},
      {kMistralNamed, "[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]" + std::string(kParis)},
      {kMistralNamed, "[TOOL_CALLS]weather" + std::string(kParis)},
  };
  for (const auto& [format, text] : texts) {
    const Joined joined = Parse(format, text);
    EXPECT_EQ(joined.content, "") << text;
    EXPECT_THAT(joined.calls, ElementsAre(Call("weather", kParis))) << text;
    EXPECT_EQ(joined.num_calls, 1) << text;
  }
}

TEST(ToolParserTest, ReadsSeveralCallsAndTheTextAroundThem) {
  const std::string now = R"({"name": "now", "arguments": {}})";
  Joined joined = Parse(kHermes, "I look.\n\n" + Hermes(Object(kParis)) + "\n" + Hermes(now) + "\n");
  EXPECT_EQ(joined.content, "I look.") << "blanks beside calls are dropped";
  EXPECT_THAT(joined.calls, ElementsAre(Call("weather", kParis), Call("now", "{}")));
  joined = Parse(kHermes, Hermes(now) + " Done. ");
  EXPECT_EQ(joined.content, " Done. ");
  joined = Parse(kLlama3, Object("{}", "parameters") + "; " + Object(kParis, "parameters"));
  EXPECT_EQ(joined.content, "");
  EXPECT_THAT(joined.calls, ElementsAre(Call("weather", "{}"), Call("weather", kParis)));
  joined = Parse(kMistralList, "I look.[TOOL_CALLS] [" + Object(kParis) + ", " + now + "]");
  EXPECT_EQ(joined.content, "I look.");
  EXPECT_THAT(joined.calls, ElementsAre(Call("weather", kParis), Call("now", "{}")));
  joined = Parse(kMistralNamed, "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]weather[ARGS]{\"city\": 1}");
  EXPECT_THAT(joined.calls, ElementsAre(Call("now", "{}"), Call("weather", R"({"city": 1})")));
}

TEST(ToolParserTest, CallWithoutArgumentsHasAnEmptyObject) {
  EXPECT_THAT(Parse(kHermes, Hermes(R"({"name": "now"})")).calls, ElementsAre(Call("now", "{}")));
}

TEST(ToolParserTest, WithoutParallelCallsOnlyTheFirstIsReported) {
  const std::string text = Hermes(Object(kParis)) + "\n" + Hermes(R"({"name": "now"})");
  const Joined joined = Parse(kHermes, text, /*parallel=*/false);
  EXPECT_THAT(joined.calls, ElementsAre(Call("weather", kParis)));
  EXPECT_EQ(joined.num_calls, 1);
  EXPECT_EQ(joined.content, "");
}

TEST(ToolParserTest, TextWithoutCallsIsUnchanged) {
  const std::string texts[] = {
      "",
      " \n",
      "Plain. ",
      "a < b, {\"name\": 1}",
      "<tool_calls>",
      "<tool_call",
      "  <tool",
      "[TOOL_CALL]",
      "{}",
      "{",
      " { ",
      "{\"a\": {\"name\": \"weather\", \"arguments\": {}}}",
      "<|python",
      "\xC3\xA4<\xC3\xA4[\xC3\xA4{\xF0\x9F\x98\x80 ",
  };
  for (const ToolFormat format : {kHermes, kLlama3, kMistralList, kMistralNamed}) {
    for (const std::string& text : texts) {
      const Joined joined = Parse(format, text);
      EXPECT_EQ(joined.content, text);
      EXPECT_THAT(joined.calls, IsEmpty()) << text;
    }
  }
  const std::string late = "The call is " + Object(kParis, "parameters");
  EXPECT_EQ(Parse(kLlama3, late).content, late) << "a call without a marker is the whole answer";
}

TEST(ToolParserTest, MalformedCallIsContent) {
  const std::vector<std::pair<ToolFormat, std::string>> texts = {
      {kHermes, "<tool_call>weather(city)</tool_call>"},
      {kHermes, Hermes("{'name': 'weather', 'arguments': {}}")},
      {kHermes, Hermes(R"({"name": "other", "arguments": {}})")},
      {kHermes, Hermes(R"({"name": 1, "arguments": {}})")},
      {kHermes, Hermes(R"({"name": "weather", "name": "now"})")},
      {kHermes, Hermes(R"({"arguments": {}})")},
      {kHermes, Hermes("{}")},
      {kHermes, Hermes(R"({"name": "weather", "city": "Paris"})")},
      {kHermes, Hermes(Object("\"city\""))},
      {kHermes, Hermes(Object("[1]"))},
      {kHermes, Hermes(Object("null"))},
      {kHermes, Hermes(Object("{'city': 1}"))},
      {kHermes, Hermes(Object("{\"city\": Paris}"))},
      {kHermes, Hermes(Object("{\"city\": 1,}"))},
      {kHermes, Hermes(Object("{\"city\": 1, \"city\": 2}"))},
      {kHermes, Hermes(Object("{\"city\": [1}}"))},
      {kHermes, Hermes(Object("{\"city\": \"a\nb\"}"))},
      {kHermes, Hermes(Object("{\"city\": \"\\ud800\"}"))},
      {kHermes, Hermes(Object(std::string(65, '{') + std::string(65, '}')))},
      {kHermes, Hermes(Object("{} {}"))},
      {kHermes, Hermes(R"({"name": "weather", "arguments": {}, "arguments": {}})")},
      {kHermes, Hermes(R"({"name": "weather" "arguments": {}})")},
      {kHermes, "Before\n<tool_call>\n" + Object("{\"city\": \"Par")},  // cut off
      {kHermes, "Before\n<tool_call>\n" + Object("{}").substr(0, 12)},
      {kLlama3, R"({"name": "other", "parameters": {}})"},
      {kLlama3, "<|python_tag|>weather.call(city=\"Paris\")"},
      {kMistralList, "[TOOL_CALLS] [weather]"},
      {kMistralNamed, "[TOOL_CALLS]other[ARGS]{}"},
      {kMistralNamed, "[TOOL_CALLS]weather[WHAT]{}"},
      {kMistralNamed, "[TOOL_CALLS]weather[ARGS][]"},
      {kMistralNamed, "[TOOL_CALLS]weather[CALL_ID]a[b]{}"},
  };
  for (const auto& [format, text] : texts) {
    const Joined joined = Parse(format, text);
    EXPECT_EQ(joined.content, text);
    EXPECT_THAT(joined.calls, IsEmpty()) << text;
    EXPECT_EQ(joined.num_calls, 0) << text;
  }
}

TEST(ToolParserTest, CallAfterAMalformedOneIsRead) {
  const std::string wrong = "<tool_call>oops</tool_call>";
  Joined joined = Parse(kHermes, wrong + "\n" + Hermes(Object(kParis)));
  EXPECT_EQ(joined.content, wrong);
  EXPECT_THAT(joined.calls, ElementsAre(Call("weather", kParis)));
  joined = Parse(kHermes, "<tool_call>\n" + Hermes(Object(kParis)));
  EXPECT_EQ(joined.content, "<tool_call>\n") << "this blank is part of the malformed call";
  EXPECT_THAT(joined.calls, ElementsAre(Call("weather", kParis)));
  joined = Parse(kMistralList, "[TOOL_CALLS] [" + Object(kParis) + ", oops]");
  EXPECT_EQ(joined.content, ", oops]");
  EXPECT_THAT(joined.calls, ElementsAre(Call("weather", kParis)));
}

TEST(ToolParserTest, ArgumentsComeWhileTheyArrive) {
  ToolParser parser(Options(kHermes));
  EXPECT_THAT(parser.Push("<tool_call>\n{\"name\": \"weather\", \"argu").calls, IsEmpty());
  auto result = parser.Push("ments\": {\"ci");
  ASSERT_EQ(result.calls.size(), 1u);
  EXPECT_EQ(result.calls[0].name, "weather");
  EXPECT_EQ(result.calls[0].arguments, "{\"ci");
  result = parser.Push("ty\": 1");
  ASSERT_EQ(result.calls.size(), 1u);
  EXPECT_EQ(result.calls[0].name, "");
  EXPECT_EQ(result.calls[0].arguments, "ty\": 1");
  EXPECT_EQ(parser.num_calls(), 0);
  result = parser.Push("}}\n</tool_call>");
  EXPECT_EQ(result.calls.at(0).arguments, "}");
  EXPECT_EQ(parser.num_calls(), 1);
}

TEST(ToolParserTest, CallThatWasReportedIsTakenBackWithItsText) {
  ToolParser parser(Options(kHermes));
  const std::string begin = "<tool_call>" + Object("{\"city\": ").substr(0, 40);
  ASSERT_EQ(parser.Push(begin).calls.size(), 1u);
  const auto result = parser.Push("[}");
  ASSERT_EQ(result.calls.size(), 1u);
  EXPECT_EQ(result.calls[0].index, 0);
  EXPECT_TRUE(result.calls[0].malformed);
  EXPECT_EQ(result.content, begin + "[}");
  const auto next = parser.Push("<tool_call>" + Object("{}"));
  ASSERT_EQ(next.calls.size(), 1u);
  EXPECT_EQ(next.calls[0].index, 1) << "an index is used once";
}

// In a time that grows with the square of the text, these texts would take many minutes.
TEST(ToolParserTest, LongRunsOfBlanksAndBeginningsTakeLittleTime) {
  constexpr std::size_t kSize = std::size_t{256} << 10;
  const std::string call = "{\"name\": \"now\", \"parameters\": {}}";
  for (const ToolFormat format : {kHermes, kLlama3, kMistralList, kMistralNamed}) {
    for (const std::string& begin : {std::string(), call, "<tool_call>" + call, "[TOOL_CALLS][" + call}) {
      for (const char c : {' ', '<', '[', ';', '{', '"'}) {
        const Joined joined = Parse(format, begin + std::string(kSize, c) + "x");
        EXPECT_GE(joined.content.size(), kSize);
      }
    }
  }
}

// Texts made of parts of calls, valid and not, in any order.
TEST(ToolParserTest, ResultDoesNotDependOnHowTheTextIsCut) {
  const std::vector<std::string> parts = {
      "<tool_call>",
      "</tool_call>",
      "[TOOL_CALLS]",
      "[ARGS]",
      "[CALL_ID]",
      "<|python_tag|>",
      "{\"name\": ",
      "\"weather\"",
      "\"now\"",
      ", \"arguments\": ",
      ", \"parameters\": ",
      kParis,
      "{}",
      "{",
      "}",
      "[",
      "]",
      ",",
      ";",
      " ",
      "\n",
      "\"",
      "weather",
      "\xC3\xA4",
      "text",
      "<",
      "\\",
      Object(kParis),
      Object("{}", "parameters"),
      Hermes(Object(kParis)),
  };
  std::mt19937 random(5);
  const auto below = [&](std::size_t n) { return random() % n; };
  int with_calls = 0, malformed = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::size_t i = 1 + below(7); i > 0; --i) text += parts[below(parts.size())];
    const auto format = static_cast<ToolFormat>(below(4));
    const bool parallel = below(4) > 0;
    const Joined whole = Parse(format, text, parallel);
    with_calls += !whole.calls.empty();
    malformed += whole.content == text && text.find("\"weather\", \"arguments\": {") != std::string::npos;
    for (int cut = 0; cut < 3; ++cut) {
      Reader reader(Options(format, parallel));
      for (std::string_view left = text; !left.empty();) {
        const std::size_t size = cut == 0 ? 1 : 1 + below(left.size());
        reader.Push(left.substr(0, size));
        left.remove_prefix(size);
      }
      const Joined joined = reader.Finish();
      ASSERT_EQ(joined.content, whole.content) << text;
      ASSERT_EQ(joined.calls, whole.calls) << text;
      ASSERT_EQ(joined.num_calls, whole.num_calls) << text;
    }
    ASSERT_EQ(whole.num_calls, static_cast<int>(whole.calls.size())) << text;
    for (const auto& [name, arguments] : whole.calls) {
      const auto json = base::ParseJson(arguments);
      ASSERT_TRUE(json.ok() && json->is_object()) << arguments;
    }
  }
  EXPECT_GT(with_calls, 500) << "the texts are too random";
  EXPECT_GT(malformed, 100) << "the texts are too well formed";
}

}  // namespace
}  // namespace nibble::text
