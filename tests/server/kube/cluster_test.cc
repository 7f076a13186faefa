#include "server/kube/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_directory.h"

namespace nibble::kube {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> PodEnvironment() {
  return {"A=b", "KUBERNETES_SERVICE_HOST=10.0.0.1", "KUBERNETES_SERVICE_PORT=443"};
}

class ClusterTest : public ::testing::Test {
 protected:
  ClusterOptions Options(const std::string& url = "") {
    ClusterOptions options;
    options.url = url;
    options.service_account = temp_.path();
    return options;
  }
  // The message of the refusal of a URL.
  std::string Refusal(const std::string& url) {
    ClusterOptions options = Options(url);
    options.name_space = "ml";
    const absl::Status status = ClusterAccessOf(options, PodEnvironment()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << url << ": " << status;
    return std::string(status.message());
  }
  void Write(const std::string& name, const std::string& text) { std::ofstream(temp_ / name) << text; }

  testing::TempDirectory temp_;
};

TEST_F(ClusterTest, PodFindsTheServerInItsEnvironmentAndTheRestInItsServiceAccount) {
  Write("namespace", "ml\n");
  const auto access = ClusterAccessOf(Options(), PodEnvironment());
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_EQ(access->host, "10.0.0.1");
  EXPECT_EQ(access->port, "443");
  EXPECT_EQ(access->token_file, temp_ / "token");
  EXPECT_EQ(access->ca_file, temp_ / "ca.crt");
  EXPECT_EQ(access->name_space, "ml");
  EXPECT_EQ(ClusterOptions().service_account, "/var/run/secrets/kubernetes.io/serviceaccount");
  EXPECT_EQ(ClusterAccess().token_file, "/var/run/secrets/kubernetes.io/serviceaccount/token");
}

TEST_F(ClusterTest, OptionsReplaceWhatThePodFinds) {
  ClusterOptions options = Options("https://api.example:6443/");
  options.token_file = "/t";
  options.ca_file = "/c";
  options.name_space = "other";
  const auto access = ClusterAccessOf(options, {});
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_EQ(
      access->host + " " + access->port + " " + access->token_file + " " + access->ca_file + " " + access->name_space,
      "api.example 6443 /t /c other");
}

TEST_F(ClusterTest, UrlMayHaveAnIpv6AddressAndNoPort) {
  ClusterOptions options = Options("https://[fd00::1]");
  options.name_space = "ml";
  EXPECT_EQ(ClusterAccessOf(options, {})->host, "fd00::1");
  EXPECT_EQ(ClusterAccessOf(options, {})->port, "443");
  options.url = "https://[fd00::1]:6443";
  EXPECT_EQ(ClusterAccessOf(options, {})->port, "6443");
}

TEST_F(ClusterTest, RefusesOtherUrls) {
  EXPECT_THAT(Refusal("http://h:1"), HasSubstr("does not begin with https://, wanted https://HOST:PORT"));
  EXPECT_THAT(Refusal("h:1"), HasSubstr("\"h:1\" does not begin with https://"));
  EXPECT_THAT(Refusal("https://"), HasSubstr("has no host"));
  EXPECT_THAT(Refusal("https://:443"), HasSubstr("has no host"));
  EXPECT_THAT(Refusal("https://[fd00::1:443"), HasSubstr("has no ]"));
  EXPECT_THAT(Refusal("https://[fd00::1]443"), HasSubstr("between ] and the port"));
  for (const char* url : {"https://h/api", "https://user@h", "https://h?x", "https://h#x", "https://h:1\r\nX: y"})
    EXPECT_THAT(Refusal(url), HasSubstr("has more than a host and a port")) << url;
  for (const char* url :
       {"https://h:", "https://h:0", "https://h:65536", "https://h:x", "https://h:1x", "https://h:-1"})
    EXPECT_THAT(Refusal(url), HasSubstr("wanted 1 to 65535")) << url;
}

TEST_F(ClusterTest, OutsideAPodNamesTheMissingVariable) {
  Write("namespace", "ml");
  const auto message = [&](const std::vector<std::string>& environment) {
    const absl::Status status = ClusterAccessOf(Options(), environment).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message({}), HasSubstr("KUBERNETES_SERVICE_HOST is not set"));
  EXPECT_THAT(message({"KUBERNETES_SERVICE_HOST=h"}), HasSubstr("KUBERNETES_SERVICE_PORT is not set"));
  const auto bad_port = ClusterAccessOf(Options(), {"KUBERNETES_SERVICE_HOST=h", "KUBERNETES_SERVICE_PORT=tcp://x"});
  EXPECT_TRUE(absl::IsInvalidArgument(bad_port.status())) << bad_port.status();
}

TEST_F(ClusterTest, NamespaceIsNeededAndChecked) {
  const absl::Status missing = ClusterAccessOf(Options(), PodEnvironment()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr(temp_ / "namespace"));
  Write("namespace", "a/b");
  EXPECT_TRUE(absl::IsInvalidArgument(ClusterAccessOf(Options(), PodEnvironment()).status()));
  Write("namespace", std::string(1 << 20, 'x'));
  EXPECT_TRUE(absl::IsFailedPrecondition(ClusterAccessOf(Options(), PodEnvironment()).status()));
}

TEST_F(ClusterTest, TokenIsReadAgainAndNeverShown) {
  ClusterAccess access;
  access.token_file = temp_ / "token";
  access.ca_file = temp_ / "ca.crt";
  EXPECT_TRUE(absl::IsNotFound(ReadToken(access).status()));
  Write("token", "first\n");
  EXPECT_EQ(*ReadToken(access), "first");
  Write("token", "second");
  EXPECT_EQ(*ReadToken(access), "second");
  for (const char* text : {"", "\n", "secret\r\nHost: x", "secret secret", "secret\xC3\xA9"}) {
    Write("token", text);
    const absl::Status status = ReadToken(access).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("secret")));
  }
  Write("token", std::string(1 << 20, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadToken(access).status()));
  Write("ca.crt", std::string(2 << 20, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadAuthority(access).status()));
}

}  // namespace
}  // namespace nibble::kube
