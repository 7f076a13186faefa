#include "server/data/example.h"

#include <gmock/gmock.h>

#include <cctype>
#include <fstream>
#include <functional>
#include <numeric>

#include "server/base/error.h"
#include "server/base/json.h"
#include "tests/support/temp_directory.h"

namespace nibble::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ExampleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto assets = model::LoadTextAssets(NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16");
    ASSERT_TRUE(assets.ok()) << assets.status();
    text_ = *std::move(assets);
    config_.eos_token_ids = {1};
  }
  std::vector<std::int32_t> Encode(const std::string& text) {
    return text_.tokenizer->Encode(text, /*add_special_tokens=*/false).value_or(std::vector<std::int32_t>{});
  }
  absl::StatusOr<std::vector<Example>> Pieces(const std::string& line, RowFormat format, TokenizeOptions options) {
    const auto row = ParseRow(line, format);
    EXPECT_TRUE(row.ok()) << row.status();
    return Tokenize(*row, format, text_, config_, options);
  }
  Example One(const std::string& line, RowFormat format, TokenizeOptions options = {.max_seq_len = 1000}) {
    const auto pieces = Pieces(line, format, options);
    EXPECT_TRUE(pieces.ok()) << pieces.status();
    EXPECT_EQ(pieces->size(), 1u);
    return pieces->front();
  }
  // The text of the trained tokens.
  std::string Trained(const Example& example) {
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < example.tokens.size(); ++i) {
      if (example.trained[i] != 0) ids.push_back(example.tokens[i]);
    }
    return text_.tokenizer->Decode(ids, /*skip_special_tokens=*/false).value_or("");
  }

  // Uses a changed copy of the model's tokenizer.json.
  void ChangeTokenizer(const std::function<void(base::Json&)>& change) {
    std::ifstream in(NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16/tokenizer.json");
    base::Json tokenizer = base::Json::parse(in);
    change(tokenizer);
    const testing::TempDirectory directory;
    std::ofstream(directory / "tokenizer.json") << tokenizer;
    auto changed = model::LoadTextAssets(directory / "");
    ASSERT_TRUE(changed.ok()) << changed.status();
    text_.tokenizer = std::move(changed->tokenizer);
  }

  model::TextAssets text_;
  model::ModelConfig config_;
};

TEST_F(ExampleTest, SplitTextLosesNoToken) {
  const std::string words = "the keeper of the light walked down to the harbour every morning";
  std::vector<std::int32_t> all = Encode(words);
  all.push_back(1);
  for (const std::int64_t limit : {2, 7, 16, static_cast<int>(all.size()) - 1, static_cast<int>(all.size()), 1000}) {
    const auto pieces = Pieces(R"({"text": ")" + words + "\"}", RowFormat::kText, {.max_seq_len = limit});
    ASSERT_TRUE(pieces.ok()) << pieces.status();
    std::vector<std::int32_t> joined;
    for (std::size_t i = 0; i < pieces->size(); ++i) {
      const Example& piece = (*pieces)[i];
      joined.insert(joined.end(), piece.tokens.begin(), piece.tokens.end());
      EXPECT_EQ(piece.trained, std::vector<std::uint8_t>(piece.tokens.size(), 1));
      // All pieces but the last two are full. If the last piece would have only one token, it takes one more from the
      // piece before it.
      EXPECT_TRUE(i + 2 >= pieces->size() || static_cast<std::int64_t>(piece.tokens.size()) == limit);
      EXPECT_LE(static_cast<std::int64_t>(piece.tokens.size()), limit);
    }
    EXPECT_EQ(joined, all) << limit;
  }
}

