// Global options for the connection: TLS and the caller's token.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "client/security.h"

namespace CLI {
class App;
}

namespace nibble::cli {

struct ConnectionFlags {
  bool tls = false;
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_name;
  std::string token_file;
  bool insecure = false;
};

void AddConnectionFlags(CLI::App& app, ConnectionFlags& flags);
// Reads the files that the flags name. InvalidArgument names the flag; messages never contain a secret.
absl::StatusOr<client::Security> ReadConnection(const std::string& server, const ConnectionFlags& flags);

// Advice for a call that ended with Unavailable and without a reason: a sentence, or "" if gRPC's message shows no
// cause.
std::string ConnectionHint(const client::Security& security, const absl::Status& status);

}  // namespace nibble::cli
