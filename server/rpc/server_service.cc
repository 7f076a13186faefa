#include "server/rpc/server_service.h"

#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/rpc/time.h"
#include "server/rpc/unary.h"
#include "server/rpc/watch_load.h"

namespace nibble::rpc {

namespace {
constexpr absl::Duration kLongestDrain = absl::Hours(1);
}  // namespace

grpc::ServerUnaryReactor* ServerService::GetServerInfo(grpc::CallbackServerContext* context,
                                                       const v1::GetServerInfoRequest*, v1::ServerInfo* response) {
  return Unary(environment_, context, "nibble.v1.ServerService/GetServerInfo", [&] {
    *response = describe_();
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ServerService::GetLoad(grpc::CallbackServerContext* context, const v1::GetLoadRequest*,
                                                 v1::ServerLoad* response) {
  return UnaryOnWorker(environment_, context, "nibble.v1.ServerService/GetLoad", [=, this](const Call&) {
    *response = measure_();
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::ServerLoad>* ServerService::WatchLoad(grpc::CallbackServerContext* context,
                                                                   const v1::WatchLoadRequest* request) {
  auto stream = StreamReactor<v1::ServerLoad>::Make(environment_, context, "nibble.v1.ServerService/WatchLoad",
                                                    &environment_.watches);
  if (stream->ended()) return stream.get();
  RunOnWorker(environment_.watch_workers, *stream,
              [this, stream, copy = *request] { rpc::WatchLoad(stream, copy, measure_); });
  return stream.get();
}

grpc::ServerUnaryReactor* ServerService::Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                               v1::DrainResponse*) {
  return UnaryOnWorker(environment_, context, "nibble.v1.ServerService/Drain", [=, this](const Call&) -> absl::Status {
    std::optional<absl::Duration> deadline;
    if (request->has_deadline()) deadline = FromProto(request->deadline());
    if (deadline.has_value() && (*deadline < absl::ZeroDuration() || *deadline > kLongestDrain)) {
      return base::FieldError("deadline", base::StrCat("is ", absl::FormatDuration(*deadline), ", wanted 0 to ",
                                                       absl::FormatDuration(kLongestDrain)));
    }
    begin_drain_(deadline);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ServerService::SetResourcePolicy(grpc::CallbackServerContext* context,
                                                           const v1::SetResourcePolicyRequest*, v1::ResourcePolicy*) {
  return UnaryUnimplemented(environment_, context, "nibble.v1.ServerService/SetResourcePolicy");
}

}  // namespace nibble::rpc
