#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tests/client/fake_server.h"

namespace nibble::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ExitCodeTest, FollowsTheStatusCode) {
  const std::vector<std::pair<grpc::StatusCode, int>> codes = {{grpc::StatusCode::NOT_FOUND, 3},
                                                               {grpc::StatusCode::INVALID_ARGUMENT, 4},
                                                               {grpc::StatusCode::OUT_OF_RANGE, 4},
                                                               {grpc::StatusCode::UNAVAILABLE, 5},
                                                               {grpc::StatusCode::FAILED_PRECONDITION, 6},
                                                               {grpc::StatusCode::ALREADY_EXISTS, 6},
                                                               {grpc::StatusCode::ABORTED, 6},
                                                               {grpc::StatusCode::RESOURCE_EXHAUSTED, 7},
                                                               {grpc::StatusCode::CANCELLED, 8},
                                                               {grpc::StatusCode::DEADLINE_EXCEEDED, 8},
                                                               {grpc::StatusCode::INTERNAL, 1},
                                                               {grpc::StatusCode::DATA_LOSS, 1},
                                                               {grpc::StatusCode::UNIMPLEMENTED, 1},
                                                               {grpc::StatusCode::PERMISSION_DENIED, 9},
                                                               {grpc::StatusCode::UNAUTHENTICATED, 9}};
  for (const auto& [code, exit] : codes) {
    FakeServer server;
    server.get_model.Fails(Error(code, "why it failed", "SOME_REASON"));
    const Result result = RunNibble(server, {"--json", "models", "get", "m"});
    EXPECT_EQ(result.exit, exit) << code;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_THAT(result.err, HasSubstr("(SOME_REASON): why it failed"));
  }
}

TEST(ExitCodeTest, ErrorsNameReasonAndField) {
  FakeServer server;
  server.create_job.Fails(
      Error(grpc::StatusCode::INVALID_ARGUMENT, "got 0, wanted 1 to 1024", "FIELD_VIOLATION", "qlora.r"));
  const Result result =
      RunNibble(server, {"jobs", "create", "--method", "qlora", "--base", "b", "--dataset", "d", "--rank", "0"});
  EXPECT_EQ(result.exit, 4);
  EXPECT_EQ(result.err,
            "error: INVALID_ARGUMENT (FIELD_VIOLATION): got 0, wanted 1 to 1024\n"
            "  field: qlora.r\n"
            "  field qlora.r: got 0, wanted 1 to 1024\n");
  EXPECT_EQ(server.create_job.asked.at(0).spec().qlora().r(), 0);
  EXPECT_TRUE(server.create_job.asked[0].spec().qlora().has_r());
}

// The error is found in the rows, after the job was created: the command prints and exits as if CreateJob had refused
// the job.
TEST(ExitCodeTest, RefusedDataFailsLikeARefusedCreateJob) {
  const auto refusal =
      Error(grpc::StatusCode::INVALID_ARGUMENT, "train_dataset: line 7: no text", "DATASET_FORMAT", "line 7");
  const std::vector<std::string> command = {"jobs", "create", "--method", "qlora", "--base", "b", "--dataset", "d"};
  FakeServer refuses;
  refuses.create_job.Fails(refusal);
  const Result refused = RunNibble(refuses, command);

  FakeServer plans;
  plans.create_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_PLANNING"));
  v1::Job failed = Proto<v1::Job>("name: 'job-1' state: JOB_STATE_FAILED");
  ASSERT_TRUE(failed.mutable_error()->ParseFromString(refusal.error_details()));
  plans.get_job.Answers(failed);
  plans.watch_job.answer = [](const auto&, const std::function<bool(const v1::JobEvent&)>& write) {
    write(Proto<v1::JobEvent>("sequence: 1 state { to: JOB_STATE_PLANNING }"));
    write(Proto<v1::JobEvent>("sequence: 2 state { from: JOB_STATE_PLANNING to: JOB_STATE_FAILED }"));
    return grpc::Status::OK;
  };
  const Result waited = RunNibble(plans, command);
  EXPECT_EQ(waited.exit, 4);
  EXPECT_EQ(waited.exit, refused.exit);
  EXPECT_EQ(waited.err, refused.err);
  EXPECT_THAT(waited.out, IsEmpty());

  std::vector<std::string> at_once = command;
  at_once.push_back("--no-wait");
  const Result created = RunNibble(plans, at_once);
  EXPECT_EQ(created.exit, 0) << created.err;
  EXPECT_THAT(created.out, HasSubstr("PLANNING"));
  EXPECT_EQ(plans.get_job.asked.size(), 1u) << "only the command that waited calls GetJob";
}

