#pragma once
#include <string>

#include "absl/status/statusor.h"

namespace nibble::http {

struct HostPort {
  std::string host;
  int port = 0;
};
// "127.0.0.1:9464", "[::1]:9464", "localhost:0". InvalidArgument says what is wrong; `flag` is the flag that its
// message names.
absl::StatusOr<HostPort> ParseHostPort(const std::string& flag, const std::string& address);
// 127.0.0.0/8, ::1 and "localhost".
bool IsLoopback(const std::string& host);

}  // namespace nibble::http
