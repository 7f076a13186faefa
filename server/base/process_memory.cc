#include "server/base/process_memory.h"

#include <malloc.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace nibble::base {
namespace {

// "VmHWM:   1234 kB" of /proc/self/status.
std::uint64_t StatusBytes(std::string_view key) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.size() > key.size() && line.compare(0, key.size(), key) == 0 && line[key.size()] == ':') {
      return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
    }
  }
  return 0;
}

}  // namespace

std::uint64_t ResidentBytes() { return StatusBytes("VmRSS"); }
std::uint64_t PeakResidentBytes() { return StatusBytes("VmHWM"); }
void ReturnFreeMemory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}
void LimitArenas([[maybe_unused]] int arenas) {
#ifdef __GLIBC__
  ::mallopt(M_ARENA_MAX, arenas);
#endif
}
std::uint64_t VirtualBytes() { return StatusBytes("VmSize"); }

}  // namespace nibble::base