// The server knows the request id from an earlier command or a retry of the client, and returns the job's current
// state.
TEST(ExitCodeTest, RepeatedRequestOfARefusedJobFailsLikeARefusedCreateJob) {
  const auto refusal =
      Error(grpc::StatusCode::INVALID_ARGUMENT, "train_dataset: line 7: no text", "DATASET_FORMAT", "line 7");
  const std::vector<std::string> command = {"jobs", "create",    "--method", "qlora",        "--base",
                                            "b",    "--dataset", "d",        "--request-id", "r"};
  FakeServer server;
  server.create_job.Fails(refusal);
  const Result refused = RunNibble(server, command);
  v1::Job failed = Proto<v1::Job>("name: 'job-1' state: JOB_STATE_FAILED");
  ASSERT_TRUE(failed.mutable_error()->ParseFromString(refusal.error_details()));
  server.create_job.Answers(failed);
  for (const char* flag : {"", "--watch"}) {
    std::vector<std::string> again = command;
    if (*flag != 0) again.emplace_back(flag);
    const Result known = RunNibble(server, again);
    EXPECT_EQ(known.exit, 4) << flag;
    EXPECT_EQ(known.exit, refused.exit) << flag;
    EXPECT_EQ(known.err, refused.err) << flag;
  }
  EXPECT_TRUE(server.watch_job.asked.empty());

  server.create_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_CANCELLED"));
  EXPECT_EQ(RunNibble(server, command).exit, 8);
  server.create_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_FAILED start_time { seconds: 1 }"));
  const Result ran = RunNibble(server, command);
  EXPECT_EQ(ran.exit, 0) << "the job was created and ran: " << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("FAILED"));
}

TEST(ExitCodeTest, JobsCreatePollsWhenItsWatchIsRefused) {
  const std::vector<std::string> command = {"jobs", "create", "--method", "qlora", "--base", "b", "--dataset", "d"};
  FakeServer server;
  server.create_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_PLANNING"));
  server.watch_job.answer = [](const auto&, const auto&) {
    return Error(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls of this kind are open: --max_watches allows 256",
                 "STREAMS_FULL");
  };
  server.get_job.answer = [&](const v1::GetJobRequest&, v1::Job* job) {
    base::MutexLock lock(server.mutex);
    *job = Proto<v1::Job>(server.get_job.asked.size() < 3 ? "name: 'job-1' state: JOB_STATE_PLANNING"
                                                          : "name: 'job-1' state: JOB_STATE_QUEUED");
    return grpc::Status::OK;
  };
  const Result polled = RunNibble(server, command);
  EXPECT_EQ(polled.exit, 0) << polled.err;
  EXPECT_THAT(polled.out, HasSubstr("job-1"));
  EXPECT_THAT(polled.out, HasSubstr("QUEUED"));
  EXPECT_EQ(server.get_job.asked.size(), 3u);

  const auto refusal =
      Error(grpc::StatusCode::INVALID_ARGUMENT, "train_dataset: line 7: no text", "DATASET_FORMAT", "line 7");
  v1::Job failed = Proto<v1::Job>("name: 'job-1' state: JOB_STATE_FAILED");
  ASSERT_TRUE(failed.mutable_error()->ParseFromString(refusal.error_details()));
  server.get_job.Answers(failed);
  const Result refused = RunNibble(server, command);
  EXPECT_EQ(refused.exit, 4);
  EXPECT_THAT(refused.err, HasSubstr("line 7: no text"));
}

TEST(ExitCodeTest, JobsCreateNamesTheJobThatItCouldNotFollow) {
  FakeServer server;
  server.create_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_PLANNING"));
  server.watch_job.answer = [](const auto&, const auto&) { return grpc::Status(grpc::StatusCode::INTERNAL, "broken"); };
  for (const char* flag : {"--json", "--watch"}) {
    const Result lost =
        RunNibble(server, {"jobs", "create", "--method", "qlora", "--base", "b", "--dataset", "d", flag});
    EXPECT_EQ(lost.exit, 1);
    EXPECT_THAT(lost.err, HasSubstr("nibble jobs get job-1")) << flag;
  }
}

