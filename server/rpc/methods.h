// Every service and method, once: for health, for metrics that exist from the start, for what is not built.
#pragma once
#include "server/telemetry/metrics.h"

namespace nibble::rpc {

inline constexpr const char* kServices[] = {"nibble.v1.DatasetService",   "nibble.v1.FineTuneService",
                                            "nibble.v1.ModelService",     "nibble.v1.InferenceService",
                                            "nibble.v1.ServerService",    "google.longrunning.Operations"};

// What answers UNIMPLEMENTED: methods, then fields of requests.
inline constexpr const char* kUnbuilt[] = {
    "nibble.v1.InferenceService/Embed",
    "nibble.v1.ServerService/SetResourcePolicy", "GenerateRequest.json_schema", "GenerateRequest.regex",
    "GenerateRequest.choice", "ConvertModelRequest.checkpoint", "ConvertModelRequest.calibration_dataset",
    "UploadDatasetHeader.field_map"};

void RegisterMethods(telemetry::Metrics& metrics);

}  // namespace nibble::rpc
