// Compares add with the rounded f32 sum; adamw, gated_mul and gated_mul_backward with f64 formulas, and every path with
// the plain one, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/ops/elementwise/adamw.h"
#include "kernels/ops/elementwise/add.h"
#include "kernels/ops/elementwise/gated_mul.h"
#include "kernels/ops/elementwise/gated_mul_backward.h"
#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::BytesEqual;
using support::CpuStream;
using support::GuardedBytes;
using support::Isas;

constexpr DType kTypes[] = {DType::kF32, DType::kBF16};
constexpr std::int64_t kSizes[] = {1, 15, 16, 17, 31, 32, 33, 100};
constexpr std::int64_t kRows = 5;

// Values over a wide range, so that exp overflows, underflows and gives ordinary results.
std::vector<float> Wide(std::uint64_t seed, std::int64_t n) {
  std::vector<float> x = support::NormalVector(seed, n, 4.0f);
  for (std::size_t i = 0; i < x.size(); i += 7) x[i] *= 30.0f;
  return x;
}

std::vector<float> Widen(const std::vector<std::uint8_t>& bytes, DType dtype) {
  std::vector<float> out(bytes.size() / static_cast<std::size_t>(SizeOf(dtype)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = dtype == DType::kF32 ? reinterpret_cast<const float*>(bytes.data())[i]
                                  : ToFloat(reinterpret_cast<const BF16*>(bytes.data())[i]);
  }
  return out;
}

std::vector<float> WidenGuarded(const GuardedBytes& bytes, DType dtype) {
  return Widen(std::vector<std::uint8_t>(bytes.data(), bytes.data() + bytes.size()), dtype);
}

TEST(AddTest, EveryPathGivesTheRoundedSum) {
  for (const DType x_type : kTypes) {
    for (const DType y_type : kTypes) {
      for (const std::int64_t cols : kSizes) {
        const auto x = support::ToBytes(Wide(1, kRows * cols), x_type);
        const auto y = support::ToBytes(Wide(2, kRows * cols), y_type);
        const auto xf = Widen(x, x_type);
        const auto yf = Widen(y, y_type);
        for (const Isa isa : Isas()) {
          GuardedBytes got(static_cast<std::int64_t>(x.size()));
          std::memcpy(got.data(), x.data(), x.size());
          ASSERT_TRUE(Add({.x = MakeMatrix(got.data(), x_type, kRows, cols),
                           .y = MakeConstMatrix(y.data(), y_type, kRows, cols)},
                          CpuStream(isa))
                          .ok());
          const auto gotf = WidenGuarded(got, x_type);
          for (std::size_t i = 0; i < gotf.size(); ++i) {
            const float sum = xf[i] + yf[i];
            ASSERT_EQ(gotf[i], x_type == DType::kF32 ? sum : ToFloat(ToBF16(sum))) << Name(isa) << " " << i;
          }
          EXPECT_TRUE(got.GuardsIntact());
        }
      }
    }
  }
}

TEST(AdamwTest, EveryPathGivesThePlainBitsAndTheFormulaInF64) {
  const AdamwFactors factors{.keep = 0.999f,
                             .beta2 = 0.95f,
                             .one_minus_beta1 = 0.1f,
                             .one_minus_beta2 = 0.05f,
                             .root_bias2 = 0.3f,
                             .eps = 1e-8f,
                             .step_size = 0.01f};
  ThreadPool pool(3);
  for (const DType type : kTypes) {
    for (const std::int64_t count : {1, 15, 16, 33, 100, 3 * 16384 + 5}) {  // blocks of 16384
      const auto n = static_cast<std::size_t>(count);
      const auto grad = support::ToBytes(Wide(1, count), type);
      const std::vector<float> g = Widen(grad, type), m = Wide(2, count), value = Wide(4, count);
      std::vector<float> v = Wide(3, count);
      for (float& x : v) x *= x;
      v[0] = 0;
      struct State {
        std::vector<float> m, v, value;
      };
      const auto run = [&](const Stream& stream) {
        State state{m, v, value};
        const auto matrix = [&](std::vector<float>& x) { return MakeMatrix(x.data(), DType::kF32, 1, count); };
        EXPECT_TRUE(Adamw({.factors = factors,
                           .grad = MakeConstMatrix(grad.data(), type, 1, count),
                           .m = matrix(state.m),
                           .v = matrix(state.v),
                           .value = matrix(state.value)},
                          stream)
                        .ok());
        return state;
      };
      const State want = run(CpuStream(Isa::kPlain));
      for (std::size_t i = 0; i < n; ++i) {
        const double m64 = m[i] + (static_cast<double>(g[i]) - m[i]) * static_cast<double>(0.1f);
        const double v64 =
            v[i] * static_cast<double>(0.95f) + static_cast<double>(g[i]) * g[i] * static_cast<double>(0.05f);
        const double part = m64 / (std::sqrt(v64) / static_cast<double>(0.3f) + static_cast<double>(1e-8f));
        const double size = std::fabs(static_cast<double>(g[i])) + std::fabs(static_cast<double>(m[i]));
        EXPECT_NEAR(want.m[i], m64, 4 * support::kEpsF32 * size);
        EXPECT_NEAR(want.v[i], v64, 4 * support::kEpsF32 * v64);
        const double error_part = std::fabs(part) * 8 * support::kEpsF32 + part / m64 * 4 * support::kEpsF32 * size;
        EXPECT_NEAR(want.value[i], value[i] * static_cast<double>(0.999f) - static_cast<double>(0.01f) * part,
                    2 * support::kEpsF32 * std::fabs(static_cast<double>(value[i])) + 0.01 * error_part);
      }
      for (const Isa isa : Isas()) {
        for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
          const State got = run(CpuStream(isa, threads));
          EXPECT_TRUE(BytesEqual(got.m.data(), want.m.data(), 4 * n)) << Name(isa) << " " << count;
          EXPECT_TRUE(BytesEqual(got.v.data(), want.v.data(), 4 * n)) << Name(isa) << " " << count;
          EXPECT_TRUE(BytesEqual(got.value.data(), want.value.data(), 4 * n)) << Name(isa) << " " << count;
        }
      }
    }
  }
}

