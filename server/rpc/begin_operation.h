// Starts the operation of a method.
#pragma once
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <optional>
#include <string>
#include <utility>

#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/call.h"
#include "server/rpc/operations.h"

namespace nibble::rpc {

// Equal messages give equal bytes: map entries are in the order of their keys. SerializeAsString writes them in hash
// order, which differs between copies of a message.
inline std::string DeterministicBytes(const google::protobuf::MessageLite& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return bytes;
}

// Digest of the request without its request_id. A repeated request_id must have the same digest.
template <typename Request>
std::string DigestOf(Request request) {
  request.clear_request_id();
  return base::Sha256Hex(base::StrCat(request.GetTypeName(), DeterministicBytes(request)));
}

template <typename Request>
OperationStart StartOf(const Call& call, OperationLane lane, const Request& request, const std::string& model) {
  return {.lane = lane,
          .model = model,
          .owner = auth::OwnerOf(call.principal()),
          .request_id = request.request_id(),
          .digest = DigestOf(request)};
}

template <typename Message>
google::protobuf::Any Packed(const Message& message) {
  google::protobuf::Any any;
  any.PackFrom(message);
  return any;
}

// Answers with the operation that an earlier call with the same request_id started, even if its `check` would fail now.
// Otherwise runs `check` and starts the operation.
template <typename Check>
absl::Status Begin(OperationTable& operations, const OperationStart& start, Check check, OperationTable::Body body,
                   google::longrunning::Operation* response) {
  NIBBLE_ASSIGN_OR_RETURN(std::optional<google::longrunning::Operation> known, operations.Find(start));
  if (!known.has_value()) {
    NIBBLE_RETURN_IF_ERROR(check());
    NIBBLE_ASSIGN_OR_RETURN(known, operations.Start(start, std::move(body)));
  }
  *response = *std::move(known);
  return absl::OkStatus();
}

}  // namespace nibble::rpc
