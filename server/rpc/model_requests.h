// Converts the requests of ModelService that begin work on whole models. The checks of the domain are in
// registry/model_requests.h and registry::ModelLibrary.
#pragma once
#include "absl/status/status.h"
#include "nibble/v1/model_service.pb.h"
#include "server/registry/model_requests.h"

namespace nibble::rpc {

// Numbers that the API does not define become values that registry's checks refuse, or are refused by CheckFields.
registry::ImportRequest FromProto(const v1::ImportModelRequest& request);
registry::ConvertRequest FromProto(const v1::ConvertModelRequest& request);
registry::ExportRequest FromProto(const v1::ExportModelRequest& request);
registry::PublishRequest FromProto(const v1::PublishCheckpointRequest& request);

// All checks that need no model. Calls the checks of registry too, between its own, because the order of the checks
// decides which error is reported. Errors: InvalidArgument (FIELD_VIOLATION), Unimplemented.
absl::Status CheckFields(const v1::ConvertModelRequest& request);
absl::Status CheckFields(const v1::ExportModelRequest& request);

}  // namespace nibble::rpc
