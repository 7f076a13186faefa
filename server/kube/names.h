// Rules of Kubernetes for the names and labels that go into paths and queries of the API.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble::kube {

// InvalidArgument unless `name` is an RFC 1123 label: 1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends.
// `what` begins the message ("namespace").
absl::Status CheckName(std::string_view name, std::string_view what);
// InvalidArgument unless `key` is a label's key: a name of 1 to 63 of A-Z, a-z, 0-9, '-', '_' and '.', with a letter or
// digit at both ends, after an optional prefix "example.com/".
absl::Status CheckLabelKey(std::string_view key);
// InvalidArgument unless `value` is empty or follows the rule of a label key's name.
absl::Status CheckLabelValue(std::string_view value);

using Labels = std::map<std::string, std::string>;
// "key=value,key=value", percent-encoded for a query. Errors: those of the checks above.
absl::StatusOr<std::string> LabelSelector(const Labels& labels);

// Encodes all bytes except A-Z, a-z, 0-9, '-', '_', '.' and '~'.
std::string PercentEncode(std::string_view text);

}  // namespace nibble::kube
