#include "client/cli/dataset_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "server/base/error.h"
#include "tests/client/fake_server.h"
#include "tests/support/temp_directory.h"

namespace nibble::client {
namespace {

using cli::CheckIsJsonLines;
using cli::ToJsonLines;
using ::testing::HasSubstr;

// Test cases run as parallel processes, so they must not share a file.
std::string Write(const std::string& name, const std::string& text) {
  static const testing::TempDirectory directory;
  const std::string path = directory / name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string Lines(const std::string& format, const std::string& text) {
  const auto made = ToJsonLines(Write("rows", text), format);
  if (!made.ok()) return std::string(made.status().message());
  std::ostringstream lines;
  lines << std::ifstream(made->path(), std::ios::binary).rdbuf();
  return lines.str();
}

TEST(DatasetFileTest, ArrayBecomesLines) {
  EXPECT_EQ(Lines("json", "\n[ {\"text\": \"a]},\\\"\"},\n {\"prompt\": \"b\", \"completion\": \"c\"} ]\n"),
            "{\"text\":\"a]},\\\"\"}\n{\"prompt\":\"b\",\"completion\":\"c\"}\n");
  EXPECT_EQ(Lines("json", "[]"), "");
}

TEST(DatasetFileTest, RejectsDamagedArrays) {
  EXPECT_THAT(Lines("json", "[{\"text\": \"a\"}, 3]"), HasSubstr("row 2: not a JSON object"));
  EXPECT_THAT(Lines("json", "[{\"text\": \"a\"}, {\"text\": }]"), HasSubstr("row 2: "));
  EXPECT_THAT(Lines("json", "[{\"text\": \"a\"} {\"text\": \"b\"}]"), HasSubstr("no comma after row 1"));
  EXPECT_THAT(Lines("json", "[{\"text\": \"a\"},]"), HasSubstr("no row follows the comma after row 1"));
  EXPECT_THAT(Lines("json", "[{\"text\": \"a\"}"), HasSubstr("the array has no end"));
  EXPECT_THAT(Lines("json", "[{\"text\": \"a"), HasSubstr("row 1: "));
  EXPECT_THAT(Lines("json", "[{\"text\": \"a\"}] x"), HasSubstr("after the array"));
}

TEST(DatasetFileTest, AlpacaRowsBecomeChats) {
  const std::string rows =
      "{\"instruction\": \"Add.\", \"input\": \"1 2\", \"output\": \"3\"}, {\"instruction\": \"Hi\", \"input\": \"\", "
      "\"output\": \"Ho\"}";
  const std::string wanted =
      "{\"messages\":[{\"role\":\"user\",\"content\":\"Add.\\n\\n1 2\"},{\"role\":\"assistant\",\"content\":\"3\"}]}\n"
      "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Ho\"}]}\n";
  EXPECT_EQ(Lines("alpaca", "[" + rows + "]"), wanted);
  std::string lines = rows;
  lines.replace(lines.find("}, {"), 4, "}\n{");
  EXPECT_EQ(Lines("alpaca", lines), wanted) << "as JSON lines";
  EXPECT_THAT(Lines("alpaca", "[{\"instruction\": \"Add.\"}]"), HasSubstr("row 1: no \"output\""));
}

TEST(DatasetFileTest, ShareGptRowsBecomeChats) {
  EXPECT_EQ(
      Lines(
          "sharegpt",
          R"([{"id": "x", "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}])"),
      "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
      "\"assistant\",\"content\":\"a\"}]}\n");
  EXPECT_THAT(Lines("sharegpt", R"([{"conversations": [{"from": "dog", "value": "q"}]}])"),
              HasSubstr("row 1: \"from\" is \"dog\""));
}

TEST(DatasetFileTest, CsvTakesQuotesAndLineEndsInFields) {
  EXPECT_EQ(Lines("csv", "\xEF\xBB\xBFid,prompt,completion\r\n1,\"a, \"\"b\"\"\",\"c\nd\"\r\n\r\n2,e,f"),
            "{\"prompt\":\"a, \\\"b\\\"\",\"completion\":\"c\\nd\"}\n{\"prompt\":\"e\",\"completion\":\"f\"}\n");
  EXPECT_EQ(Lines("csv", "text\nhello\n"), "{\"text\":\"hello\"}\n");
  EXPECT_EQ(Lines("csv", "instruction,input,output\nHi,,Ho\n"),
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Ho\"}]}\n");
}

TEST(DatasetFileTest, RejectsDamagedCsv) {
  EXPECT_THAT(Lines("csv", "question,answer\na,b\n"), HasSubstr("the columns are question, answer; wanted text"));
  EXPECT_THAT(Lines("csv", "prompt,completion\na,b\nc\n"), HasSubstr("row 2: has 1 fields, wanted 2"));
  EXPECT_THAT(Lines("csv", "text\nok\ncaf\xE9\n"), HasSubstr("row 2: is not UTF-8: save the file as UTF-8"));
  EXPECT_THAT(Lines("csv", std::string("\xFF\xFEt\0", 4)), HasSubstr("the file is UTF-16, wanted UTF-8"));
  EXPECT_THAT(Lines("csv", "text\n\"a"), HasSubstr("row 1: a quote has no end"));
  EXPECT_THAT(Lines("csv", "text\n\"a\" b\n"), HasSubstr("row 1: there is text after a quoted field"));
}

TEST(DatasetFileTest, RemovesTheConvertedFile) {
  std::string path;
  {
    const auto made = ToJsonLines(Write("rows", "[{\"text\": \"a\"}]"), "json");
    ASSERT_TRUE(made.ok()) << made.status();
    path = made->path();
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(DatasetFileTest, UploadWithoutAFormatNamesTheOption) {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"[{\"text\": \"a\"}]", "--format json, alpaca or sharegpt"},
      {"{\"instruction\": \"a\", \"output\": \"b\"}\n", "--format alpaca"},
      {"{\"conversations\": []}\n", "--format sharegpt"}};
  for (const auto& [text, option] : files) {
    const absl::Status refused = CheckIsJsonLines(Write("rows.jsonl", text));
    EXPECT_EQ(base::Reason(refused), "DATASET_FORMAT");
    EXPECT_THAT(std::string(refused.message()), HasSubstr(option));
  }
  EXPECT_THAT(std::string(CheckIsJsonLines(Write("rows.csv", "text\na\n")).message()), HasSubstr("--format csv"));
  for (const char* text : {"", "{\"text\": \"a\"}\n", "{damaged\n", "damaged\n{\"text\": \"a\"}\n"}) {
    EXPECT_TRUE(CheckIsJsonLines(Write("rows.jsonl", text)).ok()) << text;
  }
  EXPECT_THAT(std::string(CheckIsJsonLines(Write("rows.txt", "plain text")).message()), HasSubstr("--format text"));
  FakeServer server;
  const Result result = RunNibble(server, {"datasets", "upload", Write("rows.jsonl", "[]"), "--name", "d"});
  EXPECT_EQ(result.exit, 4);
  EXPECT_THAT(result.err, HasSubstr("--format json"));
}

}  // namespace
}  // namespace nibble::client
