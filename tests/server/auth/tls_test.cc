// Tests which TLS files are refused, and that the previous files stay in use while the new ones are unusable.
#include "server/auth/tls.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_directory.h"

namespace nibble::auth {
namespace {

using testing::FileText;
using ::testing::HasSubstr;
using testing::MakeAuthority;
using testing::MakeCertificate;
using ::testing::Not;
using testing::RunOpenssl;
using testing::TempDirectory;

constexpr std::chrono::hours kNeverByItself(24);  // only the test calls Look()

class TlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MakeAuthority(At("ca"));
    MakeCertificate(At("server"), At("ca"), "DNS:localhost");
    MakeCertificate(At("other"), At("ca"), "DNS:localhost");
    Copy("server", "served");
    files_ = {
        .cert = At("served.crt"), .key = At("served.key"), .client_ca = At("ca.crt"), .require_client_cert = true};
  }
  std::string At(const std::string& name) const { return directory_ / name; }
  void Write(const std::string& name, const std::string& text) { std::ofstream(At(name), std::ios::binary) << text; }
  void Copy(const std::string& from, const std::string& to) {
    Write(to + ".crt", FileText(At(from + ".crt")));
    Write(to + ".key", FileText(At(from + ".key")));
  }
  // `prefix`.crt and `prefix`.key: a self-signed certificate, valid in January 2020.
  void MakeExpired(const std::string& prefix) {
    std::filesystem::create_directories(At("issue"));
    Write("issue/index", "");
    Write("issue/config",
          "[ca]\ndefault_ca=here\n[here]\ndatabase=" + At("issue/index") + "\nnew_certs_dir=" + At("issue") +
              "\nrand_serial=yes\ndefault_md=sha256\npolicy=any\nunique_subject=no\nx509_extensions=leaf\n[any]\n"
              "commonName=supplied\n[leaf]\nbasicConstraints=critical,CA:TRUE\n");
    RunOpenssl("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=old -keyout " +
               At(prefix + ".key") + " -out " + At(prefix + ".csr"));
    RunOpenssl("ca -batch -notext -selfsign -config " + At("issue/config") + " -keyfile " + At(prefix + ".key") +
               " -in " + At(prefix + ".csr") + " -out " + At(prefix + ".crt") +
               " -startdate 20200101000000Z -enddate 20200201000000Z >/dev/null");
  }
  std::string Refusal() const {
    const absl::Status status = CheckTlsFiles(files_);
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    }
    EXPECT_THAT(status.message(), Not(HasSubstr("BEGIN")));
    return std::string(status.message());
  }

  TempDirectory directory_;
  TlsFiles files_;
};

TEST_F(TlsTest, GoodFilesAreAccepted) {
  EXPECT_EQ(Refusal(), "");
  const auto texts = ReadTlsFiles(files_);
  ASSERT_TRUE(texts.ok()) << texts.status();
  const absl::Duration left = texts->cert_expiry - absl::Now();
  EXPECT_GT(left, absl::Hours(6 * 24));
  EXPECT_LT(left, absl::Hours(8 * 24));
  EXPECT_GT(texts->client_ca_expiry - absl::Now(), absl::Hours(29 * 24));
  files_.client_ca = "";
  EXPECT_EQ(Refusal(), "");
}

TEST_F(TlsTest, TheKeyOfAnotherCertificateIsRefused) {
  Write("served.key", FileText(At("other.key")));
  EXPECT_EQ(Refusal(), "--tls_key: " + At("served.key") + " is not the key of --tls_cert");
}

