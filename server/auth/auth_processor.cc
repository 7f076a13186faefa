#include "server/auth/auth_processor.h"

#include <grpc/grpc_security_constants.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::auth {

namespace {

constexpr char kAuthorizationKey[] = "authorization";
// Without the secret, the other keys have no effect.
constexpr char kForwardSecretKey[] = "x-nibble-forward-secret";
constexpr char kForwardPeerKey[] = "x-nibble-forward-peer";
constexpr char kForwardNameKey[] = "x-nibble-forward-name-bin";  // of the client's certificate; may repeat
// Property of a connection. Clients cannot set it.
constexpr char kTrainerProperty[] = "nibble_trainer_listener";

std::string Text(const grpc::string_ref& text) { return {text.data(), text.size()}; }

void AddNames(const grpc::AuthContext& context, const char* property, const char* kind,
              std::vector<std::string>& names) {
  for (const grpc::string_ref& name : context.FindPropertyValues(property)) names.push_back(kind + Text(name));
}

// The context holds only a certificate that the handshake verified.
void ReadContext(const grpc::AuthContext& context, Caller& caller) {
  caller.trainer_listener = !context.FindPropertyValues(kTrainerProperty).empty();
  AddNames(context, GRPC_PEER_URI_PROPERTY_NAME, "uri:", caller.certificate_names);
  AddNames(context, GRPC_PEER_DNS_PROPERTY_NAME, "dns:", caller.certificate_names);
  AddNames(context, GRPC_PEER_EMAIL_PROPERTY_NAME, "email:", caller.certificate_names);
  AddNames(context, GRPC_PEER_IP_PROPERTY_NAME, "ip:", caller.certificate_names);
}

// gRPC 1.51 gives a processor no address. If the transport is "local", gRPC has checked that the caller is on this
// machine.
const char* PeerOf(const grpc::AuthContext& context) {
  const auto types = context.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  return types.size() == 1 && types.front() == "local" ? "local" : "unknown";
}

template <typename Metadata>
std::vector<std::string> Values(const Metadata& metadata, const char* key) {
  std::vector<std::string> values;
  const auto [begin, end] = metadata.equal_range(key);
  for (auto it = begin; it != end; ++it) values.push_back(Text(it->second));
  return values;
}

template <typename Metadata>
void ReadMetadata(const Metadata& metadata, Caller& caller) {
  caller.authorization = Values(metadata, kAuthorizationKey);
  const std::vector<std::string> secrets = Values(metadata, kForwardSecretKey);
  if (secrets.size() != 1) return;
  caller.forward_secret = secrets.front();
  for (const std::string& peer : Values(metadata, kForwardPeerKey)) caller.forward_peer = peer;
  caller.forward_names = Values(metadata, kForwardNameKey);
}

}  // namespace

bool IsPrintableAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char byte) { return byte >= 0x20 && byte <= 0x7e; });
}

void Forward(const Caller& client, const std::string& request_id, const std::string& secret,
             grpc::ClientContext& context) {
  for (const std::string& value : client.authorization)
    context.AddMetadata(kAuthorizationKey, IsPrintableAscii(value) ? value : "malformed");
  context.AddMetadata("x-request-id", request_id);
  context.AddMetadata(kForwardSecretKey, secret);
  context.AddMetadata(kForwardPeerKey, client.peer);
  for (const std::string& name : client.certificate_names) context.AddMetadata(kForwardNameKey, name);
}

Caller CallerOf(const grpc::ServerContextBase& context) {
  Caller caller;
  caller.peer = context.peer();
  ReadMetadata(context.client_metadata(), caller);
  if (const auto connection = context.auth_context(); connection != nullptr) ReadContext(*connection, caller);
  return caller;
}

grpc::Status AuthProcessor::Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                                    OutputMetadata*) {
  if (for_trainers_ && context->FindPropertyValues(kTrainerProperty).empty())
    context->AddProperty(kTrainerProperty, "1");
  Caller caller;
  caller.peer = PeerOf(*context);
  ReadMetadata(metadata, caller);
  ReadContext(*context, caller);
  const auto path = metadata.find(":path");
  const auto principal = authority_.Admit(path == metadata.end() ? "" : Text(path->second), caller);
  if (principal.ok()) return grpc::Status::OK;
  const std::string reason = base::Reason(principal.status());
  const std::string text(principal.status().message());
  return {static_cast<grpc::StatusCode>(principal.status().code()),
          reason.empty() ? text : base::StrCat(reason, ": ", text)};
}

}  // namespace nibble::auth