TEST(ExitCodeTest, WatchThatFailsAfterAnEventSaysHowToContinue) {
  FakeServer server;
  server.create_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_QUEUED"));
  server.watch_job.answer = [](const v1::WatchJobRequest& request,
                               const std::function<bool(const v1::JobEvent&)>& write) {
    if (request.after_sequence() < 1) write(Proto<v1::JobEvent>("sequence: 1 step { step: 1 }"));
    return grpc::Status(grpc::StatusCode::INTERNAL, "broken");
  };
  const std::vector<std::string> create = {"jobs", "create",    "--method", "qlora",  "--base",
                                           "b",    "--dataset", "d",        "--watch"};
  for (const auto& command : {create, {"jobs", "watch", "job-1"}}) {
    const Result failed = RunNibble(server, command);
    EXPECT_EQ(failed.exit, 1);
    EXPECT_THAT(failed.err, HasSubstr("nibble jobs watch job-1 --after 1")) << ::testing::PrintToString(command);
  }
  const Result again = RunNibble(server, {"jobs", "watch", "job-1", "--after", "1"});
  EXPECT_EQ(again.exit, 1);
  EXPECT_THAT(again.err, ::testing::Not(HasSubstr("continue"))) << "the job may not exist";
}

TEST(ExitCodeTest, HelpOfWatchesSaysHowLongTheyWaitForTheServer) {
  FakeServer server;
  for (const char* command : {"create", "watch", "logs"}) {
    std::string help = RunNibble(server, {"jobs", command, "--help"}).out;
    std::replace(help.begin(), help.end(), '\n', ' ');
    EXPECT_THAT(help, ::testing::ContainsRegex("waits up +to +2 +minutes +for +a +server")) << command;
  }
}

TEST(ExitCodeTest, JobsCreateWaitsForTheEndWhenItsWatchIsRefused) {
  FakeServer server;
  server.create_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_QUEUED"));
  server.watch_job.answer = [](const auto&, const auto&) {
    return Error(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls of this kind are open: --max_watches allows 256",
                 "STREAMS_FULL");
  };
  const std::vector<std::string> command = {"--json", "jobs", "create",    "--method", "qlora",
                                            "--base", "b",    "--dataset", "d",        "--watch"};
  for (const auto& [state, exit] :
       std::vector<std::pair<std::string, int>>{{"SUCCEEDED", 0}, {"FAILED", 1}, {"CANCELLED", 8}}) {
    server.get_job.asked.clear();
    server.get_job.answer = [&server, state = state](const v1::GetJobRequest&, v1::Job* job) {
      base::MutexLock lock(server.mutex);
      const std::string now = server.get_job.asked.size() < 2 ? "RUNNING" : state;
      *job = Proto<v1::Job>("name: 'job-1' start_time { seconds: 1 } state: JOB_STATE_" + now);
      return grpc::Status::OK;
    };
    const Result ended = RunNibble(server, command);
    EXPECT_EQ(ended.exit, exit) << state << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("job job-1 without printing its events"));
  }
  server.get_job.Fails(grpc::Status(grpc::StatusCode::INTERNAL, "broken"));
  const Result lost = RunNibble(server, command);
  EXPECT_EQ(lost.exit, 1);
  EXPECT_THAT(lost.err, HasSubstr("nibble jobs get job-1"));
}

TEST(ExitCodeTest, MethodsThatTheServerLacksReportUnimplemented) {
  FakeServer server;
  for (const char* command : {"pause", "resume", "delete", "checkpoints"}) {
    const Result result = RunNibble(server, {"jobs", command, "job-1"});
    EXPECT_EQ(result.exit, 1) << command;
    EXPECT_THAT(result.err, HasSubstr("error: UNIMPLEMENTED")) << command;
    EXPECT_THAT(result.out, IsEmpty());
  }
}

