// One connection of an ExchangeServer.
#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstddef>
#include <memory>

#include "server/http/connection_table.h"
#include "server/http/exchange_server.h"

namespace nibble::http {

// Bytes of request bodies that may be in memory at once, or the number of streamed bodies. One thread.
class BodyBudget {
 public:
  explicit BodyBudget(std::size_t max) : free_(max) {}
  bool Take(std::size_t bytes) {
    if (bytes > free_) return false;
    free_ -= bytes;
    return true;
  }
  void Give(std::size_t bytes) { free_ += bytes; }

 private:
  std::size_t free_;
};

// What the sessions of a server share. Outlives them.
struct SessionContext {
  const ExchangeLimits& limits;
  ExchangeHandler& handler;
  ConnectionTable& table;
  BodyBudget& bodies;
  BodyBudget& streamed_bodies;
  std::shared_ptr<boost::asio::io_context> io;
};

// Serves the connection until it ends. `tls`: nullptr for plain HTTP; kept as long as the connection. Call it on the
// thread that runs the socket's io_context, on which everything then runs.
void ServeExchanges(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls,
                    SessionContext context);

}  // namespace nibble::http
