// How linears of trained models make and multiply integer codes. No torch in this header.
#pragma once
#include <cstdint>

#include "kernels/formats/int8.h"
#include "kernels/ste.h"

namespace nibble::trainer {

// How rows become codes.
struct CodedRowOptions {
  kernels::QuantizeOptions activations = {};
  int max_outliers = 0;  // elements of a row that keep their value; only with a scale per row
  kernels::Ste ste = kernels::Ste::kIdentity;
  bool scale_grad = false;  // only without outliers
};

// Which products of a linear run in int8, and how their operands become codes.
struct Int8LinearOptions {
  bool forward = true;
  bool grad_input = true;
  bool grad_weight = true;
  CodedRowOptions rows = {.max_outliers = kernels::kDefaultOutliers};  // of x in the forward product
  bool weight_per_tensor = false;                                      // one scale per weight, else one per row
  bool grad_per_tensor = false;       // one scale per gradient, else one per row of the operand
  bool stochastic_forward = false;    // of x and the weight in the forward product
  bool stochastic_gradients = false;  // of y's gradient in both backward products
  std::uint64_t seed = 0;             // of stochastic rounding
};

}  // namespace nibble::trainer
