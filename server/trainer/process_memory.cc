#include "server/trainer/process_memory.h"

#include <fstream>
#include <string>

namespace nibble::trainer {

std::uint64_t PeakMemoryBytes() {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    if (key == "VmHWM:") {
      std::uint64_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
    status.ignore(4096, '\n');
  }
  return 0;
}

}  // namespace nibble::trainer
