#include "server/kube/connection.h"

#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <charconv>
#include <cstdint>
#include <utility>

#include "server/base/strings.h"

namespace nibble::kube {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using base::StrCat;

constexpr std::size_t kMaxBuffer = 256 << 10;  // a header, or a piece of a body
constexpr std::uint32_t kMaxHeader = 64 << 10;
constexpr absl::Duration kMaxRetryAfter = absl::Minutes(10);

auto Into(boost::system::error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

http::verb VerbOf(Method method) {
  switch (method) {
    case Method::kGet: return http::verb::get;
    case Method::kPost: return http::verb::post;
    case Method::kDelete: break;
  }
  return http::verb::delete_;
}

}  // namespace

Connection::Connection(asio::io_context& io, asio::ssl::context tls, const ClusterAccess& access)
    : host_(access.host), where_(StrCat(access.host, ":", access.port)), tls_(std::move(tls)), stream_(io, tls_) {}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Make(asio::io_context& io, const ClusterAccess& access,
                                                             const std::string& authority) {
  asio::ssl::context tls(asio::ssl::context::tls_client);
  ::SSL_CTX_set_min_proto_version(tls.native_handle(), TLS1_2_VERSION);
  Error error;
  tls.set_verify_mode(asio::ssl::verify_peer, error);
  if (!error) tls.add_certificate_authority(asio::buffer(authority), error);
  if (error) return absl::UnavailableError(StrCat(access.ca_file, " holds no usable certificates: ", error.message()));
  std::unique_ptr<Connection> made(new Connection(io, std::move(tls), access));
  made->stream_.set_verify_callback(asio::ssl::host_name_verification(access.host), error);
  // Server name indication is for names only (RFC 6066 3).
  Error not_an_address;
  asio::ip::make_address(access.host, not_an_address);
  if (not_an_address) SSL_set_tlsext_host_name(made->stream_.native_handle(), access.host.c_str());
  if (error) return made->StatusFrom(error);
  return made;
}

void Connection::Expire(const Deadline& deadline) {
  timeout_ = deadline.timeout;
  tcp().expires_at(deadline.at);
}

void Connection::Close() { tcp().close(); }

absl::Status Connection::StatusFrom(const Error& error) const {
  if (!error) return absl::OkStatus();
  if (error == beast::error::timeout) {
    return absl::DeadlineExceededError(
        StrCat("the API server ", where_, " did not answer within ", absl::FormatDuration(timeout_)));
  }
  if (error == asio::error::operation_aborted) return absl::CancelledError("the request was cancelled");
  return absl::UnavailableError(StrCat("the API server ", where_, ": ", error.message()));
}

asio::awaitable<absl::Status> Connection::Open(const Endpoints& endpoints) {
  Error error;
  co_await tcp().async_connect(endpoints, Into(error));
  if (!error) tcp().socket().set_option(asio::ip::tcp::no_delay(true), error);
  if (!error) co_await stream_.async_handshake(asio::ssl::stream_base::client, Into(error));
  co_return StatusFrom(error);
}

asio::awaitable<absl::Status> Connection::Send(const ApiRequest& request, const std::string& token) {
  const bool is_v6 = host_.find(':') != std::string::npos;
  http::request<http::string_body> message(VerbOf(request.method), request.target, /*version=*/11);
  message.set(http::field::host, is_v6 ? StrCat("[", host_, "]") : host_);
  message.set(http::field::user_agent, "nibbled");
  message.set(http::field::accept, "application/json");
  message.set(http::field::authorization, StrCat("Bearer ", token));
  if (request.body.has_value()) {
    message.set(http::field::content_type, "application/json");
    message.body() = base::Dump(*request.body);
  }
  message.prepare_payload();
  Error error;
  co_await http::async_write(stream_, message, Into(error));
  co_return StatusFrom(error);
}

asio::awaitable<absl::Status> Connection::ReadHeader() {
  parser_.emplace();
  parser_->header_limit(kMaxHeader);
  parser_->body_limit(boost::none);  // a watch has no limit; the caller limits what it keeps
  buffer_.max_size(kMaxBuffer);
  Error error;
  co_await http::async_read_header(stream_, buffer_, *parser_, Into(error));
  // string_body reserves the announced length.
  if (!error && parser_->content_length().value_or(0) > kMaxBody) {
    co_return absl::ResourceExhaustedError(
        StrCat("the API server ", where_, " sends an answer of ", *parser_->content_length(), " bytes"));
  }
  co_return StatusFrom(error);
}

asio::awaitable<absl::Status> Connection::ReadSome() {
  Error error;
  co_await http::async_read_some(stream_, buffer_, *parser_, Into(error));
  co_return StatusFrom(error);
}

std::optional<absl::Duration> Connection::RetryAfter() const {
  const beast::string_view text = parser_->get()[http::field::retry_after];
  std::uint32_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  // The API server sends seconds; HTTP also permits a date.
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return std::min(absl::Seconds(seconds), kMaxRetryAfter);
}

}  // namespace nibble::kube