TEST(ExitCodeTest, UsageErrorExitsWith2) {
  FakeServer server;
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"models"},
      {"nothing"},
      {"models", "get"},
      {"models", "get", "a", "b"},
      {"models", "import", "x"},
      {"models", "convert", "a", "--to", "int7", "--name", "b"},
      {"models", "export", "a", "--format", "zip", "--out", "d"},
      {"datasets", "upload", "f", "--name", "d", "--format", "xml"},
      {"generate", "m"},
      {"score", "m"},
      {"generate", "m", "--prompt", "a", "--prompt-file", "b"},
      {"score", "m", "--text", "a", "--file", "b"},
      {"jobs", "create", "--lr", "fast"},
      {"jobs", "create", "--max-steps", "1.5"},
      {"jobs", "create", "--rank", "99999999999"},
      {"jobs", "create", "--method", "dpo"},
      {"jobs", "create", "--seed", "99999999999999999999"},
      {"generate", "m", "--prompt", "a", "--seed", "1e3"},
      {"models", "import", "d", "--name", "m", "--random", "--seed", "99999999999999999999"},
      {"models", "export", "m", "--format", "hf", "--out", "d", "--max-shard-bytes", "99999999999999999999"},
      {"--timeout", "-1", "server", "info"},
      {"--timeout", "nan", "server", "info"},
      {"server", "info", "--unknown"}};
  for (const auto& arguments : wrong) {
    const Result result = RunNibble(server, arguments);
    EXPECT_EQ(result.exit, 2) << ::testing::PrintToString(arguments) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_FALSE(result.err.empty());
  }
  EXPECT_EQ(RunNibble(server, {"--help"}).exit, 0);
}

TEST(ExitCodeTest, WrongNamesAreAnsweredWithTheNearest) {
  FakeServer server;
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"model", "list"}, "unknown command model; did you mean models?\n"},
      {{"models", "lst"}, "unknown command lst; did you mean list?\n"},
      {{"models", "frobnicate"}, "unknown command frobnicate\n"},
      {{"generate", "m", "Once upon a time"},
       "unexpected argument Once upon a time; give the prompt, in quotes, with --prompt\n"},
      {{"models", "get", "m", "--jsn"}, "unknown option --jsn; did you mean --json?\n"},
      {{"models", "import", "d", "--nmae=m"}, "unknown option --nmae; did you mean --name?\n"},
      {{"models"}, "A subcommand is required\n"},
      {{}, "A subcommand is required\n"},
      {{"models", "get", "a", "b"}, "The following argument was not expected: b\n"}};
  for (const auto& [arguments, message] : wrong) {
    const Result result = RunNibble(server, arguments);
    EXPECT_EQ(result.exit, 2) << message;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_EQ(result.err, message + "Run with --help for more information.\n");
  }
}

TEST(ExitCodeTest, ExportRefusesADirectoryThatIsNotEmpty) {
  FakeServer server;
  const std::string directory = TemporaryFolder();
  RunNibble(server, {"models", "export", "m", "--format", "hf", "--out", directory});
  EXPECT_EQ(server.export_model.asked.size(), 1u);
  std::ofstream(directory + "/notes.txt") << "x";
  const Result refused = RunNibble(server, {"models", "export", "m", "--format", "hf", "--out", directory});
  EXPECT_EQ(refused.exit, 4);
  EXPECT_THAT(refused.err, HasSubstr("is not empty; --force"));
  EXPECT_EQ(server.export_model.asked.size(), 1u);
  RunNibble(server, {"models", "export", "m", "--format", "hf", "--out", directory, "--force"});
  EXPECT_EQ(server.export_model.asked.size(), 2u);
}

TEST(ExitCodeTest, UnreachableServerExitsWith5) {
  std::istringstream in;
  std::ostringstream out, err;
  cli::Terminal terminal{in, out, err};
  const int exit =
      cli::Run({"--server", "unix:" + TemporaryFolder() + "/none", "server", "info"}, terminal,
               [](const std::string& server, const ClientOptions&) { return Client::Connect(server, FastOptions()); });
  EXPECT_EQ(exit, 5);
  EXPECT_THAT(err.str(), HasSubstr("is nibbled running there?"));
}

TEST(ExitCodeTest, VerifyExitsWith0OnlyWhenAllRowsAreEqual) {
  const std::vector<std::pair<std::string, int>> answers = {
      {"equal: true rows: 1", 0},
      {"equal: true rows: 0", 1},
      {"equal: false rows: 0", 1},
      {"equal: true rows: 8 differing_rows: 1", 1},
      {"equal: false rows: 8 differing_rows: 2 first_difference { row: 3 token_id: 17 recorded_digest: 'aa' "
       "computed_digest: 'bb' }",
       1}};
  for (const auto& [answer, exit] : answers) {
    FakeServer server;
    server.verify_model.Answers(Done<v1::VerifyModelResponse>(answer));
    const Result result = RunNibble(server, {"--json", "models", "verify", "m"});
    EXPECT_EQ(result.exit, exit) << answer;
    EXPECT_THAT(result.out, HasSubstr("{\"equal\":"));  // the response is always printed
    EXPECT_EQ(result.err.empty(), exit == 0);
  }
}

