#include "server/convert/low_rank.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/formats/dense.h"
#include "kernels/ops/matmul/matmul_dense.h"
#include "kernels/philox.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/dot.h"
#include "server/convert/jacobi.h"

namespace nibble::convert {
namespace {

using kernels::ConstMatrix;
using kernels::DType;

// The basis of a weight with at most this many rows or columns is complete, so its decomposition is exact.
constexpr std::int64_t kCompleteBasis = 128;
// Other bases have 8 blocks of r + 10 columns: of a random matrix, whose singular values are closest to each other, the
// result then has over 99 % of the sum of squares that the best approximation has (low_rank_test.cc).
constexpr std::int64_t kExtraColumns = 10;
constexpr std::int64_t kBlocks = 8;
constexpr std::uint64_t kSeed = 0x4e6962626c65;  // "Nibble"; of the first block
// A column depends on the columns before it if at most this share of its norm is left without their parts.
constexpr double kDependent = 1e-12;
constexpr std::int64_t kColumnGrain = 16;  // minimum columns per thread
constexpr std::int64_t kRowGrain = 16;     // minimum rows per thread
constexpr std::int64_t kLanes = kernels::kDensePanelRows;

// Columns of a basis and of each of its blocks; the last block may have fewer.
struct BasisShape {
  std::int64_t cols, block;
};

BasisShape ShapeOfBasis(std::int64_t rows, std::int64_t cols, std::int64_t rank) {
  const std::int64_t full = std::min(rows, cols);
  if (full <= kCompleteBasis) return {full, full};
  const std::int64_t block = std::min(full, rank + kExtraColumns);
  return {std::min(full, kBlocks * block), block};
}

// A matrix in f64, row-major.
struct Basis {
  Basis(std::int64_t r, std::int64_t c) : rows(r), cols(c), values(static_cast<std::size_t>(r * c)) {}
  double* Row(std::int64_t r) { return values.data() + r * cols; }
  const double* Row(std::int64_t r) const { return values.data() + r * cols; }

  std::int64_t rows, cols;
  std::vector<double> values;
};

// Gram-Schmidt on one column of v, twice, against the columns before it ("twice is enough": Giraud et al., Numer. Math.
// 101, 2005). factor [cols, cols], if not null, gets the upper triangular matrix R for which the old columns are the
// new ones times R. A coefficient is a chain of additions over the rows in order, and an element a Dot; threads split
// coefficients and rows.
void OrthogonalizeColumn(Basis& v, std::int64_t column, double* factor, const kernels::Stream& stream) {
  const auto norm_of = [&] {
    double sum = 0;
    for (std::int64_t r = 0; r < v.rows; ++r) sum += v.Row(r)[column] * v.Row(r)[column];
    return std::sqrt(sum);
  };
  const double norm_before = norm_of();
  std::vector<double> parts(static_cast<std::size_t>(column));
  for (int pass = 0; pass < 2; ++pass) {
    std::fill(parts.begin(), parts.end(), 0.0);
    stream.ParallelFor(column, kColumnGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = 0; r < v.rows; ++r) {
        const double* row = v.Row(r);
        const double value = row[column];
        for (std::int64_t c = begin; c < end; ++c) parts[static_cast<std::size_t>(c)] += row[c] * value;
      }
    });
    stream.ParallelFor(v.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        double* row = v.Row(r);
        row[column] -= Dot(parts.data(), row, column);
      }
    });
    if (factor == nullptr) continue;
    for (std::int64_t c = 0; c < column; ++c) factor[c * v.cols + column] += parts[static_cast<std::size_t>(c)];
  }
  // A column without a part of its own becomes zero, and then has no share in any product.
  const double norm = norm_of();
  const double length = norm > kDependent * norm_before ? norm : 0.0;
  for (std::int64_t r = 0; r < v.rows; ++r) v.Row(r)[column] = length == 0 ? 0 : v.Row(r)[column] / length;
  if (factor != nullptr) factor[column * v.cols + column] = length;
}

// Makes columns [begin, end) orthonormal to each other and to the columns before them. factor: as above.
absl::Status Orthonormalize(Basis& v, std::int64_t begin, std::int64_t end, double* factor,
                            const kernels::Stream& stream, const base::Cancelled& cancelled) {
  for (std::int64_t column = begin; column < end; ++column) {
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    OrthogonalizeColumn(v, column, factor, stream);
  }
  return absl::OkStatus();
}

// Writes m v for `count` columns of v, from `begin` on and rounded to f32, to the columns of `out` from `to` on. m is
// in f32. Each element is a chain of fused multiply-adds in f32.
absl::Status Multiply(const ConstMatrix& m, const Basis& v, std::int64_t begin, std::int64_t count,
                      const kernels::Stream& stream, Basis& out, std::int64_t to) {
  std::vector<float> panels(static_cast<std::size_t>(kernels::PackedDenseElements(count, v.rows)));
  stream.ParallelFor(v.rows, kRowGrain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t k = first; k < last; ++k) {
      for (std::int64_t c = 0; c < count; ++c) {
        panels[static_cast<std::size_t>((c / kLanes * v.rows + k) * kLanes + c % kLanes)] =
            static_cast<float>(v.Row(k)[begin + c]);
      }
    }
  });
  std::vector<float> y(static_cast<std::size_t>(m.rows * count));
  NIBBLE_RETURN_IF_ERROR(
      kernels::MatmulDense({.x = m,
                            .w = {.panels = panels.data(), .dtype = DType::kF32, .rows = count, .cols = v.rows},
                            .y = kernels::MakeMatrix(y.data(), DType::kF32, m.rows, count)},
                           stream));
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c < count; ++c) {
      const float value = y[static_cast<std::size_t>(r * count + c)];
      if (!std::isfinite(value))
        return absl::InvalidArgumentError("has values so large that their sums are not finite");
      out.Row(r)[to + c] = static_cast<double>(value);
    }
  }
  return absl::OkStatus();
}

