// Disk space of jobs: a job's planned bytes are reserved from its start to its end (docs/faults.md, T10 and T11).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "server/base/error.h"
#include "server/base/hooked_files.h"
#include "server/base/ids.h"
#include "server/store/base_cache.h"
#include "tests/server/jobs/controller_fixture.h"
#include "tests/server/store/faulty_files.h"

namespace nibble::jobs {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using enum JobState;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// A disk whose free bytes the test sets. The files named "weights" below one directory are subtracted from them.
class SmallDisk : public base::HookedFiles<store::NoHook> {
 public:
  SmallDisk() : HookedFiles(base::RealFileSystem()) {}
  void set_free(std::int64_t bytes) { free_ = bytes; }
  void set_counted(const std::string& directory) { counted_ = directory; }
  absl::StatusOr<std::uint64_t> FreeBytes(const std::string&) override {
    std::int64_t used = 0;
    std::error_code ignored;
    if (!counted_.empty() && std::filesystem::exists(counted_)) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(counted_, ignored)) {
        if (entry.path().filename() == "weights") used += static_cast<std::int64_t>(entry.file_size(ignored));
      }
    }
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, free_ - used));
  }

 private:
  std::atomic<std::int64_t> free_{64 * kMiB};
  std::string counted_;
};

class DiskAdmissionTest : public ControllerFixture {
 protected:
  void SetUp() override {
    files_ = &disk_;
    options_.queue.max_running = 4;
    // SubmitOf puts the planned MiB into the rank.
    options_.plan_memory = [](const JobSpec& spec, const base::CancelToken&) -> absl::StatusOr<PlannedMemory> {
      return PlannedMemory{.bytes = 1, .pools = "", .disk_bytes = spec.qlora.r * kMiB};
    };
    ControllerFixture::SetUp();
  }
  void TearDown() override { Kill(); }  // the controller's threads read through disk_

  // Submits a job that is planned to write `mib` MiB.
  std::string SubmitOf(std::int64_t mib, const std::string& output = "") {
    JobSpec spec = Spec(output);
    spec.qlora.r = mib;
    return Submit(spec);
  }
  // Runs four rounds, which is enough for all changes. The server measures the files of jobs every five seconds.
  void Settle() {
    for (int i = 0; i < 4; ++i) {
      controller_->Tick();
      clock_.Advance(absl::Seconds(5));
    }
  }
  void Fail(const std::string& id) {
    ControllerFixture::Fail(Trainer(id), "NAN_LOSS", kExitBadInput);
    machine_.Exit(Trainer(id), kExitBadInput);
  }
  std::vector<std::string> Warnings(const std::string& id) {
    std::vector<std::string> warnings;
    for (const Event& event : Events(id)) {
      if (event.type == "warning") warnings.push_back(base::Dump(event.body));
    }
    return warnings;
  }
  static void WriteMiB(const std::string& path, std::int64_t mib) {
    WriteFile(path, std::string(static_cast<std::size_t>(mib * kMiB), 'x'));
  }
  // Adds a cached base of `mib` MiB, last used `age` ago.
  std::string AddBase(const std::string& key, std::int64_t mib, absl::Duration age) {
    store::BaseCache cache(base::RealFileSystem(), state_->paths.bases(), {.max_bytes = std::uint64_t{1} << 40});
    auto made = store::PendingDirectory::Create(base::RealFileSystem(), cache.Path(key),
                                                base::TemporaryName(temp_ / "attempt"));
    EXPECT_TRUE(made.ok()) << made.status();
    WriteMiB(made->path() + "/weights", mib);
    EXPECT_TRUE(cache.Add(key, *std::move(made)).ok());
    std::filesystem::last_write_time(cache.Path(key),
                                     std::filesystem::file_time_type::clock::now() - absl::ToChronoSeconds(age));
    return cache.Path(key);
  }

  SmallDisk disk_;
};

