// Output for people: tables, streamed text, a conversation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/fake_server.h"

namespace nibble::client {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ReplyWrite = std::function<bool(const v1::GenerateReply&)>;

TEST(TextTest, GenerateStreamsTheText) {
  FakeServer server;
  server.generate_stream.answer = [](const auto&, const ReplyWrite& write) {
    for (const auto& reply : Replies({"Paris", " is", " nice"})) write(reply);
    return grpc::Status::OK;
  };
  const Result result = RunNibble(server, {"generate", "m", "--prompt", "p"});
  EXPECT_EQ(result.exit, 0);
  EXPECT_EQ(result.out, "Paris is nice\n");
  EXPECT_EQ(server.generate_stream.asked.at(0).request().text(), "p");
}

TEST(TextTest, LogprobsAreATableWithTokenTextsAndAlternatives) {
  FakeServer server;
  const auto answer = [](const auto&, const ReplyWrite& write) {
    v1::GenerateReply delta = Proto<v1::GenerateReply>(R"(delta { text: "Paris \303\244" token_ids: [7, 8, 9]
      logprobs { token_id: 7 logprob: -0.25 token: "Paris" top { token_id: 7 logprob: -0.25 token: "Paris" }
                 top { token_id: 3 logprob: -1.5 token: " \n" } }
      logprobs { token_id: 8 logprob: -2 token: " \303" }
      logprobs { token_id: 9 logprob: -0.5 token: "\244" } })");
    std::vector<v1::GenerateReply> replies = Replies({"x"});
    replies[1] = delta;
    for (const auto& reply : replies) write(reply);
    return grpc::Status::OK;
  };
  server.generate_stream.answer = answer;
  server.chat_stream.answer = answer;
  const std::vector<std::string> commands[] = {{"generate", "m", "--prompt", "p", "--logprobs", "2"},
                                               {"chat", "m", "--message", "p", "--logprobs", "2"}};
  for (const std::vector<std::string>& command : commands) {
    const Result result = RunNibble(server, command);
    EXPECT_EQ(result.exit, 0) << result.err;
    EXPECT_EQ(result.out, "Paris \xC3\xA4\n") << "the text alone";
    EXPECT_THAT(result.err, HasSubstr("TOKEN    ID  LOGPROB  ALTERNATIVES\n"
                                      "\"Paris\"  7   -0.25    \" \\n\" -1.5\n"
                                      "\" \\xc3\"  8   -2       \n"
                                      "\"\\xa4\"   9   -0.5     \n"));
  }
  EXPECT_EQ(server.generate_stream.asked.at(0).request().output().logprobs(), 2);
  EXPECT_EQ(server.chat_stream.asked.at(0).request().output().logprobs(), 2);
}

TEST(TextTest, ErrorAfterTheFirstTokensFailsTheCommand) {
  FakeServer server;
  server.generate_stream.answer = [](const auto&, const ReplyWrite& write) {
    write(Replies({"Par"})[0]);
    write(Replies({"Par"})[1]);
    return Error(grpc::StatusCode::RESOURCE_EXHAUSTED, "no block is free", "KV_FULL");
  };
  const Result result = RunNibble(server, {"generate", "m", "--prompt", "p"});
  EXPECT_EQ(result.exit, 7);
  EXPECT_THAT(result.err, HasSubstr("KV_FULL"));
}

TEST(TextTest, ConversationSendsEarlierMessages) {
  FakeServer server;
  server.chat_stream.answer = [](const v1::ChatStreamRequest& request, const ReplyWrite& write) {
    for (const auto& reply : Replies({"answer ", std::to_string(request.request().chat().messages_size())}))
      write(reply);
    return grpc::Status::OK;
  };
  const Result result = RunNibble(server, {"chat", "m"}, "one\ntwo\n\nafter the end\n");
  EXPECT_EQ(result.exit, 0);
  EXPECT_EQ(result.out, "answer 1\nanswer 3\n");
  ASSERT_EQ(server.chat_stream.asked.size(), 2u);
  const auto& second = server.chat_stream.asked[1].request().chat();
  EXPECT_EQ(second.messages(0).content(), "one");
  EXPECT_EQ(second.messages(1).role(), "assistant");
  EXPECT_EQ(second.messages(1).content(), "answer 1");
  EXPECT_EQ(second.messages(2).content(), "two");
}

