// CUDA's error codes as LaunchResult. Only files of the CUDA library include this.
#pragma once
#include <cuda_runtime_api.h>

#include "kernels/launch_result.h"

namespace nibble::kernels {

// Clears CUDA's last error: otherwise the next launch would report it again.
inline LaunchResult ToResult(cudaError_t error) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  const bool memory = error == cudaErrorMemoryAllocation;
  return {memory ? LaunchCode::kResourceExhausted : LaunchCode::kInternal, cudaGetErrorString(error)};
}

// Makes a device current for a scope: kernels run on the device of their stream, whatever the thread used before.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ != device) switched_ = cudaSetDevice(device) == cudaSuccess;
  }
  ~DeviceGuard() {
    if (switched_) (void)cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool switched_ = false;
};

}  // namespace nibble::kernels
