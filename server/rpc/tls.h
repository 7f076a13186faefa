// TLS from files that are read again as they change.
#pragma once
#include <grpcpp/security/server_credentials.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"

namespace nibble::rpc {

struct TlsFiles {
  std::string cert;       // PEM, leaf first, then its chain
  std::string key;        // PEM
  std::string client_ca;  // PEM bundle; "": clients show no certificate
  bool require_client_cert = false;
};

// What the files hold, checked.
struct TlsTexts {
  std::string pair;       // PEM: the certificates, then the key. One text: nobody can meet halves of two pairs
  std::string client_ca;  // PEM; "" without
  absl::Time cert_expiry;  // of the certificate of the file that ends first; so below
  absl::Time client_ca_expiry = absl::InfiniteFuture();
};

// InvalidArgument names the flag and the file, never what is in it: unreadable, not whole PEM, a key that is not the
// certificate's, a pair that OpenSSL refuses, an expired certificate. An authority that has expired is no error: it may stand
// beside the one that follows it.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files);
absl::Status CheckTlsFiles(const TlsFiles& files);

// How often the files are looked at. gRPC looks at what was taken of them a second later at most: five in all.
inline constexpr std::chrono::seconds kTlsLook(4);

struct TlsHealth {
  absl::Status files;      // as CheckTlsFiles says, now
  absl::Time cert_expiry;  // of what is served
  absl::Time client_ca_expiry = absl::InfiniteFuture();
};

// The files, looked at by a thread of its own. gRPC 1.51 drops the pair that it has before it looks whether it can use the next,
// and then serves nobody: so it reads copies in memory, which only files that pass the check replace, all together. While they do
// not pass, new connections get the last good ones. Thread-safe.
class TlsWatch {
 public:
  // Errors: those of CheckTlsFiles; Unavailable (the copies cannot be made).
  static absl::StatusOr<std::unique_ptr<TlsWatch>> Start(TlsFiles files, std::chrono::nanoseconds every);
  ~TlsWatch();
  TlsWatch(const TlsWatch&) = delete;
  TlsWatch& operator=(const TlsWatch&) = delete;

  // Looks now. What has changed since the last look is logged, once.
  TlsHealth Look();

  // TLS 1.2 and 1.3. A change serves the connections made after it; those that are open go on. The copies have to be kept for as
  // long as the credentials are.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const;
  std::shared_ptr<const void> copies() const;

 private:
  class Copies;
  TlsWatch(TlsFiles files, std::chrono::nanoseconds every);
  absl::Status Take(TlsTexts texts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();

  const TlsFiles files_;
  const std::chrono::nanoseconds every_;
  const std::shared_ptr<Copies> copies_;
  base::Mutex mutex_;
  base::Condition ended_changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  TlsTexts served_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_ ABSL_GUARDED_BY(mutex_);  // of the last look
  bool told_of_expired_ca_ ABSL_GUARDED_BY(mutex_) = false;  // of `served_`
  std::thread thread_;
};

}  // namespace nibble::rpc
