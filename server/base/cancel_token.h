#pragma once
#include <atomic>
#include <memory>

namespace nibble::base {

// A flag that asks work to stop. Copies share the flag. Thread-safe.
class CancelToken {
 public:
  void Cancel() { flag_->store(true, std::memory_order_relaxed); }
  bool cancelled() const { return flag_->load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<std::atomic<bool>> flag_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace nibble::base
