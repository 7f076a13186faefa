#pragma once
#include "absl/status/statusor.h"
#include "server/data/row.h"
#include "server/store/dataset_store.h"

namespace nibble::registry {

// The format of a stored dataset. Errors: DataLoss (ARTIFACT_CORRUPT): meta.json is damaged.
absl::StatusOr<data::RowFormat> FormatOf(const store::StoredDataset& stored);

}  // namespace nibble::registry
