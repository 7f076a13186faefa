#pragma once
#include <memory>

#include "kernels/ops/matmul/matmul_library.h"

namespace nibble::serve {

// The matrix product of oneDNN, for models whose bits are not guaranteed (kernels/ops/matmul/matmul_library.h). On CPUs
// without AVX-512, oneDNN multiplies only f32, so bf16 operands are widened to f32 first. use_bf16 = false widens them
// on every CPU. Thread-safe.
std::unique_ptr<kernels::DenseLibrary> MakeOneDnnLibrary(bool use_bf16 = true);

}  // namespace nibble::serve
