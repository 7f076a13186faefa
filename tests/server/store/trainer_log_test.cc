// The log of a trainer: parts, tails, and files that must not be read.
#include "server/store/trainer_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "server/base/error.h"
#include "server/store/checkpoints.h"
#include "tests/server/store/real_files.h"
#include "tests/support/temp_directory.h"

namespace nibble::store {
namespace {

using nibble::testing::TempDirectory;
using ::testing::HasSubstr;

class TrainerLogTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(paths_.attempt("job-1", 1)); }
  std::string File() const { return paths_.attempt("job-1", 1) + "/trainer.log"; }
  void Append(const std::string& text) const { std::ofstream(File(), std::ios::binary | std::ios::app) << text; }
  TrainerLog Log(std::int64_t attempt = 1) const { return {paths_, "job-1", attempt}; }
  // The last lines, as a reader receives them.
  std::string Tail(std::int64_t lines) const {
    const std::int64_t size = *Log().Size();
    const auto begin = Log().FindTail(size, lines);
    EXPECT_TRUE(begin.ok()) << begin.status();
    return begin.ok() ? *Log().Read(*begin, 1 << 20) : "";
  }
  static void ExpectNoAttempt(const absl::Status& status, const std::string& why) {
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_EQ(base::Reason(status), "ATTEMPT");
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }

  TempDirectory temp_;
  StatePaths paths_{temp_ / "state"};
};

TEST_F(TrainerLogTest, ReadReturnsTheBytesOfAGrowingLog) {
  Append(std::string("ab\0\xFF", 4));
  EXPECT_EQ(*Log().Size(), 4);
  EXPECT_EQ(*Log().Read(0, 3), std::string("ab\0", 3));
  EXPECT_EQ(*Log().Read(3, 100), "\xFF");
  EXPECT_EQ(*Log().Read(4, 100), "");
  EXPECT_EQ(*Log().Read(1000, 100), "");
  Append("cd");
  EXPECT_EQ(*Log().Read(4, 100), "cd");
}

TEST_F(TrainerLogTest, LogThatHasNotBegunIsEmpty) {
  EXPECT_EQ(*Log().Size(), 0);
  EXPECT_EQ(*Log().Read(0, 100), "");
  EXPECT_EQ(Tail(3), "");
}

TEST_F(TrainerLogTest, TailBeginsWithAWholeLine) {
  Append("one\ntwo\n\nfour\n");
  EXPECT_EQ(Tail(0), "");
  EXPECT_EQ(Tail(1), "four\n");
  EXPECT_EQ(Tail(2), "\nfour\n");
  EXPECT_EQ(Tail(4), "one\ntwo\n\nfour\n");
  EXPECT_EQ(Tail(1000), "one\ntwo\n\nfour\n");
  Append("five");
  EXPECT_EQ(Tail(1), "five") << "a line without an end is a line";
  EXPECT_EQ(Tail(2), "four\nfive");
}

// Each line is longer than a block (64 KiB) of the search for line ends.
TEST_F(TrainerLogTest, TailOfLongLinesIsFound) {
  const std::string line(100'000, 'x');
  Append(line + "\n" + line + "\n" + line + "\n");
  EXPECT_EQ(Tail(1), line + "\n");
  EXPECT_EQ(Tail(2), line + "\n" + line + "\n");
  EXPECT_EQ(*Log().FindTail(*Log().Size(), 3), 0);
}

TEST_F(TrainerLogTest, TailIsSearchedInABoundedPart) {
  Append("line\n");
  std::filesystem::resize_file(File(), kMaxTailBytes + 100);  // zeros
  EXPECT_EQ(*Log().FindTail(kMaxTailBytes + 100, 1), 100);
}

TEST_F(TrainerLogTest, LogOfALostAttemptIsRead) {
  Append("before");
  ASSERT_TRUE(LoseAttempt(Files(), paths_.attempt("job-1", 1)).ok());
  EXPECT_FALSE(std::filesystem::is_directory(paths_.attempt("job-1", 1)));
  EXPECT_EQ(*Log().Read(0, 100), "before");
  EXPECT_EQ(*Log().Size(), 6);
}

TEST_F(TrainerLogTest, AttemptWithoutFilesIsNotFound) {
  ExpectNoAttempt(Log(2).Size().status(), "attempt 2 of job job-1 has no files");
  std::filesystem::remove_all(paths_.job("job-1"));
  ExpectNoAttempt(Log().Read(0, 100).status(), "has no files");
}

// The trainer may write in its folder: no link may lead the server to another file.
TEST_F(TrainerLogTest, LinksAndSpecialFilesAreNotRead) {
  std::ofstream(temp_ / "secret") << "secret";
  std::filesystem::create_symlink(temp_ / "secret", File());
  ExpectNoAttempt(Log().Read(0, 100).status(), "not a regular file");
  std::filesystem::remove(File());
  ASSERT_EQ(mkfifo(File().c_str(), 0600), 0);
  ExpectNoAttempt(Log().Read(0, 100).status(), "not a regular file");
  std::filesystem::remove(File());
  Append("text");

  const std::string attempt = paths_.attempt("job-1", 1), elsewhere = temp_ / "elsewhere";
  std::filesystem::rename(attempt, elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, attempt);
  ExpectNoAttempt(Log().Size().status(), "has no files");
  std::filesystem::remove(attempt);
  std::filesystem::rename(elsewhere, attempt);
  EXPECT_EQ(*Log().Read(0, 100), "text");
  std::filesystem::rename(paths_.attempts("job-1"), elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, paths_.attempts("job-1"));
  ExpectNoAttempt(Log().Size().status(), "has no files");
}

}  // namespace
}  // namespace nibble::store
