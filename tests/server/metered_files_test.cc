#include "server/metered_files.h"

#include <gmock/gmock.h>

#include "tests/server/store/faulty_files.h"
#include "tests/support/temp_directory.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MeteredFilesTest, OperationsAreTimedAndFaultsCounted) {
  telemetry::Metrics metrics({"1", "", "none"}, {});
  const testing::TempDirectory directory;
  const std::string path = directory / "file";
  {
    MeteredFiles files(base::RealFileSystem(), metrics, base::RealClock());
    ASSERT_TRUE(base::WriteFileAtomically(files, path, "text").ok());
    EXPECT_EQ(files.Read(path, 10).value_or(""), "text");
    EXPECT_FALSE(files.Read(path + "_not_there", 10).ok());
    EXPECT_FALSE(files.Read(path, 2).ok());
  }
  std::string scrape = metrics.Scrape();
  EXPECT_THAT(scrape, HasSubstr("nibble_store_op_duration_seconds_count{backend=\"file\",op=\"rename\"} 1\n"));
  EXPECT_THAT(scrape, HasSubstr("nibble_store_op_duration_seconds_count{backend=\"file\",op=\"sync\"} 1\n"));
  EXPECT_THAT(scrape, HasSubstr("nibble_store_op_duration_seconds_count{backend=\"file\",op=\"read\"} 3\n"));
  // A caller's mistake is not a fault of the disk.
  EXPECT_THAT(scrape, HasSubstr("nibble_store_errors_total{backend=\"file\",reason=\"DISK_FULL\"} 0\n"));
  EXPECT_THAT(scrape, Not(HasSubstr("reason=\"NOT_FOUND\"")));

  store::FaultyFiles faulty(/*fail_at=*/2);
  MeteredFiles files(faulty, metrics, base::RealClock());
  EXPECT_FALSE(base::WriteFileAtomically(files, path, "text").ok());
  EXPECT_THAT(metrics.Scrape(), HasSubstr("nibble_store_errors_total{backend=\"file\",reason=\"INTERNAL\"}"));
}

}  // namespace
}  // namespace nibble
