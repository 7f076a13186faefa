#include "server/http/exchange_session.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "server/base/log.h"
#include "server/base/strings.h"
#include "server/http/header_bytes.h"
#include "server/http/pending_answer.h"
#include "server/http/tls_material.h"

namespace nibble::http {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using base::StrCat;
using Error = boost::system::error_code;
using TlsStream = beast::ssl_stream<tcp::socket>;
using Parser = beast::http::request_parser<beast::http::string_body>;
using PieceParser = beast::http::request_parser<beast::http::buffer_body>;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kReadBytes = 2 << 10;
constexpr std::size_t kPieceBytes = 64 << 10;  // of a streamed body, at most
// The kernel would otherwise take up to 4 MiB for a client that does not read, which hides it from the engine.
constexpr int kSendBufferBytes = 256 << 10;
constexpr std::size_t kSendBytes = 256 << 10;
constexpr unsigned kStreamStatus = 200;
constexpr std::size_t kLingerReadBytes = 16 << 10;

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

// Decodes %XX; a malformed escape stays as it is.
std::string Decoded(std::string_view path) {
  const auto is_digit = [&](std::size_t i) {
    return i < path.size() && absl::ascii_isxdigit(static_cast<unsigned char>(path[i]));
  };
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '%' && is_digit(i + 1) && is_digit(i + 2)) {
      out += absl::HexStringToBytes(base::ToAbsl(path.substr(i + 1, 2)));
      i += 2;
    } else {
      out += path[i];
    }
  }
  return out;
}

std::string PeerOf(const tcp::socket& socket) {
  Error ignored;  // a peer that has gone has no address
  const tcp::endpoint peer = socket.remote_endpoint(ignored);
  asio::ip::address address = peer.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  return address.is_v6() ? StrCat("ipv6:[", address.to_string(), "]:", peer.port())
                         : StrCat("ipv4:", address.to_string(), ":", peer.port());
}

bool IsHttpError(const Error& error) {
  return error.category() == beast::http::make_error_code(beast::http::error::bad_method).category();
}

// The status line and the header fields, to the empty line.
std::string HeadText(unsigned status, const Fields& fields) {
  std::string out =
      StrCat("HTTP/1.1 ", status, " ", View(beast::http::obsolete_reason(beast::http::int_to_status(status))),
             "\r\nDate: ", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()), "\r\n");
  for (const auto& [name, value] : fields) out += StrCat(name, ": ", value, "\r\n");
  return out + "\r\n";
}

// Transport: tcp::socket or TlsStream. Reads a request, gives it to the handler, writes the answer, and so on. While
// the handler works, one read waits in the background, so that a client that closes its connection is noticed, unless
// it has sent the beginning of its next request.
template <typename Transport>
class Session final : public Connection, public std::enable_shared_from_this<Session<Transport>> {
 public:
  Session(SessionContext context, std::shared_ptr<asio::ssl::context> tls, Transport transport)
      : context_(context),
        tls_(std::move(tls)),
        transport_(std::move(transport)),
        deadline_(transport_.get_executor()),
        wake_(transport_.get_executor()),
        read_done_(transport_.get_executor()),
        buffer_(context.limits.max_header_bytes + kReadBytes),
        body_(context.bodies, *this),
        place_of_body_(context.streamed_bodies, *this),
        sending_(context.answers, *this) {
    Error ignored;  // a peer that has already gone has no address; the first read ends its session
    socket().set_option(tcp::no_delay(true), ignored);
    socket().set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
    place_ = context_.table.Add(*this, socket().remote_endpoint(ignored).address());
  }

  asio::awaitable<void> Run(std::shared_ptr<Session> self);

  // A reset frees the kernel's buffers of an answer that the client does not read.
  void Close() override {
    Error ignored;
    socket().set_option(asio::socket_base::linger(true, 0), ignored);
    End();
  }

 private:
  tcp::socket& socket() { return beast::get_lowest_layer(transport_); }
  bool closed() { return !socket().is_open(); }
  void End();
  // Closes the connection after `patience`. Replaces the last deadline.
  void SetDeadline(absl::Duration patience);
  void ReadInBackground();

  // The following return false if the connection must end.
  asio::awaitable<bool> Handshake();
  asio::awaitable<bool> AwaitFirstByte();
  asio::awaitable<bool> ReadRequest();
  asio::awaitable<bool> ReadBody();
  asio::awaitable<bool> BeginStreamedBody();
  asio::awaitable<bool> ReadPiece();  // and gives it to the handler
  asio::awaitable<bool> SendContinue();
  asio::awaitable<bool> Respond();
  // Sends out_, which one of Put...() has set. Coroutines here get no arguments but `self`, because
  // gcc 12 destroys temporaries in some expressions with co_await twice.
  asio::awaitable<bool> Send();
  asio::awaitable<bool> SendLast();  // Send(), then false

