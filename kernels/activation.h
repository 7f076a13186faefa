// Activation functions of an MLP's gate.
#pragma once

namespace nibble::kernels {

enum class Activation {
  kSilu,   // x / (1 + exp(-x))
  kRelu2,  // max(x, 0)^2
};

}  // namespace nibble::kernels
