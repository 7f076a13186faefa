#include "server/report_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "server/app_flags.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_directory.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ReportFlagsTest : public ::testing::Test {
 protected:
  std::string Refusal() const {
    const absl::Status status = CheckFlags(options_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
  void SetTls() {
    testing::MakeAuthority(temp_ / "ca");
    testing::MakeCertificate(temp_ / "server", temp_ / "ca", "DNS:localhost");
    options_.security.tls_cert = temp_ / "server.crt";
    options_.security.tls_key = temp_ / "server.key";
  }

  testing::TempDirectory temp_;
  AppOptions options_;
};

TEST_F(ReportFlagsTest, OtherFlagsRequireTheAddress) {
  EXPECT_TRUE(CheckFlags(options_).ok());
  options_.report.target = "nibble.ml.svc:50052";
  EXPECT_THAT(Refusal(), StartsWith("--report_target: requires --report_address"));
  options_.report = {"", "", "/ca.crt"};
  EXPECT_THAT(Refusal(), StartsWith("--report_ca: requires --report_address"));
}

TEST_F(ReportFlagsTest, PlaintextIsForLoopbackUnlessInsecure) {
  options_.report.address = "127.0.0.1:0";
  EXPECT_TRUE(CheckFlags(options_).ok());
  options_.report.address = "10.0.0.1:50052";
  EXPECT_THAT(Refusal(), HasSubstr("10.0.0.1 is not a loopback address: wanted --tls_cert, --tls_key and --report_ca"));
  options_.security.insecure = true;
  EXPECT_TRUE(CheckFlags(options_).ok());
  options_.report.ca = "/ca.crt";
  EXPECT_THAT(Refusal(), StartsWith("--report_ca: requires --tls_cert"));
  options_.report = {"nonsense", "", ""};
  EXPECT_THAT(Refusal(), StartsWith("--report_address: \"nonsense\" has no port"));
}

TEST_F(ReportFlagsTest, TrainersMustBeAbleToDialTheTarget) {
  options_.security.insecure = true;
  for (const char* any : {"0.0.0.0:50052", "[::]:50052"}) {
    options_.report = {any, "", ""};
    EXPECT_THAT(Refusal(), StartsWith("--report_target: wanted the HOST:PORT that trainers dial")) << any;
    options_.report.target = any;
    EXPECT_THAT(Refusal(), StartsWith("--report_target: ")) << any;
    options_.report.target = "nibble.ml.svc:0";
    EXPECT_THAT(Refusal(), StartsWith("--report_target: has port 0")) << any;
    options_.report.target = "nibble.ml.svc:50052";
    EXPECT_TRUE(CheckFlags(options_).ok()) << any;
    EXPECT_EQ(ReportTarget(options_, 1), "nibble.ml.svc:50052");
  }
  options_.report = {"[fd00::1]:0", "", ""};
  EXPECT_EQ(ReportTarget(options_, 1234), "[fd00::1]:1234");
}

TEST_F(ReportFlagsTest, TlsRequiresAFileOfAuthorities) {
  SetTls();
  options_.report.address = "127.0.0.1:0";
  EXPECT_THAT(Refusal(), StartsWith("--report_ca: wanted the PEM file"));
  options_.report.ca = temp_ / "absent.crt";
  EXPECT_THAT(Refusal(), StartsWith("--report_ca: "));
  options_.report.ca = temp_ / "server.key";
  EXPECT_THAT(Refusal(), HasSubstr("contains no PEM certificate"));
  std::ofstream(temp_ / "large.crt") << testing::FileText(temp_ / "ca.crt") << std::string(1 << 20, '#');
  options_.report.ca = temp_ / "large.crt";
  EXPECT_THAT(Refusal(), StartsWith("--report_ca: "));
  options_.report.ca = temp_ / "ca.crt";
  EXPECT_TRUE(CheckFlags(options_).ok()) << CheckFlags(options_);
}

}  // namespace
}  // namespace nibble
