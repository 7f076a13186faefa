// Memory of this process as the kernel counts it; 0 where /proc does not tell.
#pragma once
#include <cstdint>

namespace nibble::base {

std::uint64_t ResidentBytes();      // VmRSS
std::uint64_t PeakResidentBytes();  // VmHWM: the most that was ever resident
// Gives free memory of the allocator back to the system, which it keeps otherwise.
void ReturnFreeMemory();
std::uint64_t VirtualBytes();       // VmSize

}  // namespace nibble::base