TEST(TextTest, ChatWarnsOnceIfTheModelWasTrainedWithoutATemplate) {
  FakeServer server;
  server.chat_stream.answer = [](const auto&, const ReplyWrite& write) {
    for (const auto& reply : Replies({"answer"})) write(reply);
    return grpc::Status::OK;
  };
  server.chat.Answers(Proto<v1::GenerateResponse>("outputs { finish { reason: FINISH_REASON_EOS } } usage {}"));
  const auto trained_on = [&](const std::string& format) {
    server.get_model.Answers(
        Proto<v1::Model>("name: 'm' has_chat_template: true trained_format: DATASET_FORMAT_" + format));
  };
  trained_on("PROMPT_COMPLETION");
  const Result conversation = RunNibble(server, {"chat", "m"}, "one\ntwo\n");
  EXPECT_EQ(conversation.out, "answer\nanswer\n");
  EXPECT_EQ(conversation.err,
            "warning: m was trained on prompt_completion rows, without the chat template that chat uses; its "
            "answers may be worse than those of `nibble generate`\n");
  trained_on("TEXT");
  const Result json = RunNibble(server, {"--json", "chat", "m", "--message", "one"});
  EXPECT_EQ(json.exit, 0) << json.err;
  EXPECT_THAT(json.out, Not(HasSubstr("warning")));
  EXPECT_THAT(json.err, HasSubstr("m was trained on text rows"));
  for (const char* format : {"CHAT", "UNSPECIFIED"}) {
    trained_on(format);
    EXPECT_EQ(RunNibble(server, {"chat", "m", "--message", "one"}).err, "") << format;
  }
  server.get_model.Fails(Error(grpc::StatusCode::DATA_LOSS, "damaged", "ARTIFACT_CORRUPT"));
  EXPECT_EQ(RunNibble(server, {"chat", "m", "--message", "one"}).exit, 0) << "a model with damaged files may be loaded";
}

TEST(TextTest, ListsPrintTables) {
  FakeServer server;
  server.list_models.Answers(
      Proto<v1::ListModelsResponse>("models { name: 'smol' format: MODEL_FORMAT_BF16 bytes: 269030400 parameters: "
                                    "134515008 loaded: true digest: '0123456789abcdef' }"));
  const Result result = RunNibble(server, {"models", "list"});
  EXPECT_EQ(result.out,
            "NAME  FORMAT  SIZE       PARAMETERS  BASE  LOADED  DIGEST\n"
            "smol  bf16    256.6 MiB  134515008         yes     0123456789ab\n");
}

TEST(TextTest, WarningsNameTheirLines) {
  FakeServer server;
  server.plan_job.Answers(
      Done<v1::PlanJobResponse>("disk_bytes: 16000000000 disk_available_bytes: 20000000000 "
                                "warnings { reason: 'ROWS_TRUNCATED' message: '2 rows' row_ids: 4 row_ids: 9 } "
                                "warnings { reason: 'NO_EVALUATION' message: 'none' }"));
  const std::vector<std::string> plan = {"jobs", "plan", "--method", "qlora", "--base", "b", "--dataset", "d"};
  const Result shown = RunNibble(server, plan);
  EXPECT_THAT(shown.out, HasSubstr("warning: 2 rows (lines 4, 9) (ROWS_TRUNCATED)\nwarning: none (NO_EVALUATION)\n"));
  EXPECT_THAT(shown.out, ContainsRegex("\ndisk +14.9 GiB\ndisk available +18.6 GiB\n"));
  EXPECT_THAT(shown.out, HasSubstr("unknown: no comparable recent job"));
  std::vector<std::string> json = plan;
  json.insert(json.begin(), "--json");
  const Result written = RunNibble(server, json);
  EXPECT_THAT(written.out, HasSubstr(R"("eta_s":null)"));
  EXPECT_THAT(written.out, HasSubstr(R"("disk_bytes":16000000000,"disk_available_bytes":20000000000,)"));
  EXPECT_THAT(written.out, HasSubstr(R"({"reason":"ROWS_TRUNCATED","message":"2 rows","row_ids":[4,9]})"));
  server.watch_job.answer = [](const auto&, const std::function<bool(const v1::JobEvent&)>& write) {
    write(Proto<v1::JobEvent>("sequence: 1 warning { reason: 'ROWS_DROPPED' message: '1 row' row_ids: 4 }"));
    return grpc::Status::OK;
  };
  server.get_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_SUCCEEDED"));
  EXPECT_THAT(RunNibble(server, {"jobs", "watch", "job-1"}).out, HasSubstr("warning ROWS_DROPPED: 1 row (line 4)"));
}

