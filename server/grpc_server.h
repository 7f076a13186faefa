// The gRPC server's listeners: limits, transport security, and who may use each listener.
#pragma once
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/auth/auth_processor.h"
#include "server/auth/authority.h"
#include "server/auth/tls.h"
#include "server/options.h"
#include "server/rpc/unknown_methods.h"

namespace nibble {

// Transport of the public listener; depends only on the flags.
enum class Transport {
  kOpen,      // plaintext on loopback, or with --insecure: no tokens
  kLocal,     // plaintext on 127.0.0.1, ::1 or localhost, tokens
  kInsecure,  // plaintext on another loopback address, or with --insecure anywhere else, tokens
  kTls,
};
// Errors: InvalidArgument for flags that would serve the public without TLS or without tokens (only --insecure allows
// that), for flags that lack another flag that they require, and for TLS files that auth::CheckTlsFiles refuses.
absl::StatusOr<Transport> PickTransport(const AppOptions& options);

struct GrpcServer {
  // Declared before `server`, which uses them until it ends.
  std::unique_ptr<rpc::UnknownMethods> unknown;
  std::unique_ptr<auth::TlsWatch> tls;  // null without TLS
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  // Of --report_address; null without. A server of its own, with no other method, because without TLS gRPC runs no
  // check of ours before a call.
  std::unique_ptr<grpc::Server> reports;
  int report_port = 0;
  std::string trainer_address;  // "unix:..." if trainers cannot use the public listener; "" if they can

  std::vector<std::string> more_services;  // with a health status too, besides rpc::kServices

  void SetHealth(bool serving);  // of the server and of every service
};

// Maximum bytes that gRPC holds for the connections of --report_address.
inline constexpr std::int64_t kReportMemoryBytes = 64 << 20;

// `trainer_socket`: the path of the trainers' socket, which only some transports need. `reports`: the service of
// --report_address. Errors: InvalidArgument; Unavailable (--grpc_address or --report_address is taken, or the copies of
// the TLS files or the trainers' socket cannot be set up).
absl::StatusOr<GrpcServer> StartGrpcServer(const AppOptions& options, const std::string& trainer_socket,
                                           auth::Authority& authority, const std::vector<grpc::Service*>& services,
                                           grpc::Service& reports);

}  // namespace nibble
