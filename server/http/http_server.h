// The HTTP port: /metrics and the probes. Loopback by default; no secrets pass here.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/http/host_port.h"

namespace nibble::http {

// What the port serves. live, ready and started run on the thread that serves all connections: they must not wait for anything.
// metrics runs on a thread of its own, once at a time, and may take long. A handler that throws makes the answer 500.
struct HttpHandlers {
  std::function<std::string()> metrics;      // text exposition
  std::function<absl::Status()> live;        // not OK: restart me
  std::function<absl::Status()> ready;       // not OK: send me nothing
  std::function<absl::Status()> started;     // not OK: still starting
};

// Bounds of the port. They are constants of the server (docs/adr/0008-limits-that-are-no-flags.md); tests set smaller ones.
struct HttpLimits {
  std::size_t max_connections = 128;     // above, a new connection takes the place of an old one
  std::size_t max_header_bytes = 8 << 10;  // of a request, its first line included
  std::size_t max_header_fields = 64;
  std::size_t max_target_bytes = 1024;
  absl::Duration request = absl::Seconds(5);   // a whole request, from its connection or its first byte
  absl::Duration idle = absl::Seconds(60);     // between an answer and the next request
  absl::Duration render = absl::Seconds(30);   // the wait for the text of /metrics; then 503
  absl::Duration write = absl::Seconds(10);    // a whole answer
  absl::Duration linger = absl::Seconds(1);    // for the client to close after the last answer
};

// Answers GET alone, on one thread. No connection can hold up another: a request and an answer have a deadline as a whole, and where
// all connections are taken a new one closes the one whose exchange has lasted longest, of the peer that has the most
// (ConnectionTable::CloseOne). Thread-safe.
class HttpServer {
 public:
  // `address` is HOST:PORT; port 0 picks one. Errors: InvalidArgument (address), Unavailable (cannot bind).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, HttpHandlers handlers, HttpLimits limits = {});
  ~HttpServer();  // closes all connections; waits for the handler that runs
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nibble::http
