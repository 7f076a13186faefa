// The gRPC server's listeners: limits, transport security and who may use which.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/app.h"
#include "server/rpc/auth.h"
#include "server/rpc/auth_processor.h"
#include "server/rpc/tls.h"

namespace nibble {

// What the outside of the server listens with; decided by the flags alone.
enum class Transport {
  kOpen,      // plaintext on loopback, or with --insecure: no tokens
  kLocal,     // plaintext on loopback, tokens
  kInsecure,  // plaintext elsewhere, with --insecure, tokens
  kTls,
};
// Refuses what would serve the public without TLS or tokens (--insecure is for that), and flags that need others.
absl::StatusOr<Transport> PickTransport(const AppOptions& options);

struct GrpcServer {
  // Before `server`, which uses them to its end.
  std::unique_ptr<rpc::UnknownMethods> unknown;
  std::unique_ptr<rpc::TlsWatch> tls;  // null without TLS
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  std::string trainer_address;  // "unix:..." where trainers cannot use the public listener; "": they can

  void SetHealth(bool serving);  // of the server and of every service
};

// `root`: the state directory, for the trainers' socket. Errors: InvalidArgument, Unavailable (--grpc_address is taken).
absl::StatusOr<GrpcServer> StartGrpcServer(const AppOptions& options, const std::string& root, rpc::Authority& authority,
                                           const std::vector<grpc::Service*>& services);

}  // namespace nibble
