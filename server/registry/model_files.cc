#include "server/registry/model_files.h"

#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/store/name_table.h"

namespace nibble::registry {

absl::StatusOr<store::StoredModel> FindModel(const store::ModelStore& models, telemetry::Metrics& metrics,
                                             const std::string& name) {
  auto found = models.Get(name);
  if (absl::IsDataLoss(found.status())) return ReportDamaged(metrics, name, found.status());
  return found;
}

absl::Status ReportDamaged(telemetry::Metrics& metrics, const std::string& name, const absl::Status& why) {
  metrics.ArtifactVerifyFailed();
  base::LogError("a model does not match its manifest", {{"model", name}, {"why", std::string(why.message())}});
  return store::DamagedError("model", name);
}

absl::Status CheckModelFiles(const store::ModelStore& models, telemetry::Metrics& metrics, const std::string& name,
                             const store::Cancelled& cancelled) {
  NIBBLE_RETURN_IF_ERROR(FindModel(models, metrics, name).status());
  // A missing file, or a missing manifest, counts as damage like changed bytes.
  const auto verified = models.Verify(name, cancelled);
  if (verified.ok() || !store::SaysDamaged(verified.status())) return verified.status();
  return ReportDamaged(metrics, name, verified.status());
}

}  // namespace nibble::registry
