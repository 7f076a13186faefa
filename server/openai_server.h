// The listener of OpenAI's API (--openai_address).
#pragma once
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/auth/authority.h"
#include "server/grpc_server.h"
#include "server/options.h"
#include "server/telemetry/metrics.h"

namespace nibble {

// Checks the flags --openai_*. Errors: InvalidArgument.
absl::Status CheckOpenAiFlags(const AppOptions& options);

// Destruction closes all connections and waits for their calls. Destroy it before the gRPC server.
class OpenAiServer {
 public:
  // `grpc`, `authority` and `metrics` must outlive it. Errors: Unavailable (the address is taken).
  static absl::StatusOr<std::unique_ptr<OpenAiServer>> Start(const AppOptions& options, GrpcServer& grpc,
                                                             auth::Authority& authority, telemetry::Metrics& metrics);
  ~OpenAiServer();
  OpenAiServer(const OpenAiServer&) = delete;
  OpenAiServer& operator=(const OpenAiServer&) = delete;

  int port() const;
  // Sets the levels of what it keeps.
  void Collect(telemetry::Metrics& metrics);

 private:
  class Certificates;
  struct State;
  explicit OpenAiServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nibble