  void PutWhole(Reply reply, bool keep_alive);
  void PutPiece(PendingAnswer::Step step);
  void PutRefusal(unsigned status, std::string_view why) {
    // Frees what was read of the body, which the refusal does not need.
    if (parser_.has_value()) std::string().swap(parser_->get().body());
    body_.Release();
    PutWhole(context_.handler.Refusal(head(), status, why), /*keep_alive=*/false);
  }
  void PutTooLarge(std::size_t limit) { PutRefusal(413, StrCat("the body has more than ", limit, " bytes")); }

  asio::awaitable<void> Linger();
  RequestHead ReadHead();
  const RequestHead& head() const { return answer_ == nullptr ? head_ : answer_->head(); }
  // Whether the connection serves another request after this one. Not before the body has been read.
  bool keep_alive() const { return may_keep_alive_ && (!pieces_.has_value() || pieces_->is_done()); }

  const SessionContext context_;
  const std::shared_ptr<asio::ssl::context> tls_;  // outlives the transport
  ConnectionTable::Place place_;                   // before the transport: released after the socket is closed
  Transport transport_;
  asio::steady_timer deadline_;
  asio::steady_timer wake_;       // cancelled when the answer has a next step
  asio::steady_timer read_done_;  // cancelled when the read in the background has ended
  bool reading_ = false;          // in the background
  bool used_ = false;             // a request was answered
  beast::flat_buffer buffer_;
  // Of the current request.
  std::optional<Parser> parser_;
  std::optional<PieceParser> pieces_;  // instead of parser_ if the body is streamed
  bool http11_ = true;
  bool may_keep_alive_ = false;
  bool without_body_ = false;          // the answer is to HEAD
  bool awaits_continue_ = false;       // the client sends the body after "100 Continue"
  ClientBudget::Share body_;           // bytes, unless the body is streamed
  ClientBudget::Share place_of_body_;  // 1 if the body is streamed
  ClientBudget::Share sending_;        // bytes
  RequestHead head_;
  Fields answer_fields_;  // of the current request
  std::string out_;       // one buffer: of an array of two, Beast 1.81's TLS stream sends only the first if it is small
  std::shared_ptr<PendingAnswer> answer_;
};

template <typename Transport>
asio::awaitable<void> Session<Transport>::Run(std::shared_ptr<Session>) {
  bool open = co_await Handshake();
  while (open) {
    open = co_await AwaitFirstByte();
    if (open) open = co_await ReadRequest();
    if (open) open = co_await Respond();
    used_ = true;
  }
  if (!closed()) co_await Linger();
  End();
}

template <typename Transport>
void Session<Transport>::End() {
  Error ignored;
  socket().close(ignored);
  deadline_.cancel();
  wake_.cancel();
  read_done_.cancel();
  place_.Release();
  if (answer_ != nullptr) answer_->Gone();
}

template <typename Transport>
void Session<Transport>::SetDeadline(absl::Duration patience) {
  deadline_.expires_after(absl::ToChronoNanoseconds(patience));
  deadline_.async_wait([self = this->shared_from_this()](Error cancelled) {
    // If the deadline was set again while this call was queued, the call belongs to the earlier deadline.
    if (!cancelled && self->deadline_.expiry() <= asio::steady_timer::clock_type::now()) self->Close();
  });
}

template <typename Transport>
asio::awaitable<bool> Session<Transport>::Handshake() {
  if constexpr (std::is_same_v<Transport, TlsStream>) {
    SetDeadline(context_.limits.handshake);
    const auto [error] = co_await transport_.async_handshake(asio::ssl::stream_base::server, kAwait);
    if (error) {
      Close();
      co_return false;
    }
  }
  co_return true;
}

template <typename Transport>
void Session<Transport>::ReadInBackground() {
  if (reading_ || closed()) return;
  reading_ = true;
  transport_.async_read_some(buffer_.prepare(kReadBytes),
                             [self = this->shared_from_this()](Error error, std::size_t bytes) {
                               self->reading_ = false;
                               if (error) return self->End();
                               self->buffer_.commit(bytes);
                               self->read_done_.cancel();
                             });
}

