// The command "models compare": its file of prompts, its requests and its output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "client/cli/columns.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "tests/client/fake_server.h"

namespace nibble::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Lines = std::vector<std::string>;

v1::GenerateResponse Answered(const std::string& model, const std::string& text) {
  auto response = Proto<v1::GenerateResponse>(
      "outputs { token_ids: 1 finish { reason: FINISH_REASON_EOS } } usage { completion_tokens: 1 }");
  response.mutable_start()->set_model_version(model);
  response.mutable_outputs(0)->set_text(text);
  return response;
}

// A server whose models answer with texts_[model].
class CompareTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_.generate.answer = [this](const v1::GenerateRequest& request, v1::GenerateResponse* response) {
      *response = Answered(request.model(), texts_.at(request.model()));
      return grpc::Status::OK;
    };
    server_.chat.answer = [this](const v1::ChatRequest& request, v1::GenerateResponse* response) {
      *response = Answered(request.request().model(), texts_.at(request.request().model()));
      return grpc::Status::OK;
    };
  }
  Result Compare(const std::string& prompts, Lines more = {}) {
    Lines arguments = {"models", "compare", "base", "tuned", "--prompts", WriteFile("prompts", prompts)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunNibble(server_, arguments);
  }
  FakeServer server_;
  std::map<std::string, std::string> texts_ = {{"base", "one"}, {"tuned", "two"}};
};

TEST_F(CompareTest, AnswersStandSideBySideAndEqualOnesAreCounted) {
  int calls = 0;
  server_.generate.answer = [&](const v1::GenerateRequest& request, v1::GenerateResponse* response) {
    texts_ = {{"base", "a\nb"}, {"tuned", "this answer is longer than one column"}};
    *response = Answered(request.model(), calls++ < 2 ? "the same" : texts_.at(request.model()));
    return grpc::Status::OK;
  };
  const Result result = Compare("first\n\nsecond prompt\n", {"--width", "60"});
  EXPECT_EQ(result.exit, 0) << result.err;
  EXPECT_EQ(result.out,
            "--- line 1 (equal): first\n"
            "base                         | tuned\n"
            "the same                     | the same\n"
            "\n"
            "--- line 3: second prompt\n"
            "base                         | tuned\n"
            "a                            | this answer is longer than\n"
            "b                            | one column\n"
            "\n"
            "2 prompts, 1 with equal answers\n");
}

TEST_F(CompareTest, AnswersStandBelowEachOtherInANarrowTerminal) {
  texts_["tuned"] = "one two three four five six seven";
  const Result result = Compare("p\n", {"--width", "20"});
  EXPECT_EQ(result.out,
            "--- line 1: p\n"
            "base:\n"
            "  one\n"
            "tuned:\n"
            "  one two three four\n"
            "  five six seven\n"
            "\n"
            "1 prompt, 0 with equal answers\n");
}

TEST_F(CompareTest, EachModelGetsTheSameRequest) {
  const std::string prompts = R"(
{"prompt": "p\n", "completion": "ignored"}
{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]})";
  ASSERT_EQ(Compare(prompts, {"--max-tokens", "7", "--seed", "3", "--temperature", "0.5"}).exit, 0);
  ASSERT_EQ(server_.generate.asked.size(), 2u);
  ASSERT_EQ(server_.chat.asked.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const v1::GenerateRequest& text = server_.generate.asked[at];
    const v1::GenerateRequest& chat = server_.chat.asked[at].request();
    EXPECT_EQ(text.text(), "p\n");
    ASSERT_EQ(chat.chat().messages_size(), 2);
    EXPECT_EQ(chat.chat().messages(1).role(), "user");
    EXPECT_EQ(chat.chat().messages(1).content(), "u");
    for (const v1::GenerateRequest* request : {&text, &chat}) {
      EXPECT_EQ(request->model(), i == 0 ? "base" : "tuned");
      EXPECT_EQ(request->stopping().max_tokens(), 7);
      EXPECT_EQ(request->sampling().seed(), 3);
      EXPECT_EQ(request->sampling().temperature(), 0.5);
    }
  }
}

TEST_F(CompareTest, UnsetOptionsAreNotSent) {
  ASSERT_EQ(Compare("p").exit, 0);
  EXPECT_FALSE(server_.generate.asked.at(0).has_sampling());
  EXPECT_FALSE(server_.generate.asked.at(0).has_stopping());
}

