// The client's side of TLS and tokens. tests/server/rpc and tests/e2e test the server's side.
#include "client/security.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <string>

#include "client/status.h"
#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/sha256.h"
#include "tests/client/fake_server.h"

namespace nibble::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(SecurityTest, TokenCrossesANetworkInPlaintextOnlyIfInsecure) {
  Security security;
  security.token = "nbl_secret";
  for (const char* near : {"127.0.0.1:50051", "localhost:1", "[::1]:50051", "unix:/tmp/socket"}) {
    EXPECT_TRUE(CheckSecurity(near, security, /*insecure=*/false).ok()) << near;
  }
  for (const char* far : {"10.0.0.1:50051", "nibble.example:443", "127.evil.example:1", "0.0.0.0:1", "[fd00::1]:1"}) {
    const absl::Status status = CheckSecurity(far, security, /*insecure=*/false);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << far;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("nbl_secret")));
    EXPECT_TRUE(CheckSecurity(far, security, /*insecure=*/true).ok());
  }
  security.tls = true;
  EXPECT_TRUE(CheckSecurity("10.0.0.1:50051", security, /*insecure=*/false).ok());
  security.token = "two words";
  EXPECT_FALSE(CheckSecurity("127.0.0.1:50051", security, /*insecure=*/false).ok());
}

TEST(SecurityTest, ReadsAReasonThatBeginsTheMessage) {
  const absl::Status missing =
      FromGrpc({grpc::StatusCode::UNAUTHENTICATED, "TOKEN_MISSING: this server requires a token"});
  EXPECT_EQ(base::Reason(missing), "TOKEN_MISSING");
  EXPECT_EQ(missing.message(), "this server requires a token");
  EXPECT_EQ(base::Reason(FromGrpc({grpc::StatusCode::PERMISSION_DENIED, "server_path: no"})), "");
  EXPECT_EQ(base::Reason(FromGrpc({grpc::StatusCode::NOT_FOUND, "JOB: no"})), "");
  EXPECT_EQ(base::Reason(FromGrpc({grpc::StatusCode::PERMISSION_DENIED, ""})), "");
}

TEST(SecurityTest, ErrorsNameTheWrongFlag) {
  FakeServer server;
  const std::string empty = WriteFile("empty", ""), some = WriteFile("some", "x");
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--tls-cert", some}, "--tls-key"},
      {{"--tls-name", "a"}, "--tls"},
      {{"--token-file", "/nonexistent"}, "--token-file"},
      {{"--token-file", empty}, "--token-file"},
      {{"--tls-ca", "/nonexistent"}, "--tls-ca"},
      {{"--tls-ca", some}, "contains no PEM certificate"}};
  for (auto [arguments, what] : wrong) {
    arguments.insert(arguments.end(), {"server", "info"});
    const Result result = RunNibble(server, arguments);
    EXPECT_EQ(result.exit, 4) << what;
    EXPECT_THAT(result.err, HasSubstr(what));
  }
}

TEST(TokensCommandTest, PrintsTheHashAndWritesTheTokenToTheFile) {
  FakeServer server;
  const std::string out = TemporaryFolder() + "/new.token";
  const Result result =
      RunNibble(server, {"tokens", "new", "ci", "--role", "train", "--tenant", "red", "--days", "1", "--out", out});
  ASSERT_EQ(result.exit, 0) << result.err;
  std::ifstream stream(out);
  std::string token;
  std::getline(stream, token);
  EXPECT_EQ(token.substr(0, 4), "nbl_");
  EXPECT_GE(token.size(), 4u + 43u);
  struct stat info{};
  ASSERT_EQ(stat(out.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto line = base::ParseJson(result.out);
  ASSERT_TRUE(line.ok());
  EXPECT_EQ((*line)["name"], "ci");
  EXPECT_EQ((*line)["role"], "train");
  EXPECT_EQ((*line)["tenant"], "red");
  EXPECT_EQ((*line)["token_sha256"], base::Sha256Hex(token));
  EXPECT_TRUE(line->contains("expires"));
  EXPECT_THAT(result.out + result.err, Not(HasSubstr(token)));
  // The command never overwrites an existing file, and every token differs.
  EXPECT_NE(RunNibble(server, {"tokens", "new", "ci", "--role", "train", "--out", out}).exit, 0);
  const Result other = RunNibble(server, {"tokens", "new", "ci", "--role", "train", "--days", "0", "--out", out + "2"});
  EXPECT_EQ(other.exit, 0);
  EXPECT_EQ(other.out.find("expires"), std::string::npos);
  EXPECT_EQ(other.out.find(base::Sha256Hex(token)), std::string::npos);
}

TEST(TokensCommandTest, RejectsMissingAndInvalidOptions) {
  FakeServer server;
  EXPECT_EQ(RunNibble(server, {"tokens", "new", "ci", "--role", "train"}).exit, 4);
  EXPECT_EQ(RunNibble(server, {"tokens", "new", "ci", "--role", "root", "--out", TemporaryFolder() + "/x"}).exit, 2);
  EXPECT_EQ(RunNibble(server, {"tokens", "new", "local", "--role", "train", "--out", TemporaryFolder() + "/y"}).exit,
            4);
  EXPECT_EQ(RunNibble(server, {"tokens", "new", "../ci", "--role", "train", "--out", TemporaryFolder() + "/y"}).exit,
            4);
}

TEST(TokensCommandTest, CertificateNameReplacesTheToken) {
  FakeServer server;
  const Result san = RunNibble(server, {"tokens", "new", "web", "--role", "infer", "--san", "uri:spiffe://a/b"});
  EXPECT_EQ(san.exit, 0);
  EXPECT_THAT(san.out, HasSubstr("\"san\":\"uri:spiffe://a/b\""));
}

TEST(TokensCommandTest, KindOfACertificateNameIsWrittenInLowerCase) {
  FakeServer server;
  for (const auto& [given, written] :
       std::map<std::string, std::string>{{"URI:spiffe://A/b", "uri:spiffe://A/b"},
                                          {"DNS:ci.example.org", "dns:ci.example.org"},
                                          {"Email:ci@example.org", "email:ci@example.org"},
                                          {"IP:::1", "ip:::1"}}) {
    const Result san = RunNibble(server, {"tokens", "new", "web", "--role", "infer", "--san", given});
    EXPECT_EQ(san.exit, 0) << san.err;
    EXPECT_THAT(san.out, HasSubstr("\"san\":\"" + written + "\""));
  }
}

TEST(TokensCommandTest, RejectsCertificateNamesThatTheServerRejects) {
  FakeServer server;
  for (const std::string& given :
       {std::string("spiffe://a/b"), std::string("ci.example.org"), std::string("uri:"), std::string("urn:a"),
        "dns:" + std::string(600, 'a'), std::string(":a"), std::string("uri:\xFF")}) {
    const Result san = RunNibble(server, {"tokens", "new", "web", "--role", "infer", "--san", given});
    EXPECT_EQ(san.exit, 4) << given;
    EXPECT_EQ(san.out, "") << given;
    EXPECT_THAT(san.err, HasSubstr("--san")) << given;
  }
  const Result san = RunNibble(server, {"tokens", "new", "web", "--role", "infer", "--san", "spiffe://a/b"});
  EXPECT_THAT(san.err, HasSubstr("uri:spiffe://example.org/ci, dns:ci.example.org"));
}

}  // namespace
}  // namespace nibble::client
