// ModelStreamInfer: several requests at a time on one stream.
#pragma once
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>

#include "inference/grpc_service.pb.h"
#include "server/kserve/inner_calls.h"
#include "server/kserve/statistics.h"
#include "server/rpc/call.h"

namespace nibble::kserve {

class InferStream {
 public:
  using Reactor = grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>;
  // While this many requests of a stream run, or this many responses wait for its client, the stream reads no further
  // request.
  static constexpr std::size_t kMaxRunning = 64;
  static constexpr std::size_t kMaxQueued = 64;

  // Each request becomes a call of nibble.v1. If the client goes, the stream cancels all calls; the engine then frees
  // their slots within one step. While the client reads slowly, the stream stops reading the calls' replies, so the
  // engine waits (rpc/paced_stream.h).
  // Without `stubs`, fails with NotConnected(). `environment` and `statistics` must outlive the call.
  static Reactor* Begin(rpc::CallEnvironment& environment, grpc::CallbackServerContext* context,
                        std::shared_ptr<const Stubs> stubs, Statistics& statistics);
};

}  // namespace nibble::kserve
