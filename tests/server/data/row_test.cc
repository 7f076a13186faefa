#include "server/data/row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/error.h"

namespace nibble::data {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<FileSummary> Validate(const std::string& text, std::size_t chunk_bytes,
                                     std::optional<RowFormat> format = {}) {
  FileValidator validator(format);
  for (std::size_t i = 0; i < text.size(); i += chunk_bytes) {
    validator.Feed(std::string_view(text).substr(i, chunk_bytes));
  }
  return validator.Finish();
}

TEST(FileValidatorTest, CountsRowsOfEachFormatInChunksOfAnySize) {
  const std::pair<std::string, RowFormat> files[] = {
      {"{\"text\": \"a\"}\n\n{\"text\": \"\\u00e9\"}\r\n{\"text\": \"no line end\"}", RowFormat::kText},
      {"{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"\", \"completion\": \"c\"}\n{\"prompt\": \"x\", "
       "\"completion\": \"y\"}\n",
       RowFormat::kPromptCompletion},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n"
       "{\"messages\": [{\"role\": \"assistant\", \"content\": \"b\"}]}\n{\"messages\": [{\"role\": \"assistant\", "
       "\"content\": \"\"}]}\n",
       RowFormat::kChat}};
  for (const auto& [text, format] : files) {
    for (const std::size_t chunk_bytes : {std::size_t{1}, std::size_t{3}, std::size_t{7}, text.size()}) {
      const auto summary = Validate(text, chunk_bytes);
      ASSERT_TRUE(summary.ok()) << summary.status();
      EXPECT_EQ(summary->num_rows, 3) << chunk_bytes;
      EXPECT_EQ(summary->format, format);
      EXPECT_EQ(summary->num_bytes, static_cast<std::int64_t>(text.size()));
    }
  }
}

TEST(FileValidatorTest, NamesBadLines) {
  const auto summary = Validate("{\"text\": \"a\"}\nnot json\n{\"text\": 3}\n{\"prompt\": \"x\"}\n", 5);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(base::Reason(summary.status()), "DATASET_FORMAT");
  const std::string message(summary.status().message());
  EXPECT_THAT(message, HasSubstr("line 2"));
  EXPECT_THAT(message, HasSubstr("line 3: \"text\" is not a string"));
  EXPECT_THAT(message, HasSubstr("line 4: no \"text\""));
}

TEST(AtLineTest, PrefixesTheLineNumberAndKeepsAnExistingReason) {
  const absl::Status without_reason = AtLine(7, absl::InvalidArgumentError("no \"text\""));
  EXPECT_EQ(without_reason.message(), "line 7: no \"text\"");
  EXPECT_EQ(base::Reason(without_reason), "DATASET_FORMAT");
  const absl::Status with_reason =
      AtLine(7, base::WithReason(absl::InvalidArgumentError("no template"), "TEMPLATE_ERROR", {{"field", "messages"}}));
  EXPECT_EQ(with_reason.message(), "line 7: no template");
  EXPECT_EQ(base::Reason(with_reason), "TEMPLATE_ERROR");
  EXPECT_EQ(base::ReasonMetadata(with_reason)["field"], "messages");
  const absl::Status internal = AtLine(7, absl::InternalError("the tokenizer failed"));
  EXPECT_TRUE(absl::IsInternal(internal));
  EXPECT_EQ(base::Reason(internal), "") << "the file is not at fault";
}

TEST(FileValidatorTest, NamesAnErrorOnceWithAllItsLines) {
  const std::string good = "{\"text\": \"a\"}\n", other = "{\"prompt\": \"a\"}\n", number = "{\"text\": 3}\n";
  EXPECT_EQ(Validate(good + other + good + other + other + number + other, 1000).status().message(),
            "lines 2, 4-5, 7: no \"text\"; line 6: \"text\" is not a string");
}

