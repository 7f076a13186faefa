#include "server/auth/tls.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/base/files.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::auth {

namespace {

using base::StrCat;

constexpr int kGrpcRefreshSeconds = 1;

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
using Context = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;

absl::StatusOr<std::string> ReadPem(const char* flag, const std::string& path) {
  auto text = base::RealFileSystem().Read(path, kMaxPemBytes);
  if (!text.ok()) return absl::InvalidArgumentError(StrCat(flag, ": ", text.status().message()));
  return text;
}

Bio OpenText(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// Reads all certificates, at least one. Fails at the first damaged certificate; gRPC would use the certificates before
// it and ignore the rest.
absl::StatusOr<std::vector<Certificate>> ReadCertificates(const char* flag, const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadPem(flag, path));
  const Bio bio = OpenText(text);
  std::vector<Certificate> all;
  ERR_clear_error();
  while (true) {
    Certificate one(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (one == nullptr) break;
    all.push_back(std::move(one));
  }
  const unsigned long end = ERR_peek_last_error();
  ERR_clear_error();
  if (ERR_GET_LIB(end) != ERR_LIB_PEM || ERR_GET_REASON(end) != PEM_R_NO_START_LINE) {
    return absl::InvalidArgumentError(
        StrCat(flag, ": ", path, ": certificate ", all.size() + 1, " is damaged or cut off"));
  }
  if (all.empty()) return absl::InvalidArgumentError(StrCat(flag, ": ", path, " contains no PEM certificate"));
  return all;
}

// Answers with an empty passphrase, because the server cannot ask for one. A key with another passphrase is refused.
int NoPassphrase(char*, int, int, void*) { return 0; }

// Whether OpenSSL accepts this pair for a server. It refuses even a matching pair if its key is too short for OpenSSL's
// security level.
bool OpensslTakes(X509* certificate, EVP_PKEY* key) {
  const Context context(SSL_CTX_new(TLS_server_method()));
  return context != nullptr && SSL_CTX_use_certificate(context.get(), certificate) == 1 &&
         SSL_CTX_use_PrivateKey(context.get(), key) == 1;
}

absl::StatusOr<Key> ReadKey(const std::string& path, X509* certificate) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadPem("--tls_key", path));
  const Bio bio = OpenText(text);
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  const bool matches = key != nullptr && X509_check_private_key(certificate, key.get()) == 1;
  const bool taken = matches && OpensslTakes(certificate, key.get());
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(StrCat("--tls_key: ", path, " contains no unencrypted PEM private key"));
  }
  if (!matches) return absl::InvalidArgumentError(StrCat("--tls_key: ", path, " is not the key of --tls_cert"));
  if (!taken)
    return absl::InvalidArgumentError(
        StrCat("--tls_key: ", path, ": OpenSSL refuses the key or its certificate (too short?)"));
  return key;
}

std::string Text(absl::Time time) { return absl::FormatTime(absl::RFC3339_sec, time, absl::UTCTimeZone()); }

// `where` names the flag and the file, for errors.
absl::StatusOr<absl::Time> Expiry(const X509* certificate, const std::string& where) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &parts) != 1) {
    return absl::InvalidArgumentError(StrCat(where, ": the expiry date of a certificate is invalid"));
  }
  return absl::FromTM(parts, absl::UTCTimeZone());
}

absl::StatusOr<absl::Time> FirstExpiry(const std::vector<Certificate>& all, const std::string& where) {
  absl::Time first = absl::InfiniteFuture();
  for (const Certificate& one : all) {
    NIBBLE_ASSIGN_OR_RETURN(const absl::Time expiry, Expiry(one.get(), where));
    first = std::min(first, expiry);
  }
  return first;
}

// Writes certificates and key as PEM, without any other text of their files. "" if OpenSSL cannot write them.
std::string ToPem(const std::vector<Certificate>& certificates, EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  bool written = bio != nullptr;
  for (const Certificate& one : certificates) written = written && PEM_write_bio_X509(bio.get(), one.get()) == 1;
  if (key != nullptr)
    written = written && PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1;
  ERR_clear_error();
  char* data = nullptr;
  const long size = written ? BIO_get_mem_data(bio.get(), &data) : 0;
  return {data, data + size};
}

