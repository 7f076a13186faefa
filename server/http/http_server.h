// The HTTP port: /metrics and the probes. Loopback by default; no secrets pass here.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble::http {

// What the probes ask. All are called from the HTTP threads and must answer at once.
struct HttpHandlers {
  std::function<std::string()> metrics;      // text exposition
  std::function<absl::Status()> live;        // not OK: restart me
  std::function<absl::Status()> ready;       // not OK: send me nothing
  std::function<absl::Status()> started;     // not OK: still starting
};

// Thread-safe. A few threads of its own answer GET alone; a connection that is silent for a second is closed.
class HttpServer {
 public:
  // `address` is HOST:PORT; port 0 picks one. Errors: InvalidArgument (address), Unavailable (cannot bind).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, HttpHandlers handlers);
  ~HttpServer();  // stops
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct HostPort {
  std::string host;
  int port = 0;
};
// "127.0.0.1:9464", "[::1]:9464", "localhost:0". InvalidArgument says what is wrong; `flag` names it.
absl::StatusOr<HostPort> ParseHostPort(const std::string& flag, const std::string& address);
// 127.0.0.0/8, ::1 and "localhost".
bool IsLoopback(const std::string& host);

}  // namespace nibble::http
