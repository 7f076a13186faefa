// Where gRPC asks Authority: before a call's message is read on TLS and local transports; in Call (call.h) on all.
#pragma once
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include "server/rpc/auth.h"
#include "server/rpc/call.h"

namespace nibble::rpc {

// What a handler's context shows of its caller.
Caller CallerOf(const grpc::ServerContextBase& context);

// Refuses with the code and "REASON: text"; gRPC 1.51 carries no details from here. Thread-safe.
class AuthProcessor final : public grpc::AuthMetadataProcessor {
 public:
  // `for_trainers`: of the trainers' socket, whose calls are marked as such.
  AuthProcessor(Authority& authority, bool for_trainers) : authority_(authority), for_trainers_(for_trainers) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata* consumed,
                       OutputMetadata* response) override;

 private:
  Authority& authority_;
  const bool for_trainers_;
};

// Methods that nobody serves, on a transport where no processor runs: refused like all others, then Unimplemented.
class UnknownMethods final : public grpc::CallbackGenericService {
 public:
  explicit UnknownMethods(Authority& authority) : authority_(authority) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  Authority& authority_;
};

}  // namespace nibble::rpc
