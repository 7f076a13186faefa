// Where the API server of a cluster is and how this process proves who it is.
#pragma once
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/strings.h"

namespace nibble::kube {

// The folder in which Kubernetes mounts a pod's service account: token, ca.crt, namespace.
inline constexpr char kServiceAccount[] = "/var/run/secrets/kubernetes.io/serviceaccount";

struct ClusterAccess {
  std::string host;  // of the API server: a name or an address, an IPv6 address without brackets
  std::string port;  // 1 to 65535
  std::string token_file = base::StrCat(kServiceAccount, "/token");
  std::string ca_file = base::StrCat(kServiceAccount, "/ca.crt");  // PEM; may hold several certificates
  std::string name_space;
};

// Overrides of what a pod finds in its environment. "" uses the default.
struct ClusterOptions {
  std::string url;         // "https://host:port"; default: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT
  std::string token_file;  // default: `token` of the service account
  std::string ca_file;     // default: `ca.crt` of the service account
  std::string name_space;  // default: the content of the service account's `namespace`
  std::string service_account = kServiceAccount;  // the folder
};

// `environment`: entries "NAME=value". Reads no file but the service account's `namespace`, and that only if no
// namespace is given. Errors: InvalidArgument (a URL, port or namespace; names it); FailedPrecondition (no URL is given
// and this is not a pod, or no namespace is given and the service account's cannot be read).
absl::StatusOr<ClusterAccess> ClusterAccessOf(const ClusterOptions& options,
                                              const std::vector<std::string>& environment);

// The value of the first entry "NAME=value" of that name; "" if there is none.
std::string EnvironmentValue(const std::vector<std::string>& environment, const std::string& name);

// The files' current content: the kubelet replaces tokens before they expire. Messages name the file, not its content.
// Errors: those of FileSystem::Read; InvalidArgument (a token that cannot be sent in a header).
absl::StatusOr<std::string> ReadToken(const ClusterAccess& access);
absl::StatusOr<std::string> ReadAuthority(const ClusterAccess& access);

}  // namespace nibble::kube
