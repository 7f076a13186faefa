#include "client/http_get.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <utility>

#include "server/base/strings.h"

namespace nibble::client {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using Error = boost::system::error_code;

constexpr std::uint64_t kMaxBodyBytes = 64 << 20;

// Connects, writes and reads: each step starts the next, under one deadline for the whole stream.
class Exchange {
 public:
  Exchange(asio::io_context& io, const std::string& address, const std::string& path)
      : stream_(io), request_(beast::http::verb::get, path, /*version=*/11) {
    request_.set(beast::http::field::host, address);
    request_.keep_alive(false);
    parser_.body_limit(kMaxBodyBytes);
  }
  void Begin(const tcp::resolver::results_type& endpoints, absl::Duration timeout) {
    stream_.expires_after(absl::ToChronoNanoseconds(timeout));
    stream_.async_connect(endpoints, [this](Error error, const tcp::endpoint&) { error ? End(error) : Write(); });
  }
  const Error& error() const { return error_; }
  HttpReply TakeReply() {
    auto response = parser_.release();
    const auto type = response[beast::http::field::content_type];
    return {response.result_int() <= 999 ? static_cast<int>(response.result_int()) : 0,
            {type.data(), type.size()},
            std::move(response.body())};
  }

 private:
  void Write() {
    beast::http::async_write(stream_, request_, [this](Error error, std::size_t) { error ? End(error) : Read(); });
  }
  void Read() {
    beast::http::async_read(stream_, buffer_, parser_, [this](Error error, std::size_t) { End(error); });
  }
  void End(Error error) {
    error_ = error;
    stream_.close();
  }

  beast::tcp_stream stream_;
  beast::http::request<beast::http::empty_body> request_;
  beast::flat_buffer buffer_;
  beast::http::response_parser<beast::http::string_body> parser_;
  Error error_;
};

}  // namespace

absl::StatusOr<HttpReply> HttpGet(const std::string& address, const std::string& path, absl::Duration timeout) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(base::StrCat("\"", address, "\" is not HOST:PORT"));
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);

  asio::io_context io(1);
  Error error;
  const auto endpoints = tcp::resolver(io).resolve(host, address.substr(colon + 1), error);
  Exchange exchange(io, address, path);
  if (!error) {
    exchange.Begin(endpoints, timeout);
    io.run();
    error = exchange.error();
  }
  if (error)
    return absl::UnavailableError(base::StrCat("no answer from http://", address, path, ": ", error.message()));
  return exchange.TakeReply();
}

}  // namespace nibble::client
