// HTTP GET for nibbled's probes and metrics.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nibble::client {

struct HttpReply {
  int status = 0;
  std::string content_type;
  std::string body;
};

// GET http://HOST:PORT/path on a new connection. `timeout` does not cover the name lookup of HOST. A body has at most
// 64 MiB. Errors: InvalidArgument (`address` is not HOST:PORT), Unavailable (no complete response in time).
absl::StatusOr<HttpReply> HttpGet(const std::string& address, const std::string& path, absl::Duration timeout);

}  // namespace nibble::client
