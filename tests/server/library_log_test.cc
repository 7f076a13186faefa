#include "server/library_log.h"

#include <gmock/gmock.h>
#include <google/protobuf/wrappers.pb.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "server/base/json.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

class LibraryLogTest : public ::testing::Test {
 protected:
  LibraryLogTest() {
    LogLibraries();
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);  // as gRPC's own start does
    ::testing::internal::CaptureStderr();
  }
  // Lines since the test began.
  static std::vector<base::Json> Lines() {
    std::istringstream text(::testing::internal::GetCapturedStderr());
    std::vector<base::Json> lines;
    for (std::string line; std::getline(text, line);) {
      auto parsed = base::ParseJson(line);
      EXPECT_TRUE(parsed.ok()) << line;
      if (parsed.ok()) lines.push_back(*std::move(parsed));
    }
    return lines;
  }
};

TEST_F(LibraryLogTest, GrpcLineIsAJsonLineWithItsLevel) {
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_INFO);
  gpr_log("core/file.cc", 12, GPR_LOG_SEVERITY_ERROR, "bad \"frame\" %d\n", 7);
  gpr_log("core/file.cc", 13, GPR_LOG_SEVERITY_INFO, "fine");
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  gpr_log("core/file.cc", 14, GPR_LOG_SEVERITY_INFO, "below the verbosity");
  const std::vector<base::Json> lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["level"], "error");
  EXPECT_EQ(lines[0]["message"], "grpc");
  EXPECT_EQ(lines[0]["text"], "bad \"frame\" 7\n");
  EXPECT_EQ(lines[0]["file"], "core/file.cc");
  EXPECT_EQ(lines[0]["line"], 12);
  EXPECT_EQ(lines[1]["level"], "info");
}

TEST_F(LibraryLogTest, ProtobufLineIsAJsonLine) {
  google::protobuf::StringValue value;
  value.ParseFromString(std::string("\x0a\x01\xff", 3));  // the text is not UTF-8
  const std::vector<base::Json> lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["level"], "error");
  EXPECT_EQ(lines[0]["message"], "protobuf");
  EXPECT_THAT(lines[0]["text"].get<std::string>(), HasSubstr("invalid UTF-8"));
}

TEST_F(LibraryLogTest, FloodOfLongLinesIsCut) {
  const std::string text(10'000, 'x');
  for (int i = 0; i < 1000; ++i) gpr_log("f.cc", 1, GPR_LOG_SEVERITY_ERROR, "%s", text.c_str());
  const std::vector<base::Json> lines = Lines();
  EXPECT_GE(lines.size(), 10u) << "earlier tests of this process may have used up a part";
  EXPECT_LE(lines.size(), 60u) << "20 lines in each of at most three seconds";
  for (const base::Json& line : lines) EXPECT_EQ(line["text"].get<std::string>().size(), 512u);
}

}  // namespace
}  // namespace nibble
