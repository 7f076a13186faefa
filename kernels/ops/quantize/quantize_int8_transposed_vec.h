// The fast path of quantize_int8_transposed for any Vec (vec16_*.h). Lanes are columns of x, so nothing is transposed
// but the finished codes: four rows of a tile's 16 columns are one 64-byte line of the packed form.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/ops/quantize/quantize_int8_transposed_launch.h"
#include "kernels/stochastic.h"

namespace nibble::kernels {

template <typename Vec, typename T>
class TransposedQuantizer {
 public:
  explicit TransposedQuantizer(const QuantizeInt8TransposedArgs& args) : args_(args) {}

  void Run(const Stream& stream) {
    const std::int64_t groups = RoundUp(args_.x.cols, kGroup) / kGroup;
    // `scale` first holds the largest magnitude of each column.
    stream.ParallelFor(groups, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t group = begin; group < end; ++group) FindAbsmax(group * kGroup);
    });
    if (args_.how.per_tensor) {
      const float all = *std::max_element(args_.scale, args_.scale + args_.x.cols);
      std::fill_n(args_.scale, args_.x.cols, all);
    }
    stream.ParallelFor(groups, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t group = begin; group < end; ++group) Quantize(group * kGroup);
    });
  }

 private:
  // Columns that one pass over the rows covers, so that it reads whole cache lines.
  static constexpr std::int64_t kGroup = 64;
  static constexpr std::int64_t kTile = kInt8TileRows;
  static constexpr std::int64_t kBlock = 64;  // rows whose codes of a tile are made together: 1 KiB

  int Columns(std::int64_t column) const {
    return static_cast<int>(std::clamp<std::int64_t>(args_.x.cols - column, 0, kTile));
  }
  // Elements of a row in the 16 columns from `column` on; lanes past the last column hold 0.
  Vec Load(std::int64_t row, std::int64_t column, int columns) const {
    const T* x = args_.x.Row<T>(row) + column;
    return columns == kTile ? Vec::Load(x) : Vec::LoadPartial(x, columns);
  }

  void FindAbsmax(std::int64_t first) {
    Vec max[kGroup / kTile];
    for (Vec& m : max) m = Vec::Zero();
    for (std::int64_t row = 0; row < args_.x.rows; ++row) {
      for (std::int64_t t = 0; t < kGroup / kTile; ++t) {
        const int columns = Columns(first + t * kTile);
        if (columns > 0) max[t] = Vec::Max(max[t], Vec::Abs(Load(row, first + t * kTile, columns)));
      }
    }
    for (std::int64_t t = 0; t < kGroup / kTile; ++t) {
      if (const int columns = Columns(first + t * kTile); columns > 0) {
        max[t].StorePartial(args_.scale + first + t * kTile, columns);
      }
    }
  }

  void Quantize(std::int64_t first) {
    const float max_code = MaxCode(args_.how.bits);
    const std::int64_t padded = args_.tiles == nullptr ? args_.stride : Int8PaddedK(args_.x.rows);
    alignas(64) float inverse[kGroup] = {};  // 0 past the last column: codes of 0
    Vec sum[kGroup / kTile];
    for (Vec& s : sum) s = Vec::Zero();
    for (std::int64_t c = 0; c < kGroup && first + c < args_.x.cols; ++c) {
      const float absmax = args_.scale[first + c];
      const float scale = (absmax > args_.how.min_absmax ? absmax : args_.how.min_absmax) / max_code;
      args_.scale[first + c] = scale;
      inverse[c] = 1.0f / scale;
    }
    alignas(64) std::int8_t block[kBlock * kTile];
    for (std::int64_t row = 0; row < padded; row += kBlock) {
      for (std::int64_t t = 0; t < kGroup / kTile; ++t) {
        const std::int64_t column = first + t * kTile;
        const int columns = Columns(column);
        if (columns == 0) break;
        std::int8_t* out = args_.tiles == nullptr ? block : args_.tiles + column * padded + row * kTile;
        sum[t] = sum[t] + QuantizeBlock(row, column, columns, Vec::Load(inverse + t * kTile), out);
        if (args_.tiles == nullptr) WriteRows(block, row, column, columns);
      }
    }
    for (std::int64_t t = 0; args_.tiles != nullptr && t < kGroup / kTile; ++t) {
      if (Columns(first + t * kTile) == 0) break;
      // At most kInt8MaxCols * 127 < 2^24: exact in f32.
      alignas(64) float sums[kTile];
      sum[t].Store(sums);
      for (std::int64_t c = 0; c < kTile; ++c) {
        args_.row_sum[first + t * kTile + c] = static_cast<std::int32_t>(sums[c]);
      }
    }
  }

  // Codes of 64 rows and 16 columns in the packed order; returns the sums of the columns. Rows past the last get 0.
  Vec QuantizeBlock(std::int64_t first_row, std::int64_t column, int columns, Vec inverse, std::int8_t* out) const {
    const Vec top = Vec::Set1(MaxCode(args_.how.bits));
    const Vec bottom = Vec::Set1(-MaxCode(args_.how.bits));
    const std::int64_t rows = std::clamp<std::int64_t>(args_.x.rows - first_row, 0, kBlock);
    Vec sum = Vec::Zero();
    for (std::int64_t quad = 0; quad < kBlock; quad += 4) {
      Vec code[4];
      for (std::int64_t i = 0; i < 4; ++i) {
        const std::int64_t row = first_row + quad + i;
        if (quad + i >= rows) {
          code[i] = Vec::Zero();
          continue;
        }
        const Vec v = Load(row, column, columns) * inverse;
        const Vec rounded =
            args_.how.stochastic.enabled ? RoundStochastically<Vec>(v, args_.how.stochastic, row, column) : Vec::Rne(v);
        code[i] = Vec::Max(Vec::Min(rounded, top), bottom);
        sum = sum + code[i];
      }
      Vec::StoreQuads(code[0], code[1], code[2], code[3], out + quad * kTile);
    }
    return sum;
  }

  // Copies a block in the packed order to the codes of its columns.
  void WriteRows(const std::int8_t* block, std::int64_t row, std::int64_t column, int columns) const {
    for (int c = 0; c < columns; ++c) {
      alignas(64) std::int8_t line[kBlock];
      for (std::int64_t quad = 0; quad < kBlock / 4; ++quad) {
        std::memcpy(line + quad * 4, block + quad * 4 * kTile + c * 4, 4);
      }
      std::memcpy(args_.codes + (column + c) * args_.stride + row, line, sizeof line);
    }
  }

  const QuantizeInt8TransposedArgs& args_;
};

template <typename Vec>
LaunchResult QuantizeInt8TransposedVec(const QuantizeInt8TransposedArgs& args, const Stream& stream) {
  if (args.x.dtype == DType::kF32) {
    TransposedQuantizer<Vec, float>(args).Run(stream);
  } else {
    TransposedQuantizer<Vec, BF16>(args).Run(stream);
  }
  return {};
}

}  // namespace nibble::kernels
