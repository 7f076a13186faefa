#include "kernels/launch_counter.h"

#include <cstdio>
#include <cstdlib>

namespace nibble::kernels {

void LaunchCounter::Add(const char* kernel, std::uint64_t launches) {
  total_.fetch_add(launches, std::memory_order_relaxed);
  const std::size_t start = reinterpret_cast<std::uintptr_t>(kernel) / 8 % slots_.size();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[(start + i) % slots_.size()];
    const char* name = slot.name.load(std::memory_order_acquire);
    if (name == nullptr && slot.name.compare_exchange_strong(name, kernel, std::memory_order_acq_rel)) name = kernel;
    if (name == kernel) {
      slot.count.fetch_add(launches, std::memory_order_relaxed);
      return;
    }
  }
  // Reached only if the program has more distinct name constants than slots: a bug, never caused by a request.
  std::fprintf(stderr, "LaunchCounter: more than %zu kernel names\n", slots_.size());
  std::abort();
}

std::map<std::string, std::uint64_t> LaunchCounter::Snapshot() const {
  std::map<std::string, std::uint64_t> result;  // two constants with equal text are one kernel
  for (const Slot& slot : slots_) {
    if (const char* name = slot.name.load(std::memory_order_acquire)) {
      result[name] += slot.count.load(std::memory_order_relaxed);
    }
  }
  return result;
}

}  // namespace nibble::kernels