// T1 (docs/faults.md): if a text filled its pieces, the end token was alone in the last piece, which was left out
// because a single token has no loss.
TEST_F(ExampleTest, EndTokenOfATextThatFillsItsPiecesIsTrained) {
  const std::string words = "the keeper of the light walked down to the harbour every morning";
  const auto num_text_tokens = static_cast<std::int64_t>(Encode(words).size());
  const testing::TempDirectory directory;
  std::ofstream(directory / "rows.jsonl") << R"({"text": ")" << words << "\"}\n";
  int filled = 0;
  for (std::int64_t limit = 3; limit <= num_text_tokens; ++limit) {
    const auto dataset =
        LoadDataset(directory / "rows.jsonl", RowFormat::kText, text_, config_, {.max_seq_len = limit});
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ(dataset->num_tokens, num_text_tokens + 1) << "no token is left out, limit " << limit;
    const Example last = dataset->examples[dataset->examples.size() - 1];
    EXPECT_GE(last.tokens.size(), 2u) << limit;
    EXPECT_EQ(last.tokens.back(), 1) << "the end token, limit " << limit;
    if (num_text_tokens % limit == 0) ++filled;
  }
  EXPECT_GE(filled, 2) << "number of limits that the text fills exactly";
  // With a limit of two, three remaining tokens do not make two pieces of two tokens: one token of the text is left
  // out, and the end token is trained.
  const auto pairs = Pieces(R"({"text": "abcd"})", RowFormat::kText, {.max_seq_len = 2});
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_EQ(pairs->back().tokens.size(), 2u);
  EXPECT_EQ(pairs->back().tokens.back(), 1);
}

// T6 (docs/faults.md): a truncated row kept the memory of the whole row.
TEST_F(ExampleTest, TruncatedRowKeepsNoMemoryOfItsEnd) {
  const std::string end(20'000, 'x');
  for (const auto& [format, line] :
       {std::pair(RowFormat::kText, "{\"text\": \"" + end + "\"}"),
        std::pair(RowFormat::kPromptCompletion, "{\"prompt\": \"who\", \"completion\": \"" + end + "\"}")}) {
    const auto pieces = Pieces(line, format, {.max_seq_len = 16, .overlong = Overlong::kTruncate});
    ASSERT_TRUE(pieces.ok()) << pieces.status();
    const Example& example = pieces->front();
    EXPECT_GT(example.num_cut_off, 1000);
    EXPECT_EQ(example.tokens.size(), 16u);
    EXPECT_EQ(example.tokens.capacity(), 16u);
    EXPECT_EQ(example.trained.capacity(), 16u);
  }
}

TEST_F(ExampleTest, LossCoversTheCompletion) {
  const std::string line = R"({"prompt": "who walks?", "completion": " the keeper"})";
  const Example example = One(line, RowFormat::kPromptCompletion);
  EXPECT_EQ(Trained(example), " the keeper</s>");
  EXPECT_EQ(example.num_trained(), static_cast<std::int64_t>(Encode(" the keeper").size()) + 1);
  const Example whole = One(line, RowFormat::kPromptCompletion, {.max_seq_len = 1000, .train_on_prompt = true});
  EXPECT_EQ(Trained(whole), "who walks? the keeper</s>");
  EXPECT_EQ(whole.tokens, example.tokens);
}

// T1 (docs/faults.md): "the" is one token of this vocabulary. It begins in the prompt, so only the end token was
// trained.
TEST_F(ExampleTest, TokenThatBeginsInThePromptIsTrained) {
  const Example merged = One(R"({"prompt": "walk t", "completion": "he"})", RowFormat::kPromptCompletion);
  EXPECT_EQ(Trained(merged), "the</s>");
  EXPECT_TRUE(merged.boundary_merged);
  const Example inside = One(R"({"prompt": "walk t", "completion": "hen th"})", RowFormat::kPromptCompletion);
  EXPECT_EQ(Trained(inside), "then th</s>") << "each token is trained once";
  const Example whole = One(R"({"prompt": "walk ", "completion": "the"})", RowFormat::kPromptCompletion);
  EXPECT_EQ(whole.tokens, merged.tokens);
  EXPECT_EQ(whole.trained, merged.trained);
  EXPECT_FALSE(whole.boundary_merged);
  const Example all = One(R"({"prompt": "walk t", "completion": "he"})", RowFormat::kPromptCompletion,
                          {.max_seq_len = 100, .train_on_prompt = true});
  EXPECT_FALSE(all.boundary_merged) << "there is no boundary";
}

TEST_F(ExampleTest, TokenThatCrossesEitherEndOfAnAnswerIsTrained) {
  auto bare = text::ChatTemplate::Compile("{% for m in messages %}{{ m['content'] }}{% endfor %}", {});
  ASSERT_TRUE(bare.ok()) << bare.status();
  text_.chat_template = *std::move(bare);
  const auto chat = [](const char* question, const char* answer, const char* next) {
    return std::string(R"({"messages": [{"role": "user", "content": ")") + question +
           R"("}, {"role": "assistant", "content": ")" + answer + R"("}, {"role": "user", "content": ")" + next +
           R"("}]})";
  };
  const Example first = One(chat("walk t", "he", " so"), RowFormat::kChat);
  EXPECT_EQ(Trained(first), "the");
  EXPECT_TRUE(first.boundary_merged);
  const Example last = One(chat("walk ", "an", "d so"), RowFormat::kChat);
  EXPECT_EQ(Trained(last), "and");
  EXPECT_TRUE(last.boundary_merged);
  EXPECT_FALSE(One(chat("walk ", "an", " so"), RowFormat::kChat).boundary_merged);
}