TEST_F(TlsTest, TruncatedEmptyAndMissingFilesAreRefused) {
  const std::string certificate = FileText(At("server.crt")), key = FileText(At("server.key")),
                    authority = FileText(At("ca.crt"));
  for (const std::size_t size : {certificate.size() / 2, certificate.size() - 10}) {
    Write("served.crt", certificate.substr(0, size));
    EXPECT_THAT(Refusal(), HasSubstr("--tls_cert: " + At("served.crt") + ": certificate 1 is damaged or cut off"));
  }
  Write("served.crt", certificate + authority.substr(0, authority.size() / 2));  // the chain
  EXPECT_THAT(Refusal(), HasSubstr("--tls_cert: " + At("served.crt") + ": certificate 2 is damaged or cut off"));
  Write("served.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  EXPECT_THAT(Refusal(), HasSubstr("certificate 1 is damaged"));
  for (const std::string& none : {std::string(), std::string("hello\n"), key}) {
    Write("served.crt", none);
    EXPECT_THAT(Refusal(), HasSubstr("--tls_cert: " + At("served.crt") + " contains no PEM certificate"));
  }
  Write("served.crt", certificate);
  for (const std::string& none : {std::string(), key.substr(0, key.size() / 2), certificate}) {
    Write("served.key", none);
    EXPECT_THAT(Refusal(), HasSubstr("--tls_key: " + At("served.key") + " contains no unencrypted PEM private key"));
  }
  Write("served.key", key);
  Write("empty.crt", "");
  files_.client_ca = At("empty.crt");
  EXPECT_THAT(Refusal(), HasSubstr("--tls_client_ca: " + At("empty.crt") + " contains no PEM certificate"));
  Write("half.crt", authority + authority.substr(0, 100));
  files_.client_ca = At("half.crt");
  EXPECT_THAT(Refusal(), HasSubstr("--tls_client_ca: " + At("half.crt") + ": certificate 2 is damaged"));
  files_.client_ca = At("nothing.crt");
  EXPECT_THAT(Refusal(), HasSubstr("--tls_client_ca: "));
}

// gRPC could not serve with this key, although it belongs to the certificate.
TEST_F(TlsTest, KeyThatIsTooShortForTheLibraryIsRefused) {
  RunOpenssl("req -x509 -newkey rsa:512 -nodes -days 7 -subj /CN=short -keyout " + At("served.key") + " -out " +
             At("served.crt"));
  EXPECT_THAT(Refusal(), HasSubstr("--tls_key: " + At("served.key") + ": OpenSSL refuses"));
}

TEST_F(TlsTest, AnExpiredCertificateIsRefused) {
  MakeExpired("served");
  EXPECT_THAT(Refusal(), HasSubstr("--tls_cert: " + At("served.crt") + " expired on 2020-02-01"));
}

// The file may contain an expired authority beside its successor. Clients with a certificate of the successor are
// served.
TEST_F(TlsTest, ExpiredAuthorityIsAcceptedAndReported) {
  MakeExpired("old");
  Write("both.crt", FileText(At("ca.crt")) + FileText(At("old.crt")));
  files_.client_ca = At("both.crt");
  EXPECT_EQ(Refusal(), "");
  ::testing::internal::CaptureStderr();
  auto watch = TlsWatch::Start(files_, kNeverByItself);
  ASSERT_TRUE(watch.ok()) << watch.status();
  const TlsHealth health = (*watch)->Look();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(health.files.ok()) << health.files;
  EXPECT_EQ(health.client_ca_expiry, absl::FromCivil(absl::CivilDay(2020, 2, 1), absl::UTCTimeZone()));
  EXPECT_THAT(log, HasSubstr("a certificate of --tls_client_ca has expired"));
  EXPECT_THAT(log, HasSubstr(At("both.crt")));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST_F(TlsTest, WatchDoesNotStartWithUnusableFiles) {
  Write("served.key", FileText(At("other.key")));
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(absl::IsInvalidArgument(TlsWatch::Start(files_, kNeverByItself).status()));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "its caller reports the error";
}

// The same fault is logged once, another fault again, and no log contains data of a file.
TEST_F(TlsTest, UnusableFilesAreLoggedOnceAndTheLastGoodOnesStay) {
  ::testing::internal::CaptureStderr();
  auto started = TlsWatch::Start(files_, kNeverByItself);
  ASSERT_TRUE(started.ok()) << started.status();
  TlsWatch& watch = **started;
  const absl::Time expiry = watch.Look().cert_expiry;
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");

  const auto look = [&](bool usable) {
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(watch.Look().files.ok(), usable);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    EXPECT_THAT(log, Not(HasSubstr("BEGIN")));
    EXPECT_THAT(log, Not(HasSubstr(FileText(At("other.key")).substr(30, 20))));
    return log;
  };
  Write("served.key", FileText(At("other.key")));
  std::string log = look(false);
  EXPECT_THAT(log, HasSubstr(R"("level":"error")"));
  EXPECT_THAT(log, HasSubstr("--tls_key: " + At("served.key") + " is not the key of --tls_cert"));
  EXPECT_EQ(watch.Look().cert_expiry, expiry);
  Write("served.crt", "");
  EXPECT_THAT(look(false), HasSubstr("contains no PEM certificate"));

  // Usable again with the files that are already served, then with another pair, which is accepted.
  Copy("server", "served");
  log = look(true);
  EXPECT_THAT(log, HasSubstr("the TLS files can be used again"));
  EXPECT_THAT(log, HasSubstr(R"("level":"info")"));
  RunOpenssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 20 -subj /CN=new -keyout " +
             At("new.key") + " -out " + At("new.crt"));
  Copy("new", "served");
  EXPECT_THAT(look(true), HasSubstr("new TLS files are in use"));
  EXPECT_GT(watch.Look().cert_expiry, expiry);
}

// The contents of the files that gRPC reads: open copies whose name contains "nibble-tls".
std::vector<std::string> Copies() {
  std::vector<std::filesystem::path> paths;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) paths.push_back(one.path());
  std::vector<std::string> texts;
  for (const auto& path : paths) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(path, gone).string();
    if (target.find("nibble-tls") != std::string::npos) texts.push_back(FileText(path.string()));
  }
  return texts;
}

