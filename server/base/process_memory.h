// Memory of this process as the kernel counts it; 0 if /proc does not report it.
#pragma once
#include <cstdint>

namespace nibble::base {

std::uint64_t ResidentBytes();      // VmRSS
std::uint64_t PeakResidentBytes();  // VmHWM: the peak of VmRSS
std::uint64_t VirtualBytes();       // VmSize

// Returns the allocator's free memory to the system; the allocator would keep it otherwise.
void ReturnFreeMemory();
// Limits the number of the allocator's arenas. Call it before any thread starts. By default glibc makes up to eight
// per CPU, and each keeps free memory of its own.
void LimitArenas(int arenas);

}  // namespace nibble::base
