#include "server/jobs/attempt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "server/jobs/attempt_claim.h"
#include "server/jobs/journal.h"
#include "server/jobs/progress.h"
#include "tests/support/temp_directory.h"

namespace nibble::jobs {
namespace {

using nibble::testing::TempDirectory;
using ::testing::HasSubstr;

base::FileSystem& Files() { return base::RealFileSystem(); }
void AppendText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}
base::Json Fields(const std::string& text) { return *base::ParseJson(text); }

TEST(AttemptTest, OrderSurvivesARoundTrip) {
  TempDirectory temp;
  AttemptOrder order;
  order.job_id = "job-1";
  order.attempt = 2;
  order.spec.base_model = "b";
  order.spec.train_dataset = "t";
  order.base_model_directory = "/s/models/b";
  order.train_data_path = "/s/datasets/t/data.jsonl";
  order.eval_data_path = "/s/datasets/e/data.jsonl";
  order.eval_format = "chat";
  order.train_tokens_directory = "/s/tokens/t";
  order.eval_tokens_directory = "/s/tokens/e";
  order.min_free_bytes = 1'000;
  order.resume_checkpoint_directory = "/s/jobs/job-1/attempts/1/checkpoints/step-00000010";
  order.resume_step = 10;
  order.start = {.kind = StartOrder::Kind::kResume, .name = "job-1/20", .directory = "/s/start", .same_eval = true};
  order.base_cache_directory = "/state/bases";
  order.base_cache_bytes = 1000;
  order.output_directory = "/s/jobs/job-1/attempts/2/output";
  order.report_address = "127.0.0.1:50051";
  order.report_ca = "-----BEGIN CERTIFICATE-----\nMII\n";
  order.token = "token-1";
  order.threads = 2;
  order.isa = "avx2";
  order.nibble_version = "0.1.0";
  order.show_alive_every_s = 2.5;
  ASSERT_TRUE(WriteAttemptOrder(Files(), temp.path(), order).ok());
  const auto back = ReadAttemptOrder(Files(), temp.path());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(base::Dump(ToJson(back->spec)), base::Dump(ToJson(order.spec)));
  EXPECT_EQ(back->job_id, order.job_id);
  EXPECT_EQ(back->attempt, 2);
  EXPECT_EQ(back->base_model_directory, order.base_model_directory);
  EXPECT_EQ(back->train_data_path, order.train_data_path);
  EXPECT_EQ(back->eval_data_path, order.eval_data_path);
  EXPECT_EQ(back->eval_format, order.eval_format);
  EXPECT_EQ(back->train_tokens_directory, order.train_tokens_directory);
  EXPECT_EQ(back->eval_tokens_directory, order.eval_tokens_directory);
  EXPECT_EQ(back->min_free_bytes, 1'000);
  EXPECT_EQ(back->resume_checkpoint_directory, order.resume_checkpoint_directory);
  EXPECT_EQ(back->resume_step, 10);
  EXPECT_EQ(back->start.kind, StartOrder::Kind::kResume);
  EXPECT_EQ(back->start.name, "job-1/20");
  EXPECT_EQ(back->start.directory, "/s/start");
  EXPECT_FALSE(back->start.same_rows);
  EXPECT_TRUE(back->start.same_eval);
  EXPECT_EQ(back->base_cache_directory, order.base_cache_directory);
  EXPECT_EQ(back->base_cache_bytes, 1000);
  EXPECT_EQ(back->output_directory, order.output_directory);
  EXPECT_EQ(back->report_address, order.report_address);
  EXPECT_EQ(back->report_ca, order.report_ca);
  EXPECT_EQ(back->token, "token-1");
  EXPECT_EQ(back->threads, 2);
  EXPECT_EQ(back->isa, "avx2");
  EXPECT_EQ(back->nibble_version, "0.1.0");
  EXPECT_EQ(back->show_alive_every_s, 2.5);
}

TEST(AttemptTest, CheckpointRequestHasTheIdOfItsFile) {
  TempDirectory temp;
  EXPECT_FALSE(CheckpointRequest(Files(), temp.path()).has_value());
  ASSERT_TRUE(RequestCheckpoint(Files(), temp.path(), "request-1").ok());
  EXPECT_EQ(CheckpointRequest(Files(), temp.path()), "request-1");
  ASSERT_TRUE(RequestCheckpoint(Files(), temp.path(), "").ok());  // as an earlier server writes it
  EXPECT_EQ(CheckpointRequest(Files(), temp.path()), "");
  ASSERT_TRUE(RequestCheckpoint(Files(), temp.path(), std::string(1000, 'x')).ok());
  EXPECT_EQ(CheckpointRequest(Files(), temp.path()), "") << "a file that no server writes";
  ASSERT_TRUE(ClearCheckpointRequest(Files(), temp.path()).ok());
  EXPECT_FALSE(CheckpointRequest(Files(), temp.path()).has_value());
}

TEST(AttemptTest, OutcomesSurviveARoundTripAndDamagedOnesAreDataLoss) {
  TempDirectory temp;
  EXPECT_EQ(ReadOutcome(Files(), temp.path()).status().code(), absl::StatusCode::kNotFound);
  Outcome failed;
  failed.kind = Outcome::Kind::kFailed;
  failed.code = "INVALID_ARGUMENT";
  failed.reason = "NO_TRAINABLE_TOKENS";
  failed.message = "line 3";
  failed.exit_code = kExitBadInput;
  ASSERT_TRUE(WriteOutcome(Files(), temp.path(), failed).ok());
  auto back = ReadOutcome(Files(), temp.path());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->kind, Outcome::Kind::kFailed);
  EXPECT_EQ(back->reason, "NO_TRAINABLE_TOKENS");
  EXPECT_EQ(back->message, "line 3");
  EXPECT_EQ(back->exit_code, 42);
  for (const auto kind : {Outcome::Kind::kOk, Outcome::Kind::kCancelled, Outcome::Kind::kPaused}) {
    Outcome outcome;
    outcome.kind = kind;
    outcome.exit_code = 0;
    outcome.final["eval_loss_int8"] = 1.5;
    ASSERT_TRUE(WriteOutcome(Files(), temp.path(), outcome).ok());
    back = ReadOutcome(Files(), temp.path());
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(back->kind, kind);
    EXPECT_EQ(back->final["eval_loss_int8"], 1.5);
  }
  for (const char* text : {"", "[]", R"({"outcome":"great","exit_code":0})", R"({"outcome":"ok"})",
                           R"({"outcome":"ok","exit_code":300})"}) {
    ASSERT_TRUE(base::WriteFileAtomically(Files(), temp / "outcome.json", text).ok());
    EXPECT_EQ(ReadOutcome(Files(), temp.path()).status().code(), absl::StatusCode::kDataLoss) << text;
  }
}

TEST(AttemptTest, SigtermWithoutControlFileIsAPreemption) {
  TempDirectory temp;
  EXPECT_EQ(*ReadControl(Files(), temp.path()), Control::kPreempt);
  for (const Control control : {Control::kPause, Control::kCancel, Control::kPreempt}) {
    ASSERT_TRUE(WriteControl(Files(), temp.path(), control).ok());
    EXPECT_EQ(*ReadControl(Files(), temp.path()), control);
  }
}

TEST(AttemptTest, CodeNamesAreCanonical) {
  EXPECT_EQ(CodeName(absl::StatusCode::kInvalidArgument), "INVALID_ARGUMENT");
  EXPECT_EQ(ParseCodeName("RESOURCE_EXHAUSTED"), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ParseCodeName("x"), absl::StatusCode::kUnknown);
}

TEST(JournalTest, ReadsEachLineOnceAndWaitsForTheRestOfATornLine) {
  TempDirectory temp;
  base::FakeClock clock(absl::FromUnixMillis(1'700'000'000'123));
  JournalReader reader(temp.path());
  EXPECT_TRUE(reader.ReadNew()->empty());
  auto writer = JournalWriter::Open(Files(), clock, temp.path());
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append("log", Fields(R"({"message":"loading"})")).ok());
  const auto line = (*writer)->Append("step", Fields(R"({"step":1,"loss":2.5})"));
  ASSERT_TRUE(line.ok());
  EXPECT_THAT(*line, HasSubstr(R"("time":"2023-11-14T22:13:20.123Z")"));
  auto lines = reader.ReadNew();
  ASSERT_TRUE(lines.ok());
  ASSERT_EQ(lines->size(), 2u);
  EXPECT_EQ((*lines)[1].sequence, 2);
  EXPECT_EQ((*lines)[1].body["loss"], 2.5);
  EXPECT_EQ(reader.ReadNew()->size(), 2u) << "they were not accepted";
  reader.Accept();
  EXPECT_TRUE(reader.ReadNew()->empty());

