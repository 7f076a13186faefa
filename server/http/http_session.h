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
#include "server/http/header_bytes.h"
#include "server/http/http_server.h"

namespace nibble::http {

struct HttpAnswer {
  unsigned status = 200;
  const char* content_type = "text/plain; charset=utf-8";
  std::shared_ptr<const std::string> body = nullptr;  // null: empty
};

// Answers a request for `path` (without the query): calls the given function once, now or later, from any thread. Runs
// on the sessions' thread; must not throw.
using HttpRoute = std::function<void(std::string_view path, std::function<void(HttpAnswer)>)>;

// Reads and answers requests one after another, each within the limits. One thread: the one that runs the socket's
// io_context. Lives while an operation is in progress; each operation ends by starting the next one or by calling
// End().
class HttpSession : public Connection, public std::enable_shared_from_this<HttpSession> {
 public:
  // The table, limits and route must outlive the session.
  HttpSession(boost::asio::ip::tcp::socket socket, ConnectionTable& table, const HttpLimits& limits,
              const HttpRoute& route);
  void Begin();
  void Close() override;  // drops unsent bytes

 private:
  using Error = boost::system::error_code;

  void End();
  // The deadline covers everything until the next call; bytes that arrive do not extend it.
  void SetDeadline(absl::Duration patience);
  void OnDeadline();
  void AwaitRequest();
  void ReadHeader();
  void ParseHeader();
  void OnHeader(Error error);
  void Route();
  void Send(HttpAnswer answer, bool keep_alive);
  void Refuse(unsigned status, const char* why, bool keep_alive = false);
  void OnSent(Error error, bool keep_alive);
  void Linger();

  const HttpLimits& limits_;
  const HttpRoute& route_;
  ConnectionTable::Place place_;  // before the socket: released after the socket is closed
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer deadline_;
  boost::beast::flat_buffer buffer_;
  using Parser = boost::beast::http::request_parser<boost::beast::http::empty_body>;
  std::optional<Parser> parser_;               // of the current request
  std::optional<HeaderBytes<Parser>> header_;  // of the current request
  std::shared_ptr<const std::string> body_;    // of the current answer
  boost::beast::http::response<boost::beast::http::span_body<const char>> response_;
  int num_requests_ = 0;      // distinguishes a late answer from that of the current request
  std::size_t lingered_ = 0;  // bytes read after the last answer
};

}  // namespace nibble::http
