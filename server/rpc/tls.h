// TLS from files that are read again as they change.
#pragma once
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nibble::rpc {

struct TlsFiles {
  std::string cert;       // PEM, leaf first, then its chain
  std::string key;        // PEM
  std::string client_ca;  // PEM bundle; "": clients show no certificate
  bool require_client_cert = false;
};

// InvalidArgument names the flag: unreadable, no PEM, a key that is not the certificate's, an expired certificate.
absl::Status CheckTlsFiles(const TlsFiles& files);

// TLS 1.2 and 1.3. A changed file serves the connections made after the next look at it (every kTlsReload); those that are
// open go on. While key and certificate do not match, new connections fail: replace both by one rename of a symbolic link.
inline constexpr absl::Duration kTlsReload = absl::Seconds(5);
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsFiles& files);

// Of the first certificate in the file.
absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path);

}  // namespace nibble::rpc
