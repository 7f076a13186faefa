// Tests a log whose reader stalls, with a pipe as stderr (docs/faults.md, C12).
#include "server/base/log_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/base/json.h"
#include "server/base/log.h"

namespace nibble::base {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPipeBytes = 4096;

// Replaces stderr by a small pipe during its lifetime.
class Pipe {
 public:
  Pipe() : stderr_(::dup(2)) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    EXPECT_EQ(::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes), static_cast<int>(kPipeBytes));
    read_ = ends[0];
    ::dup2(ends[1], 2);
    ::close(ends[1]);
  }
  ~Pipe() {
    Restore();
    ::close(read_);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  // Closes the pipe's last writer, so that Read() returns.
  void Restore() {
    if (stderr_ < 0) return;
    ::dup2(stderr_, 2);
    ::close(stderr_);
    stderr_ = -1;
  }
  // Reads all lines up to the end of the pipe.
  std::vector<Json> Read() {
    std::string text;
    char bytes[1 << 14];
    for (ssize_t got = 0; (got = ::read(read_, bytes, sizeof bytes)) > 0;)
      text.append(bytes, static_cast<std::size_t>(got));
    std::vector<Json> lines;
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      auto line = ParseJson(text.substr(at, text.find('\n', at) - at));
      EXPECT_TRUE(line.ok()) << line.status();
      if (line.ok()) lines.push_back(*std::move(line));
    }
    return lines;
  }

 private:
  int stderr_;
  int read_ = -1;
};

TEST(LogWriterTest, DestructorWritesAllLinesInOrder) {
  Pipe pipe;
  std::vector<Json> lines;
  std::thread reader([&] { lines = pipe.Read(); });
  {
    LogWriter writer;
    for (int i = 0; i < 1000; ++i) LogInfo("line", {{"number", i}});
  }
  LogInfo("after");
  pipe.Restore();
  reader.join();
  ASSERT_EQ(lines.size(), 1001u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(lines[static_cast<std::size_t>(i)]["number"], i);
  EXPECT_EQ(lines.back()["message"], "after");
}

TEST(LogWriterTest, StalledReaderLosesLinesButBlocksNoCaller) {  // C12
  constexpr std::size_t kQueueBytes = 8192;
  const std::uint64_t before = LogLinesDropped();
  Pipe pipe;
  auto writer = std::make_unique<LogWriter>(kQueueBytes);
  const std::string text(100, 'x');
  constexpr int kLines = 2000;
  for (int i = 0; i < kLines; ++i) LogInfo("line", {{"text", text}});  // would block if the caller wrote its own lines
  EXPECT_FALSE(FlushLog(absl::ZeroDuration()));
  const std::uint64_t dropped = LogLinesDropped() - before;
  // The other lines, each longer than `text`, are in the pipe, in the queue, or with the writer, which took at most a
  // full queue. Twice as many are allowed.
  EXPECT_GT(dropped, kLines - 2 * (kPipeBytes + 2 * kQueueBytes) / text.size());
  LogWarning("urgent");
  EXPECT_EQ(LogLinesDropped() - before, dropped) << "the queue keeps room for warnings";

  std::vector<Json> lines;
  std::thread reader([&] { lines = pipe.Read(); });
  EXPECT_TRUE(FlushLog(absl::Minutes(1)));
  writer.reset();
  pipe.Restore();
  reader.join();
  // Several lines may report drops: the writer reports once each time it empties the queue.
  std::uint64_t reported = 0, notes = 0, urgent = 0;
  for (const Json& line : lines) {
    urgent += line["message"] == "urgent" ? 1 : 0;
    if (!line.contains("lines")) continue;
    EXPECT_THAT(line["message"].get<std::string>(), HasSubstr("dropped"));
    reported += line["lines"].get<std::uint64_t>();
    ++notes;
  }
  EXPECT_EQ(urgent, 1u);
  EXPECT_EQ(reported, dropped);
  EXPECT_EQ(lines.size(), kLines - dropped + 1 + notes);
}

TEST(LogWriterDeathTest, WritesFailedCheckBeforeAborting) {
  EXPECT_DEATH(
      {
        LogWriter writer;
        LogInfo("before");
        CHECK(1 + 1 == 3);
      },
      "before(.|\n)*broken invariant(.|\n)*1 \\+ 1 == 3");
}

// A program exits even if nothing reads its log.
TEST(LogWriterDeathTest, StalledReaderDoesNotBlockExit) {
  EXPECT_EXIT(
      {
        Pipe pipe;
        {
          LogWriter writer;
          for (int i = 0; i < 1000; ++i) LogInfo("line");
        }
        LogInfo("after");
        ::syscall(SYS_exit_group, 5);  // ThreadSanitizer's _exit flushes stderr, which waits for the stalled write
      },
      ::testing::ExitedWithCode(5), "");
}

}  // namespace
}  // namespace nibble::base
