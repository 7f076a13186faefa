#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_result.h"

namespace nibble::kernels {

CudaDevices FindCudaDevices() {
  CudaDevices devices;
  if (const cudaError_t error = cudaGetDeviceCount(&devices.count); error != cudaSuccess) {
    (void)cudaGetLastError();  // a missing driver is an answer here; the next launch must not report it
    return {0, cudaGetErrorString(error)};
  }
  if (devices.count == 0) devices.reason = "the driver reports no CUDA device";
  return devices;
}

LaunchResult DescribeCudaDevice(int index, CudaDeviceInfo* info) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    return ToResult(error);
  }
  info->name = properties.name;
  info->major = properties.major;
  info->minor = properties.minor;
  info->total_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  return {};
}

}  // namespace nibble::kernels
