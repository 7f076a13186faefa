#include "server/store/base_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "server/base/ids.h"
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
  // When it was last used, in seconds since 1970.
  void SetUsed(const std::string& key, std::time_t when) {
    const struct timespec times[2] = {{when, 0}, {when, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (temp_ / "bases" + "/" + key).c_str(), times, 0), 0);
  }

  nibble::testing::TempDirectory temp_;
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

TEST_F(BaseCacheTest, DamagedEntryThatIsUsedElsewhereStays) {
  const auto used = Add(Cache(10), "a");
  std::fstream(temp_ / "bases/a/weights", std::ios::in | std::ios::out) << "x";
  EXPECT_EQ(Find("a"), nullptr);
  EXPECT_TRUE(There("a"));
  EXPECT_EQ(Begin(base::RealFileSystem(), "a").status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(BaseCacheTest, LeastRecentlyUsedIsRemovedFirstAndNoneInUse) {
  for (const char* key : {"a", "b", "c"}) Add(Cache(10), key);
  SetUsed("a", 100);
  SetUsed("b", 200);
  SetUsed("c", 300);
  const auto used = Find("a");  // now
  Add(Cache(3), "d");
  EXPECT_TRUE(There("a") && There("c") && There("d"));
  EXPECT_FALSE(There("b"));
  ASSERT_TRUE(Cache(0).Trim().ok());
  EXPECT_TRUE(There("a")) << "its user has it";
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

TEST_F(BaseCacheTest, DiskBelowItsWatermarkKeepsNone) {
  Add(Cache(10), "a");
  const BaseCache::Limits limits = {.max_bytes = kEntryBytes * 10, .min_free_bytes = std::uint64_t{1} << 62};
  ASSERT_TRUE(BaseCache(base::RealFileSystem(), temp_ / "bases", limits).Trim().ok());
  EXPECT_FALSE(There("a"));
}

TEST_F(BaseCacheTest, SecondMakerFindsTheFirst) {
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
    EXPECT_TRUE(entry != nullptr || !There("a")) << "what lies there is whole, or was removed";
    if (added) {
      EXPECT_NE(entry, nullptr);
      EXPECT_GT(number, 5);
      return;
    }
  }
}

}  // namespace
}  // namespace nibble::store
