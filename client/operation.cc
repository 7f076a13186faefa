#include <utility>

#include "client/client.h"
#include "client/stubs.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::client {
namespace {

// Timeout of one WaitOperation: short enough to show progress.
constexpr absl::Duration kWait = absl::Seconds(1);
// Pause between polls when the server answers at once.
constexpr absl::Duration kPoll = absl::Milliseconds(200);

void Report(const google::longrunning::Operation& operation, const OnProgress& progress) {
  v1::ModelOperationMetadata metadata;
  if (progress && operation.has_metadata() && operation.metadata().UnpackTo(&metadata)) {
    progress(metadata.stage(), metadata.done(), metadata.total());
  }
}

}  // namespace

absl::Status Client::WaitForEnd(google::longrunning::Operation& operation, const OnProgress& progress) {
  using google::longrunning::Operations;
  const absl::Time end = absl::Now() + options_.long_deadline;
  bool can_wait = true;
  while (!operation.done()) {
    Report(operation, progress);
    if (absl::Now() > end) {
      return absl::DeadlineExceededError(
          base::StrCat("operation ", operation.name(),
                       " is still running on the server; wait with: ", "nibble operations wait ", operation.name()));
    }
    const absl::Time asked = absl::Now();
    absl::StatusOr<google::longrunning::Operation> now = absl::UnimplementedError("");
    if (can_wait) {
      google::longrunning::WaitOperationRequest request;
      request.set_name(operation.name());
      request.mutable_timeout()->set_seconds(absl::ToInt64Seconds(kWait));
      now = Call(&Operations::Stub::WaitOperation, request);
      can_wait = !absl::IsUnimplemented(now.status());
    }
    if (!can_wait) {
      google::longrunning::GetOperationRequest request;
      request.set_name(operation.name());
      now = Call(&Operations::Stub::GetOperation, request);
    }
    NIBBLE_ASSIGN_OR_RETURN(operation, std::move(now));
    const absl::Duration spent = absl::Now() - asked;
    if (!operation.done() && spent < kPoll) absl::SleepFor(kPoll - spent);
  }
  Report(operation, progress);
  if (operation.has_error()) {
    absl::Status status = FromProto(operation.error());
    if (!status.ok()) return status;
    return absl::DataLossError("malformed response: an operation failed with code OK");
  }
  return absl::OkStatus();
}

absl::Status Client::WaitInto(google::longrunning::Operation operation, const OnProgress& progress,
                              google::protobuf::Message& response) {
  NIBBLE_RETURN_IF_ERROR(WaitForEnd(operation, progress));
  if (!operation.has_response() || !operation.response().UnpackTo(&response)) {
    return absl::DataLossError(
        base::StrCat("malformed response: operation ", operation.name(), " ended without a ", response.GetTypeName()));
  }
  return absl::OkStatus();
}

}  // namespace nibble::client
