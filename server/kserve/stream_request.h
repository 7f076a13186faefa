// The requests of a ModelStreamInfer that run.
#pragma once
#include <memory>

#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"
#include "server/kserve/infer_request.h"
#include "server/kserve/inner_calls.h"
#include "server/kserve/statistics.h"
#include "server/rpc/call.h"

namespace nibble::kserve {

// A request that has not ended. It deletes itself when it has. Thread-safe.
class RunningRequest {
 public:
  virtual ~RunningRequest() = default;
  // Call it once; afterwards, the request may have deleted itself.
  virtual void Begin() = 0;
  // These may be called before Begin() too.
  virtual void Cancel() = 0;
  // The client has taken responses.
  virtual void Resume() = 0;
};

// The stream as its requests see it. Thread-safe.
class RequestOwner {
 public:
  virtual ~RequestOwner() = default;
  virtual rpc::CallEnvironment& environment() const = 0;
  virtual const ClientIdentity& identity() const = 0;
  virtual const Stubs& stubs() const = 0;
  virtual Statistics& statistics() const = 0;

  // Queues a response. False: the client has not taken enough of them; wait for Resume().
  virtual bool Push(inference::ModelInferResponse response) = 0;
  // Whether so few responses wait that a request may continue.
  virtual bool HasSpace() const = 0;
  // The request's last call to its owner. With an error, sends it to the client.
  virtual void Ended(RunningRequest* request, const InferCall& call, const absl::Status& status) = 0;
};

// Before Begin(), the caller owns the request.
std::unique_ptr<RunningRequest> MakeRequest(std::shared_ptr<RequestOwner> owner, InferCall call);

}  // namespace nibble::kserve
