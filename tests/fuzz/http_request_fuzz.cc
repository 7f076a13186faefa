// F14 (docs/faults.md): the bytes that a client sends to the listener of OpenAI's API. The first two bytes choose how
// the bytes arrive, how requests are answered, and whether they need a token; the rest is sent. Requests are routed and
// admitted as in the server, but their calls are answered here. However the bytes are cut into pieces, the requests are
// the same, each has one whole answer, and nothing of the connection is left.
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/auth/authority.h"
#include "server/base/clock.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/sha256.h"
#include "server/base/strings.h"
#include "server/http/exchange_session.h"
#include "server/openai/gateway.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/temp_directory.h"

using nibble::fuzz::Expect;
namespace asio = boost::asio;
namespace auth = nibble::auth;
namespace base = nibble::base;
namespace beast = boost::beast;
namespace http = nibble::http;
namespace openai = nibble::openai;

namespace {

constexpr char kToken[] = "fuzz-token";
constexpr char kOrigin[] = "https://app.example";
constexpr std::size_t kMaxFileBytes = 1 << 10;
constexpr std::size_t kMaxBodies = 6 << 10;
constexpr std::size_t kMaxStreamed = 1;
constexpr std::size_t kMaxAnswers = 64 << 10;

// Small, so that inputs reach each of them.
http::ExchangeLimits Limits() {
  http::ExchangeLimits limits;
  limits.max_header_bytes = 2 << 10;
  limits.max_header_fields = 16;
  limits.max_body_bytes = 4 << 10;
  limits.max_waiting_bytes = 64;
  return limits;
}

std::unique_ptr<auth::Authority> MakeAuthority(std::string token_file) {
  auto authority = auth::Authority::Open(base::RealFileSystem(), base::RealClock(),
                                         {.token_file = std::move(token_file), .reload = absl::InfiniteDuration()});
  Expect(authority.ok(), "the token file is valid");
  return *std::move(authority);
}

// One gateway for callers with a token, and for web pages; one for local callers without.
class Gateways {
 public:
  Gateways() {
    const nibble::testing::TempDirectory directory;
    const std::string file = directory / "tokens.jsonl";
    std::ofstream(file) << R"({"name":"fuzz","role":"operator","token_sha256":")" << base::Sha256Hex(kToken) << "\"}\n";
    open_ = MakeAuthority("");
    closed_ = MakeAuthority(file);
    // Never connected: Handle() of the gateway is not called.
    const auto channel = grpc::CreateChannel("unix:/nibble-fuzz-none", grpc::InsecureChannelCredentials());
    openai::GatewayOptions options;
    options.max_file_bytes = kMaxFileBytes;
    options.local_host_only = true;
    local_ = std::make_unique<openai::Gateway>(channel, *open_, options);
    options.local_host_only = false;
    options.cors_origins = {kOrigin};
    remote_ = std::make_unique<openai::Gateway>(channel, *closed_, options);
  }
  openai::Gateway& Get(bool needs_token) { return needs_token ? *remote_ : *local_; }

 private:
  std::unique_ptr<auth::Authority> open_, closed_;
  std::unique_ptr<openai::Gateway> local_, remote_;
};

enum class Answer { kWhole, kStream, kLater, kNever, kFail, kFailedStream, kCut, kEarly };

struct Options {
  Answer answer = Answer::kWhole;
  bool needs_token = false;
};

struct Request {
  http::RequestHead head;
  std::string body;
  bool whole = false;
};

class Handler final : public http::ExchangeHandler {
 public:
  Handler(openai::Gateway& gateway, Options options, asio::io_context& io)
      : gateway_(gateway), options_(options), io_(io) {}

  std::optional<http::Reply> Admit(http::RequestHead& head) override {
    ++num_admitted_;
    auto refusal = gateway_.Admit(head);
    Expect(!head.request_id.empty(), "every request has an id");
    if (refusal.has_value()) {
      if (refusal->status != 204) CheckError(*refusal);
    } else if (options_.needs_token) {
      Expect(head.Field("authorization").find(kToken) != std::string::npos, "the caller has the token");
    }
    return refusal;
  }

  void Handle(const std::shared_ptr<http::Exchange>& exchange) override {
    const std::size_t at = requests.size();
    requests.emplace_back().head = exchange->head();
    exchange->Watch([] {}, [] {});
    const bool streamed = exchange->head().streamed_body_bytes.has_value();
    requests[at].body = exchange->TakeBody();
    requests[at].whole = !streamed;
    if (streamed && options_.answer == Answer::kEarly) return Reply(*exchange, "early");
    if (streamed) return ReadMore(exchange, at);
    Finish(exchange, at);
  }

