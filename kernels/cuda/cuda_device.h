// The CUDA devices of this machine. Works in every build: without CUDA, or without a driver, there are none.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/launch_result.h"

namespace nibble::kernels {

struct CudaDeviceInfo {
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  std::int64_t total_bytes = 0;
};

// `reason` says why `count` is 0: "built without CUDA", or the driver's message.
struct CudaDevices {
  int count = 0;
  std::string reason;
};

CudaDevices FindCudaDevices();
LaunchResult DescribeCudaDevice(int index, CudaDeviceInfo* info);

}  // namespace nibble::kernels