TEST_F(CompareTest, JsonIsOneObjectPerPrompt) {
  texts_["tuned"] = "one";
  const Result result =
      Compare("{\"prompt\": \"p\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}]}\n", {"--json"});
  EXPECT_EQ(result.exit, 0) << result.err;
  std::istringstream lines(result.out);
  std::vector<base::Json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(*base::ParseJson(line));
  ASSERT_EQ(objects.size(), 2u);
  EXPECT_EQ(objects[0]["line"], 1);
  EXPECT_EQ(objects[0]["prompt"], "p");
  EXPECT_EQ(objects[0]["equal"], true);
  EXPECT_EQ(objects[0]["a"]["text"], "one");
  EXPECT_EQ(objects[0]["b"]["model"], "tuned");
  EXPECT_EQ(objects[1]["messages"][0]["content"], "u");
  EXPECT_FALSE(objects[1].contains("prompt"));
}

TEST_F(CompareTest, BadLineIsRefusedByNumberBeforeAnythingIsGenerated) {
  const std::pair<std::string, const char*> refused[] = {
      {"{\"prompt\": \"p\"}\n\nnot JSON\n", "prompts: line 3: "},
      {"{\"prompt\": \"p\"}\n{\"text\": \"t\"}\n", "prompts: line 2: wanted either \"prompt\" or \"messages\""},
      {"{\"prompt\": \"p\", \"messages\": []}\n", "line 1: wanted either"},
      {"{\"prompt\": 3}\n", "line 1: \"prompt\" is not a string"},
      {"{\"messages\": []}\n", "line 1: \"messages\" is not a list of messages"},
      {"{\"messages\": [\"u\"]}\n", "line 1: a message is not an object"},
      {"{\"messages\": [{\"role\": \"user\"}]}\n", "line 1: \"content\" is not a string"},
      {"{\"prompt\": \"p\"}\n[1]\n", "line 2: is not a JSON object"},
      {"text\n\xFF\n", "line 2: is not UTF-8"},
      {" \r\n\n", "prompts: the file has no prompt"}};
  for (const auto& [prompts, names] : refused) {
    const Result result = Compare(prompts);
    EXPECT_EQ(result.exit, cli::kExitBadInput) << prompts;
    EXPECT_THAT(result.err, HasSubstr(names));
    EXPECT_EQ(result.out, "");
  }
  const std::string none = TemporaryFolder() + "/none";
  const Result missing = RunNibble(server_, {"models", "compare", "base", "tuned", "--prompts", none});
  EXPECT_EQ(missing.exit, cli::kExitNotFound);
  EXPECT_TRUE(server_.generate.asked.empty() && server_.chat.asked.empty());
}

TEST_F(CompareTest, ErrorOfAModelEndsTheCommandAfterTheShownPrompts) {
  int calls = 0;
  server_.generate.answer = [&](const v1::GenerateRequest& request, v1::GenerateResponse* response) {
    if (++calls > 3) return Error(grpc::StatusCode::NOT_FOUND, "there is no such model", "MODEL");
    *response = Answered(request.model(), "x");
    return grpc::Status::OK;
  };
  const Result result = Compare("one\ntwo\nthree\n");
  EXPECT_EQ(result.exit, cli::kExitNotFound);
  EXPECT_THAT(result.out, HasSubstr("--- line 1 (equal): one\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("line 2")));
  EXPECT_EQ(calls, 4);
}

TEST_F(CompareTest, AnswersCannotControlTheTerminal) {
  texts_["base"] = "a\033[2Jb";
  EXPECT_THAT(Compare("p").out, Not(HasSubstr("\033")));
}

TEST(WrapTest, BreaksAtBlanksAndInsideLongWords) {
  EXPECT_THAT(cli::Wrap("one two three", 7), ElementsAre("one two", "three"));
  EXPECT_THAT(cli::Wrap("one two three", 6), ElementsAre("one", "two", "three"));
  EXPECT_THAT(cli::Wrap("abcdefgh", 3), ElementsAre("abc", "def", "gh"));
  EXPECT_THAT(cli::Wrap("a\n\nb\n", 3), ElementsAre("a", "", "b", ""));
  EXPECT_THAT(cli::Wrap("", 3), ElementsAre(""));
  EXPECT_THAT(cli::Wrap("a\tb", 3), ElementsAre("a b"));
  EXPECT_THAT(cli::Wrap("\xC3\xA4\xC3\xB6\xC3\xBC", 2), ElementsAre("\xC3\xA4\xC3\xB6", "\xC3\xBC"));
}

}  // namespace
}  // namespace nibble::client
