#include "server/base/written_digests.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "server/base/files.h"
#include "server/base/sha256.h"
#include "tests/support/temp_directory.h"

namespace nibble::base {
namespace {

class WrittenDigestsTest : public ::testing::Test {
 protected:
  void Write(const std::string& bytes, bool append = false) {
    auto file = append ? RealFileSystem().OpenForAppend(path_) : RealFileSystem().Create(path_);
    ASSERT_TRUE(file.ok());
    digests_.Opened(path_);
    for (const char byte : bytes) {
      ASSERT_TRUE((*file)->Append(std::string_view(&byte, 1)).ok());
      digests_.Appended(path_, std::string_view(&byte, 1));
    }
    ASSERT_TRUE((*file)->Close().ok());
    digests_.Closed(path_);
  }

  nibble::testing::TempDirectory directory_;
  const std::string path_ = directory_.path() + "/weights";
  WrittenDigests digests_;
};

TEST_F(WrittenDigestsTest, FindsTheDigestOfAWrittenFile) {
  Write("some weights");
  const auto found = digests_.Find(path_);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->size, 12u);
  EXPECT_EQ(found->sha256, Sha256Hex("some weights"));
}

TEST_F(WrittenDigestsTest, FindsTheDigestOfAnEmptyFile) {
  Write("");
  ASSERT_TRUE(digests_.Find(path_).has_value());
  EXPECT_EQ(digests_.Find(path_)->sha256, Sha256Hex(""));
}

TEST_F(WrittenDigestsTest, FindsTheLastDigestOfAFileThatIsWrittenAgain) {
  Write("first");
  Write("second");
  EXPECT_EQ(digests_.Find(path_)->sha256, Sha256Hex("second"));
}

TEST_F(WrittenDigestsTest, FindsNothingForAFileThatHadBytesBefore) {
  std::ofstream(path_) << "before";
  Write("after", /*append=*/true);
  EXPECT_FALSE(digests_.Find(path_).has_value());
}

TEST_F(WrittenDigestsTest, FindsNothingForAFileThatIsStillOpenOrMissing) {
  EXPECT_FALSE(digests_.Find(path_).has_value());
  digests_.Opened(path_);
  digests_.Appended(path_, "x");
  std::ofstream(path_) << "x";
  EXPECT_FALSE(digests_.Find(path_).has_value());
}

TEST_F(WrittenDigestsTest, FindsNothingForAFileReplacedByOneOfTheSameSize) {
  Write("some weights");
  std::ofstream(path_ + ".new") << "SOME WEIGHTS";
  ASSERT_TRUE(RealFileSystem().Rename(path_ + ".new", path_).ok());
  EXPECT_FALSE(digests_.Find(path_).has_value());
}

TEST_F(WrittenDigestsTest, FindsNothingForAFileChangedInPlace) {
  Write("some weights");
  std::ofstream(path_, std::ios::in | std::ios::out) << "S";
  const timespec times[2] = {{1, 0}, {1, 0}};  // another time of the last write, whatever the clock's resolution
  ASSERT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  EXPECT_FALSE(digests_.Find(path_).has_value());
}

}  // namespace
}  // namespace nibble::base
