// NF4 on the device: the code book, and dequantization of a whole weight for the ops that need one.
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/formats/nf4.h"

namespace nibble::kernels {

// Passed by value as a kernel parameter; kernels copy it to shared memory, where sixteen floats lie in sixteen banks.
struct Nf4BookValue {
  float value[16];
};

inline Nf4BookValue MakeNf4BookValue() {
  Nf4BookValue book;
  std::copy(kNf4Book.begin(), kNf4Book.end(), book.value);
  return book;
}

// Nf4BlockShift without its loop.
__device__ inline int Nf4ShiftOnDevice(std::int64_t block) { return __ffsll(block) - 1; }

// Every thread of the block must call it.
__device__ inline void CopyNf4Book(const Nf4BookValue& book, float* shared) {
  if (threadIdx.x < 16) shared[threadIdx.x] = book.value[threadIdx.x];
  __syncthreads();
}

// Dequantizes w into out on the stream and counts the grid under `name`. out is f32 or bf16.
LaunchResult DequantizeNf4OnCuda(const Nf4Weight& w, const Matrix& out, const Stream& stream, const char* name);

}  // namespace nibble::kernels
