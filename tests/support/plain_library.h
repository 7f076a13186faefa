// The library's product as plain loops in f64, for tests of models that carry no bit promise.
#pragma once
#include "kernels/ops/matmul_library.h"

namespace nibble::support {

class PlainLibrary : public kernels::DenseLibrary {
 public:
  const char* kernel_name() const override { return "plain_library"; }
  absl::Status Matmul(const kernels::ConstMatrix& x, const kernels::ConstMatrix& w, const kernels::Matrix& y,
                      bool accumulate, const kernels::Stream&) override {
    for (std::int64_t m = 0; m < x.rows; ++m) {
      for (std::int64_t n = 0; n < w.rows; ++n) {
        double sum = accumulate ? At(y, m, n) : 0.0;
        for (std::int64_t k = 0; k < x.cols; ++k) sum += At(x, m, k) * At(w, n, k);
        if (y.dtype == kernels::DType::kF32) {
          y.Row<float>(m)[n] = static_cast<float>(sum);
        } else {
          y.Row<kernels::BF16>(m)[n] = kernels::ToBF16(static_cast<float>(sum));
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  static double At(const kernels::ConstMatrix& m, std::int64_t r, std::int64_t c) {
    return static_cast<double>(m.dtype == kernels::DType::kF32 ? m.Row<float>(r)[c]
                                                               : kernels::ToFloat(m.Row<kernels::BF16>(r)[c]));
  }
};

}  // namespace nibble::support
