// The largest singular values of a weight with their vectors: the initial values of PiSSA and LoftQ adapters. Included
// by server/convert/*.cc and its tests only.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"

namespace nibble::convert {

// b a is close to the best approximation of the weight by a matrix of this rank.
struct LowRank {
  std::vector<float> b;  // [N, r] = U sqrt(S)
  std::vector<float> a;  // [r, K] = sqrt(S) V^T
};

// w [N, K] in f32, finite; 1 <= rank <= min(N, K). The result has the same bits for any number of threads and any
// instruction set (docs/numerics.md 17).
// Errors: InvalidArgument (a product of the weight is not finite), Cancelled (checked between two products).
// Source: a block Krylov basis (Musco and Musco, arXiv:1504.05477, algorithm 2) and the singular values in it.
absl::StatusOr<LowRank> LargestParts(const kernels::ConstMatrix& w, std::int64_t rank, const kernels::Stream& stream,
                                     const base::Cancelled& cancelled);

// Bytes that LargestParts allocates for a weight of this shape.
std::int64_t LargestPartsBytes(std::int64_t rows, std::int64_t cols, std::int64_t rank);

}  // namespace nibble::convert
