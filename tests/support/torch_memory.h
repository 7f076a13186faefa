// Counts torch's CPU memory while an object of this class lives. For tests of the trainer.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace nibble::support {

// Only one may live at a time. Tensors made during its life must be freed before it is destroyed. Thread-safe: torch's
// threads allocate their own scratch.
class TorchMemory final : public c10::Allocator {
 public:
  TorchMemory() : before_(c10::GetCPUAllocator()) {
    g_live = g_peak = 0;
    c10::SetCPUAllocator(this, /*priority=*/100);
  }
  ~TorchMemory() override { c10::SetCPUAllocator(before_, 100); }

  std::int64_t live_bytes() const { return g_live; }
  std::int64_t peak_bytes() const { return g_peak; }
  void ResetPeak() { g_peak = g_live; }

  c10::DataPtr allocate(std::size_t size) override {
    // aligned_alloc wants a multiple of the alignment; 127 instead of 63, so that no block is empty.
    void* block = std::aligned_alloc(64, (size + 127) / 64 * 64);
    const std::lock_guard<std::mutex> lock(g_mutex);
    g_sizes[block] = static_cast<std::int64_t>(size);
    g_live += static_cast<std::int64_t>(size);
    g_peak = std::max(g_peak, g_live);
    return {block, block, &Delete, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }
  void copy_data(void* to, const void* from, std::size_t size) const override { std::memcpy(to, from, size); }

 private:
  static void Delete(void* block) {
    const std::lock_guard<std::mutex> lock(g_mutex);
    const auto size = g_sizes.extract(block);
    g_live -= size.mapped();
    std::free(block);
  }
  static inline std::mutex g_mutex;
  static inline std::unordered_map<void*, std::int64_t> g_sizes;  // of the live blocks
  static inline std::int64_t g_live = 0;
  static inline std::int64_t g_peak = 0;
  c10::Allocator* before_;
};

// Bytes that the graph behind the result of `forward` keeps alive: live bytes with gradients minus those without.
template <typename Forward>
std::int64_t KeptBytes(Forward forward) {
  const auto live = [&](bool gradients) {
    TorchMemory memory;
    const c10::AutoGradMode mode(gradients);
    const auto y = forward();
    return memory.live_bytes();
  };
  forward();  // so that one-time allocations count in neither
  return live(true) - live(false);
}

}  // namespace nibble::support
