#include "server/rpc/operation_proto.h"

#include <string>

#include "nibble/v1/model_service.pb.h"
#include "server/rpc/status.h"
#include "server/rpc/time.h"

namespace nibble::rpc {

namespace longrunning = google::longrunning;

namespace {

// Payload of an error that was read from a file of version 1: the google.rpc.Status in the file. The reason and the
// details cannot be restored from it exactly, so ToProto returns the stored google.rpc.Status unchanged.
constexpr char kStoredStatus[] = "nibble/rpc_status";

absl::Status FromProto(const google::rpc::Status& status) {
  absl::Status error(static_cast<absl::StatusCode>(status.code()), status.message());
  error.SetPayload(kStoredStatus, absl::Cord(status.SerializeAsString()));
  return error;
}

google::rpc::Status ErrorOf(const absl::Status& error) {
  const auto stored = error.GetPayload(kStoredStatus);
  google::rpc::Status status;
  if (stored.has_value() && status.ParseFromString(std::string(*stored))) return status;
  return ToRpcStatus(error);
}

}  // namespace

longrunning::Operation ToProto(const operations::Operation& operation) {
  v1::ModelOperationMetadata metadata;
  metadata.set_model(operation.metadata.model);
  metadata.set_kind(operation.metadata.kind);
  metadata.set_stage(operation.metadata.stage);
  metadata.set_done(operation.metadata.done);
  metadata.set_total(operation.metadata.total);
  *metadata.mutable_create_time() = ToProto(operation.metadata.created);
  longrunning::Operation out;
  out.set_name(operation.name);
  out.mutable_metadata()->PackFrom(metadata);
  out.set_done(operation.done);
  if (operation.response.has_value()) {
    out.mutable_response()->set_type_url(operation.response->type);
    out.mutable_response()->set_value(operation.response->bytes);
  } else if (operation.done) {
    *out.mutable_error() = ErrorOf(operation.error);
  }
  return out;
}

absl::StatusOr<operations::Operation> ParseOperationV1(std::string_view bytes) {
  longrunning::Operation stored;
  if (!stored.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("not a google.longrunning.Operation");
  }
  v1::ModelOperationMetadata metadata;
  stored.metadata().UnpackTo(&metadata);
  operations::Operation operation;
  operation.name = stored.name();
  operation.metadata = {.model = metadata.model(),
                        .stage = metadata.stage(),
                        .done = metadata.done(),
                        .total = metadata.total(),
                        .created = absl::FromUnixSeconds(metadata.create_time().seconds()) +
                                   absl::Nanoseconds(metadata.create_time().nanos())};
  operation.done = stored.done();
  if (stored.has_response()) {
    operation.response = {.type = stored.response().type_url(), .bytes = stored.response().value()};
  } else if (stored.has_error()) {
    operation.error = FromProto(stored.error());
  }
  return operation;
}

}  // namespace nibble::rpc
