#pragma once
#include <memory>

#include "kernels/ops/matmul/matmul_library.h"

namespace nibble::serve {

// oneDNN's product, for models without a bit promise. Below AVX-512 oneDNN multiplies only f32, so bf16 operands are
// widened first. use_bf16 = false widens on every CPU. Thread-safe.
std::unique_ptr<kernels::DenseLibrary> MakeOneDnnLibrary(bool use_bf16 = true);

}  // namespace nibble::serve
