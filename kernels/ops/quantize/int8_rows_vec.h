// Quantizes rows to integer codes and outliers, for any Vec: shared by the fast paths of quantize_int8 and
// rms_norm_quantize. A Source returns elements of one row in f32: Load(k) the 16 from k on, LoadPartial(k, n) the n
// from k on, then zeros.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/formats/int8.h"
#include "kernels/stochastic.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// Minimum rows per range: waking another thread costs about as much as 16 Ki elements of work.
constexpr std::int64_t RowGrain(std::int64_t cols) { return cols >= 16384 || cols == 0 ? 1 : 16384 / cols; }

// The elements of a row in memory.
template <typename Vec, typename T>
struct RowSource {
  const T* x;
  Vec Load(std::int64_t k) const { return Vec::Load(x + k); }
  Vec LoadPartial(std::int64_t k, int n) const { return Vec::LoadPartial(x + k, n); }
};

// Calls body(k, vector) for all elements of a row; lanes past the last column hold 0.
template <typename Vec, typename Source, typename Body>
inline void ForEachVector(const Source& source, std::int64_t cols, Body body) {
  std::int64_t k = 0;
  for (; k + Vec::kLanes <= cols; k += Vec::kLanes) body(k, source.Load(k));
  if (k < cols) body(k, source.LoadPartial(k, static_cast<int>(cols - k)));
}

// The largest magnitudes seen so far, largest first; of equal magnitudes, the first one seen stays first. Vec gives
// each instruction set its own copy of the class.
template <typename Vec>
class OutlierList {
 public:
  explicit OutlierList(int capacity) : capacity_(capacity) {}

  // Returns the magnitude that was dropped from the list or not inserted; 0 if there was room.
  float Insert(std::int32_t index, float value) {
    const float magnitude = value < 0.0f ? -value : value;
    if (size_ == capacity_ && magnitude <= magnitude_[size_ - 1]) return magnitude;
    const float dropped = size_ == capacity_ ? magnitude_[size_ - 1] : 0.0f;
    int at = size_ == capacity_ ? size_ - 1 : size_++;
    for (; at > 0 && magnitude_[at - 1] < magnitude; --at) {
      magnitude_[at] = magnitude_[at - 1];
      value_[at] = value_[at - 1];
      index_[at] = index_[at - 1];
    }
    magnitude_[at] = magnitude;
    value_[at] = value;
    index_[at] = index;
    return dropped;
  }

  // Writes the outliers in ascending order of index and sets their codes to 0. Call it last: it reorders the list.
  void Emit(const QuantizedRows& out, std::int64_t row, int bits) {
    for (int i = 1; i < size_; ++i) {
      const std::int32_t index = index_[i];
      const float value = value_[i];
      int at = i;
      for (; at > 0 && index_[at - 1] > index; --at) {
        index_[at] = index_[at - 1];
        value_[at] = value_[at - 1];
      }
      index_[at] = index;
      value_[at] = value;
    }
    for (int i = 0; i < size_; ++i) {
      out.outlier_index[row * kMaxOutliers + i] = index_[i];
      out.outlier_value[row * kMaxOutliers + i] = value_[i];
      const std::int64_t at = row * out.stride + index_[i];
      if (bits == 16) {
        out.wide_codes[at] = 0;
      } else {
        out.codes[at] = 0;
      }
    }
    out.num_outliers[row] = size_;
  }

 private:
  int capacity_;
  int size_ = 0;
  float magnitude_[kMaxOutliers];
  float value_[kMaxOutliers];
  std::int32_t index_[kMaxOutliers];
};

// The largest magnitude of a row.
template <typename Vec, typename Source>
inline float RowAbsmax(const Source& source, std::int64_t cols) {
  Vec max = Vec::Zero();
  ForEachVector<Vec>(source, cols, [&](std::int64_t, Vec x) { max = Vec::Max(max, Vec::Abs(x)); });
  return max.ReduceMax();
}

// Writes the scale and codes (T is i8 or i16) of a row from its absmax, padding included. Outliers get codes too, until
// Emit sets these to 0.
template <typename Vec, typename Source, typename T>
inline void WriteCodes(const Source& source, float absmax, const QuantizeOptions& how, const QuantizedRows& out,
                       std::int64_t row, T* codes) {
  const float max_code = MaxCode(how.bits);
  const float bound = absmax > how.min_absmax ? absmax : how.min_absmax;
  const bool native = how.scaling == RowScaling::kNative;
  // The scale or the factor; the other is its reciprocal.
  const float first = native ? bound / max_code : max_code * (1.0f / bound);
  out.scale[row] = native ? first : 1.0f / first;
  const Vec factor = Vec::Set1(native ? 1.0f / first : first);
  const Vec top = Vec::Set1(max_code);
  const Vec bottom = Vec::Set1(-max_code);
  // The stride is a multiple of 64, so whole vectors of codes fit; lanes past the last column quantize to 0.
  ForEachVector<Vec>(source, out.cols, [&](std::int64_t k, Vec x) {
    const Vec rounded =
        how.stochastic.enabled ? RoundStochastically<Vec>(x * factor, how.stochastic, row, k) : Vec::Rne(x * factor);
    Vec::Max(Vec::Min(rounded, top), bottom).StoreCodes(codes + k);
  });
  const std::int64_t written = RoundUp(out.cols, Vec::kLanes);
  std::memset(codes + written, 0, static_cast<std::size_t>(out.stride - written) * sizeof(T));
}

