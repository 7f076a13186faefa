// Waits, with a time limit, for something that happens on another thread or in another process.
#pragma once
#include <chrono>
#include <functional>
#include <thread>

namespace nibble::testing_support {

// Waits until `is_so`; false after `timeout`.
inline bool Soon(const std::function<bool()>& is_so, std::chrono::seconds timeout = std::chrono::seconds(30)) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace nibble::testing_support
