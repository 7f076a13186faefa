#include "server/http/exchange_server.h"

#include <pthread.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <thread>
#include <utility>

#include "server/base/log.h"
#include "server/base/strings.h"
#include "server/http/client_budget.h"
#include "server/http/connection_table.h"
#include "server/http/exchange_session.h"
#include "server/http/host_port.h"
#include "server/http/listener.h"
#include "server/http/spare_files.h"
#include "server/http/tls_material.h"

namespace nibble::http {

namespace {
constexpr std::size_t kSpareFiles = 2;
}  // namespace

// Sessions use the members that are declared before the io_context.
struct ExchangeServer::State {
  State(ExchangeOptions given, ExchangeHandler& given_handler)
      : options(std::move(given)),
        handler(given_handler),
        spare(kSpareFiles),
        table(
            options.limits.max_connections, [this] { spare.Refill(); }, ConnectionTable::WhenFull::kCloseIdle),
        bodies(options.limits.max_bodies_bytes),
        streamed_bodies(options.limits.max_streamed_bodies, options.limits.streamed_body_patience),
        answers(options.limits.max_answers_bytes),
        listener(*io, table, spare, [this](boost::asio::ip::tcp::socket socket) { Serve(std::move(socket)); }) {}

  void Serve(boost::asio::ip::tcp::socket socket);
  void Run();

  const ExchangeOptions options;
  ExchangeHandler& handler;
  SpareFiles spare;
  ConnectionTable table;
  ClientBudget bodies;
  ClientBudget streamed_bodies;
  ClientBudget answers;
  std::shared_ptr<const TlsMaterial> material;         // of `context`
  std::shared_ptr<boost::asio::ssl::context> context;  // for new connections
  // Shared with the answers that handlers still hold when the server has ended.
  const std::shared_ptr<boost::asio::io_context> io = std::make_shared<boost::asio::io_context>(1);
  Listener listener;
  int port = 0;
  std::thread thread;
};

void ExchangeServer::State::Serve(boost::asio::ip::tcp::socket socket) {
  if (options.tls != nullptr) {
    if (auto now = options.tls(); now != material || context == nullptr) {
      auto made = MakeServerContext(*now);
      // auth::TlsWatch has checked the texts, so this fails only if memory is short. The last certificates stay in use.
      if (!made.ok())
        base::LogError("the TLS files cannot be used for HTTP", {{"why", std::string(made.status().message())}});
      if (made.ok()) context = *std::move(made);
      material = std::move(now);
    }
    if (context == nullptr) return;  // never plain HTTP on a TLS listener
  }
  ServeExchanges(std::move(socket), context, {options.limits, handler, table, bodies, streamed_bodies, answers, io});
}

void ExchangeServer::State::Run() {
  pthread_setname_np(pthread_self(), "nibble-exchange");
  while (!io->stopped()) {
    try {
      io->run();
    } catch (const std::exception& error) {  // out of memory: only the affected session ends
      base::LogError("an HTTP connection failed", {{"why", error.what()}});
    }
  }
}

ExchangeServer::ExchangeServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<ExchangeServer>> ExchangeServer::Start(ExchangeOptions options,
                                                                      ExchangeHandler& handler) {
  const auto parsed = ParseHostPort(options.flag, options.address);
  if (!parsed.ok()) return parsed.status();
  auto state = std::make_unique<State>(std::move(options), handler);
  if (const absl::Status listening = state->listener.Listen(*parsed); !listening.ok()) {
    return absl::UnavailableError(base::StrCat(state->options.flag, ": cannot listen on ", state->options.address, ": ",
                                               std::string(listening.message()), " (is another server running?)"));
  }
  state->port = state->listener.port();
  state->listener.Accept();
  state->thread = std::thread([raw = state.get()] { raw->Run(); });
  return std::unique_ptr<ExchangeServer>(new ExchangeServer(std::move(state)));
}

// NOLINTNEXTLINE(bugprone-exception-escape): an exception ends the process, which may not go on with the thread
ExchangeServer::~ExchangeServer() {
  // The thread ends when the last session has ended.
  boost::asio::post(*state_->io, [state = state_.get()] {
    state->listener.Stop();
    state->table.CloseAll();
  });
  state_->thread.join();
}

int ExchangeServer::port() const { return state_->port; }

}  // namespace nibble::http
