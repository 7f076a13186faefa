#include "server/store/files_key.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "server/store/checkpoints.h"
#include "tests/support/temp_directory.h"

namespace nibble::store {
namespace {

void Write(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << bytes;
}

class FilesKeyTest : public ::testing::Test {
 protected:
  testing::TempDirectory temp_;
  const std::filesystem::path folder_ = temp_ / "folder";
};

TEST_F(FilesKeyTest, ChangesWithEveryFile) {
  EXPECT_EQ(FilesKey(folder_), "") << "the directory does not exist";
  std::vector<std::optional<std::string>> keys;
  const auto look = [&] {
    keys.push_back(FilesKey(folder_));
    ASSERT_TRUE(keys.back().has_value());
    EXPECT_EQ(FilesKey(folder_), keys.back());
    for (std::size_t i = 0; i + 1 < keys.size(); ++i) EXPECT_NE(keys[i], keys.back()) << i;
  };
  Write(folder_ / "a", "1");
  look();
  Write(folder_ / "below/b", "2");
  look();
  Write(folder_ / "a", "12");
  look();
  std::filesystem::last_write_time(folder_ / "a",
                                   std::filesystem::last_write_time(folder_ / "a") - std::chrono::nanoseconds(1));
  look();
  std::filesystem::rename(folder_ / "a", folder_ / "c");
  look();
  std::filesystem::remove(folder_ / "c");
  look();
  std::filesystem::create_directory_symlink("..", folder_ / "below/up");
  look();
}

TEST_F(FilesKeyTest, IsAbsentIfAFileCannotBeRead) {
  std::filesystem::create_directories(folder_);
  std::filesystem::create_symlink("nowhere", folder_ / "broken");
  EXPECT_EQ(FilesKey(folder_), std::nullopt);
  Write(folder_ / "file", "");
  EXPECT_EQ(FilesKey(folder_ / "file"), std::nullopt) << "not a directory";
}

TEST_F(FilesKeyTest, CheckpointsOfAllAttemptsCountAndOtherFilesDoNot) {
  Write(folder_ / "1/checkpoints/step-00000001/metrics.json", "{}");
  const auto first = CheckpointsKey(folder_);
  ASSERT_TRUE(first.has_value());
  Write(folder_ / "1/journal", "grows");
  EXPECT_EQ(CheckpointsKey(folder_), first);
  Write(folder_ / "2/checkpoints/step-00000001/metrics.json", "{}");
  const auto second = CheckpointsKey(folder_);
  ASSERT_TRUE(second.has_value());
  EXPECT_NE(second, first);
  std::filesystem::rename(folder_ / "2", folder_ / "3");
  const auto renamed = CheckpointsKey(folder_);
  ASSERT_TRUE(renamed.has_value());
  EXPECT_NE(renamed, second);
  std::filesystem::create_symlink("nowhere", folder_ / "1/checkpoints/broken");
  EXPECT_EQ(CheckpointsKey(folder_), std::nullopt);
}

}  // namespace
}  // namespace nibble::store