TEST(ExitCodeTest, FollowsTheFinalStateOfAWatchedJob) {
  const std::vector<std::pair<std::string, int>> ends = {{"SUCCEEDED", 0}, {"FAILED", 1}, {"CANCELLED", 8}};
  for (const auto& [state, exit] : ends) {
    FakeServer server;
    server.create_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_QUEUED"));
    server.get_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_" + state +
                                          " start_time { seconds: 1 } error { code: 3 message: 'the loss is NaN' }"));
    server.watch_job.answer = [state = state](const auto&, const std::function<bool(const v1::JobEvent&)>& write) {
      write(Proto<v1::JobEvent>("sequence: 1 state { to: JOB_STATE_" + state + " }"));
      return grpc::Status::OK;
    };
    EXPECT_EQ(RunNibble(server, {"jobs", "watch", "job-1"}).exit, exit);
    const Result result = RunNibble(
        server, {"--json", "jobs", "create", "--method", "qlora", "--base", "b", "--dataset", "d", "--watch"});
    EXPECT_EQ(result.exit, exit) << state;
    if (state == "FAILED") {
      EXPECT_THAT(result.err, HasSubstr("the loss is NaN"));
    }
  }
}

// A job whose plan is refused fails as its creation would, whichever command waits for it.
TEST(ExitCodeTest, JobThatFailedBeforeItsStartGivesItsOwnError) {
  FakeServer server;
  const auto refused = Proto<v1::Job>(R"(name: "job-1" state: JOB_STATE_FAILED
    error { code: 8 message: "the job needs 9 GiB" })");
  server.create_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_PLANNING"));
  server.get_job.Answers(refused);
  server.watch_job.answer = [](const auto&, const std::function<bool(const v1::JobEvent&)>& write) {
    write(Proto<v1::JobEvent>("sequence: 1 state { to: JOB_STATE_FAILED }"));
    return grpc::Status::OK;
  };
  const std::vector<std::string> create = {"jobs", "create", "--method", "qlora", "--base", "b", "--dataset", "d"};
  std::vector<std::string> create_and_watch = create;
  create_and_watch.push_back("--watch");
  const std::vector<std::string> watch = {"jobs", "watch", "job-1"};
  for (const auto& command : {create, create_and_watch, watch}) {
    const Result result = RunNibble(server, command);
    EXPECT_EQ(result.exit, 7) << ::testing::PrintToString(command);
    EXPECT_EQ(result.err, "error: RESOURCE_EXHAUSTED: the job needs 9 GiB\n") << ::testing::PrintToString(command);
  }
}

TEST(ExitCodeTest, MalformedResponsesFailTheCommand) {
  FakeServer server;
  server.generate.Answers({});
  EXPECT_EQ(RunNibble(server, {"--json", "generate", "m", "--prompt", "p"}).exit, 1);
  server.generate.Answers(
      Proto<v1::GenerateResponse>("outputs { text: 'a' token_ids: 1 finish { reason: FINISH_REASON_EOS } } usage { }"));
  EXPECT_EQ(RunNibble(server, {"--json", "generate", "m", "--prompt", "p", "--logprobs", "1"}).exit, 1);
  const auto both =
      Proto<v1::ScoreReply>("tokens { tokens { token_id: 1 logprob: -1 } tokens { token_id: 1 logprob: -1 } }");
  const auto one = Proto<v1::ScoreReply>("tokens { tokens { token_id: 1 } }"), end = Proto<v1::ScoreReply>("finish {}");
  for (const auto& replies : {std::vector{one, one, end}, {one}, {one, end, end}, {one, end, one}}) {
    server.score.Answers(replies);
    EXPECT_EQ(RunNibble(server, {"--json", "score", "m", "--text", "p"}).exit, 1) << "out of order or cut short";
  }
  server.score.Answers({both, end});
  EXPECT_EQ(RunNibble(server, {"--json", "score", "m", "--text", "p"}).exit, 1);
  server.tokenize.Answers(Proto<v1::TokenizeResponse>("token_ids: 1 token_ids: 2 tokens: 'a'"));
  EXPECT_EQ(RunNibble(server, {"--json", "tokenize", "m", "--text", "p"}).exit, 1);
  server.list_models.Answers(Proto<v1::ListModelsResponse>("next_page_token: 'same'"));
  EXPECT_EQ(RunNibble(server, {"--json", "models", "list"}).exit, 1);
  google::longrunning::Operation operation;
  operation.set_done(true);
  server.convert_model.Answers(operation);
  const Result result = RunNibble(server, {"--json", "models", "convert", "a", "--to", "int8", "--name", "b"});
  EXPECT_EQ(result.exit, 1);
  EXPECT_THAT(result.err, HasSubstr("malformed response"));
}

