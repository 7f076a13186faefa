#include "server/rpc/model_name.h"

#include <string>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/strings.h"

namespace nibble::rpc {

absl::Status CheckModelName(std::string_view field, std::string_view name) {
  const std::size_t mark = name.find_first_of("@+");  // a name contains neither
  if (mark == std::string_view::npos || !base::CheckName(field, name.substr(0, mark)).ok() ||
      !base::CheckName(field, name.substr(mark + 1)).ok()) {
    return absl::OkStatus();
  }
  const std::string_view instead =
      name[mark] == '@' ? "name@version is not implemented yet: a model has one version, use its name alone"
                        : "name+adapter is not implemented yet: an adapter is served under its own name, use that";
  return base::WithReason(absl::UnimplementedError(base::StrCat(field, ": ", instead)), "UNIMPLEMENTED",
                          {{"name", std::string(field)}});
}

}  // namespace nibble::rpc