// Byte-level tokenizers that trim offsets report an empty span for a token of blanks.
TEST_F(ExampleTest, BlanksOfACompletionAreTrainedWhereTheTokenizerTrimsOffsets) {
  const std::string line = R"({"prompt": "walk", "completion": "  so   far "})";
  const Example plain = One(line, RowFormat::kPromptCompletion);
  EXPECT_EQ(Trained(plain), "  so   far </s>");
  const base::Json trimming =
      base::Json::parse(R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})");
  for (const bool in_sequence : {false, true}) {
    ChangeTokenizer([&](base::Json& tokenizer) {
      tokenizer["post_processor"] =
          in_sequence ? base::Json{{"type", "Sequence"}, {"processors", {trimming}}} : trimming;
    });
    const Example trimmed = One(line, RowFormat::kPromptCompletion);
    EXPECT_EQ(trimmed.tokens, plain.tokens);
    EXPECT_EQ(trimmed.trained, plain.trained);
  }
}

TEST_F(ExampleTest, SpecialTokenThatSwallowsABlankOfTheCompletionIsNotTrained) {
  ChangeTokenizer([](base::Json& tokenizer) {
    for (base::Json& token : tokenizer["added_tokens"]) token["rstrip"] = token["content"] == "<pad>";
  });
  const Example example = One(R"({"prompt": "walk<pad>", "completion": " so"})", RowFormat::kPromptCompletion);
  EXPECT_EQ(Trained(example), "so</s>");
  EXPECT_FALSE(example.boundary_merged) << "the prompt alone has the same tokens";
  EXPECT_EQ(Trained(One(R"({"prompt": "walk", "completion": "<pad> so"})", RowFormat::kPromptCompletion)),
            "<pad>so</s>");
}

TEST_F(ExampleTest, LossCoversEveryAssistantTurn) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "first"},)"
      R"( {"role": "user", "content": "b?"}, {"role": "assistant", "content": "second"}]})";
  const std::string trained = Trained(One(line, RowFormat::kChat));
  EXPECT_THAT(trained, HasSubstr("first"));
  EXPECT_THAT(trained, HasSubstr("second"));
  EXPECT_THAT(trained, ::testing::Not(HasSubstr("a?")));
  EXPECT_THAT(trained, ::testing::Not(HasSubstr("b?")));
  EXPECT_THAT(Trained(One(line, RowFormat::kChat, {.max_seq_len = 1000, .train_on_prompt = true})), HasSubstr("a?"));
}