  AppendText(temp / "journal.jsonl", R"({"sequence":3,"time":"2023-11-14T22:13:20Z","ty)");
  EXPECT_TRUE(reader.ReadNew()->empty());
  AppendText(temp / "journal.jsonl", "pe\":\"log\"}\n");
  lines = reader.ReadNew();
  ASSERT_TRUE(lines.ok());
  ASSERT_EQ(lines->size(), 1u);
  EXPECT_EQ((*lines)[0].sequence, 3);
}

TEST(JournalTest, DamagedLineIsReportedAfterTheGoodOnes) {
  TempDirectory temp;
  AppendText(temp / "journal.jsonl",
             "{\"sequence\":1,\"time\":\"t\",\"type\":\"log\"}\n{\"sequence\":\n{\"sequence\":3,\"time\":\"t\","
             "\"type\":\"log\"}\n");
  JournalReader reader(temp.path());
  ASSERT_EQ(reader.ReadNew()->size(), 1u);
  reader.Accept();
  const auto damaged = reader.ReadNew();
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.status().message()), HasSubstr("at byte 39"));
}

TEST(JournalTest, RejectsMalformedLine) {
  for (const char* text :
       {"", "1", "{}", R"({"sequence":0,"time":"t","type":"log"})", R"({"sequence":1,"time":"t","type":"party"})",
        R"({"sequence":1.5,"time":"t","type":"log"})"}) {
    EXPECT_EQ(ParseJournalLine(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(JournalTest, AttemptIsNotStartedTwice) {
  TempDirectory temp;
  ASSERT_TRUE(JournalWriter::Open(Files(), base::RealClock(), temp.path()).ok());
  EXPECT_EQ(JournalWriter::Open(Files(), base::RealClock(), temp.path()).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(AttemptTest, SignOfLifeChangesOnlyWhenShownAgain) {
  TempDirectory temp;
  EXPECT_EQ(LastAlive(Files(), temp.path()), "");
  ASSERT_TRUE(ShowAlive(Files(), temp.path(), 1).ok());
  const std::string first = LastAlive(Files(), temp.path());
  EXPECT_NE(first, "");
  EXPECT_EQ(LastAlive(Files(), temp.path()), first);
  ASSERT_TRUE(ShowAlive(Files(), temp.path(), 2).ok());
  EXPECT_NE(LastAlive(Files(), temp.path()), first);
}

base::Json Feed(base::Json progress, const std::string& type, const std::string& fields) {
  JournalLine line;
  line.type = type;
  line.time = "t";
  line.body = Fields(fields);
  UpdateProgress(progress, line);
  return progress;
}

TEST(ProgressTest, FiguresFollowTheJournal) {
  base::Json progress = base::Json::object();
  progress = Feed(progress, "state", R"({"state":"RUNNING","step":0,"max_steps":4})");
  progress = Feed(progress, "eval", R"({"step":0,"eval_loss":3.0})");
  progress = Feed(progress, "step",
                  R"({"step":1,"loss":2.0,"lr":0.1,"grad_norm":1.0,"tokens":100,"step_ms":50,)"
                  R"("kernel_launches":7,"peak_memory_bytes":1000})");
  progress = Feed(progress, "step",
                  R"({"step":2,"loss":1.5,"lr":0.2,"grad_norm":0.5,"tokens":100,"step_ms":150,)"
                  R"("kernel_launches":7,"peak_memory_bytes":900})");
  progress = Feed(progress, "eval", R"({"step":4,"eval_loss":2.5,"what":"int8"})");
  EXPECT_EQ(progress["step"], 2);
  EXPECT_EQ(progress["max_steps"], 4);
  EXPECT_EQ(progress["percent"], 50.0);
  EXPECT_EQ(progress["tokens"], 200);
  EXPECT_EQ(progress["tokens_per_s"], 1000.0);
  EXPECT_EQ(progress["eta_s"], 0.3);
  EXPECT_EQ(progress["loss"], 1.5);
  EXPECT_EQ(progress["peak_memory_bytes"], 1000);
  EXPECT_EQ(progress["kernel_launches_per_step"], 7);
  EXPECT_EQ(progress["eval_loss"], 3.0);
  EXPECT_EQ(progress["eval_loss_int8"], 2.5);
  FinishProgress(progress, Fields(R"({"eval_loss":1.25,"note":"not a number"})"));
  EXPECT_EQ(progress["step"], 4);
  EXPECT_EQ(progress["percent"], 100.0);
  EXPECT_EQ(progress["eta_s"], 0.0);
  EXPECT_EQ(progress["eval_loss"], 1.25);
  EXPECT_FALSE(progress.contains("note"));
}

TEST(ProgressTest, OutcomeDoesNotReplaceSumsOverSteps) {
  base::Json progress = base::Json::object();
  for (const int step : {1, 2, 2}) {  // step 2 was run twice
    const std::string fields = R"({"tokens":100,"step_ms":100,"step":)" + std::to_string(step) + "}";
    progress = Feed(progress, "step", fields);
  }
  FinishProgress(progress, Fields(R"({"step":2,"tokens":200})"));
  EXPECT_EQ(progress["tokens"], 300);
  EXPECT_EQ(progress["tokens_per_s"], 1000.0);
}

TEST(ProgressTest, EpochIsAFractionIfTheTrainerReportsOne) {
  base::Json progress = Feed(base::Json::object(), "step", R"({"step":1,"epoch":1})");
  EXPECT_EQ(progress["epoch"], 1);
  progress = Feed(progress, "step", R"({"step":2,"epoch":1,"epochs_done":1.25})");
  EXPECT_EQ(progress["epoch"], 1.25);
  EXPECT_EQ(progress["latest_step"]["epoch"], 1);
}

TEST(ProgressTest, IgnoresFieldsOfTheWrongType) {
  base::Json progress = base::Json::object();
  progress = Feed(progress, "step", R"({"step":"x","tokens":"many","step_ms":null,"peak_memory_bytes":[]})");
  progress = Feed(progress, "eval", R"({"what":5})");
  EXPECT_FALSE(progress.contains("step"));
  EXPECT_FALSE(progress.contains("tokens_per_s"));
}

TEST(AttemptClaimTest, OneHolderHasAnAttemptUntilItsDirectoryIsReplaced) {
  const TempDirectory temp;
  const std::string directory = temp / "1";
  EXPECT_EQ(AttemptClaim::Take(directory, "pod-1").status().code(), absl::StatusCode::kNotFound) << "no directory";
  std::filesystem::create_directory(directory);
  const auto claim = AttemptClaim::Take(directory, "pod-1");
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_TRUE(claim->held());
  const absl::Status second = AttemptClaim::Take(directory, "pod-2").status();
  EXPECT_TRUE(absl::IsAlreadyExists(second));
  EXPECT_THAT(std::string(second.message()), HasSubstr("belongs to pod-1"));
  EXPECT_TRUE(absl::IsAlreadyExists(AttemptClaim::Take(directory, "pod-1").status())) << "also for the same holder";
  EXPECT_TRUE(claim->held());
  // The server gives the attempt up: it renames the directory and puts a file in its place.
  std::filesystem::rename(directory, temp / "1.lost");
  EXPECT_FALSE(claim->held());
  std::ofstream(directory) << "given up";
  EXPECT_FALSE(claim->held());
  std::filesystem::remove(directory);
  std::filesystem::create_directory(directory);
  const auto next = AttemptClaim::Take(directory, "pod-2");
  EXPECT_TRUE(next.ok() && next->held());
  EXPECT_FALSE(claim->held());
}

TEST(AttemptClaimTest, OneOfManyConcurrentHoldersGetsTheAttempt) {
  for (int round = 0; round < 20; ++round) {
    const TempDirectory temp;
    std::atomic<int> holders = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] { holders += AttemptClaim::Take(temp.path(), std::to_string(i)).ok(); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(holders, 1);
  }
}

}  // namespace
}  // namespace nibble::jobs
