// The local runner with real processes, alone and under the controller.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/jobs/process.h"
#include "tests/server/jobs/local_runner_fixture.h"

namespace nibble::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using enum JobState;

std::vector<std::string> Environment() { return {"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}; }

TEST_F(LocalRunnerTest, JobPublishesAModel) {
  const std::string id = Submit("ok", "out");
  const StoredJob job = WaitForEnd(id);
  EXPECT_EQ(job.state, kSucceeded);
  EXPECT_EQ(job.progress["step"], 6);
  EXPECT_EQ(job.progress["eval_loss_int8"], 0.5);
  EXPECT_TRUE(state_->models->Get("out").ok());
  EXPECT_EQ(Steps(id).size(), 6u);
  const std::string log = Log(id, 1);
  EXPECT_THAT(log, HasSubstr("hello from the trainer"));
  EXPECT_THAT(log, HasSubstr("PATH"));
  EXPECT_THAT(log, Not(HasSubstr("HOME")));
  EXPECT_EQ(controller_->Checkpoints(id)->back().step, 6);
}

TEST_F(LocalRunnerTest, BadInputFailsWithTheTrainersMessage) {
  const StoredJob job = WaitForEnd(Submit("bad_input"));
  EXPECT_EQ(job.state, kFailed);
  EXPECT_EQ(job.attempt, 1);
  EXPECT_EQ(job.error->message, "nothing to learn");
}

TEST_F(LocalRunnerTest, KilledTrainerResumesFromItsCheckpoint) {  // R2
  const std::string id = Submit("crash", "out");
  const StoredJob job = WaitForEnd(id);
  EXPECT_EQ(job.state, kSucceeded);
  EXPECT_EQ(job.attempt, 2);
  EXPECT_THAT(Steps(id), ElementsAre(std::pair(1, 1), std::pair(1, 2), std::pair(1, 3), std::pair(1, 4),
                                     std::pair(1, 5), std::pair(2, 5), std::pair(2, 6)));
}

TEST_F(LocalRunnerTest, CancelEndsTrainersThatObeyOrIgnoreSigterm) {
  for (const char* behaviour : {"forever", "deaf"}) {
    // Separate names, because the name of a cancelled job is free only a moment after its end is visible.
    const std::string name = std::string("out-") + behaviour;
    const std::string id = Submit(behaviour, name);
    WaitForState(id, kRunning);
    const pid_t pid = Pid(id);
    const auto before = std::chrono::steady_clock::now();
    ASSERT_TRUE(controller_->Cancel(id).ok());
    EXPECT_EQ(WaitForEnd(id).state, kCancelled);
    // Far below the grace of a pause. CancelTellsTheTrainerThenKillsIt checks the grace of a cancel with a fake clock.
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(25));
    EXPECT_EQ(::kill(pid, 0), -1) << "the trainer is gone";
    EXPECT_FALSE(state_->models->Get(name).ok());
  }
}

TEST_F(LocalRunnerTest, PausedJobResumesWithANewAttempt) {
  const std::string id = Submit("forever");
  WaitForState(id, kRunning);
  ASSERT_TRUE(controller_->Pause(id).ok());
  EXPECT_EQ(WaitForState(id, kPaused).retries, 0);
  ASSERT_TRUE(controller_->Resume(id).ok());
  WaitFor(id, [](const StoredJob& job) { return job.state == kRunning && job.attempt == 2; });
  ASSERT_TRUE(controller_->Cancel(id).ok());
  EXPECT_EQ(WaitForEnd(id).state, kCancelled);
}

TEST_F(LocalRunnerTest, ProcessesOfATrainerEndWithIt) {
  const std::string id = Submit("fork");
  EXPECT_EQ(WaitForEnd(id).state, kSucceeded);
  // The trainer's sleep process held the attempt's lock; the lock is free, so the process is dead.
  const auto adopted = runner_->Adopt({.directory = state_->paths.attempt(id, 1)}, "");
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_FALSE(*adopted);
}

TEST_F(LocalRunnerTest, ShutdownWritesACheckpointAndTheNextServerResumes) {
  const std::string id = Submit("forever");
  WaitForState(id, kRunning);
  controller_->Shutdown(absl::Seconds(10));
  EXPECT_EQ(controller_->Get(id)->state, kQueued);
  EXPECT_EQ(controller_->Get(id)->retries, 0);
  EXPECT_EQ(controller_->Checkpoints(id)->size(), 1u);
  Kill();
  Open();
  WaitFor(id, [](const StoredJob& job) { return job.state == kRunning && job.attempt == 2; });
  ASSERT_TRUE(controller_->Cancel(id).ok());
  WaitForEnd(id);
}

TEST_F(LocalRunnerTest, LiveTrainerIsAdoptedByTheNextServer) {  // R1
  std::ofstream(Hold()) << "x";
  const std::string id = Submit("ok", "out");
  WaitFor(id, [](const StoredJob& job) { return job.progress.value("step", 0) == 3; });
  const pid_t pid = Pid(id);
  Kill();
  Open();
  EXPECT_EQ(controller_->Get(id)->state, kRunning);
  EXPECT_EQ(Pid(id), pid);
  std::filesystem::remove(Hold());
  const StoredJob job = WaitForEnd(id);
  EXPECT_EQ(job.state, kSucceeded);
  EXPECT_EQ(job.attempt, 1);
  EXPECT_EQ(Steps(id).size(), 6u);
}

TEST_F(LocalRunnerTest, TrainerWhosePidWasNeverRecordedIsAdoptedToo) {
  std::ofstream(Hold()) << "x";
  const std::string id = Submit("ok");
  WaitFor(id, [](const StoredJob& job) { return job.progress.value("step", 0) == 3; });
  const pid_t pid = Pid(id);
  Kill();
  const std::string directory = state_->paths.attempt(id, 1);
  auto runner = MakeLocalRunner({kTrainer, Environment()});
  const auto found = runner->Adopt({.directory = directory}, "");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(*found);
  const TrainerState state = runner->Poll(directory);
  EXPECT_EQ(state.phase, TrainerState::Phase::kRunning);
  EXPECT_EQ(PidOf(state.handle), pid);
  Open();
  std::filesystem::remove(Hold());
  EXPECT_EQ(WaitForEnd(id).attempt, 1);
}

// While an object of this class exists, opening any file fails with EMFILE.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none = {0, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

TEST_F(LocalRunnerTest, TrainerIsNotTakenForDeadWithoutFileDescriptors) {
  std::ofstream(Hold()) << "x";
  const std::string id = Submit("ok");
  WaitFor(id, [](const StoredJob& job) { return job.progress.value("step", 0) == 3; });
  const std::string recorded = database_->GetAttempt(id, 1)->handle;
  Kill();
  const std::string directory = state_->paths.attempt(id, 1);
  auto runner = MakeLocalRunner({kTrainer, Environment()});
  for (const std::string& known : {recorded, std::string()}) {
    const auto adopted = [&] {
      const NoDescriptors none;  // as briefly as possible: UBSan itself opens a pipe to inspect an object
      return runner->Adopt({.directory = directory}, known).status();
    }();
    EXPECT_THAT(std::string(adopted.message()), HasSubstr("Too many open files"));
  }
  const auto adopted = runner->Adopt({.directory = directory}, recorded);
  ASSERT_TRUE(adopted.ok() && *adopted);
  const auto polled = [&] {
    const NoDescriptors none;
    return runner->Poll(directory);
  }();
  for (const TrainerState& state : {polled, runner->Poll(directory)}) {
    EXPECT_EQ(state.phase, TrainerState::Phase::kRunning);
    EXPECT_EQ(state.handle, recorded);
  }
  const pid_t pid = PidOf(recorded);
  EXPECT_EQ(base::StrCat(pid, "/", **StartTicks(pid)), recorded) << "the trainer was not killed";
  Open();
  std::filesystem::remove(Hold());
  EXPECT_EQ(WaitForEnd(id).attempt, 1);
}

TEST_F(LocalRunnerTest, ReusedPidIsNotAdopted) {
  std::ofstream(Hold()) << "x";
  const std::string id = Submit("ok");
  WaitFor(id, [](const StoredJob& job) { return job.progress.value("step", 0) == 3; });
  const pid_t pid = Pid(id);
  Kill();
  ::kill(-pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  // As if the pid had been reused: the database has the pid of this process.
  auto database = *Database::Open(state_->paths.database());
  ASSERT_TRUE(database->RecordTrainer(id, 1, base::StrCat(::getpid(), "/", **StartTicks(::getpid())), {}).ok());
  database.reset();
  std::filesystem::remove(Hold());
  Open();
  const StoredJob job = WaitForEnd(id);
  EXPECT_EQ(job.state, kSucceeded);
  EXPECT_EQ(job.attempt, 2);
}

TEST_F(LocalRunnerTest, TrainerOfAClusterIsNotTakenForLost) {
  auto runner = MakeLocalRunner({kTrainer, Environment()});
  const absl::Status adopted = runner->Adopt({.directory = temp_.path()}, "nibble-job-1/uid").status();
  EXPECT_EQ(adopted.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(adopted.message()), HasSubstr("--runner"));
}

TEST_F(LocalRunnerTest, MissingProgramIsReported) {
  auto runner = MakeLocalRunner({temp_ / "nothing", Environment()});
  runner->Start({.directory = temp_.path()});
  const TrainerState state = runner->Poll(temp_.path());
  EXPECT_EQ(state.phase, TrainerState::Phase::kEnded);
  EXPECT_EQ(state.end.cause, TrainerEnd::Cause::kNotStarted);
  EXPECT_EQ(state.handle, "");
  EXPECT_EQ(state.end.failure.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(state.end.failure.message()), HasSubstr("No such file"));
}

// GOMP_SPINCOUNT limits how long an idle OpenMP thread spins before it sleeps.
TEST(LocalRunnerEnvironmentTest, TrainerGetsOnlyAllowedVariablesAndAShortSpin) {
  EXPECT_THAT(
      TrainerEnvironment({"PATH=/bin", "SECRET=1", "PATHOLOGY=1", "LD_PRELOAD=x", "HOME", "CUDA_VISIBLE_DEVICES=0"}),
      ElementsAre("PATH=/bin", "CUDA_VISIBLE_DEVICES=0", "GOMP_SPINCOUNT=1000"));
}

TEST(ProcessTest, AZombieHasNoStartTicksAndIsReapedOnce) {
  const auto mine = StartTicks(::getpid());
  ASSERT_TRUE(mine.ok() && mine->has_value());
  EXPECT_EQ(*StartTicks(::getpid()), *mine);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(3);
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(*StartTicks(child), std::nullopt) << "a zombie counts as gone";
  const ExitStatus status = Reap(child, /*wait=*/true);
  EXPECT_EQ(status.kind, ExitStatus::Kind::kExited);
  EXPECT_EQ(status.value, 3);
  EXPECT_EQ(Reap(child, /*wait=*/true).kind, ExitStatus::Kind::kUnknown);
}

}  // namespace
}  // namespace nibble::jobs