TEST_F(ExampleTest, EachAnswerOfManyTurnsIsTrainedAndNoQuestion) {
  std::string line = R"({"messages": [)";
  std::string answers, all;
  for (int i = 0; i < 20; ++i) {
    const std::string number = std::to_string(100 + i);
    line += std::string(i == 0 ? "" : ", ") + R"({"role": "user", "content": "q)" + number + R"("}, )" +
            R"({"role": "assistant", "content": "a)" + number + "\"" + (i % 5 == 0 ? R"(, "train": false)" : "") + "}";
    if (i % 5 != 0) answers += "a" + number;
    all += "a" + number;
  }
  line += "]}";
  // Joins the parts of the text that look like a content of `line`, such as a100 or q119.
  const auto turns = [](const std::string& text) {
    std::string found;
    for (std::size_t i = 0; i + 4 <= text.size(); ++i) {
      if ((text[i] == 'a' || text[i] == 'q') && text[i + 1] == '1' &&
          std::isdigit(static_cast<unsigned char>(text[i + 3])) != 0) {
        found += text.substr(i, 4);
      }
    }
    return found;
  };
  const Example example = One(line, RowFormat::kChat, {.max_seq_len = 100'000});
  EXPECT_EQ(turns(Trained(example)), answers);
  const std::string whole = text_.tokenizer->Decode(example.tokens, /*skip_special_tokens=*/false).value_or("");
  EXPECT_EQ(turns(whole).size(), 2 * all.size()) << "every turn is in the text";
  const std::string rest =
      turns(Trained(One(line, RowFormat::kChat, {.max_seq_len = 100'000, .train_on_prompt = true})));
  EXPECT_THAT(rest, HasSubstr("q100"));
  EXPECT_THAT(rest, ::testing::Not(HasSubstr("a100")));
  EXPECT_THAT(rest, HasSubstr("a101"));
}

TEST_F(ExampleTest, CancelStopsRenderingAConversation) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "first"},)"
      R"( {"role": "user", "content": "b?"}, {"role": "assistant", "content": "second"}]})";
  const auto row = ParseRow(line, RowFormat::kChat);
  ASSERT_TRUE(row.ok()) << row.status();
  int asked = 0;
  const auto tokenize = [&](int renderings) {
    asked = 0;
    return Tokenize(*row, RowFormat::kChat, text_, config_, {.max_seq_len = 1000},
                    [&asked, renderings] { return asked++ == renderings; })
        .status();
  };
  // The two renderings: the whole, and the part before the last answer.
  for (int renderings = 0; renderings < 2; ++renderings) {
    EXPECT_TRUE(absl::IsCancelled(tokenize(renderings))) << renderings;
    EXPECT_EQ(asked, renderings + 1);
  }
  const absl::Status whole = tokenize(2);
  EXPECT_TRUE(whole.ok()) << whole;
  EXPECT_EQ(asked, 2);
  const testing::TempDirectory directory;
  std::ofstream(directory / "rows.jsonl") << line << "\n";
  asked = 0;
  const auto file = LoadDataset(directory / "rows.jsonl", RowFormat::kChat, text_, config_, {.max_seq_len = 1000},
                                [&asked] { return asked++ == 2; });
  EXPECT_TRUE(absl::IsCancelled(file.status())) << file.status();
  EXPECT_EQ(asked, 3) << "once at the line, then at its renderings";
}

TEST_F(ExampleTest, TrainFlagOfAMessageOverridesItsRole) {
  const auto line = [](const char* question, const char* first) {
    return std::string(R"({"messages": [{"role": "user", "content": "a?")") + question +
           R"(}, {"role": "assistant", "content": "first")" + first +
           R"(}, {"role": "user", "content": "b?"}, {"role": "assistant", "content": "second"}]})";
  };
  const Example without = One(line("", R"(, "train": false)"), RowFormat::kChat);
  EXPECT_THAT(Trained(without), HasSubstr("second"));
  EXPECT_THAT(Trained(without), ::testing::Not(HasSubstr("first")));
  EXPECT_EQ(without.tokens, One(line("", ""), RowFormat::kChat).tokens);
  const std::string with = Trained(One(line(R"(, "train": true)", ""), RowFormat::kChat));
  EXPECT_THAT(with, HasSubstr("a?"));
  EXPECT_THAT(with, HasSubstr("first"));
  EXPECT_THAT(with, ::testing::Not(HasSubstr("b?")));
  const std::string rest =
      Trained(One(line("", R"(, "train": false)"), RowFormat::kChat, {.max_seq_len = 1000, .train_on_prompt = true}));
  EXPECT_THAT(rest, HasSubstr("a?"));
  EXPECT_THAT(rest, ::testing::Not(HasSubstr("first")));
  EXPECT_THAT(rest, HasSubstr("second"));
}

// Templates always see the same date, so that the tokens of a dataset do not depend on when they were made.
TEST_F(ExampleTest, DateOfATemplateIsFixed) {
  auto dated = text::ChatTemplate::Compile(
      "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}", {});
  ASSERT_TRUE(dated.ok()) << dated.status();
  text_.chat_template = *std::move(dated);
  const Example example = One(
      R"({"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]})", RowFormat::kChat);
  EXPECT_THAT(text_.tokenizer->Decode(example.tokens, /*skip_special_tokens=*/false).value_or(""),
              HasSubstr("26 Jul 2024"));
}

