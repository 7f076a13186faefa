#pragma once
#include <atomic>
#include <memory>

namespace nibble::base {

// Copies share one flag. Thread-safe.
class CancelToken {
 public:
  void Cancel() { flag_->store(true, std::memory_order_relaxed); }
  bool cancelled() const { return flag_->load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<std::atomic<bool>> flag_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace nibble::base