// Uniform in [-1, 1): the same for every weight of this shape.
Basis RandomBasis(std::int64_t rows, std::int64_t cols) {
  Basis v(rows, cols);
  for (std::size_t i = 0; i < v.values.size(); ++i) v.values[i] = 2 * kernels::PhiloxUniform(kSeed, i) - 1;
  return v;
}

std::vector<float> Transposed(const ConstMatrix& w, const kernels::Stream& stream) {
  std::vector<float> out(static_cast<std::size_t>(w.rows * w.cols));
  stream.ParallelFor(w.cols, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = 0; r < w.rows; ++r) {
      const float* row = w.Row<float>(r);
      for (std::int64_t c = begin; c < end; ++c) out[static_cast<std::size_t>(c * w.rows + r)] = row[c];
    }
  });
  return out;
}

// The `rank` largest singular values of q R^T p^T with their vectors. svd: of R^T = left^T diag(values) V^T, with
// scaled = diag(values) V^T.
LowRank Join(const Basis& q, const Basis& p, const SmallSvd& svd, std::int64_t rank, const kernels::Stream& stream) {
  LowRank made;
  made.b.resize(static_cast<std::size_t>(q.rows * rank));
  made.a.resize(static_cast<std::size_t>(rank * p.rows));
  std::vector<double> root(static_cast<std::size_t>(rank));
  for (std::int64_t t = 0; t < rank; ++t)
    root[static_cast<std::size_t>(t)] = std::sqrt(svd.values[static_cast<std::size_t>(t)]);
  const auto combine = [&](const double* row, const std::vector<double>& vectors, std::int64_t t) {
    return Dot(row, vectors.data() + t * svd.n, svd.n);
  };
  stream.ParallelFor(q.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t t = 0; t < rank; ++t) {
        made.b[static_cast<std::size_t>(r * rank + t)] =
            static_cast<float>(combine(q.Row(r), svd.left, t) * root[static_cast<std::size_t>(t)]);
      }
    }
  });
  stream.ParallelFor(rank, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const double divisor = root[static_cast<std::size_t>(t)];
      if (divisor == 0) continue;
      for (std::int64_t k = 0; k < p.rows; ++k) {
        made.a[static_cast<std::size_t>(t * p.rows + k)] =
            static_cast<float>(combine(p.Row(k), svd.scaled, t) / divisor);
      }
    }
  });
  return made;
}

}  // namespace

absl::StatusOr<LowRank> LargestParts(const ConstMatrix& w, std::int64_t rank, const kernels::Stream& stream,
                                     const base::Cancelled& cancelled) {
  const BasisShape shape = ShapeOfBasis(w.rows, w.cols, rank);
  const std::vector<float> transposed = Transposed(w, stream);
  const ConstMatrix wt = kernels::MakeConstMatrix(transposed.data(), DType::kF32, w.cols, w.rows);
  // A block of q is W times the block of p = W^T q before it, made orthonormal to all of q.
  Basis q(w.rows, shape.cols), p(w.cols, shape.cols);
  NIBBLE_RETURN_IF_ERROR(Multiply(w, RandomBasis(w.cols, shape.block), 0, shape.block, stream, q, 0));
  for (std::int64_t begin = 0; begin < shape.cols; begin += shape.block) {
    const std::int64_t end = std::min(begin + shape.block, shape.cols);
    NIBBLE_RETURN_IF_ERROR(Orthonormalize(q, begin, end, nullptr, stream, cancelled));
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    NIBBLE_RETURN_IF_ERROR(Multiply(wt, q, begin, end - begin, stream, p, begin));
    if (end == shape.cols) break;
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    NIBBLE_RETURN_IF_ERROR(Multiply(w, p, begin, std::min(shape.block, shape.cols - end), stream, q, end));
  }
  // W is close to q p^T = q (p' R)^T, with p' orthonormal.
  std::vector<double> factor(static_cast<std::size_t>(shape.cols * shape.cols)), small(factor.size());
  NIBBLE_RETURN_IF_ERROR(Orthonormalize(p, 0, shape.cols, factor.data(), stream, cancelled));
  for (std::int64_t r = 0; r < shape.cols; ++r) {
    for (std::int64_t c = 0; c < shape.cols; ++c)
      small[static_cast<std::size_t>(r * shape.cols + c)] = factor[static_cast<std::size_t>(c * shape.cols + r)];
  }
  NIBBLE_ASSIGN_OR_RETURN(const SmallSvd svd, DecomposeSmall(std::move(small), shape.cols, stream, cancelled));
  return Join(q, p, svd, rank, stream);
}

std::int64_t LargestPartsBytes(std::int64_t rows, std::int64_t cols, std::int64_t rank) {
  const BasisShape shape = ShapeOfBasis(rows, cols, rank);
  const auto floats = static_cast<std::int64_t>(sizeof(float)), doubles = static_cast<std::int64_t>(sizeof(double));
  // The transposed weight; two bases; the panels and the product of a block; the result; the random first block; five
  // small matrices.
  return rows * cols * floats + (rows + cols) * (shape.cols * doubles + (shape.block + kLanes + rank) * floats) +
         cols * shape.block * doubles + 5 * shape.cols * shape.cols * doubles;
}

}  // namespace nibble::convert