  http::Reply Refusal(const http::RequestHead& head, unsigned status, std::string_view why) override {
    if (head.request_id.empty()) ++num_malformed_;
    http::Reply reply = gateway_.Refusal(head, status, why);
    CheckError(reply);
    return reply;
  }

  // Answers the requests that were to wait. False: there are none.
  bool AnswerWaiting() {
    const auto exchanges = std::exchange(waiting_, {});
    for (const auto& exchange : exchanges) Reply(*exchange, "late");
    return !exchanges.empty();
  }
  int num_answers() const { return num_admitted_ + num_malformed_; }

  std::vector<Request> requests;

 private:
  static void CheckError(const http::Reply& reply) {
    Expect(reply.status >= 400 && reply.status < 600, "a refusal has the status of an error");
    const auto body = base::ParseJson(reply.body);
    Expect(body.ok() && body->contains("error"), "a refusal is an error of OpenAI's API");
  }
  static void Reply(http::Exchange& exchange, std::string body) {
    exchange.Answer({.fields = {{"Content-Type", "text/plain"}}, .body = std::move(body)});
  }

  void ReadMore(const std::shared_ptr<http::Exchange>& exchange, std::size_t at) {
    exchange->ReadBody([this, exchange, at](const std::string& bytes, bool last) {
      requests[at].body += bytes;
      requests[at].whole = last;
      Expect(requests[at].body.size() <= *exchange->head().streamed_body_bytes, "a body keeps its limit");
      last ? Finish(exchange, at) : ReadMore(exchange, at);
    });
  }

  void Finish(const std::shared_ptr<http::Exchange>& exchange, std::size_t at) {
    const std::string& body = requests[at].body;
    switch (options_.answer) {
      case Answer::kStream:
      case Answer::kFailedStream:
        exchange->Stream({{"Content-Type", "text/event-stream"}}, ": silence\n\n");
        for (std::size_t i = 0; i < std::min<std::size_t>(body.size(), 8); ++i) exchange->Write(body.substr(i));
        if (options_.answer == Answer::kStream) return exchange->End();
        return exchange->Fail({.status = 500, .body = "failed"}, "tail");
      case Answer::kLater: return asio::post(io_, [exchange, body] { Reply(*exchange, body); });
      case Answer::kNever: return waiting_.push_back(exchange);
      case Answer::kFail: return exchange->Fail({.status = 500, .body = "failed"}, std::nullopt);
      case Answer::kCut:
        exchange->Stream({}, "");
        exchange->Write("begun");
        return exchange->Fail({.status = 500}, std::nullopt);
      default: return Reply(*exchange, body);
    }
  }

  openai::Gateway& gateway_;
  const Options options_;
  asio::io_context& io_;
  int num_admitted_ = 0;
  int num_malformed_ = 0;  // refused before they were admitted
  std::vector<std::shared_ptr<http::Exchange>> waiting_;
};

