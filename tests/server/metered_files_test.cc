#include "server/metered_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/base/files.h"
#include "tests/server/store/faulty_files.h"
#include "tests/support/temp_directory.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MeteredFilesTest : public ::testing::Test {
 protected:
  telemetry::Metrics metrics_{{}, {}};
  const testing::TempDirectory directory_;
  const std::string path_ = directory_ / "file";
};

TEST_F(MeteredFilesTest, TimesOperationsAndCountsNoFaultForACallersMistake) {
  MeteredFiles files(base::RealFileSystem(), metrics_, base::RealClock());
  ASSERT_TRUE(base::WriteFileAtomically(files, path_, "text").ok());
  EXPECT_EQ(files.Read(path_, 10).value_or(""), "text");
  EXPECT_FALSE(files.Read(path_ + "_not_there", 10).ok());
  EXPECT_FALSE(files.Read(path_, 2).ok()) << "the file is larger";
  const std::string scrape = metrics_.Scrape();
  EXPECT_THAT(scrape, HasSubstr("nibble_store_op_duration_seconds_count{backend=\"file\",op=\"rename\"} 1\n"));
  EXPECT_THAT(scrape, HasSubstr("nibble_store_op_duration_seconds_count{backend=\"file\",op=\"sync\"} 1\n"));
  EXPECT_THAT(scrape, HasSubstr("nibble_store_op_duration_seconds_count{backend=\"file\",op=\"read\"} 3\n"));
  EXPECT_THAT(scrape, HasSubstr("nibble_store_errors_total{backend=\"file\",reason=\"DISK_FULL\"} 0\n"));
  EXPECT_THAT(scrape, Not(HasSubstr("nibble_store_errors_total{backend=\"file\",reason=\"NOT_FOUND\"")));
  EXPECT_THAT(scrape, Not(HasSubstr("nibble_store_errors_total{backend=\"file\",reason=\"INVALID_ARGUMENT\"")));
}

TEST_F(MeteredFilesTest, CountsFaultsOfTheDisk) {
  store::FaultyFiles faulty(/*fail_at=*/2);  // the append, after the open
  MeteredFiles files(faulty, metrics_, base::RealClock());
  EXPECT_FALSE(base::WriteFileAtomically(files, path_, "text").ok());
  EXPECT_THAT(metrics_.Scrape(), HasSubstr("nibble_store_errors_total{backend=\"file\",reason=\"INTERNAL\"} 1\n"));
}

}  // namespace
}  // namespace nibble
