// How a connection proves who it is, and to whom: TLS and a bearer token.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace nibble::client {

struct Security {
  bool tls = false;
  std::string root_certificates;  // PEM; "": those of the system
  std::string certificate;        // PEM of this client, with `key`; "": it shows none
  std::string key;
  std::string server_name;        // wanted in the server's certificate; "": the host that is connected to
  std::string token;              // sent with every call; "": none
};

// InvalidArgument: a token that would cross a network in plaintext, or cannot be one.
absl::Status CheckSecurity(const std::string& server, const Security& security, bool insecure);

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& server, const Security& security, grpc::ChannelArguments arguments);

}  // namespace nibble::client
