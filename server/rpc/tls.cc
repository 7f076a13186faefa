#include "server/rpc/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>

#include "absl/time/clock.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::rpc {

namespace {

using base::StrCat;

constexpr std::uint64_t kMaxPemBytes = 1 << 20;

template <auto Function>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    Function(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;

absl::StatusOr<std::string> ReadPem(const char* flag, const std::string& path) {
  auto text = base::RealFileSystem().Read(path, kMaxPemBytes);
  if (!text.ok()) return absl::InvalidArgumentError(StrCat(flag, ": ", text.status().message()));
  return text;
}

Bio OpenText(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

absl::StatusOr<Certificate> ReadCertificate(const char* flag, const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadPem(flag, path));
  const Bio bio = OpenText(text);
  Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (certificate == nullptr) return absl::InvalidArgumentError(StrCat(flag, ": ", path, " holds no certificate in PEM"));
  return certificate;
}

// A key that wants a passphrase is refused: nobody is there to type it.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::StatusOr<absl::Time> Expiry(const X509* certificate) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &parts) != 1) return absl::InvalidArgumentError("has no end of validity");
  return absl::FromTM(parts, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate("--tls_cert", path));
  return Expiry(certificate.get());
}

absl::Status CheckTlsFiles(const TlsFiles& files) {
  NIBBLE_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate("--tls_cert", files.cert));
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadPem("--tls_key", files.key));
  const Bio bio = OpenText(text);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  const bool matches = key != nullptr && X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) return absl::InvalidArgumentError(StrCat("--tls_key: ", files.key, " holds no plain private key in PEM"));
  if (!matches) return absl::InvalidArgumentError(StrCat("--tls_key: ", files.key, " is not the key of --tls_cert"));
  NIBBLE_ASSIGN_OR_RETURN(const absl::Time expiry, Expiry(certificate.get()));
  if (expiry <= absl::Now()) {
    return absl::InvalidArgumentError(StrCat("--tls_cert: ", files.cert, " expired on ", absl::FormatTime(expiry)));
  }
  if (files.client_ca.empty()) return absl::OkStatus();
  return ReadCertificate("--tls_client_ca", files.client_ca).status();
}

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsFiles& files) {
  const auto seconds = static_cast<unsigned>(absl::ToInt64Seconds(kTlsReload));
  const auto provider =
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(files.key, files.cert, files.client_ca, seconds);
  grpc::experimental::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (!files.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(files.require_client_cert ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                            : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace nibble::rpc
