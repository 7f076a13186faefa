// Rows of codes on the device for tests of CUDA paths.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/cuda_fixture.h"
#include "tests/support/int8.h"
#include "tests/support/random.h"

namespace nibble::support {

// Either a copy of host rows, or filled with the same byte as Int8Rows and WideRows on the host, so that unused
// elements compare equal too. Parts that the host rows lack are absent here.
class DeviceRows {
 public:
  DeviceRows(kernels::CudaContext& context, const kernels::QuantizedRows& like)
      : view_(like),
        codes_(context, CodeBytes(like)),
        scale_(context, like.rows * 4),
        count_(context, CountBytes(like)),
        index_(context, ListBytes(like)),
        value_(context, ListBytes(like)) {}
  static DeviceRows Copy(kernels::CudaContext& context, const kernels::QuantizedRows& rows) {
    return DeviceRows(context, rows, CopyTag());
  }

  kernels::QuantizedRows view() const {
    kernels::QuantizedRows rows = view_;
    if (rows.codes != nullptr) rows.codes = codes_.As<std::int8_t>();
    if (rows.wide_codes != nullptr) rows.wide_codes = codes_.As<std::int16_t>();
    rows.scale = scale_.As<float>();
    if (rows.num_outliers == nullptr) return rows;
    rows.num_outliers = count_.As<std::int32_t>();
    rows.outlier_index = index_.As<std::int32_t>();
    rows.outlier_value = value_.As<float>();
    return rows;
  }
  void ExpectEqual(const kernels::QuantizedRows& want, const std::string& what) {
    EXPECT_TRUE(codes_.Equals(Codes(want))) << what;
    EXPECT_TRUE(scale_.Equals(want.scale)) << what;
    EXPECT_TRUE(count_.Equals(want.num_outliers)) << what;
    EXPECT_TRUE(index_.Equals(want.outlier_index)) << what;
    EXPECT_TRUE(value_.Equals(want.outlier_value)) << what;
  }

 private:
  static const void* Codes(const kernels::QuantizedRows& rows) {
    return rows.wide_codes != nullptr ? static_cast<const void*>(rows.wide_codes) : rows.codes;
  }
  static std::int64_t CodeBytes(const kernels::QuantizedRows& rows) {
    return rows.rows * rows.stride * (rows.wide_codes != nullptr ? 2 : 1);
  }
  static std::int64_t CountBytes(const kernels::QuantizedRows& rows) {
    return rows.num_outliers == nullptr ? 0 : rows.rows * 4;
  }
  static std::int64_t ListBytes(const kernels::QuantizedRows& rows) { return CountBytes(rows) * kernels::kMaxOutliers; }

  struct CopyTag {};  // selects this constructor
  DeviceRows(kernels::CudaContext& context, const kernels::QuantizedRows& rows, CopyTag)
      : view_(rows),
        codes_(context, Codes(rows), CodeBytes(rows)),
        scale_(context, rows.scale, rows.rows * 4),
        count_(context, rows.num_outliers, CountBytes(rows)),
        index_(context, rows.outlier_index, ListBytes(rows)),
        value_(context, rows.outlier_value, ListBytes(rows)) {}

  kernels::QuantizedRows view_;
  DeviceBytes codes_, scale_, count_, index_, value_;
};

// A product without columns (K = 0): M rows without codes by N features. Each row of the result is the bias.
struct NoColumns {
  NoColumns(kernels::CudaContext& context, std::int64_t m)
      : x(DeviceRows::Copy(context, Rows(m).view())),
        scale(context, NormalVector(3, kN)),
        bias(context, NormalVector(5, kN)) {
    const std::vector<float> row = NormalVector(5, kN);
    for (std::int64_t i = 0; i < m; ++i) want.insert(want.end(), row.begin(), row.end());
  }

  static constexpr std::int64_t kN = 33;
  DeviceRows x;
  DeviceBytes scale, bias;
  std::vector<float> want;

 private:
  static Int8Rows Rows(std::int64_t m) {
    Int8Rows rows(m, 0, 64);
    std::fill_n(rows.view().scale, m, 0.5f);
    std::fill_n(rows.view().num_outliers, m, 0);
    return rows;
  }
};

}  // namespace nibble::support
