// Times the stores' disk operations and counts their faults: nibble_store_op_duration_seconds,
// nibble_store_errors_total.
#pragma once
#include <string>
#include <string_view>

#include "server/base/clock.h"
#include "server/base/error.h"
#include "server/base/hooked_files.h"
#include "server/telemetry/metrics.h"

namespace nibble {

// Measures reads and operations that change the disk, but not closing, which is cheap after a sync. Thread-safe.
class StoreMeter {
 public:
  StoreMeter(telemetry::Metrics& metrics, base::Clock& clock) : metrics_(metrics), clock_(clock) {}

  template <typename Work>
  auto Around(std::string_view operation, const std::string&, Work work) -> decltype(work()) {
    if (operation == "close") return work();
    const absl::Duration began = clock_.Monotonic();
    auto result = work();
    Count(operation, clock_.Monotonic() - began, StatusOf(result));
    return result;
  }
  template <typename Write>
  absl::Status Append(const std::string& path, std::string_view bytes, Write write) {
    return Around("append", path, [&] { return write(bytes); });
  }

 private:
  static const absl::Status& StatusOf(const absl::Status& status) { return status; }
  template <typename T>
  static const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
    return result.status();
  }
  void Count(std::string_view operation, absl::Duration took, const absl::Status& status);

  telemetry::Metrics& metrics_;
  base::Clock& clock_;
};

using MeteredFiles = base::HookedFiles<StoreMeter>;

}  // namespace nibble