TEST_F(DiskAdmissionTest, SecondJobWaitsUntilTheFirstHasEnded) {
  disk_.set_free(20 * kMiB);
  const std::string first = SubmitOf(16), second = SubmitOf(16);
  Settle();
  EXPECT_EQ(State(first), kPreparing);
  EXPECT_EQ(State(second), kQueued);
  ASSERT_EQ(Warnings(second).size(), 1u) << "it warns once";
  EXPECT_THAT(Warnings(second)[0], HasSubstr("WAITING_FOR_DISK"));
  EXPECT_THAT(Warnings(second)[0], HasSubstr("up to 16777216 bytes"));
  EXPECT_THAT(Warnings(second)[0], ContainsRegex("4[0-9]{6} bytes may be written"))
      << "4 MiB, and what the first attempt has written already";
  EXPECT_TRUE(Warnings(first).empty());

  KillAndReopen();
  Settle();
  EXPECT_EQ(State(second), kQueued) << "the plan of the adopted trainer still counts";

  Fail(first);
  Settle();
  EXPECT_EQ(State(second), kPreparing);
}

TEST_F(DiskAdmissionTest, BytesThatARunningJobHasWrittenCountOnce) {
  disk_.set_free(20 * kMiB);
  const std::string first = SubmitOf(16);
  controller_->Tick();
  Ready(Trainer(first));
  WriteMiB(Trainer(first).directory + "/checkpoints/written", 10);
  disk_.set_free(10 * kMiB);
  const std::string second = SubmitOf(5), third = SubmitOf(3);
  Settle();
  EXPECT_EQ(State(second), kQueued) << "the first job still needs 6 of the 10 free MiB";
  EXPECT_EQ(State(third), kQueued) << "the third must not overtake the second, which waits for room";
  disk_.set_free(11 * kMiB);
  Settle();
  EXPECT_EQ(State(second), kPreparing);
  EXPECT_EQ(State(third), kQueued);
}

TEST_F(DiskAdmissionTest, ResumedJobWaitsForDiskAgain) {
  disk_.set_free(20 * kMiB);
  const std::string first = SubmitOf(16);
  controller_->Tick();
  Ready(Trainer(first));
  controller_->Tick();
  ASSERT_TRUE(controller_->Pause(first).ok());
  controller_->Tick();
  Stop(Trainer(first), Outcome::Kind::kPaused);
  machine_.Exit(Trainer(first), kExitTempFail);
  controller_->Tick();
  EXPECT_EQ(State(first), kPaused);
  const std::string second = SubmitOf(16);
  controller_->Tick();
  EXPECT_EQ(State(second), kPreparing);
  ASSERT_TRUE(controller_->Resume(first).ok());
  Settle();
  EXPECT_EQ(State(first), kQueued);
  EXPECT_EQ(Warnings(first).size(), 1u);
  ASSERT_TRUE(controller_->Pause(first).ok());
  Settle();
  ASSERT_TRUE(controller_->Resume(first).ok());
  Settle();
  EXPECT_EQ(Warnings(first).size(), 2u) << "it warns each time it waits";
}

// A file that an output shares with its base model was not written by the job.
TEST_F(DiskAdmissionTest, SharedFilesDoNotCountAsWritten) {
  disk_.set_free(20 * kMiB);
  const std::string first = SubmitOf(16);
  controller_->Tick();
  Ready(Trainer(first));
  WriteMiB(temp_ / "shared", 10);
  std::filesystem::create_hard_link(temp_ / "shared", Trainer(first).directory + "/checkpoints/written");
  const std::string second = SubmitOf(5);
  Settle();
  EXPECT_EQ(State(second), kQueued);
}

TEST_F(DiskAdmissionTest, RetriedJobNeedsRoomOnlyForTheRest) {
  disk_.set_free(20 * kMiB);
  const std::string id = SubmitOf(16);
  controller_->Tick();
  Ready(Trainer(id));
  WriteMiB(Trainer(id).directory + "/checkpoints/written", 10);
  disk_.set_free(10 * kMiB);
  machine_.Kill(Trainer(id));
  controller_->Tick();
  EXPECT_EQ(State(id), kQueued);
  KillAndReopen();
  clock_.Advance(absl::Seconds(10));
  controller_->Tick();
  EXPECT_EQ(State(id), kPreparing);
}

