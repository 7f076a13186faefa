#include "server/http/exchange_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/server/http/raw_connection.h"

namespace nibble::http {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::Duration kShortLimit = absl::Milliseconds(300);  // for limits that a test waits for
constexpr auto kPatience = std::chrono::seconds(60);             // only a failing test waits that long

class Handler final : public ExchangeHandler {
 public:
  std::optional<Reply> Admit(RequestHead& head) override {
    head.answer_fields = {{"x-tag", "t"}};
    if (head.path == "/refused") return Reply{.status = 401, .body = "no"};
    return std::nullopt;
  }
  void Handle(const std::shared_ptr<Exchange>& exchange) override { handle(exchange); }
  Reply Refusal(const RequestHead&, unsigned status, std::string_view why) override {
    return {.status = status, .body = "refused: " + std::string(why)};
  }
  void Answered(const RequestHead& head, unsigned status) override {
    answered.push_back(head.path + " " + std::to_string(status));
  }

  std::function<void(const std::shared_ptr<Exchange>&)> handle = [](const auto& exchange) {
    exchange->Answer({.body = exchange->head().method + " " + exchange->head().path + " " + exchange->TakeBody()});
  };
  std::vector<std::string> answered;  // path and status; read it after the server has ended
};

std::string Post(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

class ExchangeServerTest : public testing::Test {
 protected:
  void Start(ExchangeLimits limits = {}) {
    auto server =
        ExchangeServer::Start({.flag = "--test", .address = "127.0.0.1:0", .tls = nullptr, .limits = limits}, handler_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // The handler gives the exchange of the next request to the test.
  std::future<std::shared_ptr<Exchange>> NextExchange() {
    const auto promise = std::make_shared<std::promise<std::shared_ptr<Exchange>>>();
    handler_.handle = [promise](const auto& exchange) { promise->set_value(exchange); };
    return promise->get_future();
  }
  int port() const { return server_->port(); }

  Handler handler_;
  std::unique_ptr<ExchangeServer> server_;
};

TEST_F(ExchangeServerTest, AnswersRequestsOnOneConnection) {
  Start();
  RawConnection client(port());
  const RawReply first = client.Ask(Post("/a%20b?x=1", "body"));
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.body, "POST /a b body");
  EXPECT_THAT(first.header, HasSubstr("x-tag: t\r\n"));
  EXPECT_EQ(client.Get("/c").body, "GET /c ");
}

TEST_F(ExchangeServerTest, AnswersRequestsThatWereSentTogetherInTheirOrder) {
  Start();
  RawConnection client(port());
  client.Send(Post("/1", "a") + Post("/2", "b"));
  EXPECT_EQ(client.Read().body, "POST /1 a");
  EXPECT_EQ(client.Read().body, "POST /2 b");
}

TEST_F(ExchangeServerTest, AcceptsAChunkedBody) {
  Start();
  EXPECT_EQ(
      RawConnection(port())
          .Ask("POST /p HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
          .body,
      "POST /p abcde");
}

TEST_F(ExchangeServerTest, TellsAClientThatWaitsToSendItsBody) {
  Start();
  RawConnection client(port());
  client.Send("POST /p HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.ReadTo("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_EQ(client.Ask("ok").body, "POST /p ok");
}

TEST_F(ExchangeServerTest, RefusalBeforeTheBodyEndsTheConnection) {
  Start();
  RawConnection client(port());
  const RawReply refused = client.Ask("POST /refused HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n");
  EXPECT_EQ(refused.status, 401);
  EXPECT_THAT(refused.header, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(refused.header, HasSubstr("x-tag: t\r\n"));
  EXPECT_TRUE(client.AwaitClosed());
}

TEST_F(ExchangeServerTest, RefusesWhatIsTooLargeOrMalformed) {
  ExchangeLimits limits;
  limits.max_body_bytes = 10;
  limits.max_header_bytes = 1000;
  limits.max_header_fields = 5;
  Start(limits);
  const auto status_of = [&](const std::string& text) { return RawConnection(port()).Ask(text).status; };
  EXPECT_EQ(status_of(Post("/p", "01234567890")), 413);
  EXPECT_EQ(status_of("POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n"), 413);
  EXPECT_EQ(status_of("GET /p HTTP/1.1\r\nX: " + std::string(2000, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status_of("GET /p HTTP/1.1\r\nA: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\nE: 1\r\nF: 1\r\n\r\n"), 431);
  EXPECT_EQ(status_of("nonsense\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
  EXPECT_EQ(status_of(Post("/p", "0123456789")), 200);
}

TEST_F(ExchangeServerTest, ReportsTheStatusOfEachAnswerOnce) {
  ExchangeLimits limits;
  limits.max_body_bytes = 10;
  Start(limits);
  handler_.handle = [](const auto& exchange) {
    if (exchange->head().path == "/bad") return exchange->Answer({.status = 404});
    exchange->Stream({}, "");
    exchange->Write("a");
    exchange->Write("b");
    exchange->End();
  };
  RawConnection client(port());
  client.Ask(Post("/stream", ""));
  client.Ask(Post("/bad", ""));
  RawConnection(port()).Ask(Post("/refused", ""));
  RawConnection(port()).Ask(Post("/large", "01234567890"));
  RawConnection(port()).Ask("nonsense\r\n\r\n");
  server_ = nullptr;
  EXPECT_THAT(handler_.answered, ElementsAre("/stream 200", "/bad 404", "/refused 401", "/large 413", " 400"));
}

TEST_F(ExchangeServerTest, BodiesThatAreOnlyAnnouncedTakeNothingFromOthers) {
  ExchangeLimits limits;
  limits.max_body_bytes = limits.max_bodies_bytes = 10;
  Start(limits);
  RawConnection claims(port());
  claims.Send("POST /p HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n");
  RawConnection chunked(port());
  chunked.Send("POST /p HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(RawConnection(port()).Ask(Post("/p", "0123456789")).status, 200);
  EXPECT_EQ(claims.Ask("0123456789").status, 200);
  EXPECT_EQ(chunked.Ask("1\r\na\r\n0\r\n\r\n").status, 200);
}

TEST_F(ExchangeServerTest, StalledBodyIsCutIfItsBytesAreNeeded) {
  ExchangeLimits limits;
  limits.max_bodies_bytes = 15;
  Start(limits);
  const std::string head = "POST /p HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n";
  const auto begin = [&](RawConnection& client) {
    client.Send(head);  // a body that came together with its header would not be waited for
    client.ReadTo("\r\n\r\n");
  };
  RawConnection stalled(port());
  begin(stalled);
  stalled.Send("012345678");
  for (int i = 0; i < 1000 && !stalled.ReadableWithin(0); ++i) {  // until the server has read the nine bytes
    RawConnection next(port());
    begin(next);
    EXPECT_EQ(next.Ask("0123456789").status, 200);
  }
  EXPECT_TRUE(stalled.ReadableWithin(0) && stalled.AwaitClosed());
}

TEST_F(ExchangeServerTest, AnswerThatIsNotReadIsCutIfItsBytesAreNeeded) {
  constexpr std::size_t kLarge = 32 << 20;  // more than the kernel's buffers of two sockets
  ExchangeLimits limits;
  limits.max_answers_bytes = kLarge + (kLarge / 2);
  Start(limits);
  handler_.handle = [](const auto& exchange) { exchange->Answer({.body = std::string(kLarge, 'x')}); };
  RawConnection deaf(port());
  deaf.Send(Post("/p", ""));
  ASSERT_TRUE(deaf.ReadableWithin(60'000));
  EXPECT_EQ(RawConnection(port()).Ask(Post("/p", "")).body.size(), kLarge);
  EXPECT_TRUE(deaf.ResetWithin(60'000));
}

TEST_F(ExchangeServerTest, StreamsPiecesAsChunks) {
  Start();
  auto next = NextExchange();
  RawConnection client(port());
  client.Send(Post("/s", ""));
  const auto exchange = next.get();
  exchange->Stream({{"Content-Type", "text/event-stream"}}, ": wait\n\n");
  EXPECT_TRUE(exchange->Write("one"));
  const std::string first = client.ReadTo("3\r\none\r\n");
  EXPECT_THAT(first, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(first, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(first, HasSubstr("x-tag: t\r\n"));
  exchange->Write("fifteen letters");
  exchange->End();
  EXPECT_THAT(client.ReadTo("0\r\n\r\n"), HasSubstr("f\r\nfifteen letters\r\n"));
  handler_.handle = [](const auto& again) { again->Answer({.body = "next"}); };
  EXPECT_EQ(client.Get("/").body, "next") << "the connection is kept";
}

TEST_F(ExchangeServerTest, StreamToAnOldClientHasNoChunks) {
  Start();
  auto next = NextExchange();
  RawConnection client(port());
  client.Send("GET /s HTTP/1.0\r\n\r\n");
  const auto exchange = next.get();
  exchange->Stream({}, "");
  exchange->Write("one");
  exchange->Write("two");
  exchange->End();
  const std::string all = client.ReadTo("never");
  EXPECT_THAT(all, EndsWith("\r\n\r\nonetwo"));
  EXPECT_THAT(all, Not(HasSubstr("chunked")));
}

TEST_F(ExchangeServerTest, SendsTheCommentWhileAStreamIsSilent) {
  ExchangeLimits limits;
  limits.silence = absl::Milliseconds(20);
  Start(limits);
  auto next = NextExchange();
  RawConnection client(port());
  client.Send(Post("/s", ""));
  const auto exchange = next.get();
  exchange->Stream({}, ": wait\n\n");
  EXPECT_THAT(client.ReadTo(": wait\n\n\r\n"), HasSubstr("200 OK")) << "the first comment begins the stream";
  client.ReadTo(": wait\n\n\r\n");
  exchange->Fail({.status = 500, .body = "too late"}, "the error\n\n");
  const std::string end = client.ReadTo("0\r\n\r\n");
  EXPECT_THAT(end, HasSubstr("the error\n\n"));
  EXPECT_THAT(end, Not(HasSubstr("too late")));
}

TEST_F(ExchangeServerTest, ErrorBeforeTheFirstPieceIsAWholeAnswer) {
  Start();
  auto next = NextExchange();
  RawConnection client(port());
  client.Send(Post("/s", ""));
  const auto exchange = next.get();
  exchange->Stream({}, ": wait\n\n");
  exchange->Fail({.status = 404, .body = "not there"}, "tail");
  const RawReply reply = client.Read();
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.body, "not there");
}

TEST_F(ExchangeServerTest, NoticesAClientThatGoesWhileItsAnswerIsMade) {
  Start();
  auto next = NextExchange();
  auto client = std::make_unique<RawConnection>(port());
  client->Send(Post("/s", ""));
  const auto exchange = next.get();
  std::promise<void> gone;
  exchange->Watch([] {}, [&] { gone.set_value(); });
  client.reset();
  EXPECT_EQ(gone.get_future().wait_for(kPatience), std::future_status::ready);
  exchange->Answer({.body = "nobody reads this"});
  std::promise<void> again;
  exchange->Watch([] {}, [&] { again.set_value(); });
  EXPECT_EQ(again.get_future().wait_for(kPatience), std::future_status::ready) << "called at once";
}

TEST_F(ExchangeServerTest, WriteAsksToWaitUntilTheClientReads) {
  ExchangeLimits limits;
  limits.max_waiting_bytes = 1 << 10;
  Start(limits);
  auto next = NextExchange();
  RawConnection client(port());
  client.Send(Post("/s", ""));
  const auto exchange = next.get();
  std::promise<void> space;
  exchange->Watch([&] { space.set_value(); }, [] {});
  exchange->Stream({}, "");
  // Larger than the kernel's buffers of the two sockets together.
  exchange->Write(std::string(32 << 20, 'x'));
  EXPECT_FALSE(exchange->Write(std::string(2 << 10, 'y'))) << "the client has not read yet";
  auto has_space = space.get_future();
  std::thread end([&] {
    has_space.wait_for(kPatience);
    exchange->End();
  });
  EXPECT_THAT(client.ReadTo("0\r\n\r\n"), HasSubstr("yyy"));
  end.join();
}

TEST_F(ExchangeServerTest, ClosesAClientThatDoesNotRead) {
  ExchangeLimits limits;
  limits.write = kShortLimit;
  Start(limits);
  auto next = NextExchange();
  RawConnection client(port());
  client.Send(Post("/s", ""));
  const auto exchange = next.get();
  std::promise<void> gone;
  exchange->Watch([] {}, [&] { gone.set_value(); });
  exchange->Stream({}, "");
  exchange->Write(std::string(32 << 20, 'x'));
  EXPECT_EQ(gone.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST_F(ExchangeServerTest, ClosesSlowSenders) {
  ExchangeLimits limits;
  limits.header = limits.body = kShortLimit;
  Start(limits);
  RawConnection silent(port());
  RawConnection header(port());
  header.Send("POST /p HTTP/1.1\r\nHost:");
  RawConnection body(port());
  body.Send("POST /p HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nhalf");
  EXPECT_TRUE(silent.AwaitClosed());
  EXPECT_TRUE(header.AwaitClosed());
  EXPECT_TRUE(body.AwaitClosed());
}

TEST_F(ExchangeServerTest, FullServerClosesIdleConnectionsOnly) {
  ExchangeLimits limits;
  limits.max_connections = 2;
  Start(limits);
  RawConnection idle(port());
  EXPECT_EQ(idle.Get("/").status, 200);
  auto next = NextExchange();
  RawConnection busy(port());
  busy.Send(Post("/s", ""));
  const auto exchange = next.get();
  handler_.handle = [](const auto& other) { other->Answer({.body = "third"}); };
  EXPECT_EQ(RawConnection(port()).Get("/").body, "third");
  EXPECT_TRUE(idle.AwaitClosed());
  exchange->Answer({.body = "kept"});
  EXPECT_EQ(busy.Read().body, "kept");
}

TEST_F(ExchangeServerTest, AnswerAfterTheEndOfTheServerHasNoEffect) {
  Start();
  auto next = NextExchange();
  RawConnection client(port());
  client.Send(Post("/s", ""));
  const auto exchange = next.get();
  exchange->Stream({}, "");
  server_.reset();
  EXPECT_TRUE(client.AwaitClosed());
  EXPECT_TRUE(exchange->Write("late"));
  exchange->End();
}

TEST_F(ExchangeServerTest, AddressMustBeFree) {
  Start();
  const auto second = ExchangeServer::Start(
      {.flag = "--test", .address = "127.0.0.1:" + std::to_string(port()), .tls = nullptr, .limits = {}}, handler_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), StartsWith("--test: cannot listen on"));
}

}  // namespace
}  // namespace nibble::http
