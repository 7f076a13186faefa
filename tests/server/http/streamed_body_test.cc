// Bodies that a handler takes in pieces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "server/base/mutex.h"
#include "server/http/exchange_server.h"
#include "tests/server/http/raw_connection.h"

namespace nibble::http {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kLimit = 1 << 20;

// Streams every body to /stream and keeps the exchange for the test, which asks for the pieces.
class Streaming final : public ExchangeHandler {
 public:
  std::optional<Reply> Admit(RequestHead& head) override {
    if (head.path == "/stream") head.streamed_body_bytes = kLimit;
    return std::nullopt;
  }
  void Handle(const std::shared_ptr<Exchange>& exchange) override {
    if (exchange->head().path != "/stream")
      return exchange->Answer({.body = std::to_string(exchange->TakeBody().size())});
    exchange->Watch([] {},
                    [this] {
                      base::MutexLock lock(mutex_);
                      gone_ = true;
                      changed_.NotifyAll();
                    });
    base::MutexLock lock(mutex_);
    exchange_ = exchange;
    changed_.NotifyAll();
  }
  Reply Refusal(const RequestHead&, unsigned status, std::string_view why) override {
    return {.status = status, .body = std::string(why)};
  }

  // The next request to /stream.
  std::shared_ptr<Exchange> Next() {
    base::MutexLock lock(mutex_);
    changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return exchange_ != nullptr; });
    gone_ = false;
    return std::exchange(exchange_, nullptr);
  }
  void AwaitGone() {
    base::MutexLock lock(mutex_);
    changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return gone_; });
  }

 private:
  base::Mutex mutex_;
  base::Condition changed_;
  std::shared_ptr<Exchange> exchange_ ABSL_GUARDED_BY(mutex_);
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
};

struct GivenPiece {
  std::string bytes;
  bool last = false;
};

GivenPiece ReadPiece(Exchange& exchange) {
  std::promise<GivenPiece> given;
  exchange.ReadBody([&given](std::string bytes, bool last) { given.set_value({std::move(bytes), last}); });
  return given.get_future().get();
}

std::string ReadAll(Exchange& exchange) {
  std::string all;
  while (true) {
    const GivenPiece piece = ReadPiece(exchange);
    EXPECT_LE(piece.bytes.size(), 64u << 10);
    all += piece.bytes;
    if (piece.last) return all;
  }
}

