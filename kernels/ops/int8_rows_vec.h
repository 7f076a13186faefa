// One row to int8 with its outliers, over any Vec: shared by the fast paths of quantize_int8 and rms_norm_quantize.
// A Source gives the row's elements in f32: Load(k) 16 of them, LoadPartial(k, n) the first n and zeros.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/formats/int8.h"

namespace nibble::kernels {

// Rows a range at least: waking another thread costs about as much as 16 Ki elements of work.
constexpr std::int64_t RowGrain(std::int64_t cols) { return cols >= 16384 ? 1 : 16384 / cols; }

// The elements of a row in memory.
template <typename Vec, typename T>
struct RowSource {
  const T* x;
  Vec Load(std::int64_t k) const { return Vec::Load(x + k); }
  Vec LoadPartial(std::int64_t k, int n) const { return Vec::LoadPartial(x + k, n); }
};

// Calls body(k, vector) for all K elements; lanes past K hold 0.
template <typename Vec, typename Source, typename Body>
inline void ForEachVector(const Source& source, std::int64_t cols, Body body) {
  std::int64_t k = 0;
  for (; k + Vec::kLanes <= cols; k += Vec::kLanes) body(k, source.Load(k));
  if (k < cols) body(k, source.LoadPartial(k, static_cast<int>(cols - k)));
}

// The largest magnitudes seen so far, largest first; among equals the one seen first stays before.
template <typename Vec>
class OutlierList {
 public:
  explicit OutlierList(int capacity) : capacity_(capacity) {}

  // Returns the magnitude that is not (or no longer) in the list: 0 when there was room.
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

  // Writes them in ascending order of index; takes their codes out of the row.
  void Emit(const QuantizedRows& out, std::int64_t row, std::int8_t* codes) {
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
      codes[index_[i]] = 0;
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

template <typename Vec, typename Source>
inline void QuantizeRow(const Source& source, std::int64_t cols, int max_outliers, const QuantizedRows& out,
                        std::int64_t row) {
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
  if (max_outliers > 0 && absmax > threshold) {
    // Few vectors hold a candidate; what is not chosen counts for the scale of the rest.
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
  const float scale = (absmax > kInt8MinAbsmax ? absmax : kInt8MinAbsmax) / kInt8MaxCode;
  out.scale[row] = scale;
  const Vec inverse = Vec::Set1(1.0f / scale);
  const Vec top = Vec::Set1(kInt8MaxCode);
  const Vec bottom = Vec::Set1(-kInt8MaxCode);
  std::int8_t* codes = out.codes + row * out.stride;
  // The stride is a multiple of 64, so whole vectors of codes fit; lanes past K quantise to 0.
  ForEachVector<Vec>(source, cols, [&](std::int64_t k, Vec x) {
    Vec::Max(Vec::Min(Vec::Rne(x * inverse), top), bottom).StoreInt8(codes + k);
  });
  const std::int64_t written = RoundUp(cols, Vec::kLanes);
  std::memset(codes + written, 0, static_cast<std::size_t>(out.stride - written));
  if (out.num_outliers != nullptr) outliers.Emit(out, row, codes);
}

}  // namespace nibble::kernels