TEST_F(DiskAdmissionTest, JobsThatFitOvertakeOnlyWhileNoTrainerRuns) {
  disk_.set_free(20 * kMiB);
  const std::string large = SubmitOf(16);
  disk_.set_free(6 * kMiB);  // a model was imported meanwhile
  const std::string small = SubmitOf(2);
  Settle();
  EXPECT_EQ(State(large), kQueued);
  EXPECT_EQ(State(small), kPreparing) << "no trainer ran whose end could make room for the large job";
  const std::string late = SubmitOf(2);
  Settle();
  EXPECT_EQ(State(late), kQueued) << "while a trainer runs, its end may make room";
  disk_.set_free(20 * kMiB);
  Settle();
  EXPECT_EQ(State(large), kPreparing);
  EXPECT_EQ(State(late), kPreparing);
  EXPECT_EQ(Warnings(large).size(), 1u);
  EXPECT_TRUE(Warnings(late).empty()) << "it waited for its turn, not for disk space";
}

TEST_F(DiskAdmissionTest, JobThatCanNeverFitLeavesCachedBasesAlone) {
  disk_.set_free(20 * kMiB);
  disk_.set_counted(state_->paths.bases());
  const std::string base = AddBase("a", 4, absl::Hours(1));
  const std::string id = SubmitOf(21, "large");
  EXPECT_EQ(State(id), kFailed);
  const auto job = controller_->Get(id);
  ASSERT_TRUE(job->error.has_value());
  EXPECT_EQ(job->error->reason, "DISK_FULL");
  EXPECT_EQ(job->error->metadata.at("need"), std::to_string(21 * kMiB));
  const std::int64_t have = std::stoll(job->error->metadata.at("have"));
  EXPECT_GE(have, 20 * kMiB) << "the base's space could be freed";
  EXPECT_LT(have, 21 * kMiB);
  EXPECT_TRUE(std::filesystem::exists(base));
  controller_->Tick();  // FAILED is visible a moment before the name is free again
  EXPECT_TRUE(state_->models->CheckFree("large").ok());
}

TEST_F(DiskAdmissionTest, StartRemovesOnlyAsManyCachedBasesAsItNeeds) {
  disk_.set_free(20 * kMiB);
  disk_.set_counted(state_->paths.bases());
  const std::string oldest = AddBase("a", 4, absl::Hours(3)), older = AddBase("b", 4, absl::Hours(2));
  const std::string young = AddBase("c", 4, absl::Hours(1));
  const std::string id = SubmitOf(10), behind = SubmitOf(1);  // 8 MiB are free
  EXPECT_EQ(State(id), kQueued);
  EXPECT_TRUE(std::filesystem::exists(oldest)) << "a plan removes nothing";
  controller_->Tick();
  // The bases may be removed while the tick runs; then it starts both jobs.
  EXPECT_TRUE(State(behind) == kQueued || State(id) == kPreparing) << "room is being made for the job before it";
  for (int i = 0; i < 2; ++i) controller_->Tick();
  EXPECT_EQ(State(id), kPreparing);
  EXPECT_EQ(State(behind), kPreparing);
  EXPECT_FALSE(std::filesystem::exists(oldest));
  EXPECT_TRUE(std::filesystem::exists(older) && std::filesystem::exists(young));
  EXPECT_TRUE(Warnings(id).empty()) << "it did not have to wait";

  // Removing all bases would not make room for this job.
  const std::string waits = SubmitOf(15);
  Settle();
  EXPECT_EQ(State(waits), kQueued);
  EXPECT_TRUE(std::filesystem::exists(older) && std::filesystem::exists(young));
  EXPECT_EQ(Warnings(waits).size(), 1u);
}

// nibbled trims its token cache in after_jobs.
TEST_F(DiskAdmissionTest, AfterJobsIsCalledAfterEachEndOfAJob) {  // T7
  Kill();
  std::atomic<int> calls{0};
  options_.after_jobs = [&] { ++calls; };
  Open();
  const std::string cancelled = SubmitOf(1);
  controller_->Tick();
  EXPECT_EQ(calls, 0) << "no job has ended";
  ASSERT_TRUE(controller_->Cancel(cancelled).ok());  // asks the trainer to stop
  controller_->Tick();
  EXPECT_EQ(calls, 0);
  machine_.Exit(Trainer(cancelled), kExitTempFail);
  controller_->Tick();
  EXPECT_EQ(State(cancelled), kCancelled);
  EXPECT_EQ(calls, 1);
  disk_.set_free(0);
  EXPECT_EQ(State(SubmitOf(1)), kFailed);
  controller_->Tick();
  EXPECT_EQ(calls, 2) << "a job whose plan is refused has ended too";
  Kill();
}

}  // namespace
}  // namespace nibble::jobs
