// Device memory with one owner, allocated and freed in stream order; only ToHost waits.
#pragma once
#include <cstdint>

#include "kernels/cuda/cuda_context.h"
#include "kernels/launch_result.h"

namespace nibble::kernels {

// Thread-compatible. The context must outlive the buffer.
class CudaBuffer {
 public:
  CudaBuffer() = default;
  ~CudaBuffer();
  CudaBuffer(CudaBuffer&& other) noexcept;
  CudaBuffer& operator=(CudaBuffer&& other) noexcept;
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;

  // Frees the previous memory first; bytes may be 0. Alignment is 256 bytes.
  LaunchResult Allocate(CudaContext& context, std::int64_t bytes);
  // Copies size() bytes. The host memory must not change until the stream has executed the copy.
  LaunchResult FromHost(const void* from);
  // Copies size() bytes and waits until they have arrived.
  LaunchResult ToHost(void* to) const;

  void* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  void Free();

  CudaContext* context_ = nullptr;
  void* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace nibble::kernels
