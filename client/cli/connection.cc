#include "client/cli/connection.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "absl/strings/ascii.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

constexpr std::uint64_t kMaxFileBytes = 1 << 20;

absl::Status ReadInto(const char* flag, const std::string& path, std::string& text) {
  if (path.empty()) return absl::OkStatus();
  auto read = base::RealFileSystem().Read(path, kMaxFileBytes);
  if (!read.ok()) return base::FieldError(flag, base::ToStd(read.status().message()));
  text = *std::move(read);
  if (text.empty()) return base::FieldError(flag, base::StrCat(path, " is empty"));
  return absl::OkStatus();
}

}  // namespace

void AddConnectionFlags(CLI::App& app, ConnectionFlags& flags) {
  app.add_flag("--tls", flags.tls, "Use TLS and check the server's certificate against the system's authorities");
  app.add_option("--tls-ca", flags.tls_ca, "Use TLS; PEM file of authorities that may sign the server's certificate")
      ->envname("NIBBLE_TLS_CA");
  app.add_option("--tls-cert", flags.tls_cert, "PEM file with this client's certificate")->envname("NIBBLE_TLS_CERT");
  app.add_option("--tls-key", flags.tls_key, "PEM file with the private key of --tls-cert")->envname("NIBBLE_TLS_KEY");
  app.add_option("--tls-name", flags.tls_name,
                 "Name that the server's certificate must have, if it differs from the host of --server");
  app.add_option("--token-file", flags.token_file, "File with the bearer token")->envname("NIBBLE_TOKEN_FILE");
  app.add_flag("--insecure", flags.insecure, "Allow sending the token to another machine in plaintext");
}

absl::StatusOr<client::Security> ReadConnection(const std::string& server, const ConnectionFlags& flags) {
  client::Security security;
  if (flags.tls_cert.empty() != flags.tls_key.empty()) {
    return base::FieldError("--tls-cert", "must be given together with --tls-key");
  }
  security.tls = flags.tls || !flags.tls_ca.empty() || !flags.tls_cert.empty();
  if (!security.tls && !flags.tls_name.empty()) return base::FieldError("--tls-name", "needs --tls or --tls-ca");
  NIBBLE_RETURN_IF_ERROR(ReadInto("--tls-ca", flags.tls_ca, security.root_certificates));
  if (!flags.tls_ca.empty() && security.root_certificates.find("-----BEGIN CERTIFICATE-----") == std::string::npos) {
    return base::FieldError("--tls-ca", base::StrCat(flags.tls_ca, " contains no PEM certificate"));
  }
  NIBBLE_RETURN_IF_ERROR(ReadInto("--tls-cert", flags.tls_cert, security.certificate));
  NIBBLE_RETURN_IF_ERROR(ReadInto("--tls-key", flags.tls_key, security.key));
  NIBBLE_RETURN_IF_ERROR(ReadInto("--token-file", flags.token_file, security.token));
  absl::StripAsciiWhitespace(&security.token);
  security.server_name = flags.tls_name;
  NIBBLE_RETURN_IF_ERROR(client::CheckSecurity(server, security, flags.insecure));
  return security;
}

std::string ConnectionHint(const client::Security& security, const absl::Status& status) {
  const std::string_view message = base::ToStd(status.message());
  const auto says = [&](std::initializer_list<std::string_view> texts) {
    return std::any_of(texts.begin(), texts.end(),
                       [&](std::string_view text) { return message.find(text) != message.npos; });
  };
  if (says({"CERTIFICATE_VERIFY_FAILED", "certificate verify failed"})) {
    return security.root_certificates.empty()
               ? "the server's certificate is not signed by an authority that this machine "
                 "trusts; give the server's authority with --tls-ca"
               : "the server's certificate is not signed by an authority of --tls-ca";
  }
  if (says({"Hostname Verification", "not in peer certificate"})) {
    return "the server's certificate is for another name; give that name with --tls-name";
  }
  if (says({"WRONG_VERSION_NUMBER", "wrong version number"}))
    return "the server does not use TLS; leave out the --tls options";
  if (says({"DNS resolution failed", "Domain name not found", "Name or service not known"}))
    return "this host has no address";
  if (says({"Connection refused", "No such file or directory"})) return "is nibbled running there?";
  if (!says({"Socket closed", "Connection reset", "Broken pipe", "GOAWAY"})) return "";
  if (!security.tls) return "the server closed the connection at once; if it uses TLS, give --tls-ca or --tls";
  // With TLS 1.3, the server refuses a client's certificate only after the client has completed its handshake, and gRPC
  // does not report this cause.
  return security.certificate.empty()
             ? "the server closed the connection; if it requires a client certificate, give yours with --tls-cert and "
               "--tls-key"
             : "the server closed the connection; it may not accept the client certificate of --tls-cert";
}

}  // namespace nibble::cli
