// Memory of this process as the kernel counts it; 0 where /proc does not tell.
#pragma once
#include <cstdint>

namespace nibble::base {

std::uint64_t ResidentBytes();      // VmRSS
std::uint64_t PeakResidentBytes();  // VmHWM: the most that was ever resident
std::uint64_t VirtualBytes();       // VmSize

// Gives free memory of the allocator back to the system, which it keeps otherwise.
void ReturnFreeMemory();
// At most this many of the allocator's arenas, from which threads allocate; call it before any thread is started. glibc makes eight per
// CPU, and free memory stays in each of them.
void LimitArenas(int arenas);

}  // namespace nibble::base
