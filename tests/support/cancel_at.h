#pragma once
#include "server/base/cancelled.h"

namespace nibble::support {

// Counts how often work checks for cancellation, and cancels it at check number `at` and later (from 1; 0: never). Must
// outlive the work.
class CancelAt {
 public:
  explicit CancelAt(int at = 0) : at_(at) {}
  CancelAt(const CancelAt&) = delete;
  CancelAt& operator=(const CancelAt&) = delete;

  base::Cancelled callback() {
    return [this] { return ++calls_ >= at_ && at_ > 0; };
  }
  int calls() const { return calls_; }
  void Restart(int at) {
    at_ = at;
    calls_ = 0;
  }

 private:
  int at_;
  int calls_ = 0;
};

}  // namespace nibble::support
