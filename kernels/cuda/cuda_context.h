// One CUDA stream and the state that its ops share: the cuBLASLt handle and plans, and scratch memory that grows in
// stream order. Ops find the CudaContext in Stream::cuda. This header is free of CUDA types.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/launch_result.h"

namespace nibble::kernels {

// d = a^T * b, column-major: a is k x m, b k x n, d m x n. So row-major weights [m, k] and rows of activations [n, k]
// give rows of outputs [n, m].
struct CublasLtProblem {
  enum class Types : std::uint8_t { kI8ToI32, kBF16ToBF16, kBF16ToF32, kF32ToF32 };
  Types types = Types::kF32ToF32;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldd = 0;
  bool accumulate = false;  // d = a^T * b + d
};

// One thread: a stream's ops are issued from one thread at a time.
class CudaContext {
 public:
  // Create makes a new stream on the device. Borrow uses another owner's cudaStream_t (such as torch's), which must
  // outlive the context.
  static LaunchResult Create(int device_index, std::unique_ptr<CudaContext>* out);
  static LaunchResult Borrow(int device_index, void* cuda_stream, std::unique_ptr<CudaContext>* out);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  int device_index() const;
  void* stream() const;  // cudaStream_t

  // Waits for everything issued so far.
  LaunchResult Synchronize();

  // Returns at least `bytes` of scratch, aligned to 256. Valid for the current op only: the next op reuses it. Growing
  // frees and allocates in stream order, without waiting.
  LaunchResult Scratch(std::int64_t bytes, void** out);

  // Runs cublasLtMatmul. Accumulates in i32 or f32 (no TF32). Keeps a bounded number of plans, by problem and
  // alignment.
  LaunchResult Multiply(const CublasLtProblem& problem, const void* a, const void* b, void* d);

 private:
  struct Impl;
  explicit CudaContext(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::kernels
