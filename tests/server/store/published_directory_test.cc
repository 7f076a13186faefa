#include "server/store/published_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/store/layout.h"
#include "tests/server/store/faulty_files.h"
#include "tests/server/store/real_files.h"
#include "tests/support/temp_directory.h"

namespace nibble::store {
namespace {

using nibble::testing::TempDirectory;
using ::testing::HasSubstr;

absl::StatusOr<Manifest> PublishTwoFiles(base::FileSystem& files, const std::string& target) {
  auto pending = PendingDirectory::Create(files, target);
  if (!pending.ok()) return pending.status();
  std::filesystem::create_directories(pending->path() + "/sub");
  WriteFile(pending->path() + "/a.bin", "alpha");
  WriteFile(pending->path() + "/sub/b.bin", std::string(3'000'000, 'b'));
  return pending->Commit();
}

TEST(PublishedDirectoryTest, CommittedFilesAreListedWithSizeAndHash) {
  TempDirectory temp;
  const auto manifest = PublishTwoFiles(Files(), temp / "m");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_EQ(manifest->files.size(), 2u);
  EXPECT_EQ(manifest->files[0].name, "a.bin");
  EXPECT_EQ(manifest->files[0].size, 5u);
  EXPECT_EQ(manifest->files[0].sha256, base::Sha256Hex("alpha"));
  EXPECT_EQ(manifest->files[1].name, "sub/b.bin");
  EXPECT_EQ(manifest->total_bytes(), 3'000'005u);
  EXPECT_EQ(Verify(Files(), temp / "m")->digest, manifest->digest);
}

TEST(PublishedDirectoryTest, AFileWithAKnownDigestIsNotReadAgain) {
  TempDirectory temp;
  auto pending = PendingDirectory::Create(Files(), temp / "m");
  ASSERT_TRUE(pending.ok());
  const std::string path = pending->path() + "/a.bin";
  base::WrittenDigests written;
  written.Opened(path);
  WriteFile(path, "alpha");
  written.Appended(path, "alphA");  // differs from the file, so the manifest shows which of the two was used
  written.Closed(path);
  const auto manifest = pending->Commit({}, written);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->files[0].sha256, base::Sha256Hex("alphA"));
  EXPECT_EQ(base::Reason(Verify(Files(), temp / "m").status()), "CHECKSUM_MISMATCH");
}

TEST(PublishedDirectoryTest, VerifyFindsFlippedBitAndCheckSizesFindsShortOrMissingFile) {
  TempDirectory temp;
  ASSERT_TRUE(PublishTwoFiles(Files(), temp / "m").ok());
  WriteFile(temp / "m/a.bin", "alphc");  // one bit of the last byte
  EXPECT_TRUE(CheckSizes(Files(), temp / "m").ok());
  const auto verified = Verify(Files(), temp / "m");
  EXPECT_EQ(verified.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(base::Reason(verified.status()), "CHECKSUM_MISMATCH");
  EXPECT_EQ(base::ReasonMetadata(verified.status())["file"], "a.bin");
  WriteFile(temp / "m/a.bin", "alph");
  EXPECT_EQ(CheckSizes(Files(), temp / "m").status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(temp / "m/a.bin");
  EXPECT_EQ(CheckSizes(Files(), temp / "m").status().code(), absl::StatusCode::kDataLoss);
}

// `cancelled` is called before each MiB that is read, because a file may have gigabytes.
TEST(PublishedDirectoryTest, CancelStopsReadingAndPublishesNothing) {
  TempDirectory temp;
  int asked = 0;
  int until = 2;
  const Cancelled cancelled = [&] { return ++asked > until; };
  {
    auto pending = PendingDirectory::Create(Files(), temp / "m");
    ASSERT_TRUE(pending.ok()) << pending.status();
    WriteFile(pending->path() + "/a.bin", std::string(3'000'000, 'a'));
    EXPECT_TRUE(absl::IsCancelled(pending->Commit(cancelled).status()));
    EXPECT_EQ(asked, 3);
  }
  EXPECT_TRUE(std::filesystem::is_empty(temp / "."));
  ASSERT_TRUE(PublishTwoFiles(Files(), temp / "m").ok());
  asked = 0;
  EXPECT_TRUE(absl::IsCancelled(Verify(Files(), temp / "m", cancelled).status()));
  EXPECT_EQ(asked, 3);
  until = 100;
  EXPECT_TRUE(Verify(Files(), temp / "m", cancelled).ok());
}

TEST(PublishedDirectoryTest, RejectsManifestWithUnsafeNamesOrMalformedText) {
  TempDirectory temp;
  std::filesystem::create_directories(temp / "m");
  const std::string sha(64, 'a');
  for (const std::string name : {"../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "manifest.json", "a/"}) {
    WriteFile(temp / "m/manifest.json",
              R"({"version":1,"files":[{"name":")" + name + R"(","size":1,"sha256":")" + sha + R"("}]})");
    const auto manifest = ReadManifest(Files(), temp / "m");
    EXPECT_EQ(manifest.status().code(), absl::StatusCode::kDataLoss) << name;
  }
  for (const char* text : {"", "[]", "{", R"({"version":2,"files":[]})", R"({"version":1,"files":[{}]})",
                           R"({"version":1,"files":[{"name":"a","size":-1,"sha256":"x"}]})"}) {
    WriteFile(temp / "m/manifest.json", text);
    const absl::Status status = ReadManifest(Files(), temp / "m").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_EQ(base::Reason(status), "MANIFEST_INVALID") << text;
  }
}

TEST(PublishedDirectoryTest, DroppingWithoutCommitLeavesNothing) {
  TempDirectory temp;
  {
    auto pending = PendingDirectory::Create(Files(), temp / "m");
    ASSERT_TRUE(pending.ok());
    WriteFile(pending->path() + "/a", "a");
  }
  EXPECT_TRUE(Files().List(temp.path())->empty());
}

TEST(PublishedDirectoryTest, ExistingTargetIsNotReplaced) {
  TempDirectory temp;
  ASSERT_TRUE(PublishTwoFiles(Files(), temp / "m").ok());
  EXPECT_EQ(PendingDirectory::Create(Files(), temp / "m").status().code(), absl::StatusCode::kAlreadyExists);
  auto late = PendingDirectory::Create(Files(), temp / "n");
  ASSERT_TRUE(late.ok());
  std::filesystem::create_directories(temp / "n");
  EXPECT_EQ(late->Commit().status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(PublishedDirectoryTest, LinksAreRefused) {
  TempDirectory temp;
  auto pending = PendingDirectory::Create(Files(), temp / "m");
  ASSERT_TRUE(pending.ok());
  std::filesystem::create_symlink("/etc/passwd", pending->path() + "/a");
  const auto manifest = pending->Commit();
  EXPECT_EQ(manifest.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(manifest.status().message()), HasSubstr("/a"));
}

// Readers see the whole directory or nothing, whichever disk operation fails.
TEST(PublishedDirectoryTest, FailureAtAnyOperationPublishesAllOrNothing) {
  int operations = 0;
  {
    TempDirectory temp;
    FaultyFiles counting(std::numeric_limits<int>::max());
    ASSERT_TRUE(PublishTwoFiles(counting, temp / "m").ok());
    operations = counting.operations();
  }
  ASSERT_GT(operations, 8);
  for (int fail_at = 1; fail_at <= operations; ++fail_at) {
    TempDirectory temp;
    FaultyFiles faulty(fail_at);
    const auto manifest = PublishTwoFiles(faulty, temp / "m");
    EXPECT_FALSE(manifest.ok()) << fail_at;
    const bool there = Verify(Files(), temp / "m").ok();
    // Only a failure of the last step, the sync after the rename, may leave a complete directory.
    if (fail_at < operations) {
      EXPECT_FALSE(there) << fail_at;
      EXPECT_FALSE(Files().Exists(temp / "m")) << fail_at;
    }
    ASSERT_TRUE(RemoveTemporaries(Files(), temp.path()).ok());
    const auto names = Files().List(temp.path());
    ASSERT_TRUE(names.ok());
    for (const std::string& name : *names) EXPECT_EQ(name, "m") << fail_at;
  }
}

TEST(LayoutTest, ParsesOnlyCheckpointNames) {
  EXPECT_EQ(CheckpointName(10), "step-00000010");
  EXPECT_EQ(CheckpointStep("step-00000010"), 10);
  EXPECT_EQ(CheckpointStep(CheckpointName(1'234'567'890)), 1'234'567'890);
  for (const char* bad : {"step-", "step-10", "step-0000001x", "xstep-00000010", "step-00000010.tmp.w-1"}) {
    EXPECT_EQ(CheckpointStep(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace nibble::store