TEST(AdamwTest, RejectsArgumentsThatDoNotFit) {
  std::vector<float> x(8);
  const Matrix m = MakeMatrix(x.data(), DType::kF32, 1, 8);
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_EQ(Adamw({{}, MakeConstMatrix(x.data(), DType::kF32, 1, 7), m, m, m}, stream).message(),
            "adamw: grad is [1, 7] with stride 7, wanted [1, 8]");
  EXPECT_EQ(Adamw({{}, m, MakeMatrix(x.data(), DType::kBF16, 1, 8), m, m}, stream).message(),
            "adamw: m has dtype bf16");
  const Matrix two_rows = MakeMatrix(x.data(), DType::kF32, 2, 4), none = MakeMatrix(nullptr, DType::kF32, 1, 0);
  EXPECT_EQ(Adamw({{}, two_rows, two_rows, two_rows, two_rows}, stream).message(),
            "adamw: value is [2, 4] with stride 4, wanted [1, 4]");
  for (const Isa isa : Isas()) EXPECT_TRUE(Adamw({{}, none, none, none, none}, CpuStream(isa)).ok());
}

TEST(AddTest, RowsMayBeStrided) {
  for (const Isa isa : Isas()) {
    std::vector<float> x(3 * 40, 1.0f);
    const std::vector<float> y(3 * 33, 2.0f);
    Matrix strided = MakeMatrix(x.data(), DType::kF32, 3, 33);
    strided.stride = 40;
    ASSERT_TRUE(Add({.x = strided, .y = MakeConstMatrix(y.data(), DType::kF32, 3, 33)}, CpuStream(isa)).ok());
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], i % 40 < 33 ? 3.0f : 1.0f);
  }
}

TEST(AddTest, RefusesOtherShapesAndTypes) {
  std::vector<float> x(12);
  const Stream stream = CpuStream(Isa::kPlain);
  const auto status =
      Add({.x = MakeMatrix(x.data(), DType::kF32, 3, 4), .y = MakeConstMatrix(x.data(), DType::kF32, 4, 3)}, stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("y is [4, 3]"), std::string::npos) << status;
  EXPECT_FALSE(
      Add({.x = MakeMatrix(x.data(), DType::kI8, 3, 4), .y = MakeConstMatrix(x.data(), DType::kF32, 3, 4)}, stream)
          .ok());
}

// Exp within 1 ulp, then two or three f32 roundings; y may be denormal.
double SiluBound(double y, DType dtype) {
  const double unit = dtype == DType::kBF16 ? support::kEpsBF16 : 0.0;
  return std::fabs(y) * (support::Gamma(6) + unit * 1.01) + 1e-36;
}

