// Texts of errors about a low disk. The sizes are for people; programs read the metadata.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/base/error.h"
#include "server/base/free_space.h"
#include "server/store/job_space.h"
#include "tests/server/store/faulty_files.h"
#include "tests/support/temp_directory.h"

namespace nibble::store {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(DiskSpaceTest, LowDiskNamesBothSizesAndTheFlag) {
  DiskWithRoom disk(11'862'175'744);
  const absl::Status refused = base::CheckSpace(disk, "/", 13'527'659'216);
  EXPECT_EQ(base::Reason(refused), "DISK_FULL");
  EXPECT_THAT(refused.message(), HasSubstr("only 11.0 GiB are free on the server's disk, and the server keeps 12.6 GiB "
                                           "free (--min_free_bytes; by default 5 % of the disk, at least 1 GiB)"));
  EXPECT_THAT(base::ReasonMetadata(refused),
              UnorderedElementsAre(Pair("free_bytes", "11862175744"), Pair("wanted_bytes", "13527659216")));
  disk.free = 13'527'659'216;
  EXPECT_TRUE(base::CheckSpace(disk, "/", 13'527'659'216).ok());
}

TEST(DiskSpaceTest, JobThatDoesNotFitNamesBothSizesAndTheFlag) {
  DiskWithRoom disk(std::uint64_t{5} << 30);
  const nibble::testing::TempDirectory directory;
  const StatePaths paths(directory.path());
  const absl::Status refused = CheckPlannedSpace(disk, paths, std::uint64_t{2} << 30, std::int64_t{20} << 30);
  EXPECT_THAT(refused.message(),
              HasSubstr("the job writes up to 20.0 GiB, the server's disk has room for 3.0 GiB above "
                        "the space that it keeps free (--min_free_bytes)"));
}

}  // namespace
}  // namespace nibble::store
