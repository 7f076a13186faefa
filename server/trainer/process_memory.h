#pragma once
#include <cstdint>

namespace nibble::trainer {

// High-water mark of this process's resident memory (VmHWM), in bytes.
std::uint64_t PeakMemoryBytes();

}  // namespace nibble::trainer
