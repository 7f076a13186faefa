#include "server/rpc/unknown_methods.h"

#include "server/auth/auth_processor.h"
#include "server/rpc/status.h"

namespace nibble::rpc {
namespace {

class RefusedCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit RefusedCall(const absl::Status& status) { Finish(ToGrpcStatus(status)); }

 private:
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerGenericBidiReactor* UnknownMethods::CreateReactor(grpc::GenericCallbackServerContext* context) {
  const auto principal = authority_.Admit(context->method(), auth::CallerOf(*context));
  return new RefusedCall(principal.ok() ? absl::UnimplementedError("there is no such method") : principal.status());
}

}  // namespace nibble::rpc
