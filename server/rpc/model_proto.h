// Models, formats, devices and reports as the API shows them.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "nibble/v1/model_service.pb.h"
#include "server/base/json.h"
#include "server/convert/convert.h"
#include "server/model/artifact.h"
#include "server/serve/model_manager.h"
#include "server/store/model_store.h"

namespace nibble::rpc {

// Beside an artifact that was converted: the report, as JSON of v1::ConversionReport.
inline constexpr char kConversionFile[] = "conversion.json";

// What ExportModel writes.
inline constexpr v1::ExportFormat kExportFormats[] = {v1::EXPORT_FORMAT_PEFT, v1::EXPORT_FORMAT_HF, v1::EXPORT_FORMAT_HF_BITNET,
                                                      v1::EXPORT_FORMAT_COMPRESSED_TENSORS};

v1::ModelFormat ToProto(model::Format format);
// InvalidArgument (FIELD_VIOLATION) for UNSPECIFIED.
absl::StatusOr<model::Format> FromProto(const char* field, v1::ModelFormat format);
v1::Device CpuDevice();
// FieldError for a device that is not the one nibbled serves on.
absl::Status CheckDevice(const v1::Device& device);

// Reads config.json and, where they are, record.bin and the conversion's report. `detailed`: with the layers of the report.
absl::StatusOr<v1::Model> ToProto(const store::StoredModel& stored, bool loaded, bool detailed);
v1::ConversionReport ToProto(const convert::ConvertReport& report);
v1::Residents ToProto(const serve::ModelManager& manager);

}  // namespace nibble::rpc
