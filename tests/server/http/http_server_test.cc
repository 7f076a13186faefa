#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace nibble::http {
namespace {

using testing::HasSubstr;

HttpHandlers Handlers() {
  HttpHandlers handlers;
  handlers.metrics = [] { return std::string("a_metric 1\n"); };
  handlers.live = [] { return absl::OkStatus(); };
  handlers.ready = [] { return absl::UnavailableError("starting"); };
  handlers.started = [] { return absl::OkStatus(); };
  return handlers;
}

// To the server, without HTTP.
class RawConnection {
 public:
  explicit RawConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~RawConnection() { ::close(socket_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;
  void Send(std::string_view text) { EXPECT_EQ(::send(socket_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size())); }

 private:
  const int socket_;
};

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = HttpServer::Start("127.0.0.1:0", Handlers());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = std::make_unique<httplib::Client>("127.0.0.1", server_->port());
  }
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<httplib::Client> client_;
};

TEST_F(HttpServerTest, MetricsAreTextWithTheirVersion) {
  const auto response = client_->Get("/metrics");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "a_metric 1\n");
  EXPECT_EQ(response->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
}

TEST_F(HttpServerTest, ProbesSayWhyNot) {
  EXPECT_EQ(client_->Get("/livez")->status, 200);
  EXPECT_EQ(client_->Get("/startupz")->status, 200);
  const auto ready = client_->Get("/readyz");
  EXPECT_EQ(ready->status, 503);
  EXPECT_EQ(ready->body, "starting\n");
}

TEST_F(HttpServerTest, OnlyGetIsAnswered) {
  const auto post = client_->Post("/metrics", "", "text/plain");
  ASSERT_TRUE(post);
  EXPECT_EQ(post->status, 405);
  EXPECT_EQ(client_->Delete("/metrics")->status, 405);
  EXPECT_EQ(client_->Get("/nothing")->status, 404);
}

TEST_F(HttpServerTest, LargeHeadersAndTargetsAreRefused) {
  EXPECT_EQ(client_->Get(("/livez?" + std::string(2000, 'x')).c_str())->status, 414);
  httplib::Headers many;
  for (int i = 0; i < 100; ++i) many.emplace("X-" + std::to_string(i), "v");
  EXPECT_EQ(client_->Get("/livez", many)->status, 431);
  // The server is still there.
  EXPECT_EQ(client_->Get("/livez")->status, 200);
}

// A peer that connects and says nothing, or not all, has no say in whether this server lives.
TEST_F(HttpServerTest, IdleConnectionsDoNotHoldUpTheProbes) {
  std::vector<std::unique_ptr<RawConnection>> idle;
  for (int i = 0; i < 12; ++i) {
    idle.push_back(std::make_unique<RawConnection>(server_->port()));
    if (i % 2 == 1) idle.back()->Send("GET /livez HTTP/1.1\r\nX-Half: ");
  }
  client_->set_read_timeout(5);
  const auto response = client_->Get("/livez");
  ASSERT_TRUE(response) << "no answer";
  EXPECT_EQ(response->status, 200);
}

TEST(HttpServerStartTest, AThrowingHandlerIsAnErrorAnswer) {
  HttpHandlers handlers = Handlers();
  handlers.metrics = []() -> std::string { throw std::runtime_error("no"); };
  auto server = HttpServer::Start("127.0.0.1:0", std::move(handlers));
  ASSERT_TRUE(server.ok());
  httplib::Client client("127.0.0.1", (*server)->port());
  EXPECT_EQ(client.Get("/metrics")->status, 500);
  EXPECT_EQ(client.Get("/livez")->status, 200);
}

TEST(HttpServerStartTest, ATakenPortIsAnErrorThatNamesTheFlag) {
  auto first = HttpServer::Start("127.0.0.1:0", Handlers());
  ASSERT_TRUE(first.ok());
  const auto second = HttpServer::Start("127.0.0.1:" + std::to_string((*first)->port()), Handlers());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--http_address"));
}

TEST(HostPortTest, ReadsWhatItShouldAndNothingElse) {
  EXPECT_EQ(ParseHostPort("--f", "127.0.0.1:80")->port, 80);
  EXPECT_EQ(ParseHostPort("--f", "[::1]:0")->host, "::1");
  for (const char* bad : {"", ":80", "host", "host:", "host:x", "host:70000", "host:-1", "::1:80", "[::1:80"}) {
    const auto parsed = ParseHostPort("--f", bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("--f"));
  }
}

TEST(HostPortTest, LoopbackIsNotGuessed) {
  for (const char* yes : {"127.0.0.1", "127.9.9.9", "::1", "localhost"}) EXPECT_TRUE(IsLoopback(yes)) << yes;
  for (const char* no : {"0.0.0.0", "128.0.0.1", "::", "localhost.example.org", "127.0.0.1.example.org", ""}) {
    EXPECT_FALSE(IsLoopback(no)) << no;
  }
}

}  // namespace
}  // namespace nibble::http
