#include "server/base/failpoint_files.h"

#include <gtest/gtest.h>

#include "server/base/error.h"
#include "tests/support/temp_directory.h"

namespace nibble::base {
namespace {

TEST(FailpointFilesTest, RejectsMalformedSpecs) {
  for (const char* spec : {"", ":", "a", "a:1", "a:0:before", "a:x:before", "a:1:later", ":1:before",
                           "a:1:", "a:1x:stop", "a:1:stop,", ",a:1:stop", "a:1:stop,b"}) {
    EXPECT_FALSE(MakeFailpointFiles(RealFileSystem(), spec).ok()) << spec;
  }
}

TEST(FailpointFilesTest, FullDiskStaysFullFromTheChosenOperationOn) {
  nibble::testing::TempDirectory temp;
  auto files = MakeFailpointFiles(RealFileSystem(), "data:3:full");
  ASSERT_TRUE(files.ok()) << files.status();
  auto file = (*files)->Create(temp / "data");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Append("1").ok());
  EXPECT_EQ((*file)->Append("2").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ((*file)->Sync().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE((*files)->Create(temp / "other").ok());
}

TEST(FailpointFilesTest, FailpointsCountTheirOperationsSeparately) {
  nibble::testing::TempDirectory temp;
  auto files = MakeFailpointFiles(RealFileSystem(), "first:3:full,second:2:full");
  ASSERT_TRUE(files.ok()) << files.status();
  auto first = (*files)->Create(temp / "first");
  auto second = (*files)->Create(temp / "second");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE((*first)->Append("1").ok());
  EXPECT_EQ(Reason((*second)->Append("1")), "DISK_FULL");
  EXPECT_EQ(Reason((*first)->Append("2")), "DISK_FULL");
}

}  // namespace
}  // namespace nibble::base