TEST(TextTest, PreviewMarksTheTrainedTokens) {
  FakeServer server;
  server.preview_dataset.Answers(Proto<v1::PreviewDatasetResponse>(R"(
    rows { row: 1 text: "Is it? yes.<end>" token_ids: 1 token_ids: 2 token_ids: 3 token_ids: 4
           trained: false trained: false trained: true trained: true
           token_texts: "Is it" token_texts: "?" token_texts: " yes." token_texts: "<end>" }
    total_rows: 1 tokens: 4 trainable_tokens: 2)"));
  EXPECT_EQ(RunNibble(server, {"datasets", "preview", "d", "--model", "m"}).out,
            "trained tokens are in [ ]\n--- row 1: 4 tokens, 2 trained\nIs it?[ yes.<end>]\n1 of 1 rows\n");
  EXPECT_EQ(RunNibbleInTerminal(server, {"datasets", "preview", "d", "--model", "m"}).out,
            "trained tokens are green\n--- row 1: 4 tokens, 2 trained\nIs it?\x1b[32m yes.<end>\x1b[0m\n1 of 1 rows\n");
}

// The text has two characters of two bytes; each of these bytes is a token whose text is U+FFFD.
TEST(TextTest, PreviewMarksWholeCharacters) {
  FakeServer server;
  server.preview_dataset.Answers(Proto<v1::PreviewDatasetResponse>(R"(
    rows { row: 1 text: "a\303\244b\303\266" token_ids: [1, 2, 3, 4, 5, 6]
           trained: [false, false, true, false, true, true]
           token_texts: "a" token_texts: "\357\277\275" token_texts: "\357\277\275" token_texts: "b"
           token_texts: "\357\277\275" token_texts: "\357\277\275" }
    total_rows: 1 tokens: 6 trainable_tokens: 3)"));
  EXPECT_THAT(RunNibble(server, {"datasets", "preview", "d", "--model", "m"}).out,
              HasSubstr("\na[\xC3\xA4]b[\xC3\xB6]\n"));
}

TEST(TextTest, PreviewWarningsNameTheirLines) {
  FakeServer server;
  server.preview_dataset.Answers(Proto<v1::PreviewDatasetResponse>(
      "total_rows: 3 warnings { reason: 'PROMPT_BOUNDARY_MERGED' message: '2 of 3 rows' row_ids: 1 row_ids: 3 }"));
  EXPECT_EQ(RunNibble(server, {"datasets", "preview", "d", "--model", "m"}).out,
            "0 of 3 rows\nwarning: 2 of 3 rows (lines 1, 3) (PROMPT_BOUNDARY_MERGED)\n");
}

TEST(TextTest, JobShowsItsBestCheckpointAndServerItsCodeDigest) {
  FakeServer server;
  server.get_job.Answers(
      Proto<v1::Job>("name: 'job-1' state: JOB_STATE_RUNNING best_checkpoint { name: 'job-1/5' metrics { key: "
                     "'eval_loss' value: 2.5 } }"));
  EXPECT_THAT(RunNibble(server, {"jobs", "get", "job-1"}).out, HasSubstr("job-1/5, eval loss 2.5"));
  server.server_info.Answers(Proto<v1::ServerInfo>("version: '0.1.0' code_digest: 'c0de' cuda_version: 'none'"));
  EXPECT_THAT(RunNibble(server, {"server", "info"}).out, HasSubstr("c0de"));
}

TEST(TextTest, JobThatWaitsForARetrySaysWhy) {
  FakeServer server;
  server.get_job.Answers(Proto<v1::Job>(
      "name: 'job-1' state: JOB_STATE_QUEUED state_reason { reason: 'TRAINER_LOST' message: 'the trainer "
      "was killed; retry 2 of 5 in 12 s' }"));
  const Result waits = RunNibble(server, {"jobs", "get", "job-1"});
  EXPECT_THAT(waits.out, HasSubstr("QUEUED: the trainer was killed; retry 2 of 5 in 12 s\n"));
  EXPECT_THAT(waits.out, Not(HasSubstr("next to start")));
  server.get_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_QUEUED"));
  EXPECT_THAT(RunNibble(server, {"jobs", "get", "job-1"}).out, HasSubstr("next to start"));
}

// The fake server has no health service, so its answer shows that the command asked by gRPC.
TEST(TextTest, HealthAsksTheServerThatIsNamed) {
  FakeServer server;
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"--server", "host:1", "health"}, {"health", "--server", "host:1"}}) {
    const Result named = RunNibble(server, arguments);
    EXPECT_THAT(named.err, HasSubstr("UNIMPLEMENTED"));
    EXPECT_THAT(named.err, Not(HasSubstr("--http")));
  }
  ASSERT_EQ(setenv("NIBBLE_SERVER", "host:1", 1), 0);
  const Result by_variable = RunNibble(server, {"health"});
  const Result by_http = RunNibble(server, {"--server", "host:1", "--timeout", "1", "health", "--http", "127.0.0.1:1"});
  ASSERT_EQ(unsetenv("NIBBLE_SERVER"), 0);
  EXPECT_THAT(by_variable.err, HasSubstr("UNIMPLEMENTED"));
  EXPECT_THAT(by_http.err, HasSubstr("--http: "));
}

