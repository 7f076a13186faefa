// Elementary functions that give the same bits on every CPU path (docs/numerics.md 9): our own polynomials with
// explicit fused multiply-add. The functions of one float are the definition; the templates over Vec (vec16_*.h) give
// the same bits for sixteen floats at once. The functions that are not templates are in an anonymous namespace, so that
// each file has its own copy and the linker cannot give the plain path AVX code.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

namespace nibble::kernels {

// Below this x, Exp returns 0 at once: e^-104 < 2^-150 rounds to 0, and computing a result that underflows is slow.
inline constexpr float kExpLowest = -104.0f;
inline constexpr float kExpMaxPower = 128.0f;  // the largest n of a finite result
inline constexpr float kLog2E = 0x1.715476p+0f;
// ln2 is the sum of these two floats. The fused operation does not round their products with n.
inline constexpr float kLn2High = 0x1.62e430p-1f;
inline constexpr float kLn2Low = -0x1.05c610p-29f;
// A minimax polynomial of e^r for |r| <= ln2 / 2 with a relative error of 3.1e-9, found by iteratively reweighted least
// squares. Highest power first.
inline constexpr float kExpPolynomial[] = {
    0x1.6a2352p-10f, 0x1.123a6cp-7f, 0x1.5558f4p-5f, 0x1.555490p-3f, 0x1.fffffcp-2f, 1.0f, 1.0f};

namespace {

// 2^n for integral n in [-126, 127].
inline float PowerOfTwo(float n) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<int>(n) + 127) << 23);
}

// e^x, within 1 ulp for every float. Small results are subnormal; the result is 0 at and below -104 (and for -inf),
// +inf above 88.72, NaN for NaN. Method: x = n ln2 + r with |r| <= ln2 / 2, and e^x = 2^n e^r.
inline float Exp(float x) {
  if (x < kExpLowest) return 0.0f;
  const float nearest = std::nearbyint(x * kLog2E);
  const float n = nearest < kExpMaxPower ? nearest : kExpMaxPower;  // 128 for NaN; r stays NaN
  float r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  float p = kExpPolynomial[0];
  for (std::size_t i = 1; i < std::size(kExpPolynomial); ++i) p = std::fma(p, r, kExpPolynomial[i]);
  const float half = std::nearbyint(n * 0.5f);  // 2^n may be subnormal or 2^128; its two factors are normal
  return p * PowerOfTwo(half) * PowerOfTwo(n - half);
}

// 1 / (1 + e^-x). 0 - x keeps the sign of a NaN, as in the template.
inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(0.0f - x)); }

}  // namespace

template <typename Vec>
Vec Exp(Vec x) {
  const Vec lowest = Vec::Set1(kExpLowest);
  const Vec t = Vec::SelectLess(x, lowest, Vec::Zero(), x);
  // Min returns its second operand, the constant, for a NaN.
  const Vec n = Vec::Min(Vec::Rne(t * Vec::Set1(kLog2E)), Vec::Set1(kExpMaxPower));
  Vec r = Vec::Fma(n, Vec::Set1(-kLn2High), t);
  r = Vec::Fma(n, Vec::Set1(-kLn2Low), r);
  Vec p = Vec::Set1(kExpPolynomial[0]);
  for (std::size_t i = 1; i < std::size(kExpPolynomial); ++i) p = Vec::Fma(p, r, Vec::Set1(kExpPolynomial[i]));
  return Vec::SelectLess(x, lowest, Vec::Zero(), Vec::ScaleWide(p, n));
}

template <typename Vec>
Vec Sigmoid(Vec x) {
  const Vec one = Vec::Set1(1.0f);
  return one / (one + Exp(Vec::Zero() - x));
}

namespace {

// ln x, computed in f64 and rounded once; -inf for 0, +inf for +inf, NaN below 0 and for NaN. Method: x = m 2^k with m
// between sqrt(1/2) and sqrt(2), and the series of ln m = 2 atanh(s) with s = (m - 1) / (m + 1).
inline float Log(float x) {
  if (!(x > 0.0f)) return x == 0.0f ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  if (x > std::numeric_limits<float>::max()) return x;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(static_cast<double>(x));  // as f64, every float is normal
  // First m is in [1, 2): the bits of the mantissa with the exponent of 1.0.
  std::int64_t k = static_cast<std::int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.4142135623730951) {  // sqrt(2)
    m *= 0.5;
    ++k;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 17.0;
  p = std::fma(p, z, 1.0 / 15.0);
  p = std::fma(p, z, 1.0 / 13.0);
  p = std::fma(p, z, 1.0 / 11.0);
  p = std::fma(p, z, 1.0 / 9.0);
  p = std::fma(p, z, 1.0 / 7.0);
  p = std::fma(p, z, 1.0 / 5.0);
  p = std::fma(p, z, 1.0 / 3.0);
  p = std::fma(p, z, 1.0);
  return static_cast<float>(std::fma(static_cast<double>(k), 0x1.62e42fefa39efp-1, 2.0 * s * p));  // ln 2
}

// Sine and cosine in f64 for |x| < 2^20, to about 2 ulp of f64. Method: x = n pi/2 + r with |r| <= pi/4, and the Taylor
// series in r, whose first omitted terms are below 1e-19.
inline void SinCos(double x, double* sin, double* cos) {
  const double n = std::nearbyint(x * 0x1.45f306dc9c883p-1);  // 2/pi
  double r = std::fma(n, -0x1.921fb54442d18p+0, x);           // pi/2 in two doubles
  r = std::fma(n, -0x1.1a62633145c07p-54, r);
  const double z = r * r;
  double s = 1.0 / 355687428096000.0;  // sine of r; 17!
  s = std::fma(s, z, -1.0 / 1307674368000.0);
  s = std::fma(s, z, 1.0 / 6227020800.0);
  s = std::fma(s, z, -1.0 / 39916800.0);
  s = std::fma(s, z, 1.0 / 362880.0);
  s = std::fma(s, z, -1.0 / 5040.0);
  s = std::fma(s, z, 1.0 / 120.0);
  s = std::fma(s, z, -1.0 / 6.0);
  s = std::fma(s * z, r, r);
  double c = -1.0 / 6402373705728000.0;  // cosine of r; 18!
  c = std::fma(c, z, 1.0 / 20922789888000.0);
  c = std::fma(c, z, -1.0 / 87178291200.0);
  c = std::fma(c, z, 1.0 / 479001600.0);
  c = std::fma(c, z, -1.0 / 3628800.0);
  c = std::fma(c, z, 1.0 / 40320.0);
  c = std::fma(c, z, -1.0 / 720.0);
  c = std::fma(c, z, 1.0 / 24.0);
  c = std::fma(c, z, -0.5);
  c = std::fma(c, z, 1.0);
  const std::int64_t quadrant = static_cast<std::int64_t>(n) & 3;
  const bool swapped = quadrant % 2 == 1;
  const double sin_up_to_sign = swapped ? c : s;
  const double cos_up_to_sign = swapped ? s : c;
  *sin = quadrant >= 2 ? -sin_up_to_sign : sin_up_to_sign;
  *cos = quadrant == 1 || quadrant == 2 ? -cos_up_to_sign : cos_up_to_sign;
}

}  // namespace
}  // namespace nibble::kernels