// The client's end of the connection.
class Client {
 public:
  explicit Client(asio::io_context& io) : io_(io) {
    std::array<int, 2> ends{};
    Expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0, "a socket pair");
    file_ = ends[0];
    peer_.assign(asio::ip::tcp::v4(), ends[1]);  // the session only reads, writes and closes
  }
  ~Client() { ::close(file_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  asio::ip::tcp::socket TakePeer() { return std::move(peer_); }

  // Sends the bytes in pieces; the session does all that it can after each. `on_stuck`: called when the session does
  // not read; false: that changes nothing.
  template <typename OnStuck>
  void Send(std::string_view bytes, std::size_t piece, OnStuck on_stuck) {
    while (!bytes.empty()) {
      const std::string_view next = bytes.substr(0, piece);
      const auto sent = ::send(file_, next.data(), next.size(), MSG_NOSIGNAL);
      const bool full = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      if (sent < 0 && !full) return;  // the server has closed the connection
      if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
      if (!Work() && full && !on_stuck()) return;
    }
  }
  void EndInput() {
    ::shutdown(file_, SHUT_WR);
    Work();
  }
  // Runs the session until nothing is left to do before more bytes arrive. Returns whether it did anything.
  bool Work() {
    bool worked = false;
    for (bool more = true; more; worked = worked || more) {
      more = io_.poll() > 0;
      io_.restart();
      std::array<char, 16 << 10> bytes;
      for (ssize_t count = 1; count > 0;) {
        count = ::recv(file_, bytes.data(), bytes.size(), 0);
        if (count > 0) received_.append(bytes.data(), static_cast<std::size_t>(count));
        more = more || count > 0;
      }
    }
    return worked;
  }
  const std::string& received() const { return received_; }

 private:
  asio::io_context& io_;
  int file_ = -1;
  asio::ip::tcp::socket peer_{io_};
  std::string received_;
};

// Checks that the bytes are answers and nothing else, and returns how many. `last_may_be_cut`: the last one may lack
// its end.
int CountAnswers(std::string_view bytes, bool last_may_be_cut) {
  int count = 0;
  while (!bytes.empty()) {
    beast::http::response_parser<beast::http::string_body> parser;
    parser.eager(true);
    parser.body_limit(boost::none);
    boost::system::error_code error;
    bytes.remove_prefix(parser.put(asio::buffer(bytes.data(), bytes.size()), error));
    const bool cut = error == beast::http::error::need_more || (!error && !parser.is_done());
    if (cut && !parser.need_eof()) {
      Expect(last_may_be_cut && bytes.empty(), "every answer is whole");
      return count + 1;
    }
    Expect(!error || cut, "the server sends only answers");
    const auto& answer = parser.get();
    const bool waits = answer.result_int() == 100;  // "100 Continue"
    Expect(waits || answer.result_int() >= 200, "an answer has a final status");
    if (!waits) ++count;
  }
  return count;
}

// Sends the bytes over a new connection and returns the requests that were handled.
std::vector<Request> Exchange(openai::Gateway& gateway, Options options, std::string_view bytes, std::size_t piece) {
  const http::ExchangeLimits limits = Limits();
  const auto io = std::make_shared<asio::io_context>(1);
  Handler handler(gateway, options, *io);
  http::ConnectionTable table(2);
  http::ClientBudget bodies(kMaxBodies), streamed(kMaxStreamed), answers(kMaxAnswers);
  Client client(*io);
  http::ServeExchanges(client.TakePeer(), nullptr, {limits, handler, table, bodies, streamed, answers, io});
  client.Send(bytes, piece, [&] { return handler.AnswerWaiting(); });
  client.EndInput();
  while (handler.AnswerWaiting()) client.Work();
  Expect(table.size() == 0, "the connection has ended");
  Expect(bodies.held() == 0 && streamed.held() == 0 && answers.held() == 0, "no memory is held for requests");
  // An answer to HEAD has the length of a body, but no body.
  if (bytes.find("HEAD") == std::string_view::npos) {
    const int answers = CountAnswers(client.received(), options.answer == Answer::kCut);
    Expect(answers <= handler.num_answers(), "no request has two answers");
    // The last request may lack its end.
    Expect(answers + 1 >= handler.num_answers(), "every request has an answer");
  }
  return std::move(handler.requests);
}

// Checks a request against the bytes that were sent.
void CheckRequest(const Request& request, std::string_view bytes) {
  Expect(bytes.find(request.head.method) != std::string_view::npos, "the client has sent the method");
  Expect(request.head.fields.size() <= Limits().max_header_fields, "a header keeps its limit");
  for (const auto& [name, value] : request.head.fields)
    Expect(bytes.find(value.substr(0, value.find_first_of("\r\n\t "))) != std::string_view::npos,
           "the client has sent the field");
  const std::string length = request.head.Field("content-length");
  if (!request.whole || length.empty()) return;
  Expect(
      std::to_string(request.body.size()) == length.substr(std::min(length.find_first_not_of('0'), length.size() - 1)),
      "a body has its length");
  Expect(bytes.find(request.body) != std::string_view::npos, "the client has sent the body");
}

auto Told(const http::RequestHead& head) { return std::tie(head.method, head.path, head.query, head.fields); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  static Gateways& gateways = *new Gateways;  // never destroyed: gRPC's own statics may be gone at exit
  const std::string_view bytes = nibble::fuzz::Text(data + 2, size - 2);
  const Options options{.answer = static_cast<Answer>(data[1] % 8), .needs_token = (data[1] & 8) != 0};
  openai::Gateway& gateway = gateways.Get(options.needs_token);
  const auto whole = Exchange(gateway, options, bytes, bytes.size());
  // Pieces of a byte would take long for a large input.
  const std::size_t piece = std::max({std::size_t{1}, std::size_t{data[0]}, bytes.size() / 256});
  const auto pieces = Exchange(gateway, options, bytes, piece);
  for (const Request& request : whole) CheckRequest(request, bytes);
  if (options.answer == Answer::kEarly) return 0;  // the next request depends on how much of the body has arrived
  Expect(whole.size() == pieces.size(), "pieces do not change the number of requests");
  for (std::size_t i = 0; i < whole.size(); ++i) {
    Expect(Told(whole[i].head) == Told(pieces[i].head), "pieces do not change a request");
    Expect(whole[i].whole == pieces[i].whole, "pieces do not change whether a body is whole");
    if (whole[i].whole) Expect(whole[i].body == pieces[i].body, "pieces do not change a body");
  }
  return 0;
}