// T9 (docs/faults.md): a tokenizer that adds <s> before a text also added it to a text that already begins with <s>.
TEST_F(ExampleTest, RowThatBeginsWithTheBosHasItOnce) {
  ChangeTokenizer([](base::Json& tokenizer) {
    tokenizer["post_processor"] = base::Json::parse(
        R"({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}})");
  });
  const auto text = [&](const Example& example) {
    return text_.tokenizer->Decode(example.tokens, /*skip_special_tokens=*/false).value_or("");
  };
  const TokenizeOptions without = {.max_seq_len = 100, .add_special_tokens = false};
  struct Case {
    RowFormat format;
    const char *plain, *with;
    std::string wanted;
  };
  for (const Case& c :
       {Case{RowFormat::kText, R"({"text": "the keeper"})", R"({"text": "<s>the keeper"})", "<s>the keeper</s>"},
        Case{RowFormat::kPromptCompletion, R"({"prompt": "the", "completion": " keeper"})",
             R"({"prompt": "<s>the", "completion": " keeper"})", "<s>the keeper</s>"}}) {
    const Example plain = One(c.plain, c.format), with = One(c.with, c.format);
    EXPECT_EQ(text(plain), c.wanted);
    EXPECT_EQ(with.tokens, plain.tokens);
    EXPECT_EQ(with.trained, plain.trained);
    EXPECT_FALSE(plain.began_with_added);
    EXPECT_TRUE(with.began_with_added);
    EXPECT_EQ(text(One(c.plain, c.format, without)), c.wanted.substr(3));
    EXPECT_EQ(text(One(c.with, c.format, without)), c.wanted);
    EXPECT_FALSE(One(c.with, c.format, without).began_with_added) << "no token would have been added";
  }
  auto bare = text::ChatTemplate::Compile("{% for m in messages %}{{ m['content'] }}{% endfor %}", {});
  ASSERT_TRUE(bare.ok()) << bare.status();
  text_.chat_template = *std::move(bare);
  const char chat[] =
      R"({"messages": [{"role": "user", "content": "the"}, {"role": "assistant", "content": " keeper"}]})";
  EXPECT_EQ(text(One(chat, RowFormat::kChat)), "the keeper") << "the template writes special tokens";
  const Example added = One(chat, RowFormat::kChat, {.max_seq_len = 100, .add_special_tokens = true});
  EXPECT_EQ(text(added), "<s>the keeper");
  EXPECT_EQ(Trained(added), " keeper");
}

TEST_F(ExampleTest, WarningNamesTheLinesOfRowsThatBeginWithTheBos) {
  ChangeTokenizer([](base::Json& tokenizer) {
    tokenizer["post_processor"] = base::Json::parse(
        R"({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}})");
  });
  const testing::TempDirectory directory;
  std::ofstream(directory / "rows.jsonl") << R"({"text": "the keeper"})" << "\n"
                                          << R"({"text": "<s>the keeper of the light"})" << "\n";
  const auto dataset = LoadDataset(directory / "rows.jsonl", RowFormat::kText, text_, config_, {.max_seq_len = 8});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const std::vector<RowWarning> warnings = RowWarnings(*dataset, 8);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].reason, "BOS_IN_TEXT");
  EXPECT_THAT(warnings[0].message, HasSubstr("1 of 2 rows begin with the special token"));
  EXPECT_THAT(warnings[0].rows, ElementsAre(2));
}

