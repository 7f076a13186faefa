// Trainers that hang (docs/faults.md, R16) and that leave processes behind (R17).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <filesystem>

#include "tests/server/jobs/local_runner_fixture.h"

namespace nibble::jobs {
namespace {

using enum JobState;

class BadTrainerTest : public LocalRunnerTest {};

TEST_F(BadTrainerTest, FrozenTrainerIsEndedAfterTheTimeoutAndTheJobGoesOn) {  // R16
  Kill();
  // Long enough for a busy machine to start the trainer in.
  options_.no_progress_timeout = absl::Seconds(3);
  options_.no_progress_grace = absl::Milliseconds(200);
  Open();
  const auto before = std::chrono::steady_clock::now();
  const std::string id = Submit("freeze", "out");
  const JobRecord job = WaitForEnd(id);
  EXPECT_EQ(job.state, kSucceeded);
  EXPECT_EQ(job.attempt, 2);
  EXPECT_EQ(job.retries, 1);
  EXPECT_EQ(database_->GetAttempt(id, 1)->state, "FAILED");
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
  bool told = false;
  const auto page = controller_->Events(id, 0, 1000);
  ASSERT_TRUE(page.ok());
  for (const Event& event : page->events) told |= event.body.value("reason", "") == "NO_PROGRESS";
  EXPECT_TRUE(told);
}

// Those whose command line holds the mark.
int Marked(const std::string& mark) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto text = base::RealFileSystem().Read(entry.path().string() + "/cmdline", 4096);
    found += text.ok() && text->find(mark) != std::string::npos;
  }
  return found;
}

// A cgroup that bounds how many processes this one and its children may be, where the machine lets us make one.
class PidsCgroup {
 public:
  explicit PidsCgroup(int max) {
    const std::string folder = "/sys/fs/cgroup/pids/nibble-test-" + std::to_string(::getpid());
    std::error_code error;
    if (!std::filesystem::create_directory(folder, error)) return;
    std::ofstream(folder + "/pids.max") << max;
    std::ofstream(folder + "/cgroup.procs") << ::getpid();
    folder_ = folder;
  }
  ~PidsCgroup() {
    if (folder_.empty()) return;
    std::ofstream("/sys/fs/cgroup/pids/cgroup.procs") << ::getpid();
    ::rmdir(folder_.c_str());
  }

 private:
  std::string folder_;
};

TEST_F(BadTrainerTest, NothingThatATrainerStartsOutlivesIt) {  // R17
  const PidsCgroup bound(400);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // As nibbled does.
  const std::string mark = "9876" + std::to_string(::getpid());
  const std::string id = Submit("breed " + mark, "out");
  WaitFor(id, [](const JobRecord& job) { return job.progress.value("step", 0) >= 1; });
  EXPECT_GE(Marked(mark), 1);
  EXPECT_EQ(WaitForEnd(id).state, kSucceeded);
  EXPECT_EQ(Marked(mark), 0);

  const std::string cancelled = Submit("breed-forever " + mark);
  WaitFor(cancelled, [&](const JobRecord& job) { return job.state == kRunning && Marked(mark) >= 150; });
  ASSERT_TRUE(controller_->Cancel(cancelled).ok());
  EXPECT_EQ(WaitForEnd(cancelled).state, kCancelled);
  EXPECT_EQ(Marked(mark), 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  // The fixture looks for zombies.
}

}  // namespace
}  // namespace nibble::jobs
