#include "server/grpc_server.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/resource_quota.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "grpc/health/v1/health.pb.h"
#include "server/base/files.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/http/http_server.h"
#include "server/rpc/methods.h"

namespace nibble {

using base::StrCat;

namespace {

// Linking the reflection library adds its plugin to every server of the process; this removes it.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const auto& plugin) { return plugin->name() == "proto_server_reflection"; });
  }
};

auth::TlsFiles Files(const SecurityOptions& security) {
  return {security.tls_cert, security.tls_key, security.tls_client_ca, security.tls_require_client_cert};
}

// gRPC's local credentials accept only these addresses.
bool IsLocal(const std::string& host) { return host == "127.0.0.1" || host == "::1" || host == "localhost"; }

std::shared_ptr<grpc::ServerCredentials> Guarded(std::shared_ptr<grpc::ServerCredentials> credentials,
                                                 auth::Authority& authority, bool for_trainers) {
  credentials->SetAuthMetadataProcessor(std::make_shared<auth::AuthProcessor>(authority, for_trainers));
  return credentials;
}

// The credentials read copies of the TLS files and release their auth processor last, so the processor owns the copies.
std::shared_ptr<grpc::ServerCredentials> TlsCredentials(const auth::TlsWatch& tls, auth::Authority& authority,
                                                        bool for_trainers) {
  struct Kept {
    std::shared_ptr<const void> copies;
    auth::AuthProcessor processor;
  };
  const std::shared_ptr<Kept> kept(new Kept{tls.copies(), auth::AuthProcessor(authority, for_trainers)});
  // A trainer proves itself by its attempt's token and has no certificate.
  auto credentials = for_trainers ? tls.CredentialsWithoutClientCa() : tls.Credentials();
  credentials->SetAuthMetadataProcessor(std::shared_ptr<auth::AuthProcessor>(kept, &kept->processor));
  return credentials;
}

std::shared_ptr<grpc::ServerCredentials> PublicCredentials(Transport transport, const auth::TlsWatch* tls,
                                                           auth::Authority& authority) {
  switch (transport) {
    case Transport::kTls: return TlsCredentials(*tls, authority, /*for_trainers=*/false);
    case Transport::kLocal:
      return Guarded(grpc::experimental::LocalServerCredentials(LOCAL_TCP), authority, /*for_trainers=*/false);
    case Transport::kOpen:
    case Transport::kInsecure: return grpc::InsecureServerCredentials();
  }
  return grpc::InsecureServerCredentials();
}

// The flag that decides where the trainers' socket is.
const char* SocketFlag(const AppOptions& options) {
  return options.database_dir.empty() ? "--state_dir" : "--database_dir";
}

std::shared_ptr<grpc::ServerCredentials> ReportCredentials(const std::string& address, const auth::TlsWatch* tls,
                                                           auth::Authority& authority) {
  if (tls != nullptr) return TlsCredentials(*tls, authority, /*for_trainers=*/true);
  const auto parsed = http::ParseHostPort("--report_address", address);
  if (!parsed.ok() || !IsLocal(parsed->host)) return grpc::InsecureServerCredentials();
  return Guarded(grpc::experimental::LocalServerCredentials(LOCAL_TCP), authority, /*for_trainers=*/true);
}

absl::Status StartReports(const AppOptions& options, auth::Authority& authority, grpc::Service& service,
                          GrpcServer& result) {
  const std::string& address = options.report.address;
  if (address.empty()) return absl::OkStatus();
  grpc::ServerBuilder builder;
  ApplyLimits(options, builder);
  // Neither these connections nor the public ones can use up the memory of the other.
  grpc::ResourceQuota quota("nibbled-reports");
  quota.Resize(kReportMemoryBytes).SetMaxThreads(options.max_rpc_threads);
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
  builder.SetOption(std::make_unique<WithoutReflection>());
  builder.AddListeningPort(address, ReportCredentials(address, result.tls.get(), authority), &result.report_port);
  builder.RegisterService(&service);
  result.reports = builder.BuildAndStart();
  if (result.reports != nullptr && result.report_port != 0) return absl::OkStatus();
  return absl::UnavailableError(
      StrCat("--report_address: cannot listen on ", address, " (is another server running?)"));
}

}  // namespace

