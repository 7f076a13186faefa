#include "server/store/base_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "server/base/ids.h"
#include "server/store/disk_space.h"
#include "tests/server/store/faulty_files.h"
#include "tests/support/temp_directory.h"

namespace nibble::store {
namespace {

constexpr std::uint64_t kEntryBytes = 1000;

class BaseCacheTest : public ::testing::Test {
 protected:
  BaseCache Cache(std::uint64_t max_entries) {
    return {base::RealFileSystem(), temp_ / "bases", {.max_bytes = max_entries * kEntryBytes}};
  }

  absl::StatusOr<PendingDirectory> Begin(base::FileSystem& files, const std::string& key) {
    auto made = PendingDirectory::Create(files, temp_ / "bases" + "/" + key, base::TemporaryName(temp_ / "attempt"));
    if (made.ok()) std::ofstream(made->path() + "/weights") << std::string(kEntryBytes, 'w');
    return made;
  }
  std::unique_ptr<BaseCache::Entry> Add(BaseCache cache, const std::string& key) {
    auto made = Begin(base::RealFileSystem(), key);
    EXPECT_TRUE(made.ok()) << made.status();
    auto entry = cache.Add(key, *std::move(made));
    EXPECT_TRUE(entry.ok()) << entry.status();
    return *std::move(entry);
  }
  std::unique_ptr<BaseCache::Entry> Find(const std::string& key) {
    auto entry = Cache(10).Find(key);
    EXPECT_TRUE(entry.ok()) << entry.status();
    return *std::move(entry);
  }
  bool There(const std::string& key) const { return std::filesystem::exists(temp_ / "bases" + "/" + key); }
  // Sets the time of the last use, in seconds since 1970.
  void SetUsed(const std::string& key, std::time_t when) {
    const struct timespec times[2] = {{when, 0}, {when, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (temp_ / "bases" + "/" + key).c_str(), times, 0), 0);
  }