TEST_F(ExampleTest, WarningNamesTheLinesOfRowsWithUnknownRoles) {
  const testing::TempDirectory directory;
  std::ofstream(directory / "rows.jsonl")
      << R"({"messages": [{"role": "user", "content": "who?"}, {"role": "assistant", "content": "the keeper"}]})"
      << "\n"
      << R"({"messages": [{"role": "human", "content": "who?"}, {"role": "assistant", "content": "the keeper"}]})"
      << "\n";
  const auto dataset = LoadDataset(directory / "rows.jsonl", RowFormat::kChat, text_, config_, {.max_seq_len = 128});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const std::vector<RowWarning> warnings = RowWarnings(*dataset, 128);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].reason, "UNKNOWN_ROLES");
  EXPECT_THAT(warnings[0].message, HasSubstr("1 of 2 rows have a message whose role is none of system"));
  EXPECT_THAT(warnings[0].rows, ElementsAre(2));
}

TEST_F(ExampleTest, WarningNamesTheLinesOfRowsWithEmptyAnswers) {
  const testing::TempDirectory directory;
  std::ofstream(directory / "rows.jsonl")
      << R"({"messages": [{"role": "user", "content": "who?"}, {"role": "assistant", "content": ""}]})"
      << "\n"
      << R"({"messages": [{"role": "user", "content": "who?"}, {"role": "assistant", "content": "the keeper"}]})"
      << "\n";
  const auto dataset = LoadDataset(directory / "rows.jsonl", RowFormat::kChat, text_, config_, {.max_seq_len = 128});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const std::vector<RowWarning> warnings = RowWarnings(*dataset, 128);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].reason, "EMPTY_ANSWERS");
  EXPECT_THAT(warnings[0].message, HasSubstr("1 of 2 rows have an answer without text"));
  EXPECT_THAT(warnings[0].rows, ElementsAre(1));
}

// The model must learn to stop even if the tokenizer itself adds the end token.
TEST_F(ExampleTest, EndTokenOfTheTokenizerIsTrained) {
  const std::string line = R"({"prompt": "who walks?", "completion": " the keeper"})";
  const Example plain = One(line, RowFormat::kPromptCompletion);
  ChangeTokenizer([](base::Json& tokenizer) {
    tokenizer["post_processor"] = base::Json::parse(
        R"({"type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}})");
  });
  const Example closed = One(line, RowFormat::kPromptCompletion);
  EXPECT_EQ(closed.tokens, plain.tokens);
  EXPECT_EQ(closed.trained, plain.trained);
}

TEST_F(ExampleTest, OverlongRowIsTruncatedDroppedOrRefusedByPolicy) {
  const std::string line = R"({"prompt": "abcd", "completion": " efgh"})";
  const std::vector<std::int32_t> all = One(line, RowFormat::kPromptCompletion).tokens;
  const auto limit = static_cast<std::int64_t>(all.size()) - 2;
  const Example cut = One(line, RowFormat::kPromptCompletion, {.max_seq_len = limit});
  EXPECT_EQ(cut.tokens, std::vector<std::int32_t>(all.begin(), all.end() - 2));
  EXPECT_EQ(cut.trained.size(), cut.tokens.size());
  EXPECT_THAT(*Pieces(line, RowFormat::kPromptCompletion, {.max_seq_len = limit, .overlong = Overlong::kDrop}),
              ElementsAre());
  const auto refused = Pieces(line, RowFormat::kPromptCompletion, {.max_seq_len = limit, .overlong = Overlong::kError});
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("max_seq_len is " + std::to_string(limit)));
  EXPECT_EQ(One(line, RowFormat::kPromptCompletion, {.max_seq_len = limit + 2, .overlong = Overlong::kError}).tokens,
            all);
}

TEST_F(ExampleTest, OverlongTextFollowsThePolicy) {
  const std::string words = R"({"text": "the keeper of the light walked down"})";
  const std::vector<std::int32_t> all = One(words, RowFormat::kText, {.max_seq_len = 100}).tokens;
  const auto limit = static_cast<std::int64_t>(all.size()) - 2;
  const Example cut = One(words, RowFormat::kText, {.max_seq_len = limit, .overlong = Overlong::kTruncate});
  EXPECT_EQ(cut.tokens, std::vector<std::int32_t>(all.begin(), all.end() - 2));
  EXPECT_EQ(cut.num_cut_off, 2);
  EXPECT_THAT(*Pieces(words, RowFormat::kText, {.max_seq_len = limit, .overlong = Overlong::kDrop}), ElementsAre());
  EXPECT_FALSE(Pieces(words, RowFormat::kText, {.max_seq_len = limit, .overlong = Overlong::kError}).ok());
}

