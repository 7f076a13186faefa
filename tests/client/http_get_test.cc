#include "client/http_get.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "server/http/http_server.h"

namespace nibble::client {
namespace {

http::HttpHandlers Handlers() {
  return {.metrics = [] { return std::string(1 << 20, 'x'); },
          .live = [] { return absl::OkStatus(); },
          .ready = [] { return absl::UnavailableError("starting"); },
          .started = [] { return absl::OkStatus(); }};
}

TEST(HttpGetTest, ReturnsStatusTypeAndBody) {
  for (const std::string host : {"127.0.0.1:", "localhost:", "[::1]:"}) {
    const auto server = http::HttpServer::Start(host + "0", Handlers());
    if (!server.ok() && host == "[::1]:") GTEST_SKIP() << "no IPv6: " << server.status();
    ASSERT_TRUE(server.ok()) << server.status();
    const std::string address = host + std::to_string((*server)->port());
    const auto ready = HttpGet(address, "/readyz", absl::Minutes(1));
    ASSERT_TRUE(ready.ok()) << ready.status();
    EXPECT_EQ(ready->status, 503);
    EXPECT_EQ(ready->body, "starting\n");
    EXPECT_EQ(ready->content_type, "text/plain; charset=utf-8");
    EXPECT_EQ(HttpGet(address, "/metrics", absl::Minutes(1))->body.size(), 1u << 20);
  }
}

TEST(HttpGetTest, ReportsUnavailableWithoutATimelyResponse) {
  // A socket that listens but never accepts.
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(socket, 1), 0);
  ASSERT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto began = std::chrono::steady_clock::now();
  const auto silent =
      HttpGet("127.0.0.1:" + std::to_string(ntohs(address.sin_port)), "/livez", absl::Milliseconds(300));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(3));
  EXPECT_EQ(silent.status().code(), absl::StatusCode::kUnavailable) << silent.status();
  EXPECT_THAT(std::string(silent.status().message()), testing::HasSubstr("/livez"));
  ::close(socket);
  const auto closed = HttpGet("127.0.0.1:" + std::to_string(ntohs(address.sin_port)), "/livez", absl::Minutes(1));
  EXPECT_EQ(closed.status().code(), absl::StatusCode::kUnavailable) << closed.status();
}

TEST(HttpGetTest, RejectsAddressWithoutAPort) {
  for (const char* bad : {"", "localhost", "localhost:", ":80"}) {
    EXPECT_EQ(HttpGet(bad, "/livez", absl::Minutes(1)).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace nibble::client
