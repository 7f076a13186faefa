#include "server/http/host_port.h"

#include <arpa/inet.h>

#include "server/base/strings.h"

namespace nibble::http {

absl::StatusOr<HostPort> ParseHostPort(const std::string& flag, const std::string& address) {
  const auto bad = [&](const char* what) {
    return absl::InvalidArgumentError(
        base::StrCat(flag, ": \"", address.substr(0, 128), "\" ", what, ", wanted HOST:PORT"));
  };
  const auto colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad("has no port");
  HostPort result = {address.substr(0, colon), 0};
  if (result.host.front() == '[') {
    if (result.host.back() != ']') return bad("has no ]");
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    return bad("is an IPv6 address without brackets");
  }
  const std::string port = address.substr(colon + 1);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos) {
    return bad("has a port that is not a number");
  }
  result.port = std::stoi(port);
  if (result.port > 65535) return bad("has a port above 65535");
  return result;
}

bool IsLoopback(const std::string& host) {
  if (host == "localhost" || host == "::1") return true;
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

}  // namespace nibble::http
