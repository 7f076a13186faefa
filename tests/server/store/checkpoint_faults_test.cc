// Checkpoints whose writer is killed at any operation (docs/faults.md, R5), or whose bytes change (R12).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "server/base/error.h"
#include "server/base/failpoint_files.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/store/checkpoints.h"
#include "server/store/layout.h"
#include "tests/support/temp_directory.h"

namespace nibble::store {
namespace {

absl::Status WriteFile(base::FileSystem& files, const std::string& path, const std::string& bytes) {
  NIBBLE_ASSIGN_OR_RETURN(auto file, files.Create(path));
  NIBBLE_RETURN_IF_ERROR(file->Append(bytes));
  NIBBLE_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

// Like the trainer: writes the tensors, writes a small file atomically, commits, then prunes older checkpoints.
absl::Status Save(base::FileSystem& files, const std::string& attempt, int step, const std::string& bytes) {
  NIBBLE_ASSIGN_OR_RETURN(auto pending, BeginCheckpoint(files, attempt, step));
  NIBBLE_RETURN_IF_ERROR(WriteFile(files, pending.path() + "/state.safetensors", bytes));
  NIBBLE_RETURN_IF_ERROR(base::WriteFileAtomically(files, pending.path() + "/state.json", "{}"));
  NIBBLE_RETURN_IF_ERROR(pending.Commit().status());
  return PruneCheckpoints(files, attempt, 2);
}

class CheckpointFaultsTest : public ::testing::TestWithParam<const char*> {
 protected:
  // True if the writer of step 3 was killed at operation `number`; false if it finished.
  bool KilledAt(int number) {
    // PART:N:ACTION (base/failpoint_files.h), for all paths of the attempt.
    const std::string spec = std::string("/1/:") + std::to_string(number) + ":" + GetParam();
    const pid_t child = ::fork();
    if (child == 0) {
      auto files = base::MakeFailpointFiles(base::RealFileSystem(), spec);
      ::_exit(files.ok() && Save(**files, Attempt(), 3, std::string(10'000, '3')).ok() ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
      EXPECT_EQ(WTERMSIG(status), SIGKILL);
      return true;
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
    return false;
  }
  std::string Attempt() const { return temp_ / "attempts/1"; }

  nibble::testing::TempDirectory temp_;
};

TEST_P(CheckpointFaultsTest, WriterKilledAtAnyOperationLeavesOnlyValidCheckpoints) {  // R5
  auto& files = base::RealFileSystem();
  for (int number = 1;; ++number) {
    SCOPED_TRACE(number);
    ASSERT_LT(number, 200);
    std::filesystem::remove_all(temp_ / "attempts");
    ASSERT_TRUE(files.CreateDirectories(Attempt() + "/checkpoints").ok());
    for (const int step : {1, 2}) ASSERT_TRUE(Save(files, Attempt(), step, "old " + std::to_string(step)).ok());
    const bool killed = KilledAt(number);
    ASSERT_TRUE(CollectAttempt(files, Attempt()).ok());
    const auto newest = FindNewestCheckpoint(files, temp_ / "attempts");
    ASSERT_TRUE(newest.ok() && newest->has_value());
    EXPECT_GE((*newest)->step, 2);
    const auto names = files.List(Attempt() + "/checkpoints");
    ASSERT_TRUE(names.ok());
    for (const std::string& name : *names) {
      EXPECT_FALSE(base::IsTemporaryName(name)) << name;
      EXPECT_TRUE(Verify(files, Attempt() + "/checkpoints/" + name).ok()) << name;
    }
    if (!killed) {
      EXPECT_EQ((*newest)->step, 3);
      EXPECT_GT(number, 10) << "a checkpoint takes more operations";
      return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kill, CheckpointFaultsTest, ::testing::Values("before", "after"),
                         [](const auto& info) { return std::string(info.param); });

TEST(CheckpointBitsTest, FlippedBitIsFoundAndPreviousCheckpointIsUsed) {  // R12
  nibble::testing::TempDirectory temp;
  auto& files = base::RealFileSystem();
  const std::string attempt = temp / "attempts/1";
  std::mt19937_64 random(7);
  std::string bytes(64 << 10, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  ASSERT_TRUE(files.CreateDirectories(attempt + "/checkpoints").ok());
  for (const int step : {1, 2}) ASSERT_TRUE(Save(files, attempt, step, bytes).ok());
  const std::string directory = attempt + "/checkpoints/" + CheckpointName(2);
  // Treats all files of the directory, including the manifest, as one range of bytes.
  std::vector<std::pair<std::string, std::uint64_t>> sizes;
  std::uint64_t total = 0;
  const auto names = files.List(directory);
  ASSERT_TRUE(names.ok());
  for (const std::string& name : *names) {
    sizes.emplace_back(directory + "/" + name, *files.Size(directory + "/" + name));
    total += sizes.back().second;
  }
  ASSERT_EQ(sizes.size(), 3u);
  for (int round = 0; round < 1000; ++round) {
    std::uint64_t at = random() % total;
    // Every fourth flip is in one of the two small files, which come first (manifest.json, state.json); random
    // positions would hardly hit them.
    if (round % 4 == 0) at = round % 8 == 0 ? random() % sizes[0].second : sizes[0].second + random() % sizes[1].second;
    std::size_t which = 0;
    while (at >= sizes[which].second) at -= sizes[which++].second;
    std::fstream file(sizes[which].first, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char old = static_cast<char>(file.get());
    const auto flip = [&](char byte) {
      file.seekp(static_cast<std::streamoff>(at));
      file.put(byte);
      file.flush();
    };
    flip(static_cast<char>(old ^ (1 << (random() % 8))));
    const absl::Status verified = Verify(files, directory).status();
    ASSERT_EQ(verified.code(), absl::StatusCode::kDataLoss) << sizes[which].first << " byte " << at << ": " << verified;
    std::vector<CheckpointInfo> damaged;
    const auto newest = FindNewestCheckpoint(files, temp / "attempts", &damaged);
    ASSERT_TRUE(newest.ok() && newest->has_value());
    EXPECT_EQ((*newest)->step, 1);
    ASSERT_EQ(damaged.size(), 1u);
    EXPECT_EQ(damaged[0].step, 2);
    flip(old);
  }
  EXPECT_TRUE(Verify(files, directory).ok());
}

TEST(CheckpointBitsTest, TruncationAtAnySizeIsFound) {  // R12
  nibble::testing::TempDirectory temp;
  auto& files = base::RealFileSystem();
  ASSERT_TRUE(files.CreateDirectories(temp / "1/checkpoints").ok());
  ASSERT_TRUE(Save(files, temp / "1", 1, std::string(500, 'x')).ok());
  const std::string directory = temp / "1/checkpoints/" + CheckpointName(1);
  for (const char* name : {"state.safetensors", "state.json", kManifestFile}) {
    const std::string path = directory + "/" + name, kept = temp / "kept";
    std::filesystem::copy_file(path, kept);
    for (std::uint64_t size = 0; size < *files.Size(kept); ++size) {
      std::filesystem::resize_file(path, size);
      EXPECT_EQ(Verify(files, directory).status().code(), absl::StatusCode::kDataLoss) << name << " " << size;
      std::filesystem::copy_file(kept, path, std::filesystem::copy_options::overwrite_existing);
    }
    std::filesystem::remove(kept);
  }
}

// A trainer on a node that does not answer (docs/faults.md, R30).
TEST(LostAttemptTest, TrainerThatLivesOnCannotWriteAndItsCheckpointsStay) {
  auto& files = base::RealFileSystem();
  const nibble::testing::TempDirectory temp;
  const std::string attempts = temp.path(), first = temp / "1";
  ASSERT_TRUE(files.CreateDirectories(first + "/checkpoints").ok());
  ASSERT_TRUE(Save(files, first, 1, "one").ok());
  EXPECT_FALSE(IsLost(files, first));
  for (int i = 0; i < 2; ++i) {  // the second call: by a server that starts after a kill
    const absl::Status lost = LoseAttempt(files, first);
    ASSERT_TRUE(lost.ok()) << lost;
    EXPECT_TRUE(IsLost(files, first));
    EXPECT_FALSE(Save(files, first, 2, "two").ok());
    EXPECT_FALSE(files.CreateDirectories(first + "/checkpoints").ok());
  }
  const auto newest = FindNewestCheckpoint(files, attempts);
  ASSERT_TRUE(newest.ok() && newest->has_value());
  EXPECT_EQ((*newest)->attempt, 1);
  EXPECT_EQ((*newest)->directory, first + ".lost/checkpoints/step-00000001");
  EXPECT_TRUE(CollectAttempts(files, attempts, 0).ok());
  EXPECT_EQ(ListAllCheckpoints(files, attempts)->size(), 1u);
  EXPECT_TRUE(CheckpointsKey(attempts).has_value());
  // A server was killed after the rename, before it wrote the file; meanwhile the trainer made the directory again.
  std::filesystem::remove(first);
  ASSERT_TRUE(files.CreateDirectories(first + "/checkpoints").ok());
  EXPECT_TRUE(LoseAttempt(files, first).ok());
  EXPECT_TRUE(std::filesystem::is_regular_file(first));
}

}  // namespace
}  // namespace nibble::store
