// The HTTP port: /metrics and the probes. Bound to loopback by default; carries no secrets.
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

// The handlers of the port. live, ready and started run on the thread that serves all connections, so they must not
// block. metrics runs on its own thread, one call at a time, and may take long. If a handler throws, the answer is 500.
struct HttpHandlers {
  std::function<std::string()> metrics;   // text exposition
  std::function<absl::Status()> live;     // not OK: the server should be restarted
  std::function<absl::Status()> ready;    // not OK: send the server no requests
  std::function<absl::Status()> started;  // not OK: still starting
};

// Limits of the port. They are constants of the server (docs/adr/0008-limits-that-are-not-flags.md); tests set smaller
// ones.
struct HttpLimits {
  std::size_t max_connections = 128;       // above this, a new connection replaces an old one
  std::size_t max_header_bytes = 8 << 10;  // of a request, including its first line
  std::size_t max_header_fields = 64;
  std::size_t max_target_bytes = 1024;
  // For a whole request. The time of the first one begins with the connection, of later ones with their first byte.
  absl::Duration request = absl::Seconds(5);
  absl::Duration idle = absl::Seconds(60);    // from an answer to the next request
  absl::Duration render = absl::Seconds(30);  // for the text of /metrics; then 503
  absl::Duration write = absl::Seconds(10);   // for sending a whole answer
  absl::Duration linger = absl::Seconds(1);   // for the client to close after the last answer
};

// Answers only GET, on one thread. No connection can block another: each whole request and each whole answer has a
// deadline, and if all places are taken, a new connection replaces the one whose exchange has lasted longest, among
// those of the peer with the most connections (ConnectionTable::CloseOne). Thread-safe.
class HttpServer {
 public:
  // `address` is HOST:PORT; port 0 picks one. Errors: InvalidArgument (address), Unavailable (cannot bind).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, HttpHandlers handlers,
                                                           HttpLimits limits = {});
  ~HttpServer();  // closes all connections; waits for a running handler
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nibble::http
