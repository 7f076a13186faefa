#pragma once
#include <functional>
#include <optional>
#include <utility>

#include "nibble/v1/server_service.grpc.pb.h"
#include "server/rpc/call.h"

namespace nibble::rpc {

// Thread-safe.
class ServerService : public v1::ServerService::CallbackService {
 public:
  // Describe must not block, because gRPC's threads call it. Workers call the other functions.
  using Describe = std::function<v1::ServerInfo()>;
  using Measure = std::function<v1::ServerLoad()>;
  // Begins to drain. nullopt: the default deadline.
  using BeginDrain = std::function<void(std::optional<absl::Duration> deadline)>;
  ServerService(CallEnvironment& environment, Describe describe, Measure measure, BeginDrain begin_drain)
      : environment_(environment),
        describe_(std::move(describe)),
        measure_(std::move(measure)),
        begin_drain_(std::move(begin_drain)) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext*, const v1::GetServerInfoRequest*,
                                          v1::ServerInfo*) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext*, const v1::GetLoadRequest*, v1::ServerLoad*) override;
  grpc::ServerWriteReactor<v1::ServerLoad>* WatchLoad(grpc::CallbackServerContext*,
                                                      const v1::WatchLoadRequest*) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext*, const v1::DrainRequest*, v1::DrainResponse*) override;
  grpc::ServerUnaryReactor* SetResourcePolicy(grpc::CallbackServerContext*, const v1::SetResourcePolicyRequest*,
                                              v1::ResourcePolicy*) override;

 private:
  CallEnvironment& environment_;
  const Describe describe_;
  const Measure measure_;
  const BeginDrain begin_drain_;
};

}  // namespace nibble::rpc
