// A GET of nibbled's HTTP port: probes and metrics.
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

// GET http://HOST:PORT/path on a connection of its own. `timeout` covers everything but the lookup of HOST's name; a body has at most
// 64 MiB. Errors: InvalidArgument (address has no port), Unavailable (no whole answer in time).
absl::StatusOr<HttpReply> HttpGet(const std::string& address, const std::string& path, absl::Duration timeout);

}  // namespace nibble::client
