// An HTTP/1.1 listener for requests with bodies and for streamed answers, with or without TLS.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/http/exchange.h"

namespace nibble::http {

// Certificates of a TLS listener. PEM texts.
struct TlsMaterial {
  std::string pair;       // the server's certificate chain, then its key
  std::string client_ca;  // "": clients present no certificate
  bool require_client_certificate = false;
};

struct ExchangeLimits {
  std::size_t max_connections = 2048;       // above this, an idle connection is closed for a new one
  std::size_t max_header_bytes = 16 << 10;  // of a request, including its first line
  std::size_t max_header_fields = 64;
  std::size_t max_body_bytes = 4 << 20;  // of one request
  // Limits of all requests together, which their principals share (client_budget.h).
  std::size_t max_bodies_bytes = 64 << 20;   // of bodies that are being read or wait for their handler
  std::size_t max_answers_bytes = 64 << 20;  // of answers that are being sent
  std::size_t max_streamed_bodies = 32;      // requests at a time whose bodies are streamed
  // How long a client may take for 64 KiB of a streamed body without losing its place to another.
  absl::Duration streamed_body_patience = absl::Seconds(1);
  std::size_t max_waiting_bytes = 32 << 10;      // of a stream; Exchange::Write then returns false
  absl::Duration handshake = absl::Seconds(10);  // of TLS
  absl::Duration header = absl::Seconds(10);     // for a whole header, from its first byte
  absl::Duration body = absl::Seconds(60);       // for a whole body, or for 64 KiB of a streamed one
  absl::Duration idle = absl::Seconds(75);       // from an answer to the next request
  absl::Duration write = absl::Seconds(30);      // for the client to take the bytes of one write
  absl::Duration silence = absl::Seconds(15);    // of a stream, until the comment is sent
  // After the last answer, what a client may still send until it closes. A client that sends a large body before it
  // reads would otherwise lose the answer that refuses the body.
  std::size_t linger_bytes = 32 << 20;
  absl::Duration linger = absl::Seconds(5);
};

struct ExchangeOptions {
  std::string flag;     // names the address in errors: "--openai_address"
  std::string address;  // HOST:PORT; port 0 picks one
  // The certificates for the next connection; nullptr: no TLS. Called on the server's thread for every connection; a
  // new pointer means new certificates.
  std::function<std::shared_ptr<const TlsMaterial>()> tls;
  ExchangeLimits limits;
};

// Serves all connections on one thread. Thread-safe.
class ExchangeServer {
 public:
  // Errors: InvalidArgument (address), Unavailable (cannot bind). The handler must outlive the server.
  static absl::StatusOr<std::unique_ptr<ExchangeServer>> Start(ExchangeOptions options, ExchangeHandler& handler);
  // Closes all connections.
  ~ExchangeServer();  // NOLINT(bugprone-exception-escape)
  ExchangeServer(const ExchangeServer&) = delete;
  ExchangeServer& operator=(const ExchangeServer&) = delete;

  int port() const;

 private:
  struct State;
  explicit ExchangeServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nibble::http
