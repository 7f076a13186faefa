#include "server/http/tls_material.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <boost/asio/buffer.hpp>

#include "server/base/strings.h"

namespace nibble::http {

namespace {

namespace asio = boost::asio;
using Error = boost::system::error_code;

struct FreeNames {
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};

std::string Text(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<std::size_t>(ASN1_STRING_length(text))};
}

std::string IpText(const ASN1_OCTET_STRING* bytes) {
  char text[INET6_ADDRSTRLEN] = "";
  const int size = ASN1_STRING_length(bytes);
  if (size != 4 && size != 16) return "";
  ::inet_ntop(size == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(bytes), text, sizeof text);
  return text;
}

// "" for a kind of name that the token file cannot hold.
std::string NameOf(const GENERAL_NAME& name) {
  switch (name.type) {
    case GEN_URI: return "uri:" + Text(name.d.uniformResourceIdentifier);
    case GEN_DNS: return "dns:" + Text(name.d.dNSName);
    case GEN_EMAIL: return "email:" + Text(name.d.rfc822Name);
    case GEN_IPADD: return "ip:" + IpText(name.d.iPAddress);
    default: return "";
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<asio::ssl::context>> MakeServerContext(const TlsMaterial& material) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  Error error;
  context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                           asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1,
                       error);
  // Idle connections keep no buffers.
  SSL_CTX_set_mode(context->native_handle(), SSL_MODE_RELEASE_BUFFERS);
  if (!error) context->use_certificate_chain(asio::buffer(material.pair), error);
  if (!error) context->use_private_key(asio::buffer(material.pair), asio::ssl::context::pem, error);
  if (!error && !material.client_ca.empty()) {
    context->add_certificate_authority(asio::buffer(material.client_ca), error);
    // gRPC's TLS listener also asks for a certificate, and checks one that it gets.
    int mode = asio::ssl::verify_peer;
    if (material.require_client_certificate) mode |= asio::ssl::verify_fail_if_no_peer_cert;
    if (!error) context->set_verify_mode(mode, error);
    // Sessions that a client resumes must have been made by this context.
    static constexpr unsigned char kSessions[] = "nibble-http";
    SSL_CTX_set_session_id_context(context->native_handle(), kSessions, sizeof kSessions - 1);
  }
  if (error) return absl::InvalidArgumentError(base::StrCat("TLS: ", error.message()));
  return context;
}

std::vector<std::string> CertificateNames(const SSL* connection) {
  X509* const certificate = SSL_get0_peer_certificate(connection);
  if (certificate == nullptr || SSL_get_verify_result(connection) != X509_V_OK) return {};
  const std::unique_ptr<GENERAL_NAMES, FreeNames> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> out;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    std::string name = NameOf(*sk_GENERAL_NAME_value(names.get(), i));
    if (!name.empty()) out.push_back(std::move(name));
  }
  return out;
}

}  // namespace nibble::http
