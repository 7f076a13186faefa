#include "server/metered_files.h"

#include "server/rpc/status.h"

namespace nibble {

void StoreMeter::Count(std::string_view operation, absl::Duration took, const absl::Status& status) {
  metrics_.StoreOperation(operation, absl::ToDoubleSeconds(took));
  // A caller's mistake (a file that does not exist, or is too large) is not a fault of the store.
  if (status.ok() || absl::IsNotFound(status) || absl::IsInvalidArgument(status) || absl::IsAlreadyExists(status))
    return;
  const std::string reason = base::Reason(status);
  metrics_.StoreError(reason.empty() ? rpc::CodeName(status.code()) : reason);
}

}  // namespace nibble
