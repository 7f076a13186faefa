#include "server/http/http_server.h"

#include <httplib.h>

#include <thread>
#include <utility>

#include "server/base/strings.h"

namespace nibble::http {

namespace {

constexpr int kThreads = 8;   // each waits for one connection at a time: idle ones must not keep the probes waiting
constexpr int kSeconds = 1;   // for the next request on a connection, and for the rest of one that has begun
constexpr std::size_t kMaxHeaderFields = 64;
constexpr std::size_t kMaxTargetBytes = 1024;

void Answer(httplib::Response& response, const absl::Status& status) {
  response.status = status.ok() ? 200 : 503;
  response.set_content(status.ok() ? "ok\n" : std::string(status.message()) + "\n", "text/plain; charset=utf-8");
}

}  // namespace

struct HttpServer::State {
  HttpHandlers handlers;
  httplib::Server server;
  int port = 0;
  std::thread thread;
};

absl::StatusOr<HostPort> ParseHostPort(const std::string& flag, const std::string& address) {
  const auto bad = [&](const char* what) {
    return absl::InvalidArgumentError(base::StrCat(flag, ": \"", address.substr(0, 128), "\" ", what, ", wanted HOST:PORT"));
  };
  const auto colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad("has no port");
  HostPort result = {address.substr(0, colon), 0};
  if (result.host.front() == '[') {
    if (result.host.back() != ']') return bad("has no ]");
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    return bad("is an IPv6 address without brackets");
  }
  const std::string port = address.substr(colon + 1);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos) return bad("has no number as port");
  result.port = std::stoi(port);
  if (result.port > 65535) return bad("has a port above 65535");
  return result;
}

bool IsLoopback(const std::string& host) {
  if (host == "localhost" || host == "::1") return true;
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, HttpHandlers handlers) {
  const auto parsed = ParseHostPort("--http_address", address);
  if (!parsed.ok()) return parsed.status();
  auto state = std::make_unique<State>();
  state->handlers = std::move(handlers);
  httplib::Server& server = state->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_keep_alive_max_count(100);
  server.set_keep_alive_timeout(kSeconds);
  server.set_read_timeout(kSeconds);
  server.set_write_timeout(kSeconds);
  server.set_payload_max_length(0);  // GET alone: no bodies
  server.set_tcp_nodelay(true);
  server.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
    if (request.headers.size() > kMaxHeaderFields) {
      response.status = 431;
    } else if (request.target.size() > kMaxTargetBytes) {
      response.status = 414;
    } else if (request.method != "GET") {
      response.status = 405;
      response.set_header("Allow", "GET");
    } else {
      return httplib::Server::HandlerResponse::Unhandled;
    }
    return httplib::Server::HandlerResponse::Handled;
  });
  // A handler that throws is a 500, never the end of the process.
  server.set_exception_handler([](const httplib::Request&, httplib::Response& response, const std::exception_ptr&) {
    response.status = 500;
    response.set_content("internal error\n", "text/plain; charset=utf-8");
  });
  State* raw = state.get();
  server.Get("/metrics", [raw](const httplib::Request&, httplib::Response& response) {
    response.set_content(raw->handlers.metrics(), "text/plain; version=0.0.4; charset=utf-8");
  });
  server.Get("/livez", [raw](const httplib::Request&, httplib::Response& r) { Answer(r, raw->handlers.live()); });
  server.Get("/readyz", [raw](const httplib::Request&, httplib::Response& r) { Answer(r, raw->handlers.ready()); });
  server.Get("/startupz", [raw](const httplib::Request&, httplib::Response& r) { Answer(r, raw->handlers.started()); });

  // httplib's own default is SO_REUSEPORT, with which two servers would share a port without a word.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  if (parsed->port == 0) {
    state->port = server.bind_to_any_port(parsed->host);
  } else {
    state->port = server.bind_to_port(parsed->host, parsed->port) ? parsed->port : -1;
  }
  if (state->port <= 0) {
    return absl::UnavailableError(base::StrCat("--http_address: cannot listen on ", address, " (is another server running?)"));
  }
  state->thread = std::thread([raw] { raw->server.listen_after_bind(); });
  // stop() before listen has begun would be lost.
  while (!server.is_running()) std::this_thread::yield();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::~HttpServer() {
  state_->server.stop();
  if (state_->thread.joinable()) state_->thread.join();
}

int HttpServer::port() const { return state_->port; }

}  // namespace nibble::http
