#include "client/cli/row_places.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

using base::StrCat;

// The numbers of "line 3" and "lines 5-6, 9"; "" if the text is not such a list.
std::string RowsOf(std::string_view text) {
  if (!text.starts_with("line ") && !text.starts_with("lines ")) return "";
  const std::string_view rows = text.substr(text.find(' ') + 1);
  return rows.find_first_not_of("0123456789-, ") == std::string_view::npos ? std::string(rows) : "";
}

}  // namespace

void RowPlaces::Add(std::int64_t place) {
  ++num_rows_;
  if (runs_.empty() || place != last_place_ + 1) runs_.emplace_back(num_rows_, place);
  last_place_ = place;
}

std::int64_t RowPlaces::Of(std::int64_t row) const {
  if (row < 1 || row > num_rows_) return row;
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), row,
                                      [](std::int64_t wanted, const auto& run) { return wanted < run.first; });
  const auto& [first_row, first_place] = *std::prev(after);
  return first_place + (row - first_row);
}

std::string RowPlaces::Text(const std::string& places) const {
  const bool one = places.find_first_of(",-") == std::string::npos;
  return StrCat(is_array_ ? "element" : "line", one ? " " : "s ", places);
}

absl::Status RowPlaces::Bad(std::int64_t place, std::string_view what) const {
  return base::WithReason(absl::InvalidArgumentError(StrCat(file_, ": ", Text(StrCat(place)), ": ", what)),
                          "DATASET_FORMAT");
}

std::string RowPlaces::TranslatedList(const std::string& rows) const {
  std::vector<std::string> places;
  for (const std::string& range : std::vector<std::string>(absl::StrSplit(rows, ", "))) {
    std::vector<std::string> ends;
    for (const std::string& end : std::vector<std::string>(absl::StrSplit(range, '-'))) {
      std::int64_t row = 0;
      ends.push_back(absl::SimpleAtoi(end, &row) ? StrCat(Of(row)) : end);
    }
    places.push_back(absl::StrJoin(ends, "-"));
  }
  return absl::StrJoin(places, ", ");
}

absl::Status RowPlaces::Translated(const absl::Status& refusal) const {
  if (base::Reason(refusal) != "DATASET_FORMAT") return refusal;
  std::vector<std::string> parts;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(refusal.message(), "; "))) {
    const std::size_t colon = part.find(": ");
    const std::string rows = RowsOf(std::string_view(part).substr(0, colon));
    if (rows.empty()) {
      // The server counts further rows: "and 3 more lines".
      const bool counts = is_array_ && part.starts_with("and ") && absl::StrContains(part, " more line");
      parts.push_back(
          counts ? StrCat(part.substr(0, part.rfind(' ') + 1), absl::EndsWith(part, "s") ? "elements" : "element")
                 : part);
    } else if (colon != std::string::npos) {
      parts.push_back(StrCat(Text(TranslatedList(rows)), part.substr(colon)));
    } else {  // The text was cut to fit the answer, perhaps within a number.
      const std::size_t whole = rows.rfind(", ");
      if (whole != std::string::npos) parts.push_back(StrCat(Text(TranslatedList(rows.substr(0, whole))), ", ..."));
    }
  }
  // Without the details, which name the rows of the converted file.
  return base::WithReason(absl::Status(refusal.code(), StrCat(file_, ": ", absl::StrJoin(parts, "; "))),
                          "DATASET_FORMAT");
}

}  // namespace nibble::cli
