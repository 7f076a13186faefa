// Converts models, formats, devices and reports to and from the API's messages.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "nibble/v1/model_service.pb.h"
#include "server/model/artifact.h"
#include "server/registry/conversion_report.h"
#include "server/registry/file_entry.h"
#include "server/registry/model_library.h"
#include "server/serve/model_manager.h"
#include "server/store/model_store.h"

namespace nibble::rpc {

// Formats that ExportModel writes.
inline constexpr v1::ExportFormat kExportFormats[] = {
    v1::EXPORT_FORMAT_PEFT, v1::EXPORT_FORMAT_HF, v1::EXPORT_FORMAT_HF_BITNET, v1::EXPORT_FORMAT_COMPRESSED_TENSORS};

v1::ModelFormat ToProto(model::Format format);
// Errors: InvalidArgument (FIELD_VIOLATION) for UNSPECIFIED and unknown numbers.
absl::StatusOr<model::Format> FromProto(const char* field, v1::ModelFormat format);
v1::Device CpuDevice();
// Errors: InvalidArgument (FIELD_VIOLATION): nibbled does not serve on this device.
absl::Status CheckDevice(const v1::Device& device);

// Errors: those of registry::FactsOf, which reads small files of the model. `detailed`: with the layers of the
// conversion's report.
absl::StatusOr<v1::Model> ToProto(const store::StoredModel& stored, bool loaded, bool detailed);
// `detailed`: with the layers.
v1::ConversionReport ToProto(const registry::ConversionReport& report, bool detailed);
v1::VerifyModelResponse ToProto(const registry::VerifyReport& report);
v1::FileEntry ToProto(const registry::FileEntry& file);
registry::FileEntry FromProto(const v1::FileEntry& file);
v1::Residents ToProto(const serve::ModelManager& manager);

}  // namespace nibble::rpc