TEST(FileValidatorTest, MessagesCountFromOneAndHaveTheirRole) {
  const auto error = [](const std::string& second) {
    const std::string line = R"({"messages": [{"role": "assistant", "content": "a"}, )" + second + "]}\n";
    return std::string(Validate(line, 1000).status().message());
  };
  EXPECT_EQ(error(R"({"role": "user"})"), "line 1: message 2 (user) has no \"content\" string");
  EXPECT_EQ(error(R"({"content": "a"})"), "line 1: message 2 has no \"role\"");
  EXPECT_EQ(error("{\"role\": \"" + std::string(100, 'r') + "\"}"), "line 1: message 2 has no \"content\" string");
}

TEST(FileValidatorTest, NamesManyErrorsAndLinesAndCountsTheOthers) {
  const std::string good = "{\"text\": \"a\"}\n";
  std::string alternating;
  for (int i = 0; i < 210; ++i) alternating += good + "{\"text\": 3}\n";
  const std::string ranges(Validate(alternating, 1000).status().message());
  EXPECT_THAT(ranges, HasSubstr(" 158, 160: \"text\" is not a string; and 130 more lines"));
  std::string different = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n";
  for (int i = 1; i <= 21; ++i) {
    different += "{\"messages\": [";
    for (int k = 1; k < i; ++k) different += "{\"role\": \"user\", \"content\": \"a\"}, ";
    different += "1]}\n";
  }
  const std::string errors(Validate(different, 1000).status().message());
  EXPECT_THAT(errors, HasSubstr("line 21: message 20 is not an object; and 1 more line"));
}

TEST(FileValidatorTest, RejectsFilesWithoutRowsAndOverlongLines) {
  for (const char* text : {"", "\n \n\t\n"}) {
    EXPECT_THAT(std::string(Validate(text, 10).status().message()), HasSubstr("no rows"));
  }
  const std::string overlong = "{\"text\": \"" + std::string(kDefaultMaxLineBytes + 10, 'x') + "\"}";
  EXPECT_THAT(std::string(Validate(overlong, 4096).status().message()), HasSubstr("line 1: longer than"));
  EXPECT_THAT(std::string(Validate(overlong + "\nbad\n", 4096, RowFormat::kText).status().message()),
              HasSubstr("line 2"));
}

TEST(FileValidatorTest, CallerSetsTheMaximumLineLength) {
  const std::string line = "{\"text\": \"" + std::string(28, 'x') + "\"}";  // 40 bytes
  const auto validate = [&](std::size_t limit) {
    FileValidator validator(RowFormat::kText, limit);
    for (const char c : line + "\n" + line) validator.Feed({&c, 1});
    return validator.Finish();
  };
  EXPECT_EQ(validate(line.size()).value_or(FileSummary()).num_rows, 2);
  const std::string message(validate(line.size() - 1).status().message());
  EXPECT_EQ(message, "lines 1-2: longer than 39 bytes");
}

TEST(RowTest, ChatNeedsATrainedMessageAndKeepsEveryField) {
  EXPECT_FALSE(ParseRow("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", RowFormat::kChat).ok());
  EXPECT_FALSE(ParseRow("{\"messages\": []}", RowFormat::kChat).ok());
  EXPECT_FALSE(ParseRow("{\"messages\": [{\"role\": \"assistant\"}]}", RowFormat::kChat).ok());
  const auto row =
      ParseRow("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 1}]}", RowFormat::kChat);
  ASSERT_TRUE(row.ok());
  EXPECT_THAT(row->messages_json, HasSubstr("\"weight\":1"));
  EXPECT_TRUE(ParseRow(R"({"messages": [{"role": "user", "content": "a", "train": true}]})", RowFormat::kChat).ok());
  EXPECT_FALSE(
      ParseRow(R"({"messages": [{"role": "assistant", "content": "a", "train": false}]})", RowFormat::kChat).ok());
  const auto number =
      ParseRow(R"({"messages": [{"role": "assistant", "content": "a", "train": 1}]})", RowFormat::kChat);
  EXPECT_THAT(std::string(number.status().message()), HasSubstr("true or false"));
}

