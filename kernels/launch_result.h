// The result of a kernel path: absl-free, so that nvcc never compiles abseil.
#pragma once

namespace nibble::kernels {

enum class LaunchCode { kOk, kUnimplemented, kInternal, kResourceExhausted };

struct [[nodiscard]] LaunchResult {
  LaunchCode code = LaunchCode::kOk;
  const char* text = "";  // a constant, or a string that CUDA or the CudaContext owns
};

}  // namespace nibble::kernels
