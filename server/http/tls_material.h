// Certificates for a TLS listener of Asio.
#pragma once
#include <openssl/ossl_typ.h>

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/http/exchange_server.h"

namespace nibble::http {

// A context for the server's side of TLS 1.2 and 1.3. InvalidArgument: OpenSSL refuses the texts.
absl::StatusOr<std::shared_ptr<boost::asio::ssl::context>> MakeServerContext(const TlsMaterial& material);

// The subject alternative names of the client's certificate: "uri:...", "dns:...", "email:...", "ip:...", as
// auth::Caller::certificate_names has them. Empty without a certificate, or if its check failed.
std::vector<std::string> CertificateNames(const SSL* connection);

}  // namespace nibble::http
