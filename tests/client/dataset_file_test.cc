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

std::string ConvertedLines(const std::string& format, const std::string& text) {
  const auto made = ToJsonLines(Write("rows", text), format);
  if (!made.ok()) return std::string(made.status().message());
  std::ostringstream lines;
  lines << std::ifstream(made->path(), std::ios::binary).rdbuf();
  return lines.str();
}

TEST(DatasetFileTest, ArrayBecomesLines) {
  EXPECT_EQ(ConvertedLines("json", "\n[ {\"text\": \"a]},\\\"\"},\n {\"prompt\": \"b\", \"completion\": \"c\"} ]\n"),
            "{\"text\":\"a]},\\\"\"}\n{\"prompt\":\"b\",\"completion\":\"c\"}\n");
  EXPECT_EQ(ConvertedLines("json", "[]"), "");
}

TEST(DatasetFileTest, RejectsDamagedArrays) {
  EXPECT_THAT(ConvertedLines("json", "[{\"text\": \"a\"}, 3]"), HasSubstr("rows: element 2: not a JSON object"));
  EXPECT_THAT(ConvertedLines("json", "[{\"text\": \"a\"}, {\"text\": }]"),
              HasSubstr("rows: element 2: malformed JSON"));
  EXPECT_THAT(ConvertedLines("json", "[{\"text\": \"a\"}, {\"text\": \"\xE9\"}]"), HasSubstr("element 2: not UTF-8"));
  EXPECT_THAT(ConvertedLines("json", "[{\"text\": \"a\"} {\"text\": \"b\"}]"),
              HasSubstr("element 1: no comma follows"));
  EXPECT_THAT(ConvertedLines("json", "[{\"text\": \"a\"},]"),
              HasSubstr("element 1: a comma follows, but no further element"));
  EXPECT_THAT(ConvertedLines("json", "[{\"text\": \"a\"}"), HasSubstr("the array has no end"));
  EXPECT_THAT(ConvertedLines("json", "[{\"text\": \"a"), HasSubstr("element 1: "));
  EXPECT_THAT(ConvertedLines("json", "[{\"text\": \"a\"}] x"), HasSubstr("after the array"));
}

TEST(DatasetFileTest, AlpacaRowsBecomeChats) {
  const std::string rows =
      "{\"instruction\": \"Add.\", \"input\": \"1 2\", \"output\": \"3\"}, {\"instruction\": \"Hi\", \"input\": \"\", "
      "\"output\": \"Ho\"}";
  const std::string wanted =
      "{\"messages\":[{\"role\":\"user\",\"content\":\"Add.\\n\\n1 2\"},{\"role\":\"assistant\",\"content\":\"3\"}]}\n"
      "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Ho\"}]}\n";
  EXPECT_EQ(ConvertedLines("alpaca", "[" + rows + "]"), wanted);
  std::string lines = rows;
  lines.replace(lines.find("}, {"), 4, "}\n{");
  EXPECT_EQ(ConvertedLines("alpaca", lines), wanted) << "as JSON lines";
  EXPECT_THAT(ConvertedLines("alpaca", "[{\"instruction\": \"Add.\"}]"), HasSubstr("element 1: no \"output\""));
}

TEST(DatasetFileTest, ShareGptRowsBecomeChats) {
  EXPECT_EQ(ConvertedLines(
                "sharegpt",
                R"([{"id": "x", "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, )"
                R"({"from": "gpt", "value": "a"}]}])"),
            "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
            "\"assistant\",\"content\":\"a\"}]}\n");
  EXPECT_THAT(ConvertedLines("sharegpt", R"([{"conversations": [{"from": "dog", "value": "q"}]}])"),
              HasSubstr("element 1: \"from\" is \"dog\""));
}

TEST(DatasetFileTest, CsvTakesQuotesAndLineEndsInFields) {
  EXPECT_EQ(ConvertedLines("csv", "\xEF\xBB\xBFid,prompt,completion\r\n1,\"a, \"\"b\"\"\",\"c\nd\"\r\n\r\n2,e,f"),
            "{\"prompt\":\"a, \\\"b\\\"\",\"completion\":\"c\\nd\"}\n{\"prompt\":\"e\",\"completion\":\"f\"}\n");
  EXPECT_EQ(ConvertedLines("csv", "text\nhello\n"), "{\"text\":\"hello\"}\n");
  EXPECT_EQ(ConvertedLines("csv", "instruction,input,output\nHi,,Ho\n"),
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Ho\"}]}\n");
}

