// Counts kernel launches by name: on the CPU one call of an op's path, on CUDA one grid.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace nibble::kernels {

// Thread-safe and lock-free: an op counts on its hot path. Names must be string constants that are never freed.
class LaunchCounter {
 public:
  void Add(const char* kernel, std::uint64_t launches = 1);
  // Launches by kernel since construction. May or may not include launches that are counted during the call.
  std::map<std::string, std::uint64_t> Snapshot() const;
  std::uint64_t total() const { return total_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    std::atomic<const char*> name{nullptr};
    std::atomic<std::uint64_t> count{0};
  };
  // Larger than the number of kernels; Add() aborts when the table is full.
  std::array<Slot, 256> slots_;
  std::atomic<std::uint64_t> total_{0};
};

}  // namespace nibble::kernels
