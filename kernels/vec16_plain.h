// Sixteen virtual f32 lanes in plain loops: they define every vector operation of the kernels. vec16_avx2.h and
// vec16_avx512.h give the same bits faster, so an op written once as a template over Vec gives equal results on all
// three (docs/numerics.md 9). Partial loads fill the missing lanes; partial stores leave memory past n untouched.
#pragma once
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/dtype.h"

namespace nibble::kernels {

struct Vec16Plain {
  static constexpr int kLanes = 16;
  float lane[kLanes];

  template <typename F>
  static Vec16Plain Each(F f) {
    Vec16Plain r;
    for (int i = 0; i < kLanes; ++i) r.lane[i] = f(i);
    return r;
  }
  static Vec16Plain Set1(float x) {
    return Each([&](int) { return x; });
  }
  static Vec16Plain Zero() { return Set1(0.0f); }
  static Vec16Plain Load(const float* p) {
    return Each([&](int i) { return p[i]; });
  }
  static Vec16Plain Load(const BF16* p) {
    return Each([&](int i) { return ToFloat(p[i]); });
  }
  static Vec16Plain Load(const std::int8_t* p) {
    return Each([&](int i) { return static_cast<float>(p[i]); });
  }
  template <typename T>
  static Vec16Plain LoadPartial(const T* p, int n, float fill = 0.0f) {
    return Each([&](int i) { return i < n ? ToFloat(p[i]) : fill; });
  }
  void Store(float* p) const { std::memcpy(p, lane, sizeof lane); }
  void Store(BF16* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = ToBF16(lane[i]);
  }
  template <typename T>
  void StorePartial(T* p, int n) const {
    for (int i = 0; i < n; ++i) p[i] = RoundTo<T>(lane[i]);
  }

  friend Vec16Plain operator+(Vec16Plain a, Vec16Plain b) {
    return Each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  friend Vec16Plain operator-(Vec16Plain a, Vec16Plain b) {
    return Each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  friend Vec16Plain operator*(Vec16Plain a, Vec16Plain b) {
    return Each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  friend Vec16Plain operator/(Vec16Plain a, Vec16Plain b) {
    return Each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  // a * b + c in one rounding.
  static Vec16Plain Fma(Vec16Plain a, Vec16Plain b, Vec16Plain c) {
    return Each([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  // Like the x86 instructions: the second operand where the operands are equal or either is NaN.
  static Vec16Plain Max(Vec16Plain a, Vec16Plain b) {
    return Each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Vec16Plain Min(Vec16Plain a, Vec16Plain b) {
    return Each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Vec16Plain Abs(Vec16Plain a) {
    return Each([&](int i) { return std::fabs(a.lane[i]); });
  }
  static Vec16Plain Sqrt(Vec16Plain a) {
    return Each([&](int i) { return std::sqrt(a.lane[i]); });
  }
  // Round to nearest, ties to even.
  static Vec16Plain Rne(Vec16Plain a) {
    return Each([&](int i) { return std::nearbyint(a.lane[i]); });
  }
  // a * 2^n for integral n in [-126, 127], one exact multiplication.
  static Vec16Plain Scale2(Vec16Plain a, Vec16Plain n) {
    return Each([&](int i) {
      return a.lane[i] * std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<int>(n.lane[i]) + 127) << 23);
    });
  }
  // a * 2^n for integral n in [-252, 254]. a must be about 1 (so that only the last step rounds), or so large that the
  // result is inf.
  static Vec16Plain ScaleWide(Vec16Plain a, Vec16Plain n) {
    const Vec16Plain half = Rne(n * Set1(0.5f));
    return Scale2(Scale2(a, half), n - half);
  }
  // a < b ? x : y, lane by lane; y where either is NaN.
  static Vec16Plain SelectLess(Vec16Plain a, Vec16Plain b, Vec16Plain x, Vec16Plain y) {
    return Each([&](int i) { return a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]; });
  }
  // Bit l set where lane l of a > b.
  static std::uint32_t MaskGreater(Vec16Plain a, Vec16Plain b) {
    std::uint32_t mask = 0;
    for (int i = 0; i < kLanes; ++i) mask |= a.lane[i] > b.lane[i] ? 1u << i : 0u;
    return mask;
  }
  // Lanes must hold integers in the range of the type.
  void StoreCodes(std::int8_t* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::int8_t>(lane[i]);
  }
  void StoreCodes(std::int16_t* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::int16_t>(lane[i]);
  }

  // The fixed tree: l + (l + 8), then + 4, + 2, + 1.
  float ReduceSum() const {
    float s[8];
    for (int i = 0; i < 8; ++i) s[i] = lane[i] + lane[i + 8];
    for (int w = 4; w > 0; w /= 2) {
      for (int i = 0; i < w; ++i) s[i] = s[i] + s[i + w];
    }
    return s[0];
  }
  // Sixteen f64 lanes to which f32 vectors are added; Reduce uses the fixed tree of ReduceSum.
  struct Sum64 {
    double lane[kLanes] = {};
    void Add(Vec16Plain x) {
      for (int i = 0; i < kLanes; ++i) lane[i] += static_cast<double>(x.lane[i]);
    }
    double Reduce() const {
      double s[8];
      for (int i = 0; i < 8; ++i) s[i] = lane[i] + lane[i + 8];
      for (int w = 4; w > 0; w /= 2) {
        for (int i = 0; i < w; ++i) s[i] = s[i] + s[i + w];
      }
      return s[0];
    }
  };
  // value[code] for the sixteen 2-bit codes of a word of a ternary tile (formats/ternary.h), k ascending.
  static Vec16Plain FromTernary(std::uint32_t word, const float (&value)[4]) {
    return Each([&](int i) { return value[word >> (8 * (i % 4) + i / 4 * 2) & 3u]; });
  }
  float ReduceMax() const {
    float m = lane[0];
    for (int i = 1; i < kLanes; ++i) m = lane[i] > m ? lane[i] : m;
    return m;
  }
};

}  // namespace nibble::kernels
