#include "server/limits.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/temp_directory.h"

namespace nibble {
namespace {


// ops.md 4: the defaults, and every one of them a flag.
TEST(LimitsTest, DefaultsAreThoseOfTheTable) {
  const Limits l;
  EXPECT_EQ(l.max_receive_bytes, 4 << 20);
  EXPECT_EQ(l.max_send_bytes, 16 << 20);
  EXPECT_EQ(l.max_concurrent_streams, 100);
  EXPECT_EQ(l.max_metadata_bytes, 8 << 10);
  EXPECT_EQ(l.max_connections, 512);
  EXPECT_EQ(l.rpc_memory_bytes, 256 << 20);
  EXPECT_EQ(l.max_rpc_threads, 64);
  EXPECT_EQ(l.handshake_timeout_s, 10);
  EXPECT_EQ(l.keepalive_time_s, 60);
  EXPECT_EQ(l.keepalive_timeout_s, 20);
  EXPECT_EQ(l.min_ping_interval_s, 10);
  EXPECT_EQ(l.max_ping_strikes, 2);
  EXPECT_EQ(l.max_connection_age_s, 1800);
  EXPECT_EQ(l.max_connection_age_grace_s, 60);
  EXPECT_EQ(l.max_connection_idle_s, 900);
  EXPECT_EQ(l.default_deadline_s, 30);
  EXPECT_EQ(l.max_stream_age_s, 3600);
  EXPECT_EQ(l.max_stream_messages, 10'000);
  EXPECT_EQ(l.max_dataset_bytes, 1 << 30);
  EXPECT_EQ(l.max_queued_jobs, 1000);
}

TEST(LimitsTest, EveryFlagIsTakenAndShownWithNothingLeftOver) {
  Limits l;
  CLI::App cli;
  AddLimitFlags(cli, l);
  std::vector<std::string> arguments;
  int number = 1;
  for (const CLI::Option* option : cli.get_options([](const CLI::Option* o) { return o->get_name() != "--help"; })) {
    arguments.push_back(option->get_name() + "=" + std::to_string(++number));
    EXPECT_FALSE(option->get_description().empty()) << option->get_name();
  }
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes a vector from its end
  cli.parse(arguments);
  // In the order in which they were added; a flag that is forgotten or doubled shifts all that follow.
  EXPECT_EQ(l.max_receive_bytes, 2);
  EXPECT_EQ(l.handshake_timeout_s, 9);
  EXPECT_EQ(l.max_connection_idle_s, 16);
  EXPECT_EQ(l.max_stream_messages, 20);
  EXPECT_EQ(l.min_free_bytes, 23);
  EXPECT_EQ(l.max_queued_jobs, 24);
  EXPECT_EQ(l.pause_grace_s, number);
}

TEST(LimitsTest, ValuesOutOfRangeAreRefused) {
  for (const char* wrong : {"--max_receive_bytes=0", "--workers=65", "--handshake_timeout_s=-1", "--min_free_bytes=-2",
                            "--max_running_jobs=0", "--retry_backoff_scale=-1", "--max_retries=x"}) {
    Limits l;
    CLI::App cli;
    AddLimitFlags(cli, l);
    EXPECT_THROW(cli.parse(std::vector<std::string>{wrong}), CLI::ValidationError) << wrong;
  }
}

class MemoryTest : public ::testing::Test {
 protected:
  void Put(const std::string& name, const std::string& text) {
    const std::string path = temp_ / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
  }
  std::int64_t Bytes() {
    const auto bytes = MachineMemoryBytes(base::RealFileSystem(), temp_.path());
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.ok() ? *bytes : -1;
  }
  nibble::testing::TempDirectory temp_;
};

TEST_F(MemoryTest, SmallestBoundOfMachineAndCgroupCounts) {
  EXPECT_FALSE(MachineMemoryBytes(base::RealFileSystem(), temp_.path()).ok());
  Put("proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\n");
  EXPECT_EQ(Bytes(), 16'000'000LL * 1024);
  Put("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(Bytes(), 16'000'000LL * 1024);
  Put("sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(Bytes(), 1 << 30);
  Put("sys/fs/cgroup/memory.max", "max\n");
  Put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // v1: no limit
  EXPECT_EQ(Bytes(), 16'000'000LL * 1024);
  Put("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
  EXPECT_EQ(Bytes(), 512 << 20);
}

TEST(LimitsMemoryTest, FlagWinsOverTheMachine) {
  Limits l;
  EXPECT_GT(TrainMemoryBytes(l, base::RealFileSystem()), 1 << 28);
  l.train_memory_bytes = 12345;
  EXPECT_EQ(TrainMemoryBytes(l, base::RealFileSystem()), 12345);
}

}  // namespace
}  // namespace nibble
