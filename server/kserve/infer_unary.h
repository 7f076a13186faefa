// ModelInfer.
#pragma once
#include <google/protobuf/message.h>

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"
#include "server/kserve/infer_request.h"
#include "server/kserve/inner_calls.h"
#include "server/kserve/statistics.h"

namespace nibble::kserve {

// Runs the call, which is not a stream, and ends the client's call. `statistics` must outlive the client's call.
void RunInfer(std::shared_ptr<Incoming> incoming, InferCall call, Statistics& statistics,
              inference::ModelInferResponse* response);

// Errors: ResourceExhausted (MESSAGE_TOO_LARGE).
absl::Status CheckSize(const google::protobuf::Message& response, std::size_t max_bytes);

}  // namespace nibble::kserve
