// Conversions of stored models to other formats.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/clock.h"
#include "server/base/written_digests.h"
#include "server/convert/convert.h"
#include "server/data/token_cache.h"
#include "server/model/artifact.h"
#include "server/registry/conversion_report.h"
#include "server/registry/model_requests.h"
#include "server/registry/model_work.h"
#include "server/registry/operation_files.h"
#include "server/registry/operation_scope.h"
#include "server/registry/text_cache.h"
#include "server/store/model_store.h"

namespace nibble::registry {

// If the tolerance is not OK, it was exceeded and no model was made.
struct ConvertOutcome {
  ConversionReport report;
  absl::Status tolerance;  // FailedPrecondition (CONVERSION_TOLERANCE)
};

// Converts models to other formats, with the losses before and after. Thread-safe; all arguments are borrowed.
class ModelConverter {
 public:
  ModelConverter(const ModelWork& work, TextCache& texts, data::TokenCache& tokens, base::Clock& clock)
      : work_(work), texts_(texts), tokens_(tokens), clock_(clock) {}

  // Checks names, fields and existence before the operation begins; for adapter_init also the adapter's tensors.
  absl::Status Check(const ConvertRequest& request, const std::string& tenant);
  absl::StatusOr<ConvertOutcome> Convert(const ConvertRequest& request, OperationScope& scope);

 private:
  absl::Status AddLosses(const ConvertRequest& request, const std::string& dataset, const std::string& source,
                         const std::string& target, OperationScope& scope, ConversionReport& report);
  // Makes the adapter of request.adapter_init, from the report of its base's conversion, on the base in base_directory.
  absl::Status MakeAdapter(const ConvertRequest& request, const convert::ConvertReport& made,
                           const std::string& base_directory, const std::string& target, OperationFiles& files,
                           OperationScope& scope);
  // Publishes both models, or on an error none. adapter: null without adapter_init.
  absl::Status Publish(const ConvertRequest& request, store::ModelStore::Pending& base,
                       store::ModelStore::Pending* adapter, const base::WrittenDigests& digests, OperationScope& scope);
  absl::Status AddRecord(const std::string& source, const std::string& target, model::ArtifactInfo info,
                         const base::Cancelled& cancelled);
  absl::StatusOr<std::string> EvalDatasetOf(const ConvertRequest& request, const store::StoredModel& source) const;

  const ModelWork& work_;
  TextCache& texts_;
  data::TokenCache& tokens_;
  base::Clock& clock_;
};

}  // namespace nibble::registry
