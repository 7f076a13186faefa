#include "server/registry/dataset_format.h"

#include "server/base/json.h"
#include "server/store/name_table.h"

namespace nibble::registry {

absl::StatusOr<data::RowFormat> FormatOf(const store::StoredDataset& stored) {
  const auto name = base::GetString(stored.meta, "format", "meta.json");
  if (name.ok()) {
    if (auto format = data::ParseRowFormat(*name); format.ok()) return format;
  }
  return store::DamagedError("dataset", stored.name);
}

}  // namespace nibble::registry