template <typename Transport>
asio::awaitable<bool> Session<Transport>::AwaitFirstByte() {
  place_.Renew();
  SetDeadline(used_ ? context_.limits.idle : context_.limits.header);
  if (buffer_.size() == 0) ReadInBackground();
  while (reading_ && !closed()) {
    read_done_.expires_at(asio::steady_timer::time_point::max());
    co_await read_done_.async_wait(kAwait);
  }
  if (!closed()) place_.Renew();
  co_return !closed();
}

template <typename Transport>
RequestHead Session<Transport>::ReadHead() {
  const auto& request = parser_->get();
  RequestHead head;
  head.method = View(request.method_string());
  const std::string_view target = View(request.target());
  const std::size_t query = std::min(target.find('?'), target.size());
  head.path = Decoded(target.substr(0, query));
  if (query < target.size()) head.query = target.substr(query + 1);
  for (const auto& field : request)
    head.fields.emplace(absl::AsciiStrToLower(base::ToAbsl(View(field.name_string()))), View(field.value()));
  head.peer = PeerOf(socket());
  if constexpr (std::is_same_v<Transport, TlsStream>)
    head.certificate_names = CertificateNames(transport_.native_handle());
  return head;
}

template <typename Transport>
asio::awaitable<bool> Session<Transport>::ReadRequest() {
  const ExchangeLimits& limits = context_.limits;
  parser_.emplace();
  pieces_.reset();
  parser_->body_limit(boost::none);  // depends on the request: ReadBody()
  head_ = {};
  answer_fields_ = {};
  SetDeadline(limits.header);
  HeaderBytes<Parser> header(*parser_, limits.max_header_bytes);
  Error error = header.Parse(buffer_);
  while (error == beast::http::error::need_more) {
    const auto [failed, bytes] = co_await transport_.async_read_some(buffer_.prepare(kReadBytes), kAwait);
    if (closed()) co_return false;
    buffer_.commit(bytes);
    error = failed ? header.Cut(failed) : header.Parse(buffer_);
  }
  http11_ = parser_->get().version() >= 11;
  may_keep_alive_ = http11_ && parser_->get().keep_alive();
  without_body_ = parser_->get().method() == beast::http::verb::head;
  awaits_continue_ = beast::iequals(parser_->get()[beast::http::field::expect], "100-continue");
  if (error) {
    if (error == beast::http::error::header_limit) {
      PutRefusal(431, StrCat("the header has more than ", limits.max_header_bytes, " bytes"));
    } else if (error == beast::http::error::end_of_stream || !IsHttpError(error)) {
      co_return false;  // the client has gone
    } else {
      PutRefusal(400, StrCat("malformed HTTP request: ", error.message()));
    }
    co_return co_await SendLast();
  }
  const auto num_fields = static_cast<std::size_t>(std::distance(parser_->get().begin(), parser_->get().end()));
  if (num_fields > limits.max_header_fields) {
    PutRefusal(431, StrCat("the header has ", num_fields, " fields, wanted at most ", limits.max_header_fields));
    co_return co_await SendLast();
  }
  head_ = ReadHead();
  auto refusal = context_.handler.Admit(head_);
  answer_fields_ = head_.answer_fields;
  if (refusal.has_value()) {
    PutWhole(*std::move(refusal), /*keep_alive=*/false);
    co_return co_await SendLast();
  }
  co_return co_await ReadBody();
}

template <typename Transport>
asio::awaitable<bool> Session<Transport>::ReadBody() {
  const ExchangeLimits& limits = context_.limits;
  const auto length = parser_->content_length();
  const std::size_t limit = head_.streamed_body_bytes.value_or(limits.max_body_bytes);
  if (length && *length > limit) {
    PutTooLarge(limit);
    co_return co_await SendLast();
  }
  parser_->body_limit(limit);
  if (head_.streamed_body_bytes.has_value()) co_return co_await BeginStreamedBody();
  if (parser_->is_done()) co_return true;
  const bool sent = co_await SendContinue();
  if (!sent) co_return false;
  SetDeadline(limits.body);
  parser_->eager(true);
  body_.AwaitClient();
  std::size_t awaited_at = 0;  // size of the body then
  Error error;
  while (!error && !parser_->is_done()) {
    const auto [failed, read] = co_await beast::http::async_read_some(transport_, buffer_, *parser_, kAwait);
    if (closed()) co_return false;
    error = failed;
    // Only bytes that have come count, not a length that the client announces.
    if (!body_.Hold(head_.fairness_key, parser_->get().body().size())) {
      PutRefusal(429, "too many request bodies are in memory; try again");
      co_return co_await SendLast();
    }
    if (parser_->get().body().size() - awaited_at < kPieceBytes) continue;
    awaited_at = parser_->get().body().size();
    body_.AwaitClient();  // the client makes progress
  }
  if (!error) {
    body_.EndWait();
    co_return true;
  }
  if (error == beast::http::error::body_limit) {
    PutTooLarge(limit);
  } else if (IsHttpError(error)) {
    PutRefusal(400, StrCat("malformed HTTP body: ", error.message()));
  } else {
    co_return false;
  }
  co_return co_await SendLast();
}

