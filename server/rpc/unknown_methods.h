// The service of all methods that no other service has.
#pragma once
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include "server/auth/authority.h"

namespace nibble::rpc {

// Answers calls of unknown methods. Needed on transports without AuthProcessor: a caller without rights is refused as
// for any method, and other callers get Unimplemented.
class UnknownMethods final : public grpc::CallbackGenericService {
 public:
  explicit UnknownMethods(auth::Authority& authority) : authority_(authority) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  auth::Authority& authority_;
};

}  // namespace nibble::rpc