// Protects the server: without this limit (kMaxMessages), a line of 1 MiB could hold 30,000 messages.
TEST(RowTest, UploadedConversationHasAtMost1024Messages) {
  const auto line = [](std::size_t messages) {
    std::string text = R"({"messages": [)";
    for (std::size_t i = 0; i < messages; ++i) {
      text += std::string(i == 0 ? "" : ",") + R"({"role": "assistant", "content": ""})";
    }
    return text + "]}";
  };
  const auto accepted = Validate(line(1024) + "\n", 1000);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_EQ(accepted->num_rows, 1);
  const absl::Status refused = Validate(line(1) + "\n" + line(1025) + "\n", 1000).status();
  EXPECT_EQ(refused.message(), "line 2: \"messages\" has 1025 messages, wanted at most 1024");
  EXPECT_EQ(base::Reason(refused), "DATASET_FORMAT");
  // Training reads longer conversations: an earlier server, without this limit, may have accepted the file.
  const auto longer = ParseRow(line(1025), RowFormat::kChat);
  ASSERT_TRUE(longer.ok()) << longer.status();
  EXPECT_EQ(longer->roles.size(), 1025u);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckMessages(*longer)));
}

TEST(RowTest, CompletionMustNotBeEmpty) {
  EXPECT_FALSE(ParseRow("{\"prompt\": \"a\", \"completion\": \"\"}", RowFormat::kPromptCompletion).ok());
}

bool HasEmptyAnswer(const std::string& line, RowFormat format) {
  const auto row = ParseRow(line, format);
  EXPECT_TRUE(row.ok()) << line << ": " << row.status();
  return row.ok() && row->has_empty_answer;
}

TEST(RowTest, AnswersWithoutTextAreMarked) {
  const auto chat = [](const std::string& messages) {
    return HasEmptyAnswer("{\"messages\": [" + messages + "]}", RowFormat::kChat);
  };
  EXPECT_TRUE(chat(R"({"role": "assistant", "content": ""})"));
  EXPECT_TRUE(chat(R"({"role": "assistant", "content": " \n"})"));
  EXPECT_TRUE(chat(R"({"role": "assistant", "content": ""}, {"role": "assistant", "content": "a"})"));
  EXPECT_TRUE(chat(R"({"role": "assistant", "content": null, "tool_calls": []})"));
  EXPECT_TRUE(chat(R"({"role": "user", "content": "", "train": true})"));
  EXPECT_FALSE(chat(R"({"role": "user", "content": ""}, {"role": "assistant", "content": "a"})"));
  EXPECT_FALSE(chat(R"({"role": "assistant", "content": "", "train": false}, {"role": "assistant", "content": "a"})"));
  EXPECT_FALSE(chat(R"({"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]})"));
  EXPECT_FALSE(chat(R"({"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]})"));
  EXPECT_TRUE(HasEmptyAnswer("{\"prompt\": \"a\", \"completion\": \" \"}", RowFormat::kPromptCompletion));
  EXPECT_FALSE(HasEmptyAnswer("{\"prompt\": \"\", \"completion\": \" a\"}", RowFormat::kPromptCompletion));
  EXPECT_FALSE(HasEmptyAnswer("{\"text\": \"\"}", RowFormat::kText));
}

TEST(FileValidatorTest, ListsRowsWithEmptyAnswers) {
  std::string text = "\n";
  for (int i = 0; i < 50; ++i)
    text += "{\"prompt\": \"a\", \"completion\": \"" + std::string(i % 2 == 0 ? "b" : " ") + "\"}\n";
  const auto summary = Validate(text, 7);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->empty_answers.count, 25);
  ASSERT_EQ(summary->empty_answers.lines.size(), 20u);
  EXPECT_EQ(summary->empty_answers.lines.front(), 3);
  EXPECT_EQ(summary->empty_answers.lines.back(), 41);
}

TEST(FileValidatorTest, NamesLinesThatAreNotUtf8) {
  const auto summary = Validate("{\"text\": \"a\"}\n{\"text\": \"caf\xe9\"}\n{\"text\": \"th\xe9\"}\n", 9);
  EXPECT_EQ(summary.status().message(), "lines 2-3: not UTF-8, wanted JSON in UTF-8");
  EXPECT_EQ(base::Reason(summary.status()), "DATASET_FORMAT");
}

}  // namespace
}  // namespace nibble::data