TEST(ExitCodeTest, TextThatIsNotUtf8IsNeverSent) {
  FakeServer server;
  const std::string bad = "\xff\xfe";
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"generate", "m", "--prompt", bad},
                                             {"generate", "m", "--prompt-file", WriteFile("p", bad)},
                                             {"chat", "m", "--message", bad},
                                             {"score", "m", "--text", bad},
                                             {"score", "m", "--file", WriteFile("p", bad)},
                                             {"tokenize", "m", "--text", bad},
                                             {"models", "get", bad},
                                             {"jobs", "get", bad},
                                             {"jobs", "watch", bad}}) {
    const Result result = RunNibble(server, arguments);
    EXPECT_EQ(result.exit, 4) << ::testing::PrintToString(arguments);
    EXPECT_THAT(result.err, HasSubstr("UTF-8"));
  }
  EXPECT_TRUE(server.generate.asked.empty() && server.generate_stream.asked.empty());
  EXPECT_TRUE(server.chat.asked.empty() && server.chat_stream.asked.empty());
  EXPECT_TRUE(server.score.asked.empty() && server.tokenize.asked.empty());
  EXPECT_TRUE(server.get_model.asked.empty());
  EXPECT_TRUE(server.get_job.asked.empty() && server.watch_job.asked.empty());
}

TEST(ExitCodeTest, MissingFilesExitWith3) {
  FakeServer server;
  EXPECT_EQ(RunNibble(server, {"generate", "m", "--prompt-file", "/nowhere/at/all"}).exit, 3);
  EXPECT_EQ(RunNibble(server, {"datasets", "upload", "/nowhere/at/all", "--name", "d"}).exit, 3);
  EXPECT_EQ(RunNibble(server, {"models", "import", "/nowhere/at/all", "--name", "m"}).exit, 3);
  EXPECT_EQ(RunNibble(server, {"jobs", "create", "--spec", "/nowhere/at/all"}).exit, 3);
}

TEST(ExitCodeTest, DirectoryInsteadOfAFileExitsWith4) {
  FakeServer server;
  const std::string folder = TemporaryFolder();
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"generate", "m", "--prompt-file", folder},
                                             {"score", "m", "--file", folder},
                                             {"datasets", "upload", folder, "--name", "d"},
                                             {"jobs", "create", "--spec", folder}}) {
    EXPECT_EQ(RunNibble(server, arguments).exit, 4) << ::testing::PrintToString(arguments);
  }
  const Result result = RunNibble(server, {"models", "export", "m", "--format", "hf", "--out", WriteFile("p", "x")});
  EXPECT_EQ(result.exit, 4);
  EXPECT_THAT(result.err, HasSubstr("is not a directory"));
}

// Nothing is uploaded under an invalid or taken name.
TEST(ExitCodeTest, NamesAreCheckedBeforeTheUpload) {
  FakeServer server;
  const std::string model = WriteFile("m.gguf", "weights");
  const std::string file = WriteFile("rows.jsonl", "{}");
  EXPECT_EQ(RunNibble(server, {"models", "import", model, "--name", "../m"}).exit, 4);
  EXPECT_EQ(RunNibble(server, {"datasets", "upload", file, "--name", "a b"}).exit, 4);
  server.get_model.Answers(Proto<v1::Model>("name: 'm'"));
  const Result result = RunNibble(server, {"models", "import", model, "--name", "m"});
  EXPECT_EQ(result.exit, 6);
  EXPECT_THAT(result.err, HasSubstr("NAME_TAKEN"));
  EXPECT_TRUE(server.uploads.empty());
}

}  // namespace
}  // namespace nibble::client
