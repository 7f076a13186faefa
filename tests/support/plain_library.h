// The library's product as plain loops in f64, for tests of models without guaranteed bits.
#pragma once
#include "kernels/ops/matmul/matmul_library.h"
#include "tests/support/exact_product.h"

namespace nibble::support {

class PlainLibrary : public kernels::DenseLibrary {
 public:
  const char* kernel_name() const override { return "plain_library"; }
  absl::Status Matmul(const kernels::ConstMatrix& x, const kernels::ConstMatrix& w, const kernels::Matrix& y,
                      bool accumulate, const kernels::Stream&) override {
    for (std::int64_t m = 0; m < x.rows; ++m) {
      for (std::int64_t n = 0; n < w.rows; ++n) {
        double sum = accumulate ? double{Element(y, m, n)} : 0.0;
        for (std::int64_t k = 0; k < x.cols; ++k) sum += double{Element(x, m, k)} * Element(w, n, k);
        if (y.dtype == kernels::DType::kF32) {
          y.Row<float>(m)[n] = static_cast<float>(sum);
        } else {
          y.Row<kernels::BF16>(m)[n] = kernels::ToBF16(static_cast<float>(sum));
        }
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace nibble::support