TEST(GatedMulTest, AgreesWithF64AndIsEqualOnEveryPath) {
  for (const DType in : kTypes) {
    for (const DType out : kTypes) {
      for (const std::int64_t cols : kSizes) {
        const auto gate = support::ToBytes(Wide(3, kRows * cols), in);
        const auto up = support::ToBytes(Wide(4, kRows * cols), in);
        const auto g = Widen(gate, in);
        const auto u = Widen(up, in);
        std::vector<double> want(g.size());
        for (std::size_t i = 0; i < g.size(); ++i) {
          want[i] =
              static_cast<double>(g[i]) / (1.0 + std::exp(-static_cast<double>(g[i]))) * static_cast<double>(u[i]);
        }
        std::vector<std::uint8_t> plain;
        for (const Isa isa : Isas()) {
          GuardedBytes y(kRows * cols * SizeOf(out));
          ThreadPool pool(3);
          ASSERT_TRUE(GatedMul({.activation = Activation::kSilu,
                                .gate = MakeConstMatrix(gate.data(), in, kRows, cols),
                                .up = MakeConstMatrix(up.data(), in, kRows, cols),
                                .y = MakeMatrix(y.data(), out, kRows, cols)},
                               CpuStream(isa, &pool))
                          .ok());
          EXPECT_TRUE(y.GuardsIntact());
          EXPECT_TRUE(support::AllWithin(WidenGuarded(y, out), want, [&](std::size_t i) {
            return SiluBound(want[i], out);
          })) << Name(isa);
          if (isa == Isa::kPlain) plain.assign(y.data(), y.data() + y.size());
          EXPECT_TRUE(BytesEqual(y.data(), plain.data(), y.size())) << Name(isa);
        }
      }
    }
  }
}

// Shows that the exp of each vector path has the bits of the plain path's exp, for floats of all magnitudes.
TEST(GatedMulTest, SiluOfAllMagnitudesIsEqualOnEveryPath) {
  std::vector<float> gate;
  for (std::uint64_t bits = 0; bits < 1ull << 32; bits += 12289) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!std::isnan(x)) gate.push_back(x);
  }
  const std::vector<float> up(gate.size(), 1.0f);
  const std::int64_t n = static_cast<std::int64_t>(gate.size());
  const auto view = [&](const std::vector<float>& x) { return MakeConstMatrix(x.data(), DType::kF32, 1, n); };
  std::vector<float> plain;
  for (const Isa isa : Isas()) {
    std::vector<float> y(gate.size());
    ASSERT_TRUE(
        GatedMul({Activation::kSilu, view(gate), view(up), MakeMatrix(y.data(), DType::kF32, 1, n)}, CpuStream(isa))
            .ok());
    if (isa == Isa::kPlain) plain = y;
    EXPECT_TRUE(BytesEqual(y.data(), plain.data(), y.size() * sizeof(float))) << Name(isa);
  }
}

TEST(GatedMulTest, OutputMayBeAnInput) {
  const std::vector<float> gate = Wide(5, 200);
  const std::vector<float> up = Wide(6, 200);
  const auto view = [](const std::vector<float>& x) { return MakeConstMatrix(x.data(), DType::kF32, 2, 100); };
  for (const Isa isa : Isas()) {
    std::vector<float> want(200);
    ASSERT_TRUE(GatedMul({Activation::kSilu, view(gate), view(up), MakeMatrix(want.data(), DType::kF32, 2, 100)},
                         CpuStream(isa))
                    .ok());
    for (const bool onto_gate : {true, false}) {
      std::vector<float> y = onto_gate ? gate : up;
      ASSERT_TRUE(GatedMul({Activation::kSilu, onto_gate ? view(y) : view(gate), onto_gate ? view(up) : view(y),
                            MakeMatrix(y.data(), DType::kF32, 2, 100)},
                           CpuStream(isa))
                      .ok());
      EXPECT_TRUE(BytesEqual(y.data(), want.data(), 800));
    }
  }
}

TEST(GatedMulTest, NaNStaysNaN) {
  const std::vector<float> gate = {1.0f, std::nanf(""), 2.0f};
  const std::vector<float> up = {1.0f, 1.0f, std::nanf("")};
  for (const Isa isa : Isas()) {
    std::vector<float> y(3);
    ASSERT_TRUE(GatedMul({Activation::kSilu, MakeConstMatrix(gate.data(), DType::kF32, 1, 3),
                          MakeConstMatrix(up.data(), DType::kF32, 1, 3), MakeMatrix(y.data(), DType::kF32, 1, 3)},
                         CpuStream(isa))
                    .ok());
    EXPECT_FALSE(std::isnan(y[0]));
    EXPECT_TRUE(std::isnan(y[1]));
    EXPECT_TRUE(std::isnan(y[2]));
  }
}

