// Connects gRPC to Authority. On TLS and local transports AuthProcessor runs before gRPC reads a call's message; Call
// (call.h) checks again on every transport.
#pragma once
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include "server/rpc/auth.h"
#include "server/rpc/call.h"

namespace nibble::rpc {

// Reads the caller from a handler's context.
Caller CallerOf(const grpc::ServerContextBase& context);

// Refuses with the code and "REASON: text": gRPC 1.51 sends no error details from a processor. Thread-safe.
class AuthProcessor final : public grpc::AuthMetadataProcessor {
 public:
  // `for_trainers`: this processor serves the trainers' socket and marks its connections.
  AuthProcessor(Authority& authority, bool for_trainers) : authority_(authority), for_trainers_(for_trainers) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata* consumed,
                       OutputMetadata* response) override;

 private:
  Authority& authority_;
  const bool for_trainers_;
};

// Answers calls of unknown methods. Needed on transports without AuthProcessor: a caller without rights is refused as
// for any method, others get Unimplemented.
class UnknownMethods final : public grpc::CallbackGenericService {
 public:
  explicit UnknownMethods(Authority& authority) : authority_(authority) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  Authority& authority_;
};

}  // namespace nibble::rpc
