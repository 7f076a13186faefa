// Reads stored models and checks their files. Every function here counts and logs damage that it finds.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/model_store.h"
#include "server/telemetry/metrics.h"

namespace nibble::registry {

// ModelStore::Get, which does not read the weights. Errors: NotFound (MODEL), DataLoss (ARTIFACT_CORRUPT), errors of
// reading a file.
absl::StatusOr<store::StoredModel> FindModel(const store::ModelStore& models, telemetry::Metrics& metrics,
                                             const std::string& name);

// Counts and logs damage that the caller has found. Returns DataLoss (ARTIFACT_CORRUPT).
absl::Status ReportDamaged(telemetry::Metrics& metrics, const std::string& name, const absl::Status& why);

// Compares every byte of a model with its manifest. Call this before serving the model, and before making anything from
// it that gets its own manifest. Takes minutes for a large model on a slow disk. Errors: NotFound (MODEL), DataLoss
// (ARTIFACT_CORRUPT), Cancelled, errors of reading a file.
absl::Status CheckModelFiles(const store::ModelStore& models, telemetry::Metrics& metrics, const std::string& name,
                             const store::Cancelled& cancelled = {});

}  // namespace nibble::registry