// Bound on 1 / (1 + exp(-x)) where exp overflows and the computed value is 0.
constexpr double kLostSigmoid = 0x1p-127;

TEST(GatedMulBackwardTest, AgreesWithF64AndIsEqualOnEveryPath) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t cols : kSizes) {
      const std::int64_t n = kRows * cols;
      const auto gate = support::ToBytes(Wide(7, n), dtype);
      const auto up = support::ToBytes(Wide(8, n), dtype);
      const auto grad = support::ToBytes(Wide(9, n), dtype);
      const auto a = Widen(gate, dtype);
      const auto b = Widen(up, dtype);
      const auto g = Widen(grad, dtype);
      std::vector<double> want_gate(a.size()), want_up(a.size()), bound_gate(a.size());
      const double unit = dtype == DType::kBF16 ? support::kEpsBF16 * 1.01 : 0.0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double x = a[i], u = b[i], dy = g[i];
        const double s = 1.0 / (1.0 + std::exp(-x));
        want_up[i] = dy * x * s;
        want_gate[i] = dy * u * s * (1.0 + x * (1.0 - s));
        // 1 - s and the sum cancel: the bound follows the sizes of their terms, not of their value.
        bound_gate[i] = std::fabs(dy * u) * (1.0 + std::fabs(x)) * (s * support::Gamma(12) + kLostSigmoid) +
                        unit * std::fabs(want_gate[i]);
      }
      std::vector<std::uint8_t> plain;
      for (const Isa isa : Isas()) {
        GuardedBytes grad_gate(n * SizeOf(dtype));
        GuardedBytes grad_up(n * SizeOf(dtype));
        const auto view = [&](const std::vector<std::uint8_t>& x) {
          return MakeConstMatrix(x.data(), dtype, kRows, cols);
        };
        ASSERT_TRUE(GatedMulBackward({Activation::kSilu, view(gate), view(up), view(grad),
                                      MakeMatrix(grad_gate.data(), dtype, kRows, cols),
                                      MakeMatrix(grad_up.data(), dtype, kRows, cols)},
                                     CpuStream(isa))
                        .ok());
        EXPECT_TRUE(grad_gate.GuardsIntact() && grad_up.GuardsIntact());
        EXPECT_TRUE(support::AllWithin(WidenGuarded(grad_up, dtype), want_up, [&](std::size_t i) {
          return std::fabs(want_up[i]) * (support::Gamma(8) + unit) +
                 std::fabs(static_cast<double>(g[i]) * a[i]) * kLostSigmoid;
        })) << Name(isa);
        EXPECT_TRUE(support::AllWithin(WidenGuarded(grad_gate, dtype), want_gate, [&](std::size_t i) {
          return bound_gate[i];
        })) << Name(isa);
        std::vector<std::uint8_t> both(grad_gate.data(), grad_gate.data() + grad_gate.size());
        both.insert(both.end(), grad_up.data(), grad_up.data() + grad_up.size());
        if (isa == Isa::kPlain) plain = both;
        EXPECT_TRUE(BytesEqual(both.data(), plain.data(), both.size())) << Name(isa);
      }
    }
  }
}

TEST(GatedMulBackwardTest, GradientsMayOverwriteTheirInputs) {
  const std::vector<float> gate = Wide(10, 64), up = Wide(11, 64), grad = Wide(12, 64);
  const auto view = [](const std::vector<float>& x) { return MakeConstMatrix(x.data(), DType::kF32, 2, 32); };
  for (const Isa isa : Isas()) {
    std::vector<float> want_gate(64), want_up(64), got_gate = gate, got_up = up;
    const auto out = [](std::vector<float>& x) { return MakeMatrix(x.data(), DType::kF32, 2, 32); };
    ASSERT_TRUE(GatedMulBackward({Activation::kSilu, view(gate), view(up), view(grad), out(want_gate), out(want_up)},
                                 CpuStream(isa))
                    .ok());
    ASSERT_TRUE(
        GatedMulBackward({Activation::kSilu, view(got_gate), view(got_up), view(grad), out(got_gate), out(got_up)},
                         CpuStream(isa))
            .ok());
    EXPECT_EQ(got_gate, want_gate);
    EXPECT_EQ(got_up, want_up);
  }
}

}  // namespace
}  // namespace nibble::kernels
