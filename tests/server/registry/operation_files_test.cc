#include "server/registry/operation_files.h"

#include <gmock/gmock.h>

#include <limits>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "tests/support/temp_directory.h"

namespace nibble::registry {
namespace {

class StoppableScope : public OperationScope {
 public:
  void Progress(const std::string&, std::int64_t, std::int64_t) override {}
  bool cancelled() const override { return cancelled_; }
  base::CancelToken cancel() const override { return {}; }
  OperationIdentity identity() const override { return {}; }
  void Hold(std::shared_ptr<const void>, absl::Duration) override {}
  bool cancelled_ = false;
};

TEST(OperationFilesTest, ACancelledOperationWritesNoMore) {
  const testing::TempDirectory directory;
  StoppableScope scope;
  OperationFiles files(base::RealFileSystem(), scope, /*min_free_bytes=*/1);
  const auto file = files.Create(directory / "tensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Append("one").ok());
  scope.cancelled_ = true;
  EXPECT_TRUE(absl::IsCancelled((*file)->Append("two")));
  EXPECT_TRUE((*file)->Close().ok());
  EXPECT_EQ(files.Read(directory / "tensors", 100).value_or(""), "one");
  EXPECT_TRUE(files.RemoveAll(directory / "tensors").ok()) << "unfinished files can be removed";
}

TEST(OperationFilesTest, NothingIsWrittenBelowTheWatermark) {
  const testing::TempDirectory directory;
  const StoppableScope scope;
  OperationFiles files(base::RealFileSystem(), scope, std::numeric_limits<std::uint64_t>::max());
  const auto file = files.Create(directory / "tensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(base::Reason((*file)->Append("one")), "DISK_FULL");
  EXPECT_EQ(files.Read(directory / "tensors", 100).value_or("none"), "");
}

TEST(OperationFilesTest, FilesHaveTheirDigestsOnceTheyAreWritten) {
  const testing::TempDirectory directory;
  const StoppableScope scope;
  OperationFiles files(base::RealFileSystem(), scope, 1);
  const auto file = files.Create(directory / "tensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Append("one").ok());
  EXPECT_TRUE((*file)->Append("two").ok());
  EXPECT_FALSE(files.digests().Find(directory / "tensors").has_value());
  EXPECT_TRUE((*file)->Close().ok());
  ASSERT_TRUE(files.digests().Find(directory / "tensors").has_value());
  EXPECT_EQ(files.digests().Find(directory / "tensors")->sha256, base::Sha256Hex("onetwo"));
}

TEST(OperationFilesTest, AFileThatIsReplacedHasNoDigest) {
  const testing::TempDirectory directory;
  const StoppableScope scope;
  OperationFiles files(base::RealFileSystem(), scope, 1);
  const auto file = files.Create(directory / "info");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Append("before").ok());
  EXPECT_TRUE((*file)->Close().ok());
  ASSERT_TRUE(base::WriteFileAtomically(base::RealFileSystem(), directory / "info", "after.").ok());
  EXPECT_FALSE(files.digests().Find(directory / "info").has_value());
}

}  // namespace
}  // namespace nibble::registry
