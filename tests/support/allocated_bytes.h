// Memory that this process has allocated. mallinfo2 does not see the allocators of sanitizers, so builds with a
// sanitizer must leave out the tests that call AllocatedBytes.
#pragma once
#include <malloc.h>

#include <cstdint>

namespace nibble::testing {

inline std::int64_t AllocatedBytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

}  // namespace nibble::testing
