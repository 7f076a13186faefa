// Which operation made a model, as the model's provenance says it. A start after a crash finds by it the operations whose model was
// published, but whose end was not recorded.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "server/base/files.h"
#include "server/rpc/operations.h"
#include "server/store/model_store.h"

namespace nibble::rpc {

// Adds the operation to nibble.json of the artifact in `directory`, in place of an operation that made the model's source. To be
// called before the artifact is published.
absl::Status MarkMadeBy(base::FileSystem& files, const std::string& directory, const OperationIdentity& operation);
// False too when the model's nibble.json cannot be parsed.
bool IsMadeBy(const store::StoredModel& model, const OperationIdentity& operation);

}  // namespace nibble::rpc
