// Singular values of a small square matrix, by one-sided Jacobi rotations (Hestenes 1958; Demmel and Veselic, SIAM J.
// Matrix Anal. 13, 1992). Included by server/convert/*.cc and its tests only.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"

namespace nibble::convert {

// M = U diag(values) V^T, with the values in descending order.
struct SmallSvd {
  std::int64_t n = 0;
  std::vector<double> left;    // U^T [n, n]: row i is the left vector of values[i]
  std::vector<double> values;  // [n]
  std::vector<double> scaled;  // diag(values) V^T [n, n]; a row is zero, or nearly so, if its value is
};

// m [n, n], row-major and finite. Rotates pairs of rows until all are orthogonal, in at most 40 sweeps over all pairs.
// Two rows count as orthogonal if their relative inner product is at most 1e-14, which is far below the rounding of f32
// weights, or their inner product is at most 1e-24 of the sum of all squares. The pairs of a round are disjoint, so
// threads split them, and the result has the same bits for any number of threads. Errors: Cancelled (checked before
// every round).
absl::StatusOr<SmallSvd> DecomposeSmall(std::vector<double> m, std::int64_t n, const kernels::Stream& stream,
                                        const base::Cancelled& cancelled);

}  // namespace nibble::convert
