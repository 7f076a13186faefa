// Private to api_client.cc.
#pragma once
#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/kube/api_client.h"
#include "server/kube/name_lookup.h"

namespace nibble::kube {

// At most a day from now, so that an infinite timeout does not overflow `at`.
struct Deadline {
  explicit Deadline(absl::Duration given)
      : timeout(std::min(given, absl::Hours(24))),
        at(std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout)) {}
  absl::Duration timeout;
  std::chrono::steady_clock::time_point at;
};

// One TLS connection to the API server, with one exchange at a time. Errors of its operations: Unavailable;
// DeadlineExceeded; Cancelled (Close). One thread: that of the io_context.
class Connection {
 public:
  // Accepts only a certificate for access.host, of an authority of the PEM text. Unavailable: `authority` holds no
  // certificates.
  static absl::StatusOr<std::unique_ptr<Connection>> Make(boost::asio::io_context& io, const ClusterAccess& access,
                                                          const std::string& authority);

  // The deadline of all following operations.
  void Expire(const Deadline& deadline);
  // Ends the operation in progress; the connection is then useless.
  void Close();

  boost::asio::awaitable<absl::Status> Open(const Endpoints& endpoints);
  boost::asio::awaitable<absl::Status> Send(const ApiRequest& request, const std::string& token);
  // Reads the answer's status and headers. ResourceExhausted: it announces more than kMaxBody bytes.
  boost::asio::awaitable<absl::Status> ReadHeader();
  // Reads some of the body and appends it to body(). Requires !done().
  boost::asio::awaitable<absl::Status> ReadSome();

  static constexpr std::size_t kMaxBody = 16 << 20;
  int status() const { return static_cast<int>(parser_->get().result_int()); }
  std::string phrase() const { return std::string(parser_->get().reason()); }
  std::optional<absl::Duration> RetryAfter() const;
  std::string& body() { return parser_->get().body(); }
  bool done() const { return parser_->is_done(); }
  // Whether another exchange may follow. Requires done().
  bool keep_alive() const { return parser_->keep_alive(); }

 private:
  using Error = boost::system::error_code;

  Connection(boost::asio::io_context& io, boost::asio::ssl::context tls, const ClusterAccess& access);
  boost::beast::tcp_stream& tcp() { return boost::beast::get_lowest_layer(stream_); }
  absl::Status StatusFrom(const Error& error) const;

  const std::string host_, where_;  // where_: host and port, for messages
  boost::asio::ssl::context tls_;
  boost::beast::ssl_stream<boost::beast::tcp_stream> stream_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::response_parser<boost::beast::http::string_body>> parser_;  // of the last answer
  absl::Duration timeout_;
};

}  // namespace nibble::kube
