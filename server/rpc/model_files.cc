#include "server/rpc/model_files.h"

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::rpc {

absl::Status CheckModelFiles(const store::ModelStore& models, telemetry::Metrics& metrics, const std::string& name,
                             const store::Cancelled& cancelled) {
  NIBBLE_RETURN_IF_ERROR(models.Get(name).status());
  // A file that is not there any more, the manifest too, is damage like other bytes.
  const auto verified = models.Verify(name, cancelled);
  if (verified.ok() || !store::SaysDamaged(verified.status())) return verified.status();
  metrics.ArtifactVerifyFailed();
  base::LogError("a model does not fit its manifest", {{"model", name}, {"why", std::string(verified.status().message())}});
  return base::WithReason(absl::DataLossError(base::StrCat("model \"", name, "\" is damaged: its files do not fit its manifest")),
                          "ARTIFACT_CORRUPT", {{"model", name}});
}

}  // namespace nibble::rpc
