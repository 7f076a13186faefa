// One connection of an ExchangeServer.
#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "server/http/client_budget.h"
#include "server/http/connection_table.h"
#include "server/http/exchange_server.h"

namespace nibble::http {

// What the sessions of a server share. Outlives them.
struct SessionContext {
  const ExchangeLimits& limits;
  ExchangeHandler& handler;
  ConnectionTable& table;
  ClientBudget& bodies;           // bytes that are being read, or wait for their handler
  ClientBudget& streamed_bodies;  // number
  ClientBudget& answers;          // bytes that are being sent
  std::shared_ptr<boost::asio::io_context> io;
};

// Serves the connection until it ends. `tls`: nullptr for plain HTTP; kept as long as the connection. Call it on the
// thread that runs the socket's io_context, on which everything then runs.
void ServeExchanges(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls,
                    SessionContext context);

}  // namespace nibble::http
