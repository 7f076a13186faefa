#include "server/text/grammar.h"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/text/stream_decoder.h"
#include "server/text/tool_grammar.h"
#include "tests/server/text/golden.h"
#include "tests/support/token_bits.h"

namespace nibble::text {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int32_t kNoToken = -1;

class GrammarTest : public ::testing::Test {
 protected:
  explicit GrammarTest(const std::string& file = "hf_qwen.json") {
    auto tokenizer = Tokenizer::FromJson(ReadFile(NIBBLE_SOURCE_DIR "/tests/golden/text/" + file));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    vocab_size_ = tokenizer_->ids().back() + 1;
    for (const AddedToken& token : tokenizer_->added_tokens()) {
      if (token.special) end_ = token.id;
    }
    compiler_ = std::make_unique<GrammarCompiler>(tokenizer_, vocab_size_, std::vector<std::int32_t>{end_});
  }

  std::shared_ptr<const Grammar> Compile(GrammarKind kind, const std::string& source) {
    auto grammar = compiler_->Compile({kind, source}, "field");
    EXPECT_TRUE(grammar.ok()) << source << ": " << grammar.status();
    return grammar.ok() ? *grammar : nullptr;
  }
  std::string Refusal(GrammarKind kind, const std::string& source) {
    const auto grammar = compiler_->Compile({kind, source}, "field");
    EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << source;
    EXPECT_EQ(base::Reason(grammar.status()), "FIELD_VIOLATION");
    return std::string(grammar.status().message());
  }

  // The tokens that may be next.
  std::vector<std::int32_t> Allowed(GrammarFollower& follower) {
    const auto allowed = follower.AllowedTokens(vocab_size_);
    EXPECT_TRUE(allowed.ok()) << allowed.status();
    return allowed.ok() ? support::TokensOf(*allowed) : std::vector<std::int32_t>();
  }
  // Whether the grammar allows the text, and then its end. Where only one text can follow, it allows only the
  // tokenizer's own tokens, so each step takes the longest allowed token.
  bool Takes(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
    auto follower = GrammarFollower::Start(grammar);
    EXPECT_TRUE(follower.ok()) << follower.status();
    while (true) {
      const auto allowed = Allowed(**follower);
      if (text.empty()) return std::binary_search(allowed.begin(), allowed.end(), end_);
      std::int32_t longest = kNoToken;
      std::size_t size = 0;
      for (const std::int32_t id : allowed) {
        const std::string_view bytes = tokenizer_->token_bytes().Of(id);
        if (id == end_ || bytes.size() <= size || !text.starts_with(bytes)) continue;
        longest = id;
        size = bytes.size();
      }
      if (longest == kNoToken) return false;
      EXPECT_TRUE((*follower)->Accept(longest).ok());
      text.remove_prefix(size);
    }
  }

