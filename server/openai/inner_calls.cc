#include "server/openai/inner_calls.h"

#include "server/auth/forwarded.h"

namespace nibble::openai {

void ClientIdentity::AddTo(grpc::ClientContext& context) const {
  const auto [begin, end] = head_.fields.equal_range("authorization");
  for (auto it = begin; it != end; ++it) {
    // The gateway refuses other values; this guards the process.
    if (auth::IsPrintableAscii(it->second)) context.AddMetadata("authorization", it->second);
  }
  context.AddMetadata("x-request-id", head_.request_id);
  context.AddMetadata(auth::kForwardSecretKey, forward_secret_);
  context.AddMetadata(auth::kForwardPeerKey, head_.peer);
  for (const std::string& name : head_.certificate_names) context.AddMetadata(auth::kForwardNameKey, name);
}

}  // namespace nibble::openai
