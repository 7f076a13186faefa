// Records in a model's provenance which operation made it. After a crash the next start uses the mark to find
// operations whose model was published but whose end was not recorded.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "server/base/files.h"
#include "server/registry/operation_scope.h"
#include "server/store/model_store.h"

namespace nibble::registry {

// Adds the operation to nibble.json of the artifact in `directory`, and replaces the mark of the operation that made
// the model's source. Must be called before the artifact is published.
absl::Status MarkMadeBy(base::FileSystem& files, const std::string& directory, const OperationIdentity& operation);
// Also false if the model's nibble.json cannot be parsed.
bool IsMadeBy(const store::StoredModel& model, const OperationIdentity& operation);

}  // namespace nibble::registry