  // Not the end token.
  std::int32_t SpecialToken() const {
    for (const AddedToken& token : tokenizer_->added_tokens()) {
      if (token.special && token.id != end_) return token.id;
    }
    return kNoToken;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::int64_t vocab_size_ = 0;
  std::int32_t end_ = kNoToken;
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(GrammarTest, ARegularExpressionMatchesTheWholeText) {
  const auto grammar = Compile(GrammarKind::kRegex, "-?[0-9]+(\\.[0-9]{2})?");
  EXPECT_TRUE(Takes(grammar, "-12.50"));
  EXPECT_TRUE(Takes(grammar, "7"));
  EXPECT_FALSE(Takes(grammar, "7."));
  EXPECT_FALSE(Takes(grammar, "x7"));
  EXPECT_FALSE(Takes(grammar, ""));
}

TEST_F(GrammarTest, AChoiceIsOneOfTheTextsLiterally) {
  const auto grammar = Compile(GrammarKind::kChoice, R"x(["yes", "no (never)", "a|b"])x");
  for (const char* text : {"yes", "no (never)", "a|b"}) EXPECT_TRUE(Takes(grammar, text)) << text;
  for (const char* text : {"ye", "a", "no never", "yes no"}) EXPECT_FALSE(Takes(grammar, text)) << text;
}

TEST_F(GrammarTest, ASchemaGivesCompactJsonInItsOrder) {
  const auto grammar = Compile(GrammarKind::kJsonSchema,
                               R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
                                   "required": ["a"], "additionalProperties": false})");
  EXPECT_TRUE(Takes(grammar, R"({"a":1,"b":true})"));
  EXPECT_TRUE(Takes(grammar, R"({"a":-3})"));
  EXPECT_FALSE(Takes(grammar, R"({"a": 1})"));
  EXPECT_FALSE(Takes(grammar, R"({"b":true,"a":1})"));
  EXPECT_FALSE(Takes(grammar, R"({"a":1,"c":2})"));
  EXPECT_FALSE(Takes(grammar, R"({"a":1)"));
}

TEST_F(GrammarTest, ALarkGrammarMayHoldASchema) {
  const auto grammar =
      Compile(GrammarKind::kLark, "start: \"<call>\" call \"</call>\"\ncall: %json {\"type\": \"integer\"}\n");
  EXPECT_TRUE(Takes(grammar, "<call>12</call>"));
  EXPECT_FALSE(Takes(grammar, "<call>x</call>"));
  EXPECT_THAT(Refusal(GrammarKind::kLark, "start: %json {\"not\": {}}"), HasSubstr("/not"));
  // Not a schema, but a text and a comment.
  EXPECT_TRUE(Takes(Compile(GrammarKind::kLark, "start: \"%json\" // %json {\"not\": {}}\n"), "%json"));
}

// The golden values were checked by Python's jsonschema (make_constraints.py).
TEST_F(GrammarTest, TheCorpusOfSchemasHolds) {
  const base::Json golden = ReadGolden("constraints/schemas.json");
  ASSERT_EQ(golden.at("cases").size(), 200u);
  for (const base::Json& row : golden.at("cases")) {
    const auto grammar = Compile(GrammarKind::kJsonSchema, row.at("schema").dump());
    if (grammar == nullptr) continue;
    const std::string name = row.at("name");
    for (const std::string text : row.at("valid")) EXPECT_TRUE(Takes(grammar, text)) << name << ": " << text;
    for (const char* key : {"invalid", "loose"}) {
      for (const std::string text : row.at(key)) EXPECT_FALSE(Takes(grammar, text)) << name << ": " << text;
    }
  }
}

TEST_F(GrammarTest, SchemasThatCannotBeEnforcedAreRefusedByPath) {
  const base::Json golden = ReadGolden("constraints/refused.json");
  for (const base::Json& row : golden.at("cases")) {
    const std::string why = Refusal(GrammarKind::kJsonSchema, row.at("schema").dump());
    const std::string path = row.at("path");
    EXPECT_THAT(why, HasSubstr(path)) << row.at("name");
    EXPECT_THAT(why, ::testing::Not(HasSubstr("backtrace")));
  }
}

TEST_F(GrammarTest, RegularExpressionsMatchAsInPython) {
  const base::Json golden = ReadGolden("constraints/regexes.json");
  for (const base::Json& row : golden.at("cases")) {
    const auto grammar = Compile(GrammarKind::kRegex, row.at("pattern"));
    if (grammar == nullptr) continue;
    for (const std::string text : row.at("matches")) EXPECT_TRUE(Takes(grammar, text)) << row.at("pattern") << text;
    for (const std::string text : row.at("others")) EXPECT_FALSE(Takes(grammar, text)) << row.at("pattern") << text;
  }
  for (const std::string pattern : golden.at("refused")) Refusal(GrammarKind::kRegex, pattern);
}

TEST_F(GrammarTest, LarkGrammarsMatchAsInLark) {
  const base::Json golden = ReadGolden("constraints/lark.json");
  for (const base::Json& row : golden.at("cases")) {
    const auto grammar = Compile(GrammarKind::kLark, row.at("grammar"));
    if (grammar == nullptr) continue;
    for (const std::string text : row.at("accepted")) EXPECT_TRUE(Takes(grammar, text)) << row.at("name") << text;
    for (const std::string text : row.at("rejected")) EXPECT_FALSE(Takes(grammar, text)) << row.at("name") << text;
  }
  for (const base::Json& row : golden.at("refused")) Refusal(GrammarKind::kLark, row.at("grammar"));
}

// With markers that are text, and with markers that are tokens.
TEST_F(GrammarTest, CallsOfToolsAreWrittenAsTemplatesWriteThem) {
  ToolGrammarOptions options;
  options.tools = {
      {"weather", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}, {"required", {"city"}}}}};
  options.required = true;
  options.parallel = false;
  const std::string call = R"({"name": "weather", "arguments": {"city": "Oslo"}})";
  const auto text = Compile(GrammarKind::kTools, ToolGrammar(options));
  EXPECT_TRUE(Takes(text, "<tool_call>\n" + call + "\n</tool_call>"));
  EXPECT_FALSE(Takes(text, call));
  EXPECT_FALSE(Takes(text,
                     "<tool_call>\n"
                     R"({"name": "weather", "arguments": {}})"
                     "\n</tool_call>"));
  options.required = false;
  const auto optional = Compile(GrammarKind::kTools, ToolGrammar(options));
  EXPECT_TRUE(Takes(optional, "It is cold."));
  EXPECT_TRUE(Takes(optional, "Let me see.<tool_call>\n" + call + "\n</tool_call>"));
  EXPECT_FALSE(Takes(optional, "Let me see.<tool_call>\n{}\n</tool_call>"));
  // A special token as the marker.
  options.required = true;
  options.token_id = [&](std::string_view marker) {
    return marker == kHermesBegin ? std::optional(SpecialToken()) : std::nullopt;
  };
  const auto special = Compile(GrammarKind::kTools, ToolGrammar(options));
  auto follower = GrammarFollower::Start(special);
  ASSERT_TRUE(follower.ok());
  EXPECT_EQ(Allowed(**follower), std::vector<std::int32_t>{SpecialToken()});
  ASSERT_TRUE((*follower)->Accept(SpecialToken()).ok());
  EXPECT_FALSE(Allowed(**follower).empty());
  // A user's grammar names tokens only by their names.
  EXPECT_THAT(Refusal(GrammarKind::kLark, ToolGrammar(options)), HasSubstr("by its number"));
}

