#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/server/http/raw_connection.h"

namespace nibble::http {
namespace {

using testing::HasSubstr;

constexpr char kHalf[] = "GET /livez HTTP/1.1\r\nX-Half: ";
constexpr absl::Duration kShort = absl::Milliseconds(300);  // for limits that a test waits for
constexpr auto kTenfold = std::chrono::seconds(3);

HttpHandlers Handlers() {
  HttpHandlers handlers;
  handlers.metrics = [] { return std::string("a_metric 1\n"); };
  handlers.live = [] { return absl::OkStatus(); };
  handlers.ready = [] { return absl::UnavailableError("starting"); };
  handlers.started = [] { return absl::OkStatus(); };
  return handlers;
}

class HttpServerTest : public testing::Test {
 protected:
  void Start(HttpLimits limits = {}, HttpHandlers handlers = Handlers()) {
    auto server = HttpServer::Start("127.0.0.1:0", std::move(handlers), limits);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  int port() const { return server_->port(); }
  // Sends a request on a new connection.
  RawReply Get(const std::string& target) { return RawConnection(port()).Get(target); }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, ServesMetricsAsTextWithItsVersion) {
  Start();
  const RawReply reply = Get("/metrics");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "a_metric 1\n");
  EXPECT_THAT(reply.header, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
}

TEST_F(HttpServerTest, FailedProbeGivesItsReason) {
  Start();
  EXPECT_EQ(Get("/livez").status, 200);
  EXPECT_EQ(Get("/startupz?verbose").status, 200);
  const RawReply ready = Get("/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.body, "starting\n");
}

TEST_F(HttpServerTest, AnswersOnlyGet) {
  Start();
  for (const std::string method : {"POST", "DELETE", "PUT", "OPTIONS", "TRACE"}) {
    const RawReply refused =
        RawConnection(port()).Ask(method + " /metrics HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n");
    EXPECT_EQ(refused.status, 405) << method;
    EXPECT_THAT(refused.header, HasSubstr("Allow: GET\r\n"));
  }
  EXPECT_EQ(Get("/nothing").status, 404);
  RawConnection head(port());
  head.Send("HEAD /livez HTTP/1.1\r\nHost: test\r\n\r\nGET /livez HTTP/1.1\r\nHost: test\r\n\r\n");
  EXPECT_EQ(head.Read(/*without_body=*/true).status, 405);
  EXPECT_EQ(head.Read().body, "ok\n") << "an answer to HEAD has no body";
}

TEST_F(HttpServerTest, RefusesLargeHeadersTargetsAndBodies) {
  Start();
  const std::string host = " HTTP/1.1\r\nHost: test\r\n";
  std::string fields;
  for (int i = 0; i < 100; ++i) fields += "X-" + std::to_string(i) + ": v\r\n";
  const std::vector<std::pair<int, std::string>> refused = {
      {414, "GET /livez?" + std::string(2000, 'x') + host + "\r\n"},
      {414, "GET /livez?" + std::string(100'000, 'x')},
      {431, "GET /livez" + host + fields + "\r\n"},
      {431, "GET /livez" + host + "X-Long: " + std::string(100'000, 'x')},
      {413, "GET /livez" + host + "Content-Length: 5\r\n\r\nhello"},
      {413, "GET /livez" + host + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"},
      {413, "GET /livez" + host + "Content-Length: 18446744073709551615\r\n\r\n"},
      {405, "POST /livez" + host + "Content-Length: 5\r\n\r\nhello"},
      {400, "GET /livez" + host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {400, "GET /livez" + host + "Content-Length: five\r\n\r\n"},
      {400, "\x16\x03\x01\x02: a TLS hello\r\n\r\n"},
      {400, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
  };
  for (const auto& [status, text] : refused) {
    RawConnection connection(port());
    connection.Send(text);
    EXPECT_EQ(connection.Read().status, status) << text.substr(0, 60);
    EXPECT_TRUE(connection.AwaitClosed()) << text.substr(0, 60);
  }
  EXPECT_EQ(Get("/livez").status, 200);
}

TEST_F(HttpServerTest, KeepsConnectionOpenAsTheHttpVersionRequires) {
  Start();
  RawConnection connection(port());
  for (int i = 0; i < 200; ++i) ASSERT_EQ(connection.Get("/livez").status, 200);
  EXPECT_EQ(connection.Ask("GET /livez HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").status, 200);
  EXPECT_TRUE(connection.AwaitClosed());
  RawConnection old(port());
  EXPECT_THAT(old.Ask("GET /livez HTTP/1.0\r\n\r\n").header, HasSubstr("HTTP/1.0 200"));
  EXPECT_TRUE(old.AwaitClosed());
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  RawConnection connection(port());
  std::string all;
  for (int i = 0; i < 50; ++i) {
    all +=
        "GET /livez HTTP/1.1\r\nHost: test\r\n\r\nGET /metrics HTTP/1.1\r\nHost: test\r\n\r\nGET /readyz "
        "HTTP/1.1\r\nHost: test\r\n\r\n";
  }
  connection.Send(all);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(connection.Read().body, "ok\n");
    EXPECT_EQ(connection.Read().body, "a_metric 1\n");
    EXPECT_EQ(connection.Read().body, "starting\n");
  }
}

// Peers that connect and send nothing, or half a request, must not make the liveness probe fail.
TEST_F(HttpServerTest, SlowConnectionsDoNotDelayProbes) {  // C3
  HttpLimits limits;
  limits.request = absl::Hours(1);  // a probe that had to wait for a slow connection would fail
  for (const int count : {8, 200}) {
    Start(limits);
    std::vector<std::unique_ptr<RawConnection>> slow;
    for (int i = 0; i < count; ++i) {
      slow.push_back(std::make_unique<RawConnection>(port()));
      if (i % 2 == 1) slow.back()->Send(kHalf);
    }
    for (int round = 0; round < 20; ++round) {
      // Send fails on connections that the server has closed to make room for new ones.
      for (const auto& connection : slow) connection->Send("x");
      ASSERT_EQ(Get("/livez").status, 200) << count;
    }
  }
}

TEST_F(HttpServerTest, RequestSentByteByByteHasOneDeadline) {  // C3
  HttpLimits limits;
  limits.request = kShort;
  Start(limits);
  const auto began = std::chrono::steady_clock::now();
  RawConnection connection(port());
  ASSERT_TRUE(connection.Send("GET /livez HTTP/1.1\r\nX-Slow: "));
  while (!connection.ReadableWithin(20) && connection.Send("x")) {
  }
  EXPECT_TRUE(connection.AwaitClosed());
  EXPECT_LT(std::chrono::steady_clock::now() - began, kTenfold);
}

TEST_F(HttpServerTest, ClosesConnectionsWithoutARequest) {
  HttpLimits limits;
  limits.request = limits.idle = kShort;
  Start(limits);
  RawConnection silent(port()), idle(port());
  EXPECT_EQ(idle.Get("/livez").status, 200);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(silent.AwaitClosed());
  EXPECT_TRUE(idle.AwaitClosed());
  EXPECT_LT(std::chrono::steady_clock::now() - began, kTenfold);
}

TEST_F(HttpServerTest, ClosesAClientThatDoesNotReadItsAnswer) {
  HttpLimits limits;
  limits.write = kShort;
  HttpHandlers handlers = Handlers();
  constexpr std::size_t kMoreThanSocketsHold = 64 << 20;
  handlers.metrics = [] { return std::string(kMoreThanSocketsHold, 'x'); };
  Start(limits, std::move(handlers));
  RawConnection deaf(port());
  const auto began = std::chrono::steady_clock::now();
  deaf.Send("GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n");
  EXPECT_TRUE(deaf.ResetWithin(60'000));
  EXPECT_LT(std::chrono::steady_clock::now() - began, kTenfold);
  EXPECT_EQ(Get("/livez").status, 200);
}

TEST_F(HttpServerTest, NewConnectionReplacesTheLongestExchange) {  // C3
  HttpLimits limits;
  limits.max_connections = 4;
  Start(limits);
  std::vector<std::unique_ptr<RawConnection>> idle;
  for (int i = 0; i < 4; ++i) {
    idle.push_back(std::make_unique<RawConnection>(port()));
    ASSERT_EQ(idle.back()->Get("/livez").status, 200);
  }
  ASSERT_EQ(idle[0]->Get("/livez").status, 200);  // its exchange is the newest now
  RawConnection fifth(port());
  EXPECT_EQ(fifth.Get("/livez").status, 200);
  EXPECT_TRUE(idle[1]->AwaitClosed());
  for (const int kept : {0, 2, 3}) EXPECT_EQ(idle[static_cast<std::size_t>(kept)]->Get("/livez").status, 200) << kept;
}

TEST_F(HttpServerTest, SlowScrapeDelaysNoOtherRequest) {  // C3
  std::promise<void> go;
  HttpHandlers handlers = Handlers();
  handlers.metrics = [gate = go.get_future().share()] {
    gate.wait();
    return std::string("late 1\n");
  };
  Start({}, std::move(handlers));
  std::vector<std::unique_ptr<RawConnection>> scrapes;
  for (int i = 0; i < 20; ++i) {
    scrapes.push_back(std::make_unique<RawConnection>(port()));
    scrapes.back()->Send("GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n");
  }
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Get("/livez").status, 200);
  go.set_value();
  for (const auto& scrape : scrapes) EXPECT_EQ(scrape->Read().body, "late 1\n");
}

TEST_F(HttpServerTest, ScrapeThatTakesTooLongIsRefused) {
  HttpLimits limits;
  limits.render = kShort;
  std::promise<void> go;
  HttpHandlers handlers = Handlers();
  handlers.metrics = [gate = go.get_future().share()] {
    gate.wait();
    return std::string("late 1\n");
  };
  Start(limits, std::move(handlers));
  RawConnection scrape(port());
  EXPECT_EQ(scrape.Get("/metrics").status, 503);
  EXPECT_TRUE(scrape.AwaitClosed());
  go.set_value();
  EXPECT_EQ(Get("/metrics").body, "late 1\n");
}

TEST_F(HttpServerTest, ThrowingHandlerGivesAnErrorAnswer) {
  HttpHandlers handlers = Handlers();
  handlers.metrics = []() -> std::string { throw std::runtime_error("no"); };
  handlers.ready = []() -> absl::Status { throw 5; };
  Start({}, std::move(handlers));
  EXPECT_EQ(Get("/metrics").status, 500);
  EXPECT_EQ(Get("/readyz").status, 500);
  EXPECT_EQ(Get("/livez").status, 200);
}

TEST_F(HttpServerTest, StopsWhileConnectionsAreOpen) {
  Start();
  RawConnection silent(port()), half(port()), idle(port());
  half.Send(kHalf);
  EXPECT_EQ(idle.Get("/livez").status, 200);
  server_.reset();
  for (RawConnection* connection : {&silent, &half, &idle}) EXPECT_TRUE(connection->AwaitClosed());
}

TEST_F(HttpServerTest, StopsWhileAScrapeIsRendered) {
  std::promise<void> begun, go;
  HttpHandlers handlers = Handlers();
  handlers.metrics = [&begun, &go] {
    begun.set_value();
    go.get_future().wait();
    return std::string("late 1\n");
  };
  Start({}, std::move(handlers));
  RawConnection scrape(port()), waiting(port());
  for (RawConnection* connection : {&scrape, &waiting}) connection->Send("GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n");
  begun.get_future().wait();
  std::thread stop([this] { server_.reset(); });
  go.set_value();
  stop.join();
  EXPECT_TRUE(scrape.AwaitClosed());
  EXPECT_TRUE(waiting.AwaitClosed());
}

TEST(HttpServerStartTest, ErrorForATakenPortNamesTheFlag) {
  auto first = HttpServer::Start("127.0.0.1:0", Handlers());
  ASSERT_TRUE(first.ok());
  for (const char* host : {"127.0.0.1:", "localhost:"}) {
    const auto second = HttpServer::Start(host + std::to_string((*first)->port()), Handlers());
    ASSERT_FALSE(second.ok());
    EXPECT_THAT(std::string(second.status().message()), HasSubstr("--http_address"));
  }
}

TEST(HostPortTest, AcceptsOnlyHostAndPort) {
  EXPECT_EQ(ParseHostPort("--f", "127.0.0.1:80")->port, 80);
  EXPECT_EQ(ParseHostPort("--f", "[::1]:0")->host, "::1");
  for (const char* bad : {"", ":80", "host", "host:", "host:x", "host:70000", "host:-1", "::1:80", "[::1:80"}) {
    const auto parsed = ParseHostPort("--f", bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("--f"));
  }
}

TEST(HostPortTest, RecognizesOnlyLoopbackHosts) {
  for (const char* yes : {"127.0.0.1", "127.9.9.9", "::1", "localhost"}) EXPECT_TRUE(IsLoopback(yes)) << yes;
  for (const char* no : {"0.0.0.0", "128.0.0.1", "::", "localhost.example.org", "127.0.0.1.example.org", ""}) {
    EXPECT_FALSE(IsLoopback(no)) << no;
  }
}

}  // namespace
}  // namespace nibble::http
