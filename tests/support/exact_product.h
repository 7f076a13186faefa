// The product of the stored values in f64, and a check of a result: its error must be within the bound for a sum in
// f32, in any order, that is then rounded to the type of the result.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/matrix.h"
#include "tests/support/numeric.h"

namespace nibble::support {

// An element of an f32 or bf16 matrix.
inline float Element(const kernels::ConstMatrix& m, std::int64_t row, std::int64_t column) {
  return m.dtype == kernels::DType::kF32 ? m.Row<float>(row)[column]
                                         : kernels::ToFloat(m.Row<kernels::BF16>(row)[column]);
}

struct ExactProduct {
  // x * w^T [+ bias] [+ old], row by row; bias and old may be null.
  ExactProduct(const kernels::ConstMatrix& x, const kernels::ConstMatrix& w, const float* bias,
               const kernels::ConstMatrix* old)
      : num_terms(x.cols + 2) {
    for (std::int64_t row = 0; row < x.rows; ++row) {
      for (std::int64_t n = 0; n < w.rows; ++n) {
        double value = 0, abs = 0;
        const auto add = [&](double term) {
          value += term;
          abs += std::fabs(term);
        };
        for (std::int64_t k = 0; k < x.cols; ++k) add(static_cast<double>(Element(x, row, k)) * Element(w, n, k));
        if (bias != nullptr) add(bias[n]);
        if (old != nullptr) add(Element(*old, row, n));
        want.push_back(value);
        sum_abs.push_back(abs);
      }
    }
  }

  ::testing::AssertionResult Holds(const kernels::ConstMatrix& y) const {
    std::vector<float> got;
    for (std::int64_t row = 0; row < y.rows; ++row) {
      for (std::int64_t n = 0; n < y.cols; ++n) got.push_back(Element(y, row, n));
    }
    return AllWithin(got, want, [&](std::size_t i) { return DotBound(num_terms, sum_abs[i], y.dtype); });
  }

  std::int64_t num_terms;
  std::vector<double> want, sum_abs;
};

}  // namespace nibble::support