// A file in memory that can be replaced atomically. gRPC reads it by its path, and no copy of the key is
// written to a disk. Thread-compatible.
class MemoryFile {
 public:
  MemoryFile() = default;  // no file
  ~MemoryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  MemoryFile(MemoryFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  MemoryFile& operator=(MemoryFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  // `version` becomes the file's modification time in seconds. gRPC uses it to check that it read certificate and key
  // of the same version.
  static absl::StatusOr<MemoryFile> Make(const std::string& text, std::time_t version) {
    MemoryFile file;
    file.descriptor_ = ::memfd_create("nibble-tls", MFD_CLOEXEC);
    const timespec time{version, 0};
    const timespec times[] = {time, time};
    if (file.descriptor_ < 0 ||
        ::write(file.descriptor_, text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::futimens(file.descriptor_, times) != 0) {
      return absl::UnavailableError(StrCat("TLS: cannot create a file in memory: ", std::strerror(errno)));
    }
    return file;
  }
  // Keeps the path. While both descriptors are open, dup3 has no known error.
  absl::Status Replace(MemoryFile next) {
    if (descriptor_ < 0) {
      *this = std::move(next);
    } else if (::dup3(next.descriptor_, descriptor_, O_CLOEXEC) != descriptor_) {
      return absl::UnavailableError(StrCat("TLS: cannot replace a file in memory: ", std::strerror(errno)));
    }
    return absl::OkStatus();
  }
  std::string path() const { return StrCat("/proc/self/fd/", descriptor_); }

 private:
  int descriptor_ = -1;
};

}  // namespace

absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files) {
  TlsTexts texts;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Certificate> chain, ReadCertificates("--tls_cert", files.cert));
  NIBBLE_ASSIGN_OR_RETURN(const Key key, ReadKey(files.key, chain.front().get()));
  const std::string where = StrCat("--tls_cert: ", files.cert);
  NIBBLE_ASSIGN_OR_RETURN(const absl::Time expiry, Expiry(chain.front().get(), where));
  if (expiry <= absl::Now()) {
    return absl::InvalidArgumentError(StrCat(where, " expired on ", Text(expiry)));
  }
  NIBBLE_ASSIGN_OR_RETURN(texts.cert_expiry, FirstExpiry(chain, where));
  texts.pair = ToPem(chain, key.get());
  if (texts.pair.empty())
    return absl::InvalidArgumentError(StrCat("--tls_key: ", files.key, ": OpenSSL cannot copy it"));
  if (files.client_ca.empty()) return texts;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Certificate> authorities,
                          ReadCertificates("--tls_client_ca", files.client_ca));
  NIBBLE_ASSIGN_OR_RETURN(texts.client_ca_expiry,
                          FirstExpiry(authorities, StrCat("--tls_client_ca: ", files.client_ca)));
  texts.client_ca = ToPem(authorities, nullptr);
  if (texts.client_ca.empty()) {
    return absl::InvalidArgumentError(StrCat("--tls_client_ca: ", files.client_ca, ": OpenSSL cannot copy it"));
  }
  return texts;
}

absl::StatusOr<std::string> ReadCaFile(const char* flag, const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Certificate> authorities, ReadCertificates(flag, path));
  std::string text = ToPem(authorities, nullptr);
  if (text.empty()) return absl::InvalidArgumentError(StrCat(flag, ": ", path, ": OpenSSL cannot copy it"));
  return text;
}

absl::StatusOr<std::unique_ptr<CaFile>> CaFile::Open(const char* flag, const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(std::string text, ReadCaFile(flag, path));
  return std::unique_ptr<CaFile>(new CaFile(flag, path, std::move(text)));
}

std::string CaFile::Read() {
  absl::StatusOr<std::string> text = ReadCaFile(flag_, path_);
  base::MutexLock lock(mutex_);
  if (text.ok()) {
    text_ = *std::move(text);
    if (!last_.ok()) base::LogInfo("the file of authorities can be used again", {{"file", path_}});
    last_ = absl::OkStatus();
  } else if (text.status() != last_) {
    last_ = text.status();
    base::LogWarning("the file of authorities cannot be used, so its last good text stays in use",
                     {{"error", std::string(last_.message())}});
  }
  return text_;
}

absl::Status CheckTlsFiles(const TlsFiles& files) { return ReadTlsFiles(files).status(); }

