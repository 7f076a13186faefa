#include "server/data/row_list.h"

#include <algorithm>
#include <cstddef>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/data/row_list_json.h"

namespace nibble::data {

void RowList::Add(std::int64_t line) {
  ++count;
  if (lines.size() < static_cast<std::size_t>(kMaxNamedRows)) lines.push_back(line);
}

void RowList::Append(const RowList& later) {
  count += later.count;
  const std::size_t room = static_cast<std::size_t>(kMaxNamedRows) - lines.size();
  lines.insert(lines.end(), later.lines.begin(),
               later.lines.begin() + static_cast<std::ptrdiff_t>(std::min(room, later.lines.size())));
}

base::Json RowListJson(const RowList& rows) { return {{"count", rows.count}, {"lines", rows.lines}}; }

absl::StatusOr<RowList> ParseRowList(const base::Json& json, const char* key, const std::string& where) {
  const auto from = json.find(key);
  if (from == json.end() || !from->is_object()) return absl::DataLossError(base::StrCat(where, " has no ", key));
  RowList rows;
  NIBBLE_ASSIGN_OR_RETURN(rows.count, base::GetInt(*from, "count", where));
  const auto lines = from->find("lines");
  if (lines == from->end() || !lines->is_array())
    return absl::DataLossError(base::StrCat(where, ": ", key, " has no lines"));
  for (const base::Json& line : *lines) {
    if (!line.is_number_integer())
      return absl::DataLossError(base::StrCat(where, ": a line of ", key, " is not a number"));
    rows.lines.push_back(line.get<std::int64_t>());
  }
  if (rows.lines.size() > static_cast<std::size_t>(kMaxNamedRows))
    return absl::DataLossError(base::StrCat(where, ": too many lines"));
  return rows;
}

}  // namespace nibble::data
