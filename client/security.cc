#include "client/security.h"

#include <arpa/inet.h>
#include <grpcpp/support/client_interceptor.h>

#include <algorithm>
#include <vector>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::client {
namespace {

namespace experimental = grpc::experimental;

// Adds the token as metadata, because gRPC's call credentials refuse plaintext, which nibbled uses on loopback.
class AddToken final : public experimental::Interceptor {
 public:
  explicit AddToken(const std::string& header) : header_(header) {}
  void Intercept(experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", header_);
    }
    methods->Proceed();
  }

 private:
  const std::string& header_;
};

class AddTokenFactory final : public experimental::ClientInterceptorFactoryInterface {
 public:
  explicit AddTokenFactory(const std::string& token) : header_("Bearer " + token) {}
  experimental::Interceptor* CreateClientInterceptor(experimental::ClientRpcInfo*) override {
    return new AddToken(header_);
  }

 private:
  const std::string header_;
};

bool IsLoopback(const std::string& server) {
  const std::string host = server.substr(0, server.rfind(':'));
  in_addr address{};
  const bool v4 = inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
  return v4 || host == "localhost" || host == "[::1]" || server.rfind("unix:", 0) == 0;
}

}  // namespace

absl::Status CheckSecurity(const std::string& server, const Security& security, bool insecure) {
  if (security.token.empty()) return absl::OkStatus();
  const bool visible =
      std::all_of(security.token.begin(), security.token.end(), [](char c) { return c > ' ' && c < 127; });
  if (!visible) return base::FieldError("--token-file", "wanted one token: visible ASCII characters, no spaces");
  if (security.tls || insecure || IsLoopback(server)) return absl::OkStatus();
  return base::FieldError("--token-file",
                          base::StrCat("the token would go to ", server, " in plaintext; set --tls-ca or --tls (or ",
                                       "--insecure, if you trust the network)"));
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& server, const Security& security,
                                           grpc::ChannelArguments arguments) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (security.tls) {
    credentials = grpc::SslCredentials({security.root_certificates, security.key, security.certificate});
    if (!security.server_name.empty()) arguments.SetSslTargetNameOverride(security.server_name);
  }
  std::vector<std::unique_ptr<experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!security.token.empty()) interceptors.push_back(std::make_unique<AddTokenFactory>(security.token));
  return experimental::CreateCustomChannelWithInterceptors(server, credentials, arguments, std::move(interceptors));
}

}  // namespace nibble::client
