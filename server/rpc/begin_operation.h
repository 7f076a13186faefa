// Starts the operation of a method.
#pragma once
#include <google/protobuf/any.pb.h>

#include <optional>
#include <string>
#include <utility>

#include "google/longrunning/operations.pb.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/operations/operation_table.h"
#include "server/rpc/call.h"
#include "server/rpc/deterministic_bytes.h"
#include "server/rpc/operation_proto.h"

namespace nibble::rpc {

// Digest of the request without its request_id. A repeated request_id must have the same digest.
template <typename Request>
std::string DigestOf(Request request) {
  request.clear_request_id();
  return base::Sha256Hex(base::StrCat(request.GetTypeName(), DeterministicBytes(request)));
}

// `kind`: ModelOperationMetadata.kind.
template <typename Request>
operations::OperationStart StartOf(const Call& call, const char* kind, operations::OperationLane lane,
                                   const Request& request, const std::string& model) {
  return {.lane = lane,
          .model = model,
          .kind = kind,
          .owner = auth::OwnerOf(call.principal()),
          .request_id = request.request_id(),
          .digest = DigestOf(request)};
}

template <typename Message>
operations::OperationResponse Packed(const Message& message) {
  google::protobuf::Any any;
  any.PackFrom(message);
  return {.type = any.type_url(), .bytes = std::move(*any.mutable_value())};
}

// Answers with the operation that an earlier call with the same request_id started, even if its `check` would fail now.
// Otherwise runs `check` and starts the operation.
template <typename Check>
absl::Status Begin(operations::OperationTable& operations, const operations::OperationStart& start, Check check,
                   operations::OperationTable::Body body, google::longrunning::Operation* response) {
  NIBBLE_ASSIGN_OR_RETURN(std::optional<operations::Operation> known, operations.Find(start));
  if (!known.has_value()) {
    NIBBLE_RETURN_IF_ERROR(check());
    NIBBLE_ASSIGN_OR_RETURN(known, operations.Start(start, std::move(body)));
  }
  *response = ToProto(*known);
  return absl::OkStatus();
}

}  // namespace nibble::rpc
