#include "server/openai_server.h"

#include <algorithm>
#include <utility>

#include "server/base/mutex.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/http/exchange_server.h"
#include "server/http/host_port.h"
#include "server/openai/gateway.h"

namespace nibble {

using base::StrCat;

namespace {
constexpr char kFlag[] = "--openai_address";
constexpr std::size_t kMinBodies = 4;  // bodies or answers of the largest size that fit into memory together
}  // namespace

absl::Status CheckOpenAiFlags(const AppOptions& options) {
  const OpenAiOptions& openai = options.openai;
  if (openai.address.empty()) {
    if (openai.cors_origins.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("--openai_cors_origins: requires --openai_address");
  }
  NIBBLE_ASSIGN_OR_RETURN(const http::HostPort address, http::ParseHostPort(kFlag, openai.address));
  for (const std::string& origin : openai.cors_origins) {
    const std::size_t scheme = origin.find("://");
    const bool is_origin = scheme != std::string::npos && scheme > 0 &&
                           origin.find('/', scheme + 3) == std::string::npos && origin.size() > scheme + 3;
    if (origin != "*" && !is_origin) {
      return absl::InvalidArgumentError(
          StrCat("--openai_cors_origins: \"", origin, "\", wanted * or SCHEME://HOST[:PORT] without a path"));
    }
  }
  const SecurityOptions& security = options.security;
  const bool guarded = !security.tls_cert.empty() && !security.token_file.empty();
  if (http::IsLoopback(address.host) || security.insecure || guarded) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(kFlag, ": ", address.host,
             " is not a loopback address: wanted --tls_cert, --tls_key and --token_file (or --insecure, which serves "
             "anyone who reaches the port)"));
}

// The certificates of the gRPC listener for the next connection.
class OpenAiServer::Certificates {
 public:
  explicit Certificates(auth::TlsWatch& watch) : watch_(watch) {}
  std::shared_ptr<const http::TlsMaterial> Now() {
    if (auto texts = watch_.texts(); texts != texts_) {
      material_ = std::make_shared<const http::TlsMaterial>(
          http::TlsMaterial{texts->pair, texts->client_ca, watch_.files().require_client_cert});
      texts_ = std::move(texts);
    }
    return material_;
  }

 private:
  auth::TlsWatch& watch_;
  std::shared_ptr<const auth::TlsTexts> texts_;  // of material_
  std::shared_ptr<const http::TlsMaterial> material_;
};

struct OpenAiServer::State {
  State(const std::shared_ptr<grpc::Channel>& channel, auth::Authority& authority, openai::GatewayOptions options)
      : gateway(channel, authority, std::move(options)) {}
  std::unique_ptr<Certificates> certificates;  // null without TLS
  openai::Gateway gateway;
  std::unique_ptr<http::ExchangeServer> server;  // destroyed first: the gateway then waits for the calls
};

OpenAiServer::OpenAiServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
OpenAiServer::~OpenAiServer() = default;

absl::StatusOr<std::unique_ptr<OpenAiServer>> OpenAiServer::Start(const AppOptions& options, GrpcServer& grpc,
                                                                  auth::Authority& authority,
                                                                  telemetry::Metrics& metrics) {
  openai::GatewayOptions gateway;
  gateway.max_answer_bytes = static_cast<std::size_t>(options.max_send_bytes);
  gateway.max_file_bytes = static_cast<std::size_t>(options.max_dataset_bytes);
  gateway.max_conversation_bytes = static_cast<std::size_t>(options.max_receive_bytes);
  gateway.responses = {.ttl = absl::Seconds(options.openai.response_ttl_s),
                       .max_bytes = static_cast<std::size_t>(options.openai.response_bytes)};
  gateway.cors_origins = options.openai.cors_origins;
  const auto address = http::ParseHostPort(kFlag, options.openai.address);
  gateway.local_host_only = !authority.wants_tokens() && address.ok() && http::IsLoopback(address->host);
  gateway.count_requests = [&metrics](std::string_view route, int requests) {
    metrics.OpenAiRequests(route, requests);
  };
  gateway.count_answer = [&metrics](std::string_view route, unsigned status) { metrics.OpenAiAnswer(route, status); };
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // the server limits its messages
  auto state = std::make_unique<State>(grpc.server->InProcessChannel(arguments), authority, std::move(gateway));
  http::ExchangeOptions listen{.flag = kFlag, .address = options.openai.address, .tls = nullptr, .limits = {}};
  listen.limits.max_body_bytes = static_cast<std::size_t>(options.max_receive_bytes);
  listen.limits.max_bodies_bytes = std::max(listen.limits.max_bodies_bytes, kMinBodies * listen.limits.max_body_bytes);
  listen.limits.max_answers_bytes =
      std::max(listen.limits.max_answers_bytes, kMinBodies * static_cast<std::size_t>(options.max_send_bytes));
  if (grpc.tls != nullptr) {
    state->certificates = std::make_unique<Certificates>(*grpc.tls);
    listen.tls = [certificates = state->certificates.get()] { return certificates->Now(); };
  }
  NIBBLE_ASSIGN_OR_RETURN(state->server, http::ExchangeServer::Start(std::move(listen), state->gateway));
  return std::unique_ptr<OpenAiServer>(new OpenAiServer(std::move(state)));
}

int OpenAiServer::port() const { return state_->server->port(); }

void OpenAiServer::Collect(telemetry::Metrics& metrics) {
  const openai::ResponseStore::Level level = state_->gateway.responses().Now();
  metrics.SetStoredResponses(level.responses, level.bytes);
}

}  // namespace nibble
