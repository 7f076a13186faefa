// A RowList in a JSON file of the server. A header of its own, so that users of RowList need no JSON; row_list.cc
// implements it.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/data/row_list.h"

namespace nibble::data {

base::Json RowListJson(const RowList& rows);
// Reads json[key], an object. Errors begin with `where`, the name of the file.
absl::StatusOr<RowList> ParseRowList(const base::Json& json, const char* key, const std::string& where);

}  // namespace nibble::data