class StreamedBodyTest : public testing::Test {
 protected:
  void Start(ExchangeLimits limits = {}) {
    auto server = ExchangeServer::Start(
        {.flag = "--address", .address = "127.0.0.1:0", .tls = nullptr, .limits = limits}, handler_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  int port() const { return server_->port(); }
  static std::string Post(const std::string& fields) {
    return "POST /stream HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n";
  }
  static std::string Length(std::size_t bytes) { return "Content-Length: " + std::to_string(bytes) + "\r\n"; }

  Streaming handler_;
  std::unique_ptr<ExchangeServer> server_;
};

TEST_F(StreamedBodyTest, PiecesMakeTheBodyAndTheConnectionStays) {
  Start();
  RawConnection client(port());
  std::string body(300'000, 'a');
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i % 26);
  for (const std::string& sent : {body, std::string(), std::string(64 << 10, 'b'), std::string("c")}) {
    auto sending = std::async(std::launch::async, [&] { return client.Send(Post(Length(sent.size())) + sent); });
    const auto exchange = handler_.Next();
    EXPECT_EQ(exchange->TakeBody(), "");
    EXPECT_TRUE(ReadAll(*exchange) == sent);
    exchange->Answer({.body = "taken"});
    const RawReply reply = client.Read();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "taken");
    EXPECT_THAT(reply.header, HasSubstr("keep-alive"));
    EXPECT_TRUE(sending.get());
  }
  EXPECT_EQ(client.Ask("POST /whole HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc").body, "3");
}

TEST_F(StreamedBodyTest, ChunkedBodyIsStreamedAfterContinue) {
  Start();
  RawConnection client(port());
  client.Send(Post("Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n"));
  const auto exchange = handler_.Next();
  EXPECT_FALSE(client.ReadableWithin(50)) << "the handler has not asked for the body yet";
  auto reading = std::async(std::launch::async, [&] { return ReadAll(*exchange); });
  EXPECT_EQ(client.Read().status, 100);
  client.Send("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(reading.get(), "abcde");
  exchange->Answer({.body = "ok"});
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(StreamedBodyTest, BodyAboveItsLimitIsRefused) {
  Start();
  {
    RawConnection client(port());
    EXPECT_EQ(client.Ask(Post(Length(kLimit + 1))).status, 413);
  }
  RawConnection client(port());
  client.Send(Post("Transfer-Encoding: chunked\r\n"));
  const auto exchange = handler_.Next();
  exchange->ReadBody([](const std::string&, bool) { ADD_FAILURE() << "the chunk is above the limit"; });
  client.Send("200000\r\nabc");
  const RawReply reply = client.Read();
  EXPECT_EQ(reply.status, 413);
  EXPECT_THAT(reply.header, HasSubstr("Connection: close"));
  handler_.AwaitGone();
}

TEST_F(StreamedBodyTest, OtherBodiesKeepTheirLimit) {
  ExchangeLimits limits;
  limits.max_body_bytes = 10;
  Start(limits);
  RawConnection client(port());
  EXPECT_EQ(client.Ask("POST /whole HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\nabc").status, 413);
  RawConnection chunked(port());
  EXPECT_EQ(
      chunked.Ask("POST /whole HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n12345678901\r\n0\r\n\r\n")
          .status,
      413);
}

TEST_F(StreamedBodyTest, ClientThatGoesOrStallsIsGone) {
  ExchangeLimits limits;
  limits.body = absl::Milliseconds(100);
  for (const bool stalls : {false, true}) {
    if (stalls) server_ = nullptr;
    Start(stalls ? limits : ExchangeLimits());
    auto client = std::make_unique<RawConnection>(port());
    client->Send(Post(Length(10)) + "abc");
    const auto exchange = handler_.Next();
    exchange->ReadBody([](const std::string&, bool) { ADD_FAILURE() << "the piece never arrives"; });
    if (!stalls) client = nullptr;
    handler_.AwaitGone();
  }
}

TEST_F(StreamedBodyTest, EarlyAnswerClosesTheConnection) {
  Start();
  RawConnection client(port());
  client.Send(Post(Length(10)) + "abc");
  handler_.Next()->Answer({.status = 400, .body = "no"});
  const RawReply reply = client.Read();
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(reply.header, HasSubstr("Connection: close"));
  EXPECT_TRUE(client.AwaitClosed());
}

TEST_F(StreamedBodyTest, StreamsAreLimitedInNumber) {
  ExchangeLimits limits;
  limits.max_streamed_bodies = 1;
  Start(limits);
  RawConnection first(port());
  first.Send(Post(Length(1)));
  const auto exchange = handler_.Next();
  {
    RawConnection second(port());
    EXPECT_EQ(second.Ask(Post(Length(1))).status, 429);
  }
  exchange->Answer({.body = "ok"});
  EXPECT_EQ(first.Read().status, 200);
  EXPECT_TRUE(first.AwaitClosed());
  RawConnection third(port());
  third.Send(Post(Length(1)) + "a");
  const auto next = handler_.Next();
  EXPECT_EQ(ReadAll(*next), "a");
  next->Answer({.body = "ok"});
  EXPECT_EQ(third.Read().status, 200);
}

TEST_F(StreamedBodyTest, ClientThatStallsLosesItsPlaceToAnother) {
  ExchangeLimits limits;
  limits.max_streamed_bodies = 1;
  limits.streamed_body_patience = absl::ZeroDuration();
  Start(limits);
  RawConnection first(port());
  first.Send(Post("Expect: 100-continue\r\n" + Length(2)) + "a");
  handler_.Next()->ReadBody([](const std::string&, bool) { ADD_FAILURE() << "the body is not complete"; });
  EXPECT_THAT(first.ReadTo("\r\n\r\n"), HasSubstr("100 Continue"));
  RawConnection second(port());
  second.Send(Post(Length(1)) + "a");
  handler_.AwaitGone();
  const auto next = handler_.Next();
  EXPECT_EQ(ReadAll(*next), "a");
  next->Answer({.body = "ok"});
  EXPECT_EQ(second.Read().status, 200);
}

TEST_F(StreamedBodyTest, FailedStreamWithoutTailIsCut) {
  Start();
  RawConnection client(port());
  client.Send(Post(Length(0)));
  const auto exchange = handler_.Next();
  exchange->Stream({{"Content-Type", "text/plain"}}, "");
  exchange->Write("the beginning");
  EXPECT_THAT(client.Read().header, HasSubstr("chunked"));
  exchange->Fail({.status = 500}, std::nullopt);
  EXPECT_TRUE(client.ResetWithin(60'000));
}

}  // namespace
}  // namespace nibble::http
