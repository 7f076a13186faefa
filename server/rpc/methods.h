// Lists of all public services (for health, and for metrics that exist from the start) and of everything unimplemented.
#pragma once
#include "server/telemetry/metrics.h"

namespace nibble::rpc {

inline constexpr const char* kServices[] = {"nibble.v1.DatasetService",     "nibble.v1.FineTuneService",
                                            "nibble.v1.ModelService",       "nibble.v1.InferenceService",
                                            "nibble.v1.ServerService",      "nibble.v1.UploadService",
                                            "google.longrunning.Operations"};

// Methods that answer UNIMPLEMENTED, then fields of requests, with the refused values if the server accepts others.
inline constexpr const char* kUnimplemented[] = {"nibble.v1.ServerService/SetResourcePolicy",
                                                 "ConvertModelRequest.calibration_dataset",
                                                 "ConvertModelRequest.checkpoint",
                                                 "ConvertModelRequest.lora KEEP, MERGE_AWARE",
                                                 "DataConfig.chat_template",
                                                 "DataConfig.field_map",
                                                 "DataConfig.format INSTRUCTION, TOKENIZED",
                                                 "DataConfig.shuffle false",
                                                 "DetokenizeRequest.model name@version, name+adapter",
                                                 "ExportModelRequest.format GGUF",
                                                 "GenerateRequest.model name@version, name+adapter",
                                                 "GetTokenizerConfigRequest.model name@version, name+adapter",
                                                 "JobSpec.aqt",
                                                 "ListOperationsRequest.filter",
                                                 "ListOperationsRequest.name (other than operations)",
                                                 "LoadModelRequest.name name@version, name+adapter",
                                                 "LossMask.eos (other than TURN)",
                                                 "LossMask.honour_message_flag false",
                                                 "LossMask.roles",
                                                 "PublishPolicy.evaluate_int8 false",
                                                 "PublishPolicy.load",
                                                 "RenderTemplateRequest.model name@version, name+adapter",
                                                 "RunConfig.artifact_ttl",
                                                 "RunConfig.early_stop",
                                                 "RunConfig.keep_best",
                                                 "RunConfig.loss_watchdog",
                                                 "RunConfig.max_duration",
                                                 "RunConfig.max_retries",
                                                 "ScoreRequest.model name@version, name+adapter",
                                                 "TokenizeRequest.model name@version, name+adapter",
                                                 "UploadDatasetHeader.field_map",
                                                 "UploadDatasetHeader.format INSTRUCTION, TOKENIZED"};

// Creates the metric series of a service's methods with the value 0.
void RegisterService(telemetry::Metrics& metrics, const char* name);
void RegisterMethods(telemetry::Metrics& metrics);  // of all kServices

}  // namespace nibble::rpc