template <typename Transport>
asio::awaitable<bool> Session<Transport>::BeginStreamedBody() {
  if (!place_of_body_.Hold(head_.fairness_key, 1)) {
    PutRefusal(429, "too many uploads are in progress; try again");
    co_return co_await SendLast();
  }
  pieces_.emplace(*std::move(parser_));
  co_return true;
}

template <typename Transport>
asio::awaitable<bool> Session<Transport>::SendContinue() {
  if (!std::exchange(awaits_continue_, false)) co_return true;
  out_ = "HTTP/1.1 100 Continue\r\n\r\n";
  co_return co_await Send();
}

template <typename Transport>
asio::awaitable<bool> Session<Transport>::ReadPiece() {
  const bool sent = co_await SendContinue();
  if (!sent) co_return false;
  std::string piece;
  if (!pieces_->is_done()) {
    piece.resize(kPieceBytes);
    auto& body = pieces_->get().body();
    body.data = piece.data();
    body.size = piece.size();
    SetDeadline(context_.limits.body);
    place_of_body_.AwaitClient();
    const auto [error, read] = co_await beast::http::async_read(transport_, buffer_, *pieces_, kAwait);
    if (closed()) co_return false;
    place_of_body_.EndWait();
    deadline_.expires_at(asio::steady_timer::time_point::max());
    if (error && error != beast::http::error::need_buffer) {
      answer_->Gone();
      if (error == beast::http::error::body_limit) {
        PutTooLarge(*answer_->head().streamed_body_bytes);
      } else if (IsHttpError(error)) {
        PutRefusal(400, StrCat("malformed HTTP body: ", error.message()));
      } else {
        co_return false;
      }
      co_return co_await SendLast();
    }
    piece.resize(piece.size() - body.size);
  }
  if (pieces_->is_done() && buffer_.size() == 0) ReadInBackground();
  answer_->Piece(std::move(piece), pieces_->is_done());
  co_return true;
}

template <typename Transport>
asio::awaitable<bool> Session<Transport>::Respond() {
  deadline_.expires_at(asio::steady_timer::time_point::max());
  place_.AwaitAnswer();
  answer_ = std::make_shared<PendingAnswer>(
      std::move(head_), pieces_.has_value() ? std::string() : std::move(parser_->get().body()),
      context_.limits.max_waiting_bytes, [weak = this->weak_from_this(), io = context_.io] {
        asio::post(*io, [weak] {
          if (const auto self = weak.lock()) self->wake_.cancel();
        });
      });
  const std::shared_ptr<PendingAnswer> answer = answer_;
  if (buffer_.size() == 0 && !pieces_.has_value()) ReadInBackground();
  context_.handler.Handle(answer);
  bool open = true, ended = false;
  while (open && !ended && !closed()) {
    PendingAnswer::Step step = answer->Next();
    if (step.kind == PendingAnswer::Step::Kind::kWait) {
      wake_.expires_after(absl::ToChronoNanoseconds(context_.limits.silence));
      const auto [cancelled] = co_await wake_.async_wait(kAwait);
      if (!cancelled) answer->Silence();
      continue;
    }
    if (step.kind == PendingAnswer::Step::Kind::kRead) {
      open = co_await ReadPiece();
      continue;
    }
    body_.Release();  // the handler has read it
    ended = step.last;
    if (step.kind == PendingAnswer::Step::Kind::kCut) {
      Close();
      break;
    }
    if (step.kind == PendingAnswer::Step::Kind::kWhole) {
      PutWhole(std::move(step.reply), keep_alive());
    } else {
      PutPiece(std::move(step));
    }
    open = co_await Send();
    deadline_.expires_at(asio::steady_timer::time_point::max());
    answer->Taken();
  }
  if (!ended) answer->Gone();
  answer->Detach();
  answer_ = nullptr;
  body_.Release();
  place_of_body_.Release();
  co_return open&& keep_alive() && !closed();
}

