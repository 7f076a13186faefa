// TLS credentials from files that are read again when they change.
#pragma once
#include <grpcpp/security/server_credentials.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"

namespace nibble::auth {

struct TlsFiles {
  std::string cert;       // PEM, leaf first, then its chain
  std::string key;        // PEM
  std::string client_ca;  // PEM bundle; "": clients present no certificate
  bool require_client_cert = false;
};

// The checked content of the files.
struct TlsTexts {
  std::string pair;        // PEM: the certificates, then the key. One text, so that a reader cannot mix two pairs
  std::string client_ca;   // PEM; "" without
  absl::Time cert_expiry;  // the first expiry of all certificates of the file; same below
  absl::Time client_ca_expiry = absl::InfiniteFuture();
};

// Errors: InvalidArgument names the flag and the file, never its content: unreadable file, incomplete PEM, a key that
// does not belong to the certificate, a pair that OpenSSL refuses, an expired leaf certificate. An expired client
// authority is not an error: the file may also hold its successor.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files);
absl::Status CheckTlsFiles(const TlsFiles& files);

// Maximum size of a PEM file, in bytes.
inline constexpr std::uint64_t kMaxPemBytes = 1 << 20;
// Reads a bundle of authorities; returns its certificates as PEM, without any other text of the file. Errors:
// InvalidArgument names the flag and the file: unreadable, larger than kMaxPemBytes, incomplete PEM, no certificate.
absl::StatusOr<std::string> ReadCaFile(const char* flag, const std::string& path);

// Reads such a file again and again. While the file cannot be used, returns the last good text. Thread-safe.
class CaFile {
 public:
  // Errors: those of ReadCaFile.
  static absl::StatusOr<std::unique_ptr<CaFile>> Open(const char* flag, const std::string& path);
  // Reads the file now. Logs each new reason why it cannot be used, and once that it can be used again.
  std::string Read();

 private:
  CaFile(const char* flag, std::string path, std::string text)
      : flag_(flag), path_(std::move(path)), text_(std::move(text)) {}
  const char* const flag_;
  const std::string path_;
  base::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);   // the last good one
  absl::Status last_ ABSL_GUARDED_BY(mutex_);  // of the last read
};

// Interval between checks of the files. gRPC reads the copies at most one second later, so a change takes at most five
// seconds.
inline constexpr std::chrono::seconds kTlsLook(4);

struct TlsHealth {
  absl::Status files;      // result of CheckTlsFiles, or Unavailable: good files could not be copied
  absl::Time cert_expiry;  // of the certificates in use
  absl::Time client_ca_expiry = absl::InfiniteFuture();
};

// Checks the files in a thread of its own. gRPC 1.51 drops its pair before it checks the next one, and would then
// refuse all connections. So gRPC reads copies in memory, which are replaced together, and only by files that pass the
// check. While the files fail the check, new connections get the last good ones. Thread-safe.
class TlsWatch {
 public:
  // Errors: those of CheckTlsFiles; Unavailable (the copies cannot be made).
  static absl::StatusOr<std::unique_ptr<TlsWatch>> Start(TlsFiles files, std::chrono::nanoseconds every);
  ~TlsWatch();
  TlsWatch(const TlsWatch&) = delete;
  TlsWatch& operator=(const TlsWatch&) = delete;

  // Checks the files now. Logs changes since the last check once.
  TlsHealth Look();

  // The texts in use. A change gives a new pointer.
  std::shared_ptr<const TlsTexts> texts();
  const TlsFiles& files() const { return files_; }

  // TLS 1.2 and 1.3. A change affects new connections only. Keep copies() alive as long as the credentials.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const;
  // Likewise, but clients present no certificate.
  std::shared_ptr<grpc::ServerCredentials> CredentialsWithoutClientCa() const;
  std::shared_ptr<const void> copies() const;

 private:
  class Copies;
  TlsWatch(TlsFiles files, std::chrono::nanoseconds every);
  absl::Status Take(TlsTexts texts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  std::shared_ptr<grpc::ServerCredentials> Credentials(bool with_client_ca) const;

  const TlsFiles files_;
  const std::chrono::nanoseconds every_;
  const std::shared_ptr<Copies> copies_;
  base::Mutex mutex_;
  base::Condition ended_changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const TlsTexts> served_ ABSL_GUARDED_BY(mutex_) = std::make_shared<const TlsTexts>();
  absl::Status last_ ABSL_GUARDED_BY(mutex_);                 // of the last check
  bool reported_expired_ca_ ABSL_GUARDED_BY(mutex_) = false;  // logged for `served_`
  std::thread thread_;
};

}  // namespace nibble::auth