  nibble::testing::TempDirectory temp_;
  DiskWithRoom disk_{0};
};

TEST_F(BaseCacheTest, EntryIsFoundAgain) {
  EXPECT_EQ(Find("a"), nullptr);
  EXPECT_EQ(Add(Cache(10), "a")->path(), temp_ / "bases/a");
  const auto found = Find("a");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(std::filesystem::file_size(found->path() + "/weights"), kEntryBytes);
  EXPECT_EQ(Find("b"), nullptr);
}

TEST_F(BaseCacheTest, DamagedEntryIsRemoved) {
  Add(Cache(10), "a");
  std::fstream(temp_ / "bases/a/weights", std::ios::in | std::ios::out) << "x";  // of the same size
  EXPECT_EQ(Find("a"), nullptr);
  EXPECT_FALSE(There("a"));
  Add(Cache(10), "a");
  EXPECT_NE(Find("a"), nullptr);
  std::filesystem::remove(temp_ / "bases/a/manifest.json");
  EXPECT_EQ(Find("a"), nullptr);
  EXPECT_FALSE(There("a"));
}

TEST_F(BaseCacheTest, DamagedEntryInUseStays) {
  const auto used = Add(Cache(10), "a");
  std::fstream(temp_ / "bases/a/weights", std::ios::in | std::ios::out) << "x";
  EXPECT_EQ(Find("a"), nullptr);
  EXPECT_TRUE(There("a"));
  EXPECT_EQ(Begin(base::RealFileSystem(), "a").status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(BaseCacheTest, TrimRemovesLeastRecentlyUsedFirstAndNothingInUse) {
  for (const char* key : {"a", "b", "c"}) Add(Cache(10), key);
  SetUsed("a", 100);
  SetUsed("b", 200);
  SetUsed("c", 300);
  const auto used = Find("a");  // sets the time of its last use to now
  Add(Cache(3), "d");
  EXPECT_TRUE(There("a") && There("c") && There("d"));
  EXPECT_FALSE(There("b"));
  ASSERT_TRUE(Cache(0).Trim().ok());
  EXPECT_TRUE(There("a")) << "it is in use";
  EXPECT_FALSE(There("c") || There("d"));
}

TEST_F(BaseCacheTest, EntryLargerThanTheLimitStaysWhileItIsUsed) {
  auto entry = Add(Cache(0), "a");
  EXPECT_TRUE(There("a"));
  ASSERT_TRUE(Cache(0).Trim().ok());
  EXPECT_TRUE(There("a"));
  entry.reset();
  ASSERT_TRUE(Cache(0).Trim().ok());
  EXPECT_FALSE(There("a"));
}

TEST_F(BaseCacheTest, DiskBelowItsWatermarkKeepsNoEntry) {
  Add(Cache(10), "a");
  const BaseCache::Limits limits = {.max_bytes = kEntryBytes * 10, .min_free_bytes = std::uint64_t{1} << 62};
  ASSERT_TRUE(BaseCache(base::RealFileSystem(), temp_ / "bases", limits).Trim().ok());
  EXPECT_FALSE(There("a"));
}

TEST_F(BaseCacheTest, MakeRoomRemovesOnlyWhatIsNeeded) {
  for (const char* key : {"a", "b", "c"}) Add(Cache(10), key);
  SetUsed("a", 300);
  SetUsed("b", 100);
  SetUsed("c", 200);
  const std::uint64_t entry = OwnDirectoryBytes(temp_ / "bases/a"), all = Cache(10).ReclaimableBytes();
  ASSERT_GE(entry, kEntryBytes);
  EXPECT_EQ(all, 3 * entry);
  disk_.free = 1'000'000;
  const auto make_room = [this](std::uint64_t bytes) {
    const auto made = BaseCache(disk_, temp_ / "bases", {.min_free_bytes = 400'000}).MakeRoom(bytes);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() && *made;
  };
  EXPECT_TRUE(make_room(600'000));
  EXPECT_TRUE(There("a") && There("b") && There("c")) << "that much is already free";
  EXPECT_FALSE(make_room(600'000 + all + 1));
  EXPECT_TRUE(There("a") && There("b") && There("c")) << "removing all entries would not suffice";
  const auto used = Find("b");  // sets the time of its last use to now
  SetUsed("b", 100);
  EXPECT_FALSE(make_room(600'000 + all)) << "one is in use";
  EXPECT_EQ(Cache(10).ReclaimableBytes(), all) << "its user will end";
  EXPECT_TRUE(make_room(600'000 + entry));
  EXPECT_TRUE(There("a") && There("b"));
  EXPECT_FALSE(There("c")) << "the least recently used of those that no process uses";
}

TEST_F(BaseCacheTest, MakeRoomKeepsAnEntryWhoseFilesAModelShares) {
  Add(Cache(10), "shared");
  Add(Cache(10), "own");
  SetUsed("shared", 100);
  SetUsed("own", 200);
  std::filesystem::create_hard_link(temp_ / "bases/shared/weights", temp_ / "model");
  std::filesystem::create_hard_link(temp_ / "bases/shared/manifest.json", temp_ / "manifest");
  const std::uint64_t own = OwnDirectoryBytes(temp_ / "bases/own");
  EXPECT_EQ(Cache(10).ReclaimableBytes(), own);
  disk_.free = 0;
  BaseCache cache(disk_, temp_ / "bases", {});
  EXPECT_FALSE(*cache.MakeRoom(own + 1));
  EXPECT_TRUE(There("shared") && There("own"));
  EXPECT_TRUE(*cache.MakeRoom(own));
  EXPECT_TRUE(There("shared"));
  EXPECT_FALSE(There("own"));
}

// On XFS and Btrfs, a model shares the extents of a base's file. Elsewhere the clone below fails, and the number of
// bytes does not change.
TEST_F(BaseCacheTest, SharedExtentsAreNotCounted) {
  Add(Cache(10), "a");
  std::ofstream(temp_ / "bases/a/weights") << std::string(1 << 20, 'w');
  const std::uint64_t before = OwnDirectoryBytes(temp_ / "bases/a");
  EXPECT_GE(before, std::uint64_t{1} << 20);
  const int from = ::open((temp_ / "bases/a/weights").c_str(), O_RDONLY | O_CLOEXEC);
  const int to = ::open((temp_ / "model").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const bool shared = ::ioctl(to, FICLONE, from) == 0;
  ::close(from);
  ::close(to);
  const std::uint64_t after = OwnDirectoryBytes(temp_ / "bases/a");
  if (shared) {
    EXPECT_LT(after, std::uint64_t{64} << 10) << "only the manifest counts";
  } else {
    EXPECT_EQ(after, before);
  }
}

TEST_F(BaseCacheTest, SecondAddReturnsTheFirstEntry) {
  auto mine = Begin(base::RealFileSystem(), "a");
  ASSERT_TRUE(mine.ok()) << mine.status();
  const std::string temporary = mine->path();
  Add(Cache(10), "a");
  BaseCache cache = Cache(10);
  const auto entry = cache.Add("a", *std::move(mine));
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ((*entry)->path(), temp_ / "bases/a");
  EXPECT_FALSE(std::filesystem::exists(temporary));
}

TEST_F(BaseCacheTest, FailureAtAnyOperationPublishesAllOrNothing) {
  for (int number = 1;; ++number) {
    SCOPED_TRACE(number);
    ASSERT_LT(number, 100);
    std::filesystem::remove_all(temp_ / "bases");
    FaultyFiles files(number);
    BaseCache cache(files, temp_ / "bases", {.max_bytes = kEntryBytes * 10});
    auto made = Begin(files, "a");
    const bool added = made.ok() && cache.Add("a", *std::move(made)).ok();
    const auto entry = Find("a");
    EXPECT_TRUE(entry != nullptr || !There("a")) << "a remaining entry must be complete";
    if (added) {
      EXPECT_NE(entry, nullptr);
      EXPECT_GT(number, 5);
      return;
    }
  }
}

}  // namespace
}  // namespace nibble::store
