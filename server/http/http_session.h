// One HTTP/1.1 connection.
#pragma once
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/span_body.hpp>
#include <boost/beast/http/write.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/connection_table.h"
#include "server/http/http_server.h"

namespace nibble::http {

struct HttpAnswer {
  unsigned status = 200;
  const char* content_type = "text/plain; charset=utf-8";
  std::shared_ptr<const std::string> body = nullptr;  // null: empty
};

// What is served at `path` (without the query): calls the function that it is given once, now or later, from any thread. Called on the
// sessions' thread; does not throw.
using HttpRoute = std::function<void(std::string_view path, std::function<void(HttpAnswer)>)>;

// Reads a request, answers it, and so on, each within the limits. One thread: the one that runs the socket's io_context. Lives as long
// as it has an operation under way; each operation ends with the next one or with End().
class HttpSession : public Connection, public std::enable_shared_from_this<HttpSession> {
 public:
  // The table, limits and route outlive the session.
  HttpSession(boost::asio::ip::tcp::socket socket, ConnectionTable& table, const HttpLimits& limits, const HttpRoute& route);
  void Begin();
  void Close() override;  // drops what is not sent yet

 private:
  using Error = boost::system::error_code;

  void End();
  // For all that happens until the next call: a deadline is not moved while bytes come.
  void SetDeadline(absl::Duration patience);
  void OnDeadline();
  void AwaitRequest();
  void ReadHeader();
  void OnHeader(Error error);
  void Route();
  void Send(HttpAnswer answer, bool keep_alive);
  void Refuse(unsigned status, const char* why, bool keep_alive = false);
  void OnSent(Error error, bool keep_alive);
  void Linger();

  const HttpLimits& limits_;
  const HttpRoute& route_;
  ConnectionTable::Place place_;  // before the socket: given back after it is closed
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer deadline_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::empty_body>> parser_;  // of the present request
  std::shared_ptr<const std::string> body_;                                                     // of the present answer
  boost::beast::http::response<boost::beast::http::span_body<const char>> response_;
  int num_requests_ = 0;        // tells a late answer from that of the present request
  std::size_t lingered_ = 0;    // bytes read after the last answer
};

}  // namespace nibble::http
