#include "server/convert/jacobi.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "server/base/status_macros.h"
#include "server/convert/dot.h"

namespace nibble::convert {
namespace {

constexpr double kOrthogonal = 1e-14;   // |<p, q>| / (|p| |q|) that needs no rotation
constexpr double kNegligible = 1e-24;   // |<p, q>| / (sum of all squares) that needs no rotation: the rows are noise
constexpr int kMaxSweeps = 40;          // 6 to 12 are usual
constexpr std::int64_t kPairGrain = 4;  // minimum pairs per thread

// Rows (p, q) become (cosine p - sine q, sine p + cosine q).
void Rotate(double* p, double* q, std::int64_t n, double cosine, double sine) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double a = p[i], b = q[i];
    p[i] = cosine * a - sine * b;
    q[i] = sine * a + cosine * b;
  }
}

// Makes two rows orthogonal. Returns whether it had to rotate them.
bool RotatePair(SmallSvd& svd, std::int64_t p, std::int64_t q, double negligible) {
  const std::int64_t n = svd.n;
  double* const row_p = svd.scaled.data() + p * n;
  double* const row_q = svd.scaled.data() + q * n;
  const double pp = Dot(row_p, row_p, n), qq = Dot(row_q, row_q, n), pq = Dot(row_p, row_q, n);
  if (std::fabs(pq) <= kOrthogonal * std::sqrt(pp) * std::sqrt(qq) || std::fabs(pq) <= negligible) return false;
  const double zeta = (qq - pp) / (2 * pq);
  const double tangent = (zeta < 0 ? -1.0 : 1.0) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
  const double cosine = 1 / std::sqrt(1 + tangent * tangent);
  Rotate(row_p, row_q, n, cosine, cosine * tangent);
  Rotate(svd.left.data() + p * n, svd.left.data() + q * n, n, cosine, cosine * tangent);
  return true;
}

// Sorts rows by their norms, which become the values; equal ones keep their order.
SmallSvd Sorted(const SmallSvd& svd) {
  const std::int64_t n = svd.n;
  std::vector<double> norms(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    const double* row = svd.scaled.data() + i * n;
    norms[static_cast<std::size_t>(i)] = std::sqrt(Dot(row, row, n));
  }
  std::vector<std::int64_t> order(norms.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return norms[static_cast<std::size_t>(a)] > norms[static_cast<std::size_t>(b)];
  });
  SmallSvd sorted = {.n = n, .left = {}, .values = {}, .scaled = {}};
  for (const std::int64_t i : order) {
    sorted.values.push_back(norms[static_cast<std::size_t>(i)]);
    sorted.left.insert(sorted.left.end(), svd.left.begin() + i * n, svd.left.begin() + (i + 1) * n);
    sorted.scaled.insert(sorted.scaled.end(), svd.scaled.begin() + i * n, svd.scaled.begin() + (i + 1) * n);
  }
  return sorted;
}

}  // namespace

absl::StatusOr<SmallSvd> DecomposeSmall(std::vector<double> m, std::int64_t n, const kernels::Stream& stream,
                                        const base::Cancelled& cancelled) {
  SmallSvd svd;
  svd.n = n;
  svd.left.resize(m.size());
  svd.scaled = std::move(m);
  for (std::int64_t i = 0; i < n; ++i) svd.left[static_cast<std::size_t>(i * n + i)] = 1;
  const double negligible = kNegligible * Dot(svd.scaled.data(), svd.scaled.data(), n * n);
  // A round-robin tournament: index 0 stays, the others move one place each round, so each pair meets once per sweep.
  // If n is odd, index n stands for no row, and its opponent rests.
  const std::int64_t players = n + n % 2;
  std::vector<std::int64_t> seats(static_cast<std::size_t>(players));
  std::iota(seats.begin(), seats.end(), 0);
  std::vector<std::uint8_t> rotated(static_cast<std::size_t>(players / 2));
  bool any = n > 1;
  for (int sweep = 0; any && sweep < kMaxSweeps; ++sweep) {
    any = false;
    for (std::int64_t round = 0; round + 1 < players; ++round) {
      NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
      stream.ParallelFor(players / 2, kPairGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t pair = begin; pair < end; ++pair) {
          const auto [p, q] =
              std::minmax(seats[static_cast<std::size_t>(pair)], seats[static_cast<std::size_t>(players - 1 - pair)]);
          rotated[static_cast<std::size_t>(pair)] = q < n && RotatePair(svd, p, q, negligible) ? 1 : 0;
        }
      });
      any = any || std::find(rotated.begin(), rotated.end(), 1) != rotated.end();
      std::rotate(seats.begin() + 1, seats.end() - 1, seats.end());
    }
  }
  return Sorted(svd);
}

}  // namespace nibble::convert
