// The files of a stored model, compared with what was written.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/model_store.h"
#include "server/telemetry/metrics.h"

namespace nibble::rpc {

// ModelStore::Get. One that was damaged when the server started is counted as what CheckModelFiles finds.
// Errors: NotFound (MODEL), DataLoss (ARTIFACT_CORRUPT), what reading a file gives.
absl::StatusOr<store::StoredModel> FindModel(const store::ModelStore& models, telemetry::Metrics& metrics, const std::string& name);

// Of a model whose files are not what was written: counts and logs it, and answers DataLoss (ARTIFACT_CORRUPT).
absl::Status TellDamaged(telemetry::Metrics& metrics, const std::string& name, const absl::Status& why);

// Every byte of a model against its manifest: before it is served, and before anything is made of it that would have a manifest of its
// own. Minutes for a large model on a slow disk. Damage is counted and logged.
// Errors: NotFound (MODEL), DataLoss (ARTIFACT_CORRUPT), Cancelled, what reading a file gives.
absl::Status CheckModelFiles(const store::ModelStore& models, telemetry::Metrics& metrics, const std::string& name,
                             const store::Cancelled& cancelled = {});

}  // namespace nibble::rpc
