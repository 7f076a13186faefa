#include "server/kube/cluster.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <utility>

#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/kube/names.h"

namespace nibble::kube {

namespace {

using base::StrCat;

constexpr std::uint64_t kMaxNamespaceBytes = 1 << 10;
constexpr std::uint64_t kMaxTokenBytes = 64 << 10;
constexpr std::uint64_t kMaxAuthorityBytes = 1 << 20;
constexpr char kHostVariable[] = "KUBERNETES_SERVICE_HOST";
constexpr char kPortVariable[] = "KUBERNETES_SERVICE_PORT";

std::string Trimmed(std::string text) {
  text.erase(text.find_last_not_of(" \t\r\n") + 1);  // npos + 1 is 0
  return text;
}

absl::Status CheckPort(const std::string& port, std::string_view where) {
  int value = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), value);
  if (error == std::errc() && end == port.data() + port.size() && value >= 1 && value <= 65535) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(where, ": port \"", port.substr(0, 100), "\", wanted 1 to 65535"));
}

absl::Status ParseUrl(const std::string& url, ClusterAccess& access) {
  constexpr std::string_view kScheme = "https://";
  const auto bad = [&](std::string_view why) {
    return absl::InvalidArgumentError(
        StrCat("API server \"", url.substr(0, 200), "\" ", why, ", wanted https://HOST:PORT"));
  };
  if (!url.starts_with(kScheme)) return bad("does not begin with https://");
  std::string rest = url.substr(kScheme.size());
  if (rest.ends_with('/')) rest.pop_back();
  if (rest.find_first_of("/?#@ \t\r\n") != std::string::npos) return bad("has more than a host and a port");
  const bool bracketed = rest.starts_with('[');
  const std::size_t host_end = bracketed ? rest.find(']') : rest.find(':');
  if (bracketed && host_end == std::string::npos) return bad("has no ]");
  access.host = bracketed ? rest.substr(1, host_end - 1) : rest.substr(0, host_end);
  if (access.host.empty()) return bad("has no host");
  rest = host_end == std::string::npos ? "" : rest.substr(host_end + (bracketed ? 1 : 0));
  if (!rest.empty() && rest.front() != ':') return bad("has text between ] and the port");
  access.port = rest.empty() ? "443" : rest.substr(1);
  return CheckPort(access.port, StrCat("API server \"", url.substr(0, 200), "\""));
}

absl::Status FindInPod(const std::vector<std::string>& environment, ClusterAccess& access) {
  access.host = EnvironmentValue(environment, kHostVariable);
  access.port = EnvironmentValue(environment, kPortVariable);
  if (access.host.empty() || access.port.empty()) {
    return absl::FailedPreconditionError(
        StrCat("not in a pod of Kubernetes: ", access.host.empty() ? kHostVariable : kPortVariable,
               " is not set; name the API server by its URL"));
  }
  return CheckPort(access.port, kPortVariable);
}

}  // namespace

std::string EnvironmentValue(const std::vector<std::string>& environment, const std::string& name) {
  const std::string start = name + "=";
  const auto found = std::find_if(environment.begin(), environment.end(),
                                  [&](const std::string& entry) { return entry.starts_with(start); });
  return found == environment.end() ? std::string() : found->substr(start.size());
}

absl::StatusOr<ClusterAccess> ClusterAccessOf(const ClusterOptions& options,
                                              const std::vector<std::string>& environment) {
  const auto file = [&](const std::string& given, const char* name) {
    return given.empty() ? base::JoinPath(options.service_account, name) : given;
  };
  ClusterAccess access;
  access.token_file = file(options.token_file, "token");
  access.ca_file = file(options.ca_file, "ca.crt");
  NIBBLE_RETURN_IF_ERROR(options.url.empty() ? FindInPod(environment, access) : ParseUrl(options.url, access));
  access.name_space = options.name_space;
  if (access.name_space.empty()) {
    auto text = base::RealFileSystem().Read(file("", "namespace"), kMaxNamespaceBytes);
    if (!text.ok()) {
      return absl::FailedPreconditionError(
          StrCat("no namespace is given, and the service account's cannot be read: ", text.status().message()));
    }
    access.name_space = Trimmed(*std::move(text));
  }
  NIBBLE_RETURN_IF_ERROR(CheckName(access.name_space, "namespace"));
  return access;
}

absl::StatusOr<std::string> ReadToken(const ClusterAccess& access) {
  NIBBLE_ASSIGN_OR_RETURN(std::string token, base::RealFileSystem().Read(access.token_file, kMaxTokenBytes));
  token = Trimmed(std::move(token));
  if (!token.empty() && std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < '\x7f'; })) {
    return token;
  }
  return absl::InvalidArgumentError(StrCat(access.token_file, " is not a bearer token"));
}

absl::StatusOr<std::string> ReadAuthority(const ClusterAccess& access) {
  return base::RealFileSystem().Read(access.ca_file, kMaxAuthorityBytes);
}

}  // namespace nibble::kube
