// Figures of this process from /proc and getrusage.
#pragma once
#include <cstdint>

namespace nibble::telemetry {

struct ProcessFigures {
  double cpu_seconds = 0;
  double start_unix_seconds = 0;
  std::uint64_t resident_bytes = 0;
  std::uint64_t peak_resident_bytes = 0;
  std::uint64_t virtual_bytes = 0;
  std::int64_t open_files = 0;
  std::int64_t max_files = 0;
};

// Fields that the system does not report stay 0.
ProcessFigures ReadProcess();

}  // namespace nibble::telemetry