class TlsWatch::Copies {
 public:
  // All or nothing: every step that can fail comes before the first replacement.
  absl::Status Put(const TlsTexts& texts) {
    ++version_;  // gRPC does not accept the time 0
    NIBBLE_ASSIGN_OR_RETURN(MemoryFile next_pair, MemoryFile::Make(texts.pair, version_));
    if (texts.client_ca.empty()) return pair.Replace(std::move(next_pair));
    NIBBLE_ASSIGN_OR_RETURN(MemoryFile next_client_ca, MemoryFile::Make(texts.client_ca, version_));
    NIBBLE_RETURN_IF_ERROR(pair.Replace(std::move(next_pair)));
    return client_ca.Replace(std::move(next_client_ca));
  }

  MemoryFile pair;
  MemoryFile client_ca;

 private:
  std::time_t version_ = 0;
};

TlsWatch::TlsWatch(TlsFiles files, std::chrono::nanoseconds every)
    : files_(std::move(files)), every_(every), copies_(std::make_shared<Copies>()) {}

absl::StatusOr<std::unique_ptr<TlsWatch>> TlsWatch::Start(TlsFiles files, std::chrono::nanoseconds every) {
  auto watch = std::unique_ptr<TlsWatch>(new TlsWatch(std::move(files), every));
  NIBBLE_RETURN_IF_ERROR(watch->Look().files);
  if (::access(watch->copies_->pair.path().c_str(), R_OK) != 0) {
    return absl::UnavailableError("TLS: requires /proc/self/fd");
  }
  watch->thread_ = std::thread([raw = watch.get()] { raw->Run(); });
  return watch;
}

TlsWatch::~TlsWatch() {
  {
    base::MutexLock lock(mutex_);
    ended_ = true;
  }
  ended_changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void TlsWatch::Run() {
  while (true) {
    {
      base::MutexLock lock(mutex_);
      const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_; };
      if (ended_changed_.WaitFor(lock, every_, ended)) return;
    }
    Look();
  }
}

absl::Status TlsWatch::Take(TlsTexts texts) {
  if (texts.pair == served_->pair && texts.client_ca == served_->client_ca) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(copies_->Put(texts));
  const bool first = served_->pair.empty();
  served_ = std::make_shared<const TlsTexts>(std::move(texts));
  reported_expired_ca_ = false;
  if (!first && last_.ok()) base::LogInfo("new TLS files are in use");
  return absl::OkStatus();
}

TlsHealth TlsWatch::Look() {
  base::MutexLock lock(mutex_);
  absl::StatusOr<TlsTexts> texts = ReadTlsFiles(files_);
  // Retry once: a link to the directory of the files may have changed between two reads.
  if (!texts.ok()) texts = ReadTlsFiles(files_);
  const absl::Status now = texts.ok() ? Take(*std::move(texts)) : texts.status();
  const bool serving = !served_->pair.empty();  // otherwise Start reports the error
  if (now != last_ && serving) {
    if (now.ok()) {
      base::LogInfo("the TLS files can be used again");
    } else {
      base::LogError("the TLS files cannot be used: new connections get the last good ones",
                     {{"error", std::string(now.message())}});
    }
  }
  last_ = now;
  if (serving && served_->client_ca_expiry <= absl::Now() && !reported_expired_ca_) {
    reported_expired_ca_ = true;
    base::LogWarning("a certificate of --tls_client_ca has expired: clients that it signed are refused",
                     {{"file", files_.client_ca}, {"expired", Text(served_->client_ca_expiry)}});
  }
  return {.files = now, .cert_expiry = served_->cert_expiry, .client_ca_expiry = served_->client_ca_expiry};
}

std::shared_ptr<const TlsTexts> TlsWatch::texts() {
  base::MutexLock lock(mutex_);
  return served_;
}

std::shared_ptr<const void> TlsWatch::copies() const { return copies_; }

std::shared_ptr<grpc::ServerCredentials> TlsWatch::Credentials() const {
  return Credentials(/*with_client_ca=*/!files_.client_ca.empty());
}

std::shared_ptr<grpc::ServerCredentials> TlsWatch::CredentialsWithoutClientCa() const {
  return Credentials(/*with_client_ca=*/false);
}

std::shared_ptr<grpc::ServerCredentials> TlsWatch::Credentials(bool with_client_ca) const {
  const std::string pair = copies_->pair.path();
  const std::string client_ca = with_client_ca ? copies_->client_ca.path() : "";
  const auto provider =
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(pair, pair, client_ca, kGrpcRefreshSeconds);
  grpc::experimental::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (with_client_ca) {
    options.watch_root_certs();
    options.set_cert_request_type(files_.require_client_cert
                                      ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                      : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace nibble::auth
