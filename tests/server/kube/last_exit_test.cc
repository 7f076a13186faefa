#include "server/kube/last_exit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <fstream>
#include <thread>

#include "tests/support/certificates.h"
#include "tests/support/temp_directory.h"

namespace nibble::kube {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using ::testing::HasSubstr;

// A Pod as `kubectl get pod -o json` prints it, without the fields that this test does not need.
std::string Pod(const std::string& last_state) {
  return R"({"kind": "Pod", "status": {"phase": "Running", "containerStatuses": [{"name": "sidecar", "lastState": {}},)"
         R"({"name": "nibbled", "restartCount": 1, "lastState": )" +
         last_state + "}]}}";
}
std::string KilledPod() {
  return Pod(R"({"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-26T20:00:00Z"}})");
}

TEST(LastExitReasonTest, ReasonIsThatOfTheNamedContainer) {
  EXPECT_EQ(*LastExitReason(KilledPod(), "nibbled"), kOomKilled);
  EXPECT_EQ(*LastExitReason(Pod(R"({"terminated": {"exitCode": 1, "reason": "Error"}})"), "nibbled"), "Error");
  EXPECT_EQ(*LastExitReason(Pod("{}"), "nibbled"), "") << "its first run";
  EXPECT_EQ(*LastExitReason(KilledPod(), "sidecar"), "");
  EXPECT_EQ(*LastExitReason(Pod(R"([1])"), "nibbled"), "");
  EXPECT_EQ(*LastExitReason(Pod(R"({"terminated": {"reason": 7}})"), "nibbled"), "");
}

TEST(LastExitReasonTest, RefusesOtherAnswers) {
  for (const char* text :
       {"", "x", "[]", "7", "{}", R"({"status": 1})", R"({"status": [1]})", R"({"status": {"containerStatuses": {}}})",
        R"({"status": {"containerStatuses": [1, {"name": 7}]}})",
        R"({"status": {"containerStatuses": [{"name": "other"}]}})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(LastExitReason(text, "nibbled").status())) << text;
  }
}

TEST(PodAccessTest, NeedsAllNames) {
  const std::vector<std::string> environment = {"KUBERNETES_SERVICE_HOST=10.0.0.1",
                                                "KUBERNETES_SERVICE_PORT=443",
                                                "NIBBLE_POD_NAMESPACE=ml",
                                                "NIBBLE_POD_NAME=prod-0",
                                                "NIBBLE_CONTAINER_NAME=nibbled",
                                                "A=b",
                                                "c"};
  const auto access = PodAccessOf(environment);
  ASSERT_TRUE(access.has_value());
  EXPECT_EQ(access->host + " " + access->port + " " + access->name_space + " " + access->pod + " " + access->container,
            "10.0.0.1 443 ml prod-0 nibbled");
  for (std::size_t i = 0; i < 5; ++i) {
    std::vector<std::string> less = environment;
    less.erase(less.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_FALSE(PodAccessOf(less).has_value()) << environment[i];
    less.push_back(environment[i].substr(0, environment[i].find('=') + 1));
    EXPECT_FALSE(PodAccessOf(less).has_value()) << "empty: " << environment[i];
  }
}

// An API server that takes one request per call of ReadFrom.
class ReadLastExitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::MakeAuthority(At("ca"));
    testing::MakeAuthority(At("other_ca"));
    testing::MakeCertificate(At("server"), At("ca"), "IP:127.0.0.1");
    testing::MakeCertificate(At("elsewhere"), At("ca"), "IP:127.0.0.2");
    std::ofstream(At("token")) << "secret";
    access_ = {.host = "127.0.0.1",
               .port = std::to_string(acceptor_.local_endpoint().port()),
               .token_file = At("token"),
               .ca_file = At("ca.crt"),
               .name_space = "ml",
               .pod = "prod-0",
               .container = "nibbled"};
  }
  std::string At(const std::string& name) { return temp_ / name; }

  // Answers one request with `answer`, or never if it is empty. Returns what ReadLastExitReason returns.
  absl::StatusOr<std::string> ReadFrom(const std::string& answer, const std::string& certificate = "server") {
    std::thread server([&] {
      asio::ssl::context tls(asio::ssl::context::tls_server);
      tls.use_certificate_chain_file(At(certificate + ".crt"));
      tls.use_private_key_file(At(certificate + ".key"), asio::ssl::context::pem);
      boost::system::error_code error;
      asio::ssl::stream<tcp::socket> stream(io_, tls);
      acceptor_.accept(stream.next_layer(), error);
      stream.handshake(asio::ssl::stream_base::server, error);
      if (error) return;
      beast::flat_buffer buffer;
      beast::http::read(stream, buffer, request_, error);
      if (answer.empty()) asio::read(stream, asio::buffer(buffer.prepare(1)), error);  // until the client leaves
      asio::write(stream, asio::buffer(answer), error);
    });
    auto reason = ReadLastExitReason(access_);
    server.join();
    return reason;
  }
  static std::string Ok(const std::string& body) {
    return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  testing::TempDirectory temp_;
  asio::io_context io_;
  tcp::acceptor acceptor_{io_, {asio::ip::make_address("127.0.0.1"), 0}};
  PodAccess access_;
  beast::http::request<beast::http::string_body> request_;
};

TEST_F(ReadLastExitTest, AsksForItsOwnPodWithItsToken) {
  const auto reason = ReadFrom(Ok(KilledPod()));
  ASSERT_TRUE(reason.ok()) << reason.status();
  EXPECT_EQ(*reason, kOomKilled);
  EXPECT_EQ(request_.method(), beast::http::verb::get);
  EXPECT_EQ(std::string(request_.target()), "/api/v1/namespaces/ml/pods/prod-0");
  EXPECT_EQ(std::string(request_[beast::http::field::authorization]), "Bearer secret");
}

TEST_F(ReadLastExitTest, RefusalNamesStatusAndPod) {
  const absl::Status refused = ReadFrom("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("answered 403 Forbidden for the pod ml/prod-0"));
}

TEST_F(ReadLastExitTest, AnswerIsBoundedInTimeAndSize) {
  const absl::Status large = ReadFrom("HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n").status();
  EXPECT_TRUE(absl::IsResourceExhausted(large)) << large;  // announces more than 16 MiB
  EXPECT_TRUE(absl::IsUnavailable(ReadFrom("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").status())) << "cut short";
  EXPECT_TRUE(absl::IsUnavailable(ReadFrom("garbage\r\n\r\n").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFrom(Ok("{}")).status()));
  access_.timeout = absl::Milliseconds(300);
  const absl::Status late = ReadFrom("").status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("did not answer within 300ms"));
}

TEST_F(ReadLastExitTest, TokenIsSentOnlyToTheServerOfTheAuthority) {
  EXPECT_TRUE(absl::IsUnavailable(ReadFrom(Ok(KilledPod()), "elsewhere").status())) << "of another host";
  access_.ca_file = At("other_ca.crt");
  EXPECT_TRUE(absl::IsUnavailable(ReadFrom(Ok(KilledPod())).status())) << "of another authority";
  EXPECT_TRUE(request_.target().empty());
}

TEST_F(ReadLastExitTest, MissingFilesAndServersAreNamed) {
  access_.ca_file = At("missing");
  EXPECT_THAT(std::string(ReadLastExitReason(access_).status().message()), HasSubstr(At("missing")));
  access_.ca_file = At("ca.crt");
  acceptor_.close();
  EXPECT_THAT(std::string(ReadLastExitReason(access_).status().message()),
              HasSubstr(access_.host + ":" + access_.port));
  access_.token_file = At("absent");
  EXPECT_THAT(std::string(ReadLastExitReason(access_).status().message()), HasSubstr(At("absent")));
}

}  // namespace
}  // namespace nibble::kube
