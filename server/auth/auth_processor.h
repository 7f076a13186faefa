// Connects gRPC to Authority. On TLS and local transports AuthProcessor runs before gRPC reads a call's message; Call
// (rpc/call.h) checks again on every transport.
#pragma once
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include <string>
#include <string_view>

#include "server/auth/authority.h"

namespace nibble::auth {

// Reads the caller from a handler's context.
Caller CallerOf(const grpc::ServerContextBase& context);

// For code of another protocol, which makes calls of the API in the same process for its client: adds the client's
// token, its request id, and its address and certificate names, which Authority::Resolve() accepts only with `secret`
// (Authority::forward_secret). A token that gRPC cannot send is replaced by one that is refused.
void Forward(const Caller& client, const std::string& request_id, const std::string& secret,
             grpc::ClientContext& context);
// Whether gRPC can send the text as metadata; gRPC aborts the process for any other text. No token has other bytes.
bool IsPrintableAscii(std::string_view text);

// Refuses with the code and "REASON: text", or the text alone if the error has no reason (an unknown method): gRPC 1.51
// sends no error details from a processor. Thread-safe.
class AuthProcessor final : public grpc::AuthMetadataProcessor {
 public:
  // `for_trainers`: this processor serves a listener for trainers and marks its connections.
  AuthProcessor(Authority& authority, bool for_trainers) : authority_(authority), for_trainers_(for_trainers) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata* consumed,
                       OutputMetadata* response) override;

 private:
  Authority& authority_;
  const bool for_trainers_;
};

}  // namespace nibble::auth
