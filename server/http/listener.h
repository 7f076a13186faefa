#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "server/http/connection_table.h"
#include "server/http/host_port.h"
#include "server/http/spare_files.h"

namespace nibble::http {

// Accepts connections until it is destroyed. If the table is full, or the process has no file descriptor left, closes
// an old connection for the new one, or pauses if no connection can be closed. In a full table every exchange gets
// 5 ms (kGrace) before it is closed for a new connection, so a client that sends its request at once is answered,
// however many other connections are opened. One thread: the one that runs the io_context.
class Listener {
 public:
  // Takes over an accepted connection and adds it to the table.
  using Serve = std::function<void(boost::asio::ip::tcp::socket)>;

  // The table and the spare files must outlive the listener.
  Listener(boost::asio::io_context& io, ConnectionTable& table, SpareFiles& spare, Serve serve);
  // Binds the first of the host's addresses that can be bound. Unavailable: none can.
  absl::Status Listen(const HostPort& address);
  // The bound port.
  int port() const;
  void Accept();
  // Accepts no more connections.
  void Stop();

 private:
  using Error = boost::system::error_code;

  // Waits `pause`, then accepts.
  void AcceptAfter(std::chrono::steady_clock::duration pause);
  Error Bind(const boost::asio::ip::tcp::endpoint& endpoint);
  void OnAccept(Error error, boost::asio::ip::tcp::socket socket);
  void WarnFull();

  ConnectionTable& table_;
  SpareFiles& spare_;
  const Serve serve_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  std::optional<std::chrono::steady_clock::time_point> warned_;
};

}  // namespace nibble::http
