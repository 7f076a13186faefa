#pragma once
#include <memory>

#include "kernels/ops/matmul_library.h"

namespace nibble::serve {

// oneDNN's product for models that carry no bit promise. Thread-safe.
std::unique_ptr<kernels::DenseLibrary> MakeOneDnnLibrary();

}  // namespace nibble::serve