// The format of an evaluation set may differ from that of the training data.
TEST_F(ExampleTest, PolicyAppliesToTheFormatThatItWasChosenFor) {
  EXPECT_EQ(OverlongFor("", RowFormat::kText, RowFormat::kText), Overlong::kSplit);
  EXPECT_EQ(OverlongFor("", RowFormat::kChat, RowFormat::kChat), Overlong::kTruncate);
  EXPECT_EQ(OverlongFor("truncate", RowFormat::kText, RowFormat::kText), Overlong::kTruncate);
  EXPECT_EQ(OverlongFor("split", RowFormat::kText, RowFormat::kChat), Overlong::kTruncate);
  EXPECT_EQ(OverlongFor("truncate", RowFormat::kChat, RowFormat::kText), Overlong::kSplit);
  for (const RowFormat format : {RowFormat::kText, RowFormat::kPromptCompletion, RowFormat::kChat}) {
    EXPECT_EQ(OverlongFor("drop", RowFormat::kText, format), Overlong::kDrop);
    EXPECT_EQ(OverlongFor("error", RowFormat::kChat, format), Overlong::kError);
  }
}

TEST_F(ExampleTest, ErrorNamesTheLineOrSaysThatNothingIsTrainable) {
  const testing::TempDirectory directory;
  const auto load = [&](const std::string& text, TokenizeOptions options) {
    std::ofstream(directory / "rows.jsonl") << text;
    return LoadDataset(directory / "rows.jsonl", RowFormat::kPromptCompletion, text_, config_, options);
  };
  const std::string good = R"({"prompt": "a", "completion": "b"})"
                           "\n",
                    long_prompt = R"({"prompt": "aaaaaaaaaaaaaaaa", "completion": "b"})"
                                  "\n";
  const auto both = load(good + long_prompt, {.max_seq_len = 64});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->num_rows, 2);
  EXPECT_EQ(both->truncated.count, 0);
  EXPECT_THAT(RowWarnings(*both, 64), ElementsAre());
  EXPECT_EQ(both->num_trained, 4);  // "b" and the end, twice
  const absl::Status refused = load(good + long_prompt, {.max_seq_len = 4, .overlong = Overlong::kError}).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("line 2: has "));
  EXPECT_EQ(base::Reason(refused), "DATASET_FORMAT");
  const absl::Status nothing = load(long_prompt, {.max_seq_len = 4}).status();
  EXPECT_EQ(base::Reason(nothing), "NO_TRAINABLE_TOKENS");
}

// The length of a line is checked only at upload: the trainer has no limit of its own and does not know the server's
// flags.
TEST_F(ExampleTest, AcceptedLineIsReadWhateverItsLength) {
  const testing::TempDirectory directory;
  std::string row = R"({"text": ")";
  while (row.size() <= kDefaultMaxLineBytes) row += "the keeper of the light ";
  row += "\"}\n";
  FileValidator strict(RowFormat::kText), wide(RowFormat::kText, 2 * kDefaultMaxLineBytes);
  strict.Feed(row);
  wide.Feed(row);
  EXPECT_FALSE(strict.Finish().ok());
  EXPECT_TRUE(wide.Finish().ok());
  std::ofstream(directory / "rows.jsonl") << row;
  const auto dataset = LoadDataset(directory / "rows.jsonl", RowFormat::kText, text_, config_, {.max_seq_len = 1000});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->num_rows, 1);
  EXPECT_GT(dataset->num_tokens, 100'000);
}

