#include "server/http/http_server.h"

#include <pthread.h>

#include <boost/asio/io_context.hpp>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>

#include "server/base/log.h"
#include "server/base/strings.h"
#include "server/http/connection_table.h"
#include "server/http/http_session.h"
#include "server/http/listener.h"
#include "server/http/metrics_renderer.h"
#include "server/http/paced_queue.h"
#include "server/http/spare_files.h"

namespace nibble::http {

namespace {

constexpr std::size_t kSpareFiles = 2;

std::shared_ptr<const std::string> Text(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

HttpAnswer ErrorAnswer() { return {.status = 500, .body = Text("internal error\n")}; }

HttpAnswer ProbeAnswer(const absl::Status& status) {
  if (status.ok()) return {.body = Text("ok\n")};
  return {.status = 503, .body = Text(std::string(status.message()) + "\n")};
}

HttpAnswer Probe(const std::function<absl::Status()>& handler) {
  try {
    return ProbeAnswer(handler());
  } catch (const std::exception& error) {
    base::LogError("a probe failed", {{"why", error.what()}});
  } catch (...) {
    base::LogError("a probe failed", {{"why", "unknown exception"}});
  }
  return ErrorAnswer();
}

}  // namespace

// Sessions may live as long as the io_context and use the members declared before it.
struct HttpServer::State {
  State(HttpHandlers given_handlers, const HttpLimits& given_limits)
      : handlers(std::move(given_handlers)),
        limits(given_limits),
        spare(kSpareFiles),
        table(limits.max_connections, [this] { spare.Refill(); }),
        route([this](std::string_view path, auto answer) { Route(path, answer); }),
        renderer(handlers.metrics, limits.max_connections),
        listener(io, table, spare, [this](boost::asio::ip::tcp::socket socket) {
          std::make_shared<HttpSession>(std::move(socket), table, limits, route)->Begin();
        }) {}

  void Route(std::string_view path, const std::function<void(HttpAnswer)>& answer);
  void Run();

  const HttpHandlers handlers;
  const HttpLimits limits;
  SpareFiles spare;
  ConnectionTable table;
  const HttpRoute route;
  boost::asio::io_context io{1};
  PacedQueue scrapes{io};
  MetricsRenderer renderer;
  Listener listener;
  int port = 0;
  std::thread thread;
};

void HttpServer::State::Route(std::string_view path, const std::function<void(HttpAnswer)>& answer) {
  if (path == "/livez") return answer(Probe(handlers.live));
  if (path == "/readyz") return answer(Probe(handlers.ready));
  if (path == "/startupz") return answer(Probe(handlers.started));
  if (path != "/metrics") return answer({.status = 404, .body = Text("no such page\n")});
  // Each scrape copies 100 KB or more to its socket. `scrapes` paces them: sending all at once would delay the probes.
  const bool asked = renderer.Ask([this, answer](const std::shared_ptr<const std::string>& text) {
    scrapes.Add([answer, text] {
      if (text == nullptr) return answer(ErrorAnswer());
      answer({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = text});
    });
  });
  if (!asked) answer({.status = 503, .body = Text("too many scrapes\n")});
}

void HttpServer::State::Run() {
  pthread_setname_np(pthread_self(), "nibble-http");
  while (!io.stopped()) {
    try {
      io.run();
    } catch (const std::exception& error) {  // out of memory: only the affected session ends
      base::LogError("an HTTP connection failed", {{"why", error.what()}});
    }
  }
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, HttpHandlers handlers,
                                                              HttpLimits limits) {
  const auto parsed = ParseHostPort("--http_address", address);
  if (!parsed.ok()) return parsed.status();
  auto state = std::make_unique<State>(std::move(handlers), limits);
  if (const absl::Status listening = state->listener.Listen(*parsed); !listening.ok()) {
    return absl::UnavailableError(base::StrCat("--http_address: cannot listen on ", address, ": ",
                                               std::string(listening.message()), " (is another server running?)"));
  }
  state->port = state->listener.port();
  state->listener.Accept();
  state->thread = std::thread([raw = state.get()] { raw->Run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::~HttpServer() {
  state_->io.stop();
  state_->thread.join();
}

int HttpServer::port() const { return state_->port; }

}  // namespace nibble::http