TEST(TextTest, TimesAreRoundedToWhatPeopleRead) {
  FakeServer server;
  for (const auto& [eta, text] :
       std::vector<std::pair<std::string, std::string>>{{"nanos: 400000000", "less than a second"},
                                                        {"seconds: 17", "about 17 s"},
                                                        {"seconds: 119", "about 119 s"},
                                                        {"seconds: 120", "about 2 min"},
                                                        {"seconds: 149", "about 2 min"},
                                                        {"seconds: 151", "about 3 min"},
                                                        {"seconds: 7200", "about 120 min"},
                                                        {"seconds: 9000", "about 2.5 h"},
                                                        {"seconds: 86400", "about 24 h"}}) {
    server.get_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_RUNNING progress { eta { " + eta + " } }"));
    EXPECT_THAT(RunNibble(server, {"jobs", "get", "job-1"}).out, HasSubstr(text + "\n")) << eta;
  }
}

TEST(TextTest, TextOfTheServerCannotControlTheTerminal) {
  FakeServer server;
  server.get_job.Answers(
      Proto<v1::Job>("name: 'job-1' state: JOB_STATE_FAILED error { code: 13 message: 'a\\033[2Jb' }"));
  const Result result = RunNibble(server, {"jobs", "get", "job-1"});
  EXPECT_EQ(result.exit, 0);
  EXPECT_THAT(result.out, HasSubstr("a[2Jb"));
  EXPECT_THAT(result.out, Not(HasSubstr("\033")));
}

TEST(TextTest, InterruptNamesAnOperationOnlyWhileItRuns) {
  FakeServer server;
  cli::InterruptNote note;
  std::string meanwhile, afterwards = "not asked";
  google::longrunning::Operation running;
  running.set_name("operation-1");
  server.export_model.Answers(running);
  server.wait_operation.answer = [&](const auto&, google::longrunning::Operation* ended) {
    meanwhile = note.Get();
    ended->set_name("operation-1");
    ended->set_done(true);
    ended->mutable_response()->PackFrom(Proto<v1::ExportModelResponse>("artifact_id: 'a-1'"));
    return grpc::Status::OK;
  };
  server.download_artifact.answer = [&](const auto&, const std::function<bool(const v1::DownloadArtifactResponse&)>&) {
    afterwards = note.Get();
    return Error(grpc::StatusCode::NOT_FOUND, "gone", "ARTIFACT");
  };
  RunNibble(server, {"models", "export", "m", "--format", "hf", "--out", TemporaryFolder() + "/export"}, "", &note);
  EXPECT_THAT(meanwhile, HasSubstr("operation-1 is still running on the server"));
  EXPECT_EQ(afterwards, "");
}

TEST(TextTest, JobsPublishWithNoWaitPrintsTheRunningOperation) {
  FakeServer server;
  server.publish_checkpoint.Answers(Proto<google::longrunning::Operation>("name: 'operations/7'"));
  const auto ended = Done<v1::PublishCheckpointResponse>("model { name: 'm' }");
  server.wait_operation.Answers(ended);
  server.get_operation.Answers(ended);
  const std::vector<std::string> publish = {"jobs", "publish", "job-1/8", "--name", "m"};
  std::vector<std::string> at_once = publish;
  at_once.emplace_back("--no-wait");
  const Result begun = RunNibble(server, at_once);
  EXPECT_EQ(begun.exit, 0) << begun.err;
  EXPECT_THAT(begun.out, HasSubstr("operations/7"));
  EXPECT_THAT(begun.out, Not(HasSubstr("published")));
  EXPECT_TRUE(server.wait_operation.asked.empty());
  EXPECT_TRUE(server.get_operation.asked.empty());
  const Result waited = RunNibble(server, publish);
  EXPECT_EQ(waited.out, "published m\n") << waited.err;
  ASSERT_EQ(server.publish_checkpoint.asked.size(), 2u);
  EXPECT_EQ(server.publish_checkpoint.asked[0].checkpoint(), "job-1/8");
  EXPECT_EQ(server.publish_checkpoint.asked[0].name(), "m");
}

TEST(TextTest, ProgressGoesToStderr) {
  FakeServer server;
  google::longrunning::Operation operation;
  operation.set_done(true);
  operation.mutable_response()->PackFrom(Proto<v1::Model>("name: 'n'"));
  server.import_model.Answers(operation);
  const Result result = RunNibble(server, {"--json", "models", "import", WriteFile("m.gguf", "w"), "--name", "n"});
  EXPECT_EQ(result.exit, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("upload 100%"));
  EXPECT_THAT(result.out, Not(HasSubstr("upload")));
}

}  // namespace
}  // namespace nibble::client