absl::StatusOr<Transport> PickTransport(const AppOptions& options) {
  const SecurityOptions& s = options.security;
  NIBBLE_ASSIGN_OR_RETURN(const http::HostPort address, http::ParseHostPort("--grpc_address", options.grpc_address));
  if (s.tls_cert.empty() != s.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls_cert and --tls_key: wanted both or neither");
  }
  const bool tls = !s.tls_cert.empty();
  if (!tls && !s.tls_client_ca.empty()) {
    return absl::InvalidArgumentError("--tls_client_ca: requires --tls_cert and --tls_key");
  }
  if (s.tls_require_client_cert && s.tls_client_ca.empty()) {
    return absl::InvalidArgumentError("--tls_require_client_cert: requires --tls_client_ca");
  }
  const bool tokens = !s.token_file.empty();
  const bool loopback = http::IsLoopback(address.host);
  if (!loopback && !s.insecure && (!tls || !tokens)) {
    return absl::InvalidArgumentError(
        StrCat("--grpc_address: ", address.host,
               " is not a loopback address: wanted --tls_cert, --tls_key and --token_file (or "
               "--insecure, which serves anyone who reaches the port)"));
  }
  if (tls) {
    NIBBLE_RETURN_IF_ERROR(auth::CheckTlsFiles(Files(s)));
    return Transport::kTls;
  }
  if (!tokens) return Transport::kOpen;
  if (IsLocal(address.host)) return Transport::kLocal;
  // Health and reflection are gRPC's own services: without credentials, no check of ours runs before them.
  if (s.reflection && !s.reflection_without_token) {
    return absl::InvalidArgumentError(
        "--reflection: cannot check tokens without TLS on an address other than 127.0.0.1, ::1 or "
        "localhost; requires --reflection_without_token");
  }
  return Transport::kInsecure;
}

void GrpcServer::SetHealth(bool serving) {
  grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus(serving);
  for (const char* name : rpc::kServices) health->SetServingStatus(name, serving);
  for (const std::string& name : more_services) health->SetServingStatus(name, serving);
}

absl::StatusOr<GrpcServer> StartGrpcServer(const AppOptions& options, const std::string& trainer_socket,
                                           auth::Authority& authority, const std::vector<grpc::Service*>& services,
                                           grpc::Service& reports) {
  NIBBLE_ASSIGN_OR_RETURN(const Transport transport, PickTransport(options));
  GrpcServer result;
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  ApplyLimits(options, builder);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // two servers on one port would share its clients
  if (transport == Transport::kTls) {
    NIBBLE_ASSIGN_OR_RETURN(result.tls, auth::TlsWatch::Start(Files(options.security), auth::kTlsLook));
  }
  builder.AddListeningPort(options.grpc_address, PublicCredentials(transport, result.tls.get(), authority),
                           &result.port);
  std::string socket;
  if (transport != Transport::kOpen) {
    socket = trainer_socket;
    if (socket.size() >= sizeof(sockaddr_un{}.sun_path)) {
      return absl::InvalidArgumentError(StrCat(SocketFlag(options), ": the path of the trainers' socket, ", socket,
                                               ", has ", socket.size(), " bytes, wanted at most ",
                                               sizeof(sockaddr_un{}.sun_path) - 1, " with TLS or tokens"));
    }
    NIBBLE_RETURN_IF_ERROR(base::RealFileSystem().RemoveAll(socket));
    result.trainer_address = StrCat("unix:", socket);
    builder.AddListeningPort(result.trainer_address, Guarded(grpc::experimental::LocalServerCredentials(UDS), authority,
                                                             /*for_trainers=*/true));
  }
  if (transport == Transport::kInsecure) {
    result.unknown = std::make_unique<rpc::UnknownMethods>(authority);
    builder.RegisterCallbackGenericService(result.unknown.get());
    if (!options.security.health_without_token) {
      builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
    }
    base::LogWarning("tokens travel in plaintext", {});
  }
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::health::v1::HealthCheckRequest::descriptor();  // reflection shows only linked messages
  if (!options.security.reflection) builder.SetOption(std::make_unique<WithoutReflection>());
  for (grpc::Service* service : services) builder.RegisterService(service);
  result.server = builder.BuildAndStart();
  if (result.server == nullptr || result.port == 0) {
    return absl::UnavailableError(
        StrCat("--grpc_address: cannot listen on ", options.grpc_address, " (is another server running?)"));
  }
  // Until here the program's umask keeps other users from connecting: it removes their write access.
  if (!socket.empty() && ::chmod(socket.c_str(), 0600) != 0) {
    return absl::UnavailableError(
        StrCat(SocketFlag(options), ": cannot restrict the trainers' socket: ", std::strerror(errno)));
  }
  NIBBLE_RETURN_IF_ERROR(StartReports(options, authority, reports, result));
  result.SetHealth(true);
  return result;
}

}  // namespace nibble