TEST(DatasetFileTest, RejectsDamagedCsv) {
  EXPECT_THAT(ConvertedLines("csv", "question,answer\na,b\n"),
              HasSubstr("the columns are question, answer; wanted text"));
  EXPECT_THAT(ConvertedLines("csv", "prompt,completion\na,b\nc\n"), HasSubstr("rows: line 3: has 1 fields, wanted 2"));
  EXPECT_THAT(ConvertedLines("csv", "text\nok\ncaf\xE9\n"), HasSubstr("line 3: is not UTF-8: save the file as UTF-8"));
  EXPECT_THAT(ConvertedLines("csv", std::string("\xFF\xFEt\0", 4)), HasSubstr("the file is UTF-16, wanted UTF-8"));
  EXPECT_THAT(ConvertedLines("csv", "text\n\"a"), HasSubstr("line 2: a quote has no end"));
  EXPECT_THAT(ConvertedLines("csv", "text\n\"a\" b\n"), HasSubstr("line 2: there is text after a quoted field"));
}

TEST(DatasetFileTest, ErrorsNameTheLineOfTheSource) {
  const std::string csv = "prompt,completion\r\n\"a\nb\n\nc\",d\n\n";  // a row of four lines, then an empty line
  EXPECT_THAT(ConvertedLines("csv", csv + "e\n"),
              HasSubstr("rows: line 7: has 1 fields, wanted 2 as in the first line"));
  EXPECT_THAT(ConvertedLines("csv", csv + "\"e\n"), HasSubstr("rows: line 7: a quote has no end"));
  EXPECT_THAT(ConvertedLines("csv", "\"text\n"), HasSubstr("rows: line 1: a quote has no end"));
  EXPECT_THAT(ConvertedLines("alpaca", "\n{\"instruction\": \"a\",\n \"output\": \"b\"}\n{\"instruction\": \"a\"}\n"),
              HasSubstr("rows: line 4: no \"output\""));
  EXPECT_THAT(ConvertedLines("json", "{\"text\": \"a\"}\n]"), HasSubstr("rows: line 2: a \"]\" without"));
}

TEST(DatasetFileTest, RefusalOfTheServerNamesThePlacesInTheSource) {
  const auto refuse = [](const std::string& format, const std::string& text, const std::string& refusal) {
    FakeServer server;
    server.on_upload = [&](const Upload&) {
      return Error(grpc::StatusCode::INVALID_ARGUMENT, refusal, "DATASET_FORMAT", "line 2");
    };
    const std::string file = Write("source", text);
    const Result result = RunNibble(server, {"datasets", "upload", file, "--format", format, "--name", "d"});
    EXPECT_EQ(result.exit, 4);
    const std::size_t begin = result.err.find(file);
    return begin == std::string::npos ? result.err : result.err.substr(begin + file.size());
  };
  const std::string csv = "text\n\"a\nb\"\nc\n\nd\ne\n";  // rows in lines 2, 4, 6 and 7
  EXPECT_EQ(refuse("csv", csv, "line 2: bad"), ": line 4: bad\n");
  EXPECT_EQ(refuse("csv", csv, "lines 1, 3-4: bad; line 2: worse; and 3 more lines"),
            ": lines 2, 6-7: bad; line 4: worse; and 3 more lines\n");
  EXPECT_EQ(refuse("csv", csv, "the file has no rows"), ": the file has no rows\n");
  EXPECT_EQ(refuse("csv", csv, "line 1: bad; lines 2, 3, 4"), ": line 2: bad; lines 4, 6, ...\n") << "cut off";
  const std::string array = "[{\"text\": \"a\"},\n\n{\"text\": \"b\"}]";
  EXPECT_EQ(refuse("json", array, "line 2: bad"), ": element 2: bad\n");
  EXPECT_EQ(refuse("json", array, "lines 1-2: bad; and 1 more line"), ": elements 1-2: bad; and 1 more element\n");
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