// With one descriptor left, certificate and key can be copied together, but the authority's file cannot.
TEST_F(TlsTest, FilesThatCannotAllBeCopiedReplaceNothing) {
  auto started = TlsWatch::Start(files_, kNeverByItself);
  ASSERT_TRUE(started.ok()) << started.status();
  TlsWatch& watch = **started;
  const std::vector<std::string> before = Copies();
  ASSERT_EQ(before.size(), 2u);
  const std::string authority = FileText(At("ca.crt"));
  Write("ca.crt", "");
  // Look() logs here, while descriptors are free: UBSan opens a pipe when the code that logs runs for the first time.
  EXPECT_FALSE(watch.Look().files.ok());
  Copy("other", "served");
  MakeAuthority(At("next"));
  Write("ca.crt", authority + FileText(At("next.crt")));

  rlimit all{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &all), 0);
  const int lowest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(lowest, 0);
  ::close(lowest);
  rlimit one = all;
  one.rlim_cur = static_cast<rlim_t>(lowest) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &one), 0);
  const TlsHealth health = watch.Look();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &all), 0);
  EXPECT_TRUE(absl::IsUnavailable(health.files)) << health.files;
  EXPECT_EQ(Copies(), before);

  // The watch recovers both ways: with the files that are served, and with those that could not be copied.
  Copy("server", "served");
  Write("ca.crt", authority);
  EXPECT_TRUE(watch.Look().files.ok());
  EXPECT_EQ(Copies(), before);
  Copy("other", "served");
  Write("ca.crt", authority + FileText(At("next.crt")));
  EXPECT_TRUE(watch.Look().files.ok());
  const std::vector<std::string> after = Copies();
  ASSERT_EQ(after.size(), 2u);
  EXPECT_NE(after[0], before[0]);
  EXPECT_NE(after[1], before[1]);
}

// gRPC may read the copies once more after the watch is gone.
TEST_F(TlsTest, CopiesLiveAsLongAsTheyAreHeld) {
  const auto open_files = [] {
    int found = 0;
    for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      found += std::filesystem::read_symlink(one.path(), gone).string().find("nibble-tls") != std::string::npos ? 1 : 0;
    }
    return found;
  };
  auto watch = TlsWatch::Start(files_, kNeverByItself);
  ASSERT_TRUE(watch.ok()) << watch.status();
  auto copies = (*watch)->copies();
  EXPECT_EQ(open_files(), 2);
  Copy("other", "served");
  EXPECT_TRUE((*watch)->Look().files.ok());
  EXPECT_EQ(open_files(), 2) << "replaced, not added";
  watch->reset();
  EXPECT_EQ(open_files(), 2);
  copies.reset();
  EXPECT_EQ(open_files(), 0);
}

TEST_F(TlsTest, CaFileKeepsItsLastGoodText) {
  MakeAuthority(At("next"));
  Write("bundle", "a comment\n" + FileText(At("ca.crt")) + FileText(At("ca.key")));
  const auto opened = CaFile::Open("--report_ca", At("bundle"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  CaFile& file = **opened;
  EXPECT_EQ(file.Read(), FileText(At("ca.crt"))) << "only the certificates";
  Write("bundle", FileText(At("ca.crt")) + FileText(At("next.crt")));
  EXPECT_EQ(file.Read(), FileText(At("ca.crt")) + FileText(At("next.crt")));
  const std::string cut = FileText(At("next.crt"));
  for (const std::string& bad : {std::string(), std::string("text"), cut.substr(0, cut.size() / 2)}) {
    Write("bundle", bad);
    EXPECT_EQ(file.Read(), FileText(At("ca.crt")) + FileText(At("next.crt"))) << bad;
    const absl::Status refused = CaFile::Open("--report_ca", At("bundle")).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("--report_ca: "));
  }
  std::filesystem::remove(At("bundle"));
  EXPECT_EQ(file.Read(), FileText(At("ca.crt")) + FileText(At("next.crt")));
  Write("bundle", FileText(At("next.crt")));
  EXPECT_EQ(file.Read(), FileText(At("next.crt")));
}

}  // namespace
}  // namespace nibble::auth