template <typename Transport>
void Session<Transport>::PutWhole(Reply reply, bool keep_alive) {
  context_.handler.Answered(head(), reply.status);
  reply.fields.insert(reply.fields.end(), answer_fields_.begin(), answer_fields_.end());
  if (reply.status != 204) reply.fields.emplace_back("Content-Length", std::to_string(reply.body.size()));
  reply.fields.emplace_back("Connection", keep_alive ? "keep-alive" : "close");
  out_ = HeadText(reply.status, reply.fields);
  if (!without_body_) out_ += reply.body;
}

template <typename Transport>
void Session<Transport>::PutPiece(PendingAnswer::Step step) {
  out_.clear();
  if (step.kind == PendingAnswer::Step::Kind::kBegin) {
    context_.handler.Answered(head(), kStreamStatus);
    Fields fields = std::move(step.reply.fields);
    fields.insert(fields.end(), answer_fields_.begin(), answer_fields_.end());
    if (http11_) fields.emplace_back("Transfer-Encoding", "chunked");
    fields.emplace_back("Connection", keep_alive() ? "keep-alive" : "close");
    out_ = HeadText(kStreamStatus, fields);
  }
  const std::string& bytes = step.reply.body;
  if (!http11_) {
    out_ += bytes;
    return;
  }
  if (!bytes.empty()) out_ += StrCat(absl::StrFormat("%x\r\n", bytes.size()), bytes, "\r\n");
  if (step.last) out_ += "0\r\n\r\n";
}

template <typename Transport>
asio::awaitable<bool> Session<Transport>::Send() {
  // A deadline for each piece, so that a large answer may take longer.
  bool open = sending_.Hold(head().fairness_key, out_.size());
  for (std::size_t sent = 0; open && sent < out_.size(); sent += kSendBytes) {
    SetDeadline(context_.limits.write);
    sending_.AwaitClient();
    const auto piece = asio::buffer(out_.data() + sent, std::min(kSendBytes, out_.size() - sent));
    const auto [error, bytes] = co_await asio::async_write(transport_, piece, kAwait);
    open = !error;
  }
  sending_.Release();
  out_ = {};
  if (!open) Close();
  co_return open;
}

template <typename Transport>
asio::awaitable<bool> Session<Transport>::SendLast() {
  co_await Send();
  co_return false;
}

// Ends the server's side and reads until the client closes: closing a socket with unread bytes would reset the
// connection, and the client might lose the answer.
template <typename Transport>
asio::awaitable<void> Session<Transport>::Linger() {
  SetDeadline(context_.limits.linger);
  Error error;
  if constexpr (std::is_same_v<Transport, TlsStream>) {
    [[maybe_unused]] const auto [ended] = co_await transport_.async_shutdown(kAwait);
  }
  socket().shutdown(tcp::socket::shutdown_send, error);
  while (reading_ && !closed()) {
    read_done_.expires_at(asio::steady_timer::time_point::max());
    co_await read_done_.async_wait(kAwait);
  }
  // The buffer holds one header, whose limit may be smaller.
  const std::size_t size = std::min(kLingerReadBytes, buffer_.max_size());
  std::size_t lingered = 0;
  while (!error && !closed() && lingered < context_.limits.linger_bytes) {
    buffer_.consume(buffer_.size());
    const auto [failed, bytes] = co_await socket().async_read_some(buffer_.prepare(size), kAwait);
    error = failed;
    lingered += bytes;
  }
}

template <typename Transport>
void Spawn(const std::shared_ptr<Session<Transport>>& session, const asio::any_io_executor& executor) {
  asio::co_spawn(executor, session->Run(session), [session](const std::exception_ptr& failed) {
    if (failed == nullptr) return;
    session->Close();
    try {
      std::rethrow_exception(failed);
    } catch (const std::exception& error) {  // out of memory: only this connection is lost
      base::LogError("an HTTP connection failed", {{"why", error.what()}});
    }
  });
}

}  // namespace

void ServeExchanges(tcp::socket socket, std::shared_ptr<asio::ssl::context> tls, SessionContext context) {
  const asio::any_io_executor executor = socket.get_executor();
  if (tls == nullptr) {
    return Spawn(std::make_shared<Session<tcp::socket>>(std::move(context), nullptr, std::move(socket)), executor);
  }
  TlsStream stream(std::move(socket), *tls);
  Spawn(std::make_shared<Session<TlsStream>>(std::move(context), std::move(tls), std::move(stream)), executor);
}

}  // namespace nibble::http
