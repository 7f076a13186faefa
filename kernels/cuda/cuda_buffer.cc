#include "kernels/cuda/cuda_buffer.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda/cuda_result.h"

namespace nibble::kernels {
namespace {

cudaStream_t StreamOf(const CudaContext& context) { return static_cast<cudaStream_t>(context.stream()); }

}  // namespace

CudaBuffer::~CudaBuffer() { Free(); }

CudaBuffer::CudaBuffer(CudaBuffer&& other) noexcept
    : context_(std::exchange(other.context_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

CudaBuffer& CudaBuffer::operator=(CudaBuffer&& other) noexcept {
  if (this != &other) {
    Free();
    context_ = std::exchange(other.context_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void CudaBuffer::Free() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(context_->device_index());
  (void)cudaFreeAsync(data_, StreamOf(*context_));  // fails only where the device is already lost
  data_ = nullptr;
  size_ = 0;
}

LaunchResult CudaBuffer::Allocate(CudaContext& context, std::int64_t bytes) {
  Free();
  context_ = &context;
  if (bytes == 0) return {};
  const DeviceGuard guard(context.device_index());
  const cudaError_t error = cudaMallocAsync(&data_, static_cast<std::size_t>(bytes), StreamOf(context));
  if (error == cudaSuccess) {
    size_ = bytes;
  } else {
    data_ = nullptr;
  }
  return ToResult(error);
}

LaunchResult CudaBuffer::FromHost(const void* from) {
  if (size_ == 0) return {};
  const DeviceGuard guard(context_->device_index());
  return ToResult(
      cudaMemcpyAsync(data_, from, static_cast<std::size_t>(size_), cudaMemcpyHostToDevice, StreamOf(*context_)));
}

LaunchResult CudaBuffer::ToHost(void* to) const {
  if (size_ == 0) return {};
  const DeviceGuard guard(context_->device_index());
  const cudaError_t error =
      cudaMemcpyAsync(to, data_, static_cast<std::size_t>(size_), cudaMemcpyDeviceToHost, StreamOf(*context_));
  return ToResult(error == cudaSuccess ? cudaStreamSynchronize(StreamOf(*context_)) : error);
}

}  // namespace nibble::kernels