// Without a large stack, the compiler would end the process.
TEST_F(GrammarTest, LongChainsAndNestingCompile) {
  std::string references = R"({"$ref": "#/$defs/a0", "$defs": {)";
  for (int i = 0; i < 7000; ++i)
    references += base::StrCat(i > 0 ? "," : "", "\"a", i, R"(":{"$ref":"#/$defs/a)", i + 1, "\"}");
  Compile(GrammarKind::kJsonSchema, references + R"(,"a7000": {"type": "null"}}})");
  std::string rules = "start: r0\n", nested = "start: r0\n";
  for (int i = 0; i < 10000; ++i) rules += base::StrCat("r", i, ": r", i + 1, "\n");
  Compile(GrammarKind::kLark, rules + "r10000: \"a\"\n");
  const std::string open(25, '('), close(25, ')');  // the crate's limit is 30
  for (int i = 0; i < 4000; ++i) nested += base::StrCat("r", i, ": ", open, "r", i + 1, close, "\n");
  Compile(GrammarKind::kLark, nested + "r4000: \"a\"\n");
}

TEST_F(GrammarTest, SourcesThatTakeTooMuchAreRefused) {
  EXPECT_THAT(Refusal(GrammarKind::kRegex, std::string(1000, '(') + "a" + std::string(1000, ')')), HasSubstr("deep"));
  EXPECT_THAT(Refusal(GrammarKind::kRegex, "((a{1000}){1000}){1000}"),
              AllOf(HasSubstr("more memory than allowed"), Not(HasSubstr("18446744"))));
  std::string slow;
  for (int i = 0; i < 30000; ++i) slow += "a*b?";
#if defined(NIBBLE_ASAN)  // the crate is instrumented for the fuzzers, and may reach the limit of time first
  const auto too_much = ::testing::AnyOf(HasSubstr("allowed"), HasSubstr("takes more than 3000 ms"));
#else
  const auto too_much = HasSubstr("allowed");
#endif
  EXPECT_THAT(Refusal(GrammarKind::kRegex, slow), AllOf(too_much, Not(HasSubstr("18446744"))));
  EXPECT_THAT(Refusal(GrammarKind::kRegex, std::string(GrammarSource::kMaxBytes + 1, 'a')),
              HasSubstr("wanted at most"));
  EXPECT_THAT(Refusal(GrammarKind::kJsonSchema, R"({"type": "integer", "multipleOf": 9999991})"),
              HasSubstr("#/multipleOf"));
  EXPECT_THAT(Refusal(GrammarKind::kJsonSchema, "false"), HasSubstr("no text"));
  EXPECT_THAT(Refusal(GrammarKind::kChoice, R"(["a", ""])"), HasSubstr("empty"));
  EXPECT_THAT(Refusal(GrammarKind::kJsonSchema, "{\"type\": "), HasSubstr("JSON"));
}

// With the crate's slices of the vocabulary, this takes time that doubles with each terminal and allocates nothing.
TEST_F(GrammarTest, ComplementsOfNestedTerminalsEndSoon) {
  std::string grammar = "start: \"xy\" TEXT\nTEXT: /(?s:.*)/ & ~T0\n";
  for (int i = 0; i < 60; ++i) grammar += base::StrCat("T", i, ": \"a\" | \"b\" T", i + 1, " T", i + 1, "\n");
  grammar += "T60: \"a\" | \"bc\"\n";
  const auto compiled = compiler_->Compile({GrammarKind::kLark, grammar}, "field");
  if (!compiled.ok()) return;
  auto follower = GrammarFollower::Start(*compiled);
  ASSERT_TRUE(follower.ok());
  for (int i = 0; i < 20; ++i) {
    const auto allowed = (*follower)->AllowedTokens(vocab_size_);
    if (!allowed.ok()) break;
    const auto tokens = support::TokensOf(*allowed);
    if (tokens.empty() || !(*follower)->Accept(tokens.front()).ok()) break;
  }
}

TEST_F(GrammarTest, ReferencesToAnyPlaceAreChecked) {
  EXPECT_THAT(Refusal(GrammarKind::kJsonSchema, R"({"$ref": "#/$defs/g/A", "$defs": {"g": {"A": {"not": {}}}}})"),
              HasSubstr("#/$defs/g/A/not"));
  const auto date = Compile(GrammarKind::kJsonSchema,
                            R"({"$ref": "#/components/A", "components": {"A": {"type": "string", "format": "date"}}})");
  EXPECT_TRUE(Takes(date, R"("2024-02-29")"));
  EXPECT_FALSE(Takes(date, R"("2023-02-29")"));
  Compile(GrammarKind::kJsonSchema, R"({"type": "object", "propertyNames": {"type": "string"}})");
}

TEST_F(GrammarTest, AFollowerThatFailsDoesNotAffectAnother) {
  // The number of states grows with the text: one of the last 15 letters is an "a".
  const auto grammar = Compile(GrammarKind::kRegex, "x*|[ab]*a[ab]{14}");
  auto healthy = GrammarFollower::Start(grammar), costly = GrammarFollower::Start(grammar);
  ASSERT_TRUE(healthy.ok() && costly.ok());
  std::minstd_rand random(1);
  bool failed = false;
  for (int i = 0; i < 60'000 && !failed; ++i) {
    failed = !(*costly)->Accept(*tokenizer_->TokenId(random() % 2 == 0 ? "a" : "b")).ok();
  }
  EXPECT_TRUE(failed) << "no limit ended the costly text";
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(Allowed(**healthy).empty());
    ASSERT_TRUE((*healthy)->Accept(*tokenizer_->TokenId("x")).ok());
  }
  EXPECT_TRUE(Takes(grammar, "xxx"));
}

TEST_F(GrammarTest, TokensThatSpanPartsOfTheGrammarAreAllowed) {
  const auto grammar = Compile(GrammarKind::kRegex, "the (lamp|light)house");
  auto follower = GrammarFollower::Start(grammar);
  ASSERT_TRUE(follower.ok());
  const auto ids = tokenizer_->Encode("the lighthouse", false);
  ASSERT_TRUE(ids.ok());
  for (const std::int32_t id : *ids) {
    const auto allowed = Allowed(**follower);
    EXPECT_TRUE(std::binary_search(allowed.begin(), allowed.end(), id)) << *tokenizer_->Token(id);
    ASSERT_TRUE((*follower)->Accept(id).ok());
  }
  EXPECT_EQ(Allowed(**follower), std::vector<std::int32_t>{end_});
}

TEST_F(GrammarTest, GrammarsAreKeptAndCountTheirMemory) {
  const GrammarSource source = {GrammarKind::kRegex, "[a-z]+"};
  EXPECT_EQ(compiler_->Kept(source), nullptr);
  const auto first = compiler_->Compile(source, "field");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(compiler_->Kept(source), *first);
  EXPECT_EQ(*compiler_->Compile(source, "field"), *first);
  const std::int64_t bytes = (*first)->bytes();
  EXPECT_GT(bytes, 1000);
  auto follower = GrammarFollower::Start(*first);
  ASSERT_TRUE(follower.ok());
  for (int i = 0; i < 100; ++i) Allowed(**follower);
  EXPECT_EQ((*first)->bytes(), bytes) << "masks are not the grammar's memory";
  for (std::size_t i = 0; i < GrammarCompiler::kMaxKept; ++i)
    ASSERT_TRUE(compiler_->Compile({GrammarKind::kRegex, base::StrCat("a", i)}, "field").ok());
  EXPECT_EQ(compiler_->Kept(source), nullptr);
}

TEST_F(GrammarTest, FollowersOnManyThreadsAreIndependent) {
  const auto grammar = Compile(GrammarKind::kJsonSchema, R"({"type": "array", "items": {"type": "integer"}})");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(Takes(grammar, base::StrCat("[", t, ",", i, "]")));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GrammarCompilerTest, AModelWithoutAnEndTokenIsRefused) {
  auto tokenizer = Tokenizer::FromJson(ReadFile(NIBBLE_SOURCE_DIR "/tests/golden/text/hf_qwen.json"));
  ASSERT_TRUE(tokenizer.ok());
  GrammarCompiler compiler(*std::move(tokenizer), 300, {});
  const auto grammar = compiler.Compile({GrammarKind::kRegex, "a"}, "regex");
  EXPECT_THAT(grammar.status().message(), AllOf(HasSubstr("regex"), HasSubstr("end token")));
}

class SentencePieceGrammarTest : public GrammarTest {
 protected:
  SentencePieceGrammarTest() : GrammarTest("hf_llama.json") {}
};

TEST_F(SentencePieceGrammarTest, FollowsPiecesAndBytes) {
  const auto grammar = Compile(GrammarKind::kRegex, "[a-z ]+é?");
  auto follower = GrammarFollower::Start(grammar);
  ASSERT_TRUE(follower.ok());
  std::string text;
  std::vector<std::int32_t> ids;
  StreamDecoder decoder(*tokenizer_, /*skip_special_tokens=*/true, {}, /*inside_text=*/true);
  std::minstd_rand random(1);
  for (int i = 0; i < 40; ++i) {
    auto allowed = Allowed(**follower);
    std::erase(allowed, end_);
    if (allowed.empty()) break;
    ids.push_back(allowed[random() % allowed.size()]);
    ASSERT_TRUE((*follower)->Accept(ids.back()).ok());
    auto shown = decoder.Append(ids.back());
    ASSERT_TRUE(shown.ok());
    text += *shown;
  }
  EXPECT_GT(ids.size(), 5u);
  EXPECT_THAT(text, ::testing::MatchesRegex("[a-z ]+(\xc3\xa9)?"));
}

TEST_F(SentencePieceGrammarTest, ShowsTheFirstBlank) {
  const auto grammar = Compile(GrammarKind::kRegex, " a");
  auto follower = GrammarFollower::Start(grammar);
  ASSERT_TRUE(follower.ok());
  StreamDecoder decoder(*tokenizer_, /*skip_special_tokens=*/true, {}, /*inside_text=*/true);
  std::string text;
  while (true) {
    const std::int32_t id = Allowed(**follower).front();
    if (id == end_) break;
    ASSERT_TRUE((*follower)->Accept(id).ok());
    text += *decoder.Append(id);
  }
  EXPECT_EQ(text, " a");
}

}  // namespace
}  // namespace nibble::text