// WriteCodes to the codes that how.bits selects.
template <typename Vec, typename Source>
inline void QuantizeRowBy(const Source& source, float absmax, const QuantizeOptions& how, const QuantizedRows& out,
                          std::int64_t row) {
  if (how.bits == 16) {
    WriteCodes<Vec>(source, absmax, how, out, row, out.wide_codes + row * out.stride);
  } else {
    WriteCodes<Vec>(source, absmax, how, out, row, out.codes + row * out.stride);
  }
}

// Quantizes a row by a scale of its own, with at most max_outliers outliers.
template <typename Vec, typename Source>
inline void QuantizeRow(const Source& source, std::int64_t cols, int max_outliers, const QuantizeOptions& how,
                        const QuantizedRows& out, std::int64_t row) {
  if (max_outliers == 0) {
    QuantizeRowBy<Vec>(source, RowAbsmax<Vec>(source, cols), how, out, row);
    if (out.num_outliers != nullptr) out.num_outliers[row] = 0;
    return;
  }
  Vec sum = Vec::Zero();
  Vec max = Vec::Zero();
  ForEachVector<Vec>(source, cols, [&](std::int64_t, Vec x) {
    const Vec magnitude = Vec::Abs(x);
    sum = sum + magnitude;
    max = Vec::Max(max, magnitude);
  });
  float absmax = max.ReduceMax();
  const float threshold = kOutlierRatio * (sum.ReduceSum() / static_cast<float>(cols));
  OutlierList<Vec> outliers(max_outliers);
  if (absmax > threshold) {
    // Elements above the threshold are candidates; few vectors hold one. Candidates that do not become outliers count
    // for the absmax of the row.
    const Vec limit = Vec::Set1(threshold);
    Vec rest = Vec::Zero();
    absmax = 0.0f;
    ForEachVector<Vec>(source, cols, [&](std::int64_t k, Vec x) {
      const Vec magnitude = Vec::Abs(x);
      std::uint32_t mask = Vec::MaskGreater(magnitude, limit);
      if (mask == 0) {
        rest = Vec::Max(rest, magnitude);
        return;
      }
      alignas(64) float lanes[Vec::kLanes];
      x.Store(lanes);
      for (; mask != 0; mask &= mask - 1) {
        const int lane = std::countr_zero(mask);
        const float dropped = outliers.Insert(static_cast<std::int32_t>(k) + lane, lanes[lane]);
        absmax = dropped > absmax ? dropped : absmax;
        lanes[lane] = 0.0f;
      }
      rest = Vec::Max(rest, Vec::Abs(Vec::Load(lanes)));
    });
    const float rest_max = rest.ReduceMax();
    absmax = rest_max > absmax ? rest_max : absmax;
  }
  QuantizeRowBy<Vec>(source, absmax, how, out, row);
  outliers.Emit(out, row, how.bits);
}

// Quantizes all rows. source_of(row) returns the Source of a row and may be called twice for each row. With
// how.per_tensor, out.scale first holds the absmax of each row.
template <typename Vec, typename SourceOf>
inline void QuantizeAllRows(SourceOf source_of, int max_outliers, const QuantizeOptions& how, const QuantizedRows& out,
                            const Stream& stream) {
  const std::int64_t grain = RowGrain(out.cols);
  if (!how.per_tensor) {
    stream.ParallelFor(out.rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        QuantizeRow<Vec>(source_of(row), out.cols, max_outliers, how, out, row);
      }
    });
    return;
  }
  stream.ParallelFor(out.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) out.scale[row] = RowAbsmax<Vec>(source_of(row), out.cols);
  });
  float absmax = 0.0f;
  for (std::int64_t row = 0; row < out.rows; ++row) absmax = out.scale[row] > absmax ? out.scale[row] : absmax;
  stream.ParallelFor(out.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      QuantizeRowBy<Vec>(source_of(row), absmax, how, out, row);
      if (out.num_outliers != nullptr) out.num_outliers[row] = 0;
    }
  });
}

}  // namespace nibble::kernels
