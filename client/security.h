// Security of a connection: TLS and a bearer token.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace nibble::client {

struct Security {
  bool tls = false;
  std::string root_certificates;  // PEM; "": the system's certificates
  std::string certificate;        // PEM of this client, with `key`; "": no client certificate
  std::string key;
  std::string server_name;  // expected in the server's certificate; "": the host of the connection
  std::string token;        // sent with every call; "": no token
};

// InvalidArgument if the token has invalid characters or, unless `insecure`, would cross a network in plaintext.
absl::Status CheckSecurity(const std::string& server, const Security& security, bool insecure);

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& server, const Security& security,
                                           grpc::ChannelArguments arguments);

}  // namespace nibble::client
