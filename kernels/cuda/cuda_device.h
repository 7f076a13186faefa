// Lists the CUDA devices of this machine. Works in every build: without CUDA or without a driver, the list is empty.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/launch_result.h"

namespace nibble::kernels {

struct CudaDeviceInfo {
  std::string name;
  int major = 0;  // compute capability major.minor
  int minor = 0;
  std::int64_t total_bytes = 0;  // of device memory
};

struct CudaDevices {
  int count = 0;
  std::string reason;  // why count is 0, for example "built without CUDA"; "" if it is not 0
};

CudaDevices FindCudaDevices();
// index: 0 to count - 1. Writes *info only on success. Unimplemented in a build without CUDA.
LaunchResult DescribeCudaDevice(int index, CudaDeviceInfo* info);

}  // namespace nibble::kernels