TEST_F(ExampleTest, WarningsNameTheLinesOfTruncatedDroppedAndUntrainedRows) {
  const testing::TempDirectory directory;
  const std::string row = R"({"prompt": "a", "completion": "b"})"
                          "\n",
                    empty = "\n";
  const std::string long_prompt = R"({"prompt": "aaaaaaaaaaaaaaaa", "completion": "b"})"
                                  "\n";
  const std::string long_completion = R"({"prompt": "a", "completion": "bbbbbbbbbbbbbbbb"})"
                                      "\n";
  const auto load = [&](const std::string& text, Overlong overlong) {
    std::ofstream(directory / "rows.jsonl") << text;
    auto dataset = LoadDataset(directory / "rows.jsonl", RowFormat::kPromptCompletion, text_, config_,
                               {.max_seq_len = 4, .overlong = overlong});
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() ? *std::move(dataset) : Dataset();
  };
  // A blank line counts as a line.
  const std::vector<RowWarning> cut =
      RowWarnings(load(row + empty + long_completion + long_prompt, Overlong::kTruncate), 4);
  ASSERT_EQ(cut.size(), 2u);
  EXPECT_EQ(cut[0].reason, "ROWS_TRUNCATED");
  EXPECT_EQ(cut[0].message, "2 of 3 rows are longer than data.max_seq_len 4 and are truncated");
  EXPECT_THAT(cut[0].rows, ElementsAre(3, 4));
  EXPECT_EQ(cut[1].reason, "ROWS_WITHOUT_LOSS") << "the prompt fills the example";
  EXPECT_THAT(cut[1].rows, ElementsAre(4));
  std::string many = row;
  for (int i = 0; i < 30; ++i) many += long_completion;
  const std::vector<RowWarning> dropped = RowWarnings(load(many, Overlong::kDrop), 4);
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].reason, "ROWS_DROPPED");
  EXPECT_EQ(dropped[0].message.substr(0, 8), "30 of 31");
  EXPECT_EQ(dropped[0].rows.size(), 20u);
  EXPECT_EQ(dropped[0].rows.back(), 21);
}

TEST_F(ExampleTest, WarningNamesTheLinesOfRowsWithAMergedBoundary) {
  const testing::TempDirectory directory;
  std::ofstream(directory / "rows.jsonl") << R"({"prompt": "walk ", "completion": "the"})" << "\n\n"
                                          << R"({"prompt": "walk t", "completion": "he"})" << "\n";
  const auto dataset =
      LoadDataset(directory / "rows.jsonl", RowFormat::kPromptCompletion, text_, config_, {.max_seq_len = 64});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const std::vector<RowWarning> warnings = RowWarnings(*dataset, 64);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].reason, "PROMPT_BOUNDARY_MERGED");
  EXPECT_THAT(warnings[0].message, HasSubstr("1 of 2 rows have a token that crosses the boundary"));
  EXPECT_THAT(warnings[0].rows, ElementsAre(3));
}

// T1 (docs/faults.md): the row was reported although the merged token is in the part that is cut off, where nothing is
// trained.
TEST_F(ExampleTest, MergedBoundaryThatIsCutOffIsNotReported) {
  const std::string line = R"({"prompt": "walk t", "completion": "he keeper"})";
  const Example whole = One(line, RowFormat::kPromptCompletion);
  ASSERT_TRUE(whole.boundary_merged);
  const auto merged = std::find(whole.trained.begin(), whole.trained.end(), 1) - whole.trained.begin();
  const TokenizeOptions without = {.max_seq_len = merged, .overlong = Overlong::kTruncate};
  const TokenizeOptions with = {.max_seq_len = merged + 1, .overlong = Overlong::kTruncate};
  EXPECT_FALSE(One(line, RowFormat::kPromptCompletion, without).boundary_merged);
  EXPECT_TRUE(One(line, RowFormat::kPromptCompletion, with).boundary_merged);
  EXPECT_GT(One(line, RowFormat::kPromptCompletion, with).num_cut_off, 0);
}

TEST_F(ExampleTest, CancelStopsReadingAFile) {
  const testing::TempDirectory directory;
  const std::string row = R"({"prompt": "a", "completion": "b"})"
                          "\n";
  std::ofstream(directory / "rows.jsonl") << row << row << row;
  int asked = 0;
  const auto load = [&](int lines) {
    asked = 0;
    return LoadDataset(directory / "rows.jsonl", RowFormat::kPromptCompletion, text_, config_, {.max_seq_len = 64},
                       [&asked, lines] { return asked++ == lines; });
  };
  EXPECT_TRUE(absl::IsCancelled(load(2).status()));
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(load(3).ok());
}

}  // namespace
}  // namespace nibble::data
