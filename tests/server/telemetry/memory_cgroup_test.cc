#include "server/telemetry/memory_cgroup.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_directory.h"

namespace nibble::telemetry {
namespace {

class MemoryCgroupTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + "/" + path).parent_path());
    std::ofstream(root_ + "/" + path) << text;
  }
  std::optional<std::uint64_t> Read() { return ReadOomKills(root_ + "/proc", root_ + "/fs"); }

  const nibble::testing::TempDirectory directory_;
  const std::string& root_ = directory_.path();
};

TEST_F(MemoryCgroupTest, ReadsVersion2) {
  Write("proc", "0::/kubepods/pod1\n");
  Write("fs/kubepods/pod1/memory.events", "low 0\nhigh 4\nmax 9\noom 3\noom_kill 2\noom_group_kill 1\n");
  EXPECT_EQ(Read(), 2u);
}

TEST_F(MemoryCgroupTest, ReadsVersion2WhenAContainerSeesItsGroupAsTheRoot) {
  Write("proc", "0::/\n");
  Write("fs/memory.events", "oom 0\noom_kill 5\n");
  EXPECT_EQ(Read(), 5u);
}

TEST_F(MemoryCgroupTest, ReadsVersion1) {
  Write("proc", "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n");
  Write("fs/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
  EXPECT_EQ(Read(), 7u);
}

TEST_F(MemoryCgroupTest, ReadsVersion1WhenAContainerSeesTheHostsPath) {
  Write("proc", "4:memory:/docker/0123\n");
  Write("fs/memory/memory.oom_control", "oom_kill 1\n");
  EXPECT_EQ(Read(), 1u);
}

TEST_F(MemoryCgroupTest, ReturnsNothingIfTheSystemReportsNoCount) {
  EXPECT_EQ(Read(), std::nullopt);
  Write("proc", "4:memoryless:/x\nnonsense\n0::/\n");
  EXPECT_EQ(Read(), std::nullopt);
  Write("fs/memory.events", "oom_kill many\n");
  EXPECT_EQ(Read(), std::nullopt);
}

TEST_F(MemoryCgroupTest, CountIsNamedAfterItsGroupAndBoot) {
  const OomPaths paths{root_ + "/proc", root_ + "/fs", root_ + "/vmstat", root_ + "/boot"};
  Write("proc", "0::/pod1\n");
  Write("fs/pod1/memory.events", "oom 3\noom_kill 2\n");
  EXPECT_FALSE(ReadNamedOomKills(paths).has_value()) << "without a boot id";
  Write("boot", "0123-45\n");
  const auto first = ReadNamedOomKills(paths);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->kills, 2u);
  EXPECT_EQ(ReadNamedOomKills(paths)->group, first->group);
  std::filesystem::create_directories(root_ + "/other");
  std::ofstream(root_ + "/other/memory.events") << "oom_kill 2\n";
  std::filesystem::rename(root_ + "/other/memory.events", root_ + "/fs/pod1/memory.events");
  EXPECT_NE(ReadNamedOomKills(paths)->group, first->group) << "another group with the same path";
  Write("boot", "0123-46\n");
  EXPECT_NE(ReadNamedOomKills(paths)->group, first->group);
}

TEST_F(MemoryCgroupTest, CountsTheWholeMachineWithoutAGroup) {
  const OomPaths paths{root_ + "/proc", root_ + "/fs", root_ + "/vmstat", root_ + "/boot"};
  Write("boot", "0123-45\n");
  EXPECT_FALSE(ReadNamedOomKills(paths).has_value());
  Write("vmstat", "nr_free_pages 17\noom_kill 4\n");
  ASSERT_TRUE(ReadNamedOomKills(paths).has_value());
  EXPECT_EQ(ReadNamedOomKills(paths)->kills, 4u);
}

}  // namespace
}  // namespace nibble::telemetry
