#include "server/http/http_session.h"

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <iterator>
#include <utility>

#include "server/base/strings.h"

namespace nibble::http {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;

constexpr std::size_t kReadBytes = 4 << 10;
constexpr std::size_t kLingerBytes = 1 << 20;  // bytes that a client may still send after the server's last answer

bool IsHttpError(const boost::system::error_code& error) {
  return error.category() == beast::http::make_error_code(beast::http::error::bad_method).category();
}

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

HttpSession::HttpSession(asio::ip::tcp::socket socket, ConnectionTable& table, const HttpLimits& limits,
                         const HttpRoute& route)
    : limits_(limits),
      route_(route),
      socket_(std::move(socket)),
      deadline_(socket_.get_executor()),
      buffer_(limits.max_header_bytes + kReadBytes) {
  Error ignored;  // a peer that has already gone has no address; the first read ends its session
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  place_ = table.Add(*this, socket_.remote_endpoint(ignored).address());
}

void HttpSession::Begin() { ReadHeader(); }

void HttpSession::Close() {
  // A reset frees the kernel's buffers of an answer that the client does not read.
  Error ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  End();
}

void HttpSession::End() {
  Error ignored;
  socket_.close(ignored);
  deadline_.cancel();
  place_.Release();
}

void HttpSession::SetDeadline(absl::Duration patience) {
  deadline_.expires_after(absl::ToChronoNanoseconds(patience));
  deadline_.async_wait([self = shared_from_this()](Error cancelled) {
    // If the deadline was set again while this call was queued, the call belongs to the earlier deadline.
    if (!cancelled && self->deadline_.expiry() <= asio::steady_timer::clock_type::now()) self->OnDeadline();
  });
}

void HttpSession::OnDeadline() { place_.awaits_answer() ? Refuse(503, "the answer takes too long") : Close(); }

void HttpSession::AwaitRequest() {
  place_.Renew();
  if (buffer_.size() > 0) return ReadHeader();  // the client sent this request before the last answer
  SetDeadline(limits_.idle);
  socket_.async_read_some(buffer_.prepare(kReadBytes), [self = shared_from_this()](Error error, std::size_t bytes) {
    if (error) return self->End();
    self->buffer_.commit(bytes);
    self->place_.Renew();
    self->ReadHeader();
  });
}

void HttpSession::ReadHeader() {
  parser_.emplace();
  header_.emplace(*parser_, limits_.max_header_bytes);
  parser_->body_limit(boost::none);  // no body is read: Route() refuses requests that have one
  SetDeadline(limits_.request);
  ParseHeader();
}

void HttpSession::ParseHeader() {
  const Error error = header_->Parse(buffer_);
  if (error != beast::http::error::need_more) return OnHeader(error);
  socket_.async_read_some(buffer_.prepare(kReadBytes), [self = shared_from_this()](Error failed, std::size_t bytes) {
    if (failed) return self->OnHeader(self->header_->Cut(failed));
    self->buffer_.commit(bytes);
    self->ParseHeader();
  });
}

void HttpSession::OnHeader(Error error) {
  if (!error) return Route();
  if (error == beast::http::error::end_of_stream || !IsHttpError(error)) return End();  // closed by either side
  if (error != beast::http::error::header_limit) return Refuse(400, "bad request");
  return parser_->get().target().empty() ? Refuse(414, "target too long") : Refuse(431, "header too large");
}

void HttpSession::Route() {
  const auto& request = parser_->get();
  const std::string_view target = View(request.target());
  const bool has_body = parser_->chunked() || parser_->content_length().value_or(0) > 0;
  const bool keep_alive = request.keep_alive() && !has_body;
  if (static_cast<std::size_t>(std::distance(request.begin(), request.end())) > limits_.max_header_fields) {
    return Refuse(431, "too many header fields");
  }
  if (target.size() > limits_.max_target_bytes) return Refuse(414, "target too long");
  if (request.method() != beast::http::verb::get) return Refuse(405, "only GET is allowed", keep_alive);
  if (has_body) return Refuse(413, "a GET has no body");

  place_.AwaitAnswer();
  SetDeadline(limits_.render);
  route_(target.substr(0, target.find('?')), [weak = weak_from_this(), executor = socket_.get_executor(), keep_alive,
                                              number = ++num_requests_](HttpAnswer answer) {
    asio::dispatch(executor, [weak, keep_alive, number, answer = std::move(answer)] {
      const auto self = weak.lock();
      if (self != nullptr && self->place_.awaits_answer() && self->num_requests_ == number)
        self->Send(answer, keep_alive);
    });
  });
}

void HttpSession::Refuse(unsigned status, const char* why, bool keep_alive) {
  Send({.status = status, .body = std::make_shared<const std::string>(base::StrCat(why, "\n"))}, keep_alive);
}

void HttpSession::Send(HttpAnswer answer, bool keep_alive) {
  place_.Renew();
  body_ = std::move(answer.body);
  response_ = {};
  response_.version(std::min(parser_->get().version(), 11u));
  response_.result(answer.status);
  response_.set(beast::http::field::content_type, answer.content_type);
  if (answer.status == 405) response_.set(beast::http::field::allow, "GET");
  const std::size_t size = body_ == nullptr ? 0 : body_->size();
  if (size > 0 && parser_->get().method() != beast::http::verb::head) response_.body() = {body_->data(), size};
  response_.content_length(size);
  response_.keep_alive(keep_alive);
  SetDeadline(limits_.write);
  beast::http::async_write(socket_, response_, [self = shared_from_this(), keep_alive](Error error, std::size_t) {
    self->OnSent(error, keep_alive);
  });
}

void HttpSession::OnSent(Error error, bool keep_alive) {
  body_.reset();
  if (!error && keep_alive) return AwaitRequest();
  if (!error) socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
  if (error) return End();
  SetDeadline(limits_.linger);
  Linger();
}

// Reads until the client closes: closing a socket with unread bytes would reset the connection, and the client might
// lose the answer.
void HttpSession::Linger() {
  buffer_.consume(buffer_.size());
  socket_.async_read_some(buffer_.prepare(kReadBytes), [self = shared_from_this()](Error error, std::size_t bytes) {
    self->lingered_ += bytes;
    error || self->lingered_ > kLingerBytes ? self->End() : self->Linger();
  });
}

}  // namespace nibble::http
