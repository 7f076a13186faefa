// Plain loops: the reference that the fast paths must equal.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "kernels/element.h"
#include "kernels/lane_sum.h"
#include "kernels/ops/quantize/quantize_int8_launch.h"
#include "kernels/stochastic.h"

namespace nibble::kernels {
namespace {

// The row's outliers in ascending order of index.
std::vector<std::int32_t> FindOutliers(const std::vector<float>& x, int max_outliers) {
  const float* row = x.data();
  const float sum = LaneSum(std::ssize(x), [&](std::int64_t k) { return std::fabs(row[k]); });
  const float mean = sum / static_cast<float>(x.size());
  const float threshold = kOutlierRatio * mean;
  std::vector<std::int32_t> found;
  for (std::size_t k = 0; k < x.size(); ++k) {
    if (std::fabs(x[k]) > threshold) found.push_back(static_cast<std::int32_t>(k));
  }
  std::stable_sort(found.begin(), found.end(), [&](std::int32_t a, std::int32_t b) {
    return std::fabs(x[static_cast<std::size_t>(a)]) > std::fabs(x[static_cast<std::size_t>(b)]);
  });
  if (found.size() > static_cast<std::size_t>(max_outliers)) found.resize(static_cast<std::size_t>(max_outliers));
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

LaunchResult QuantizeInt8Cpu(const QuantizeInt8Args& args, const Stream& stream) {
  const float max_code = MaxCode(args.how.bits);
  float shared_absmax = 0.0f;  // of all rows if per_tensor, else 0
  for (std::int64_t row = 0; args.how.per_tensor && row < args.x.rows; ++row) {
    for (std::int64_t k = 0; k < args.x.cols; ++k) {
      shared_absmax = std::max(shared_absmax, std::fabs(Element(args.x, row, k)));
    }
  }
  stream.ParallelFor(args.x.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    const QuantizedRows& out = args.out;
    std::vector<float> x(static_cast<std::size_t>(args.x.cols));
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::size_t k = 0; k < x.size(); ++k) x[k] = Element(args.x, row, static_cast<std::int64_t>(k));
      const std::vector<std::int32_t> outliers =
          args.max_outliers == 0 ? std::vector<std::int32_t>{} : FindOutliers(x, args.max_outliers);
      if (out.num_outliers != nullptr) out.num_outliers[row] = static_cast<std::int32_t>(outliers.size());
      for (std::size_t i = 0; i < outliers.size(); ++i) {
        float& value = x[static_cast<std::size_t>(outliers[i])];
        out.outlier_index[row * kMaxOutliers + static_cast<std::int64_t>(i)] = outliers[i];
        out.outlier_value[row * kMaxOutliers + static_cast<std::int64_t>(i)] = value;
        value = 0.0f;
      }
      float absmax = shared_absmax;
      for (const float value : x) absmax = std::max(absmax, std::fabs(value));
      const float bound = std::max(absmax, args.how.min_absmax);
      const bool native = args.how.scaling == RowScaling::kNative;
      const float factor = native ? 1.0f / (bound / max_code) : max_code * (1.0f / bound);
      out.scale[row] = native ? bound / max_code : 1.0f / factor;
      for (std::int64_t k = 0; k < out.stride; ++k) {
        float rounded = 0.0f;
        if (k < out.cols) {
          const float v = x[static_cast<std::size_t>(k)] * factor;
          rounded = args.how.stochastic.enabled ? RoundAt(args.how.stochastic, row, k, v) : std::nearbyint(v);
        }
        const float code = std::clamp(rounded, -max_code, max_code);
        if (args.how.bits == 16) {
          out.wide_codes[row * out.stride + k] = static_cast<std::int16_t>(code);
        } else {
          out.codes[row * out.stride + k] = static_cast<std::int8_t>(code);
        }
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
