#include "kernels/ops/matmul/matmul_int8_weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/int8.h"
#include "tests/support/isas.h"
#include "tests/support/put_rows.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::GuardedBytes;

struct Case {
  std::int64_t rows, n, k;
  DType x_dtype;
  std::vector<float> x;        // rounded to x_dtype
  std::vector<std::int8_t> w;  // row-major, no padding
  std::vector<float> scale, bias;
};

Case MakeCase(std::int64_t rows, std::int64_t n, std::int64_t k, DType x_dtype) {
  Case c{rows,
         n,
         k,
         x_dtype,
         support::NormalVector(1, rows * k),
         support::CodeVector(2, n * k),
         {},
         support::NormalVector(3, n)};
  for (float& v : c.x) {
    if (x_dtype == DType::kBF16) v = ToFloat(ToBF16(v));
  }
  for (std::int64_t i = 0; i < n; ++i) {
    c.scale.push_back(0.001f + support::Uniform(4, static_cast<std::uint64_t>(i)));
  }
  return c;
}

// The chain over k, from the unpacked codes.
std::vector<float> Oracle(const Case& c, bool bias) {
  std::vector<float> y;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    for (std::int64_t n = 0; n < c.n; ++n) {
      float sum = 0;
      for (std::int64_t k = 0; k < c.k; ++k) {
        sum = std::fma(c.x[static_cast<std::size_t>(r * c.k + k)],
                       static_cast<float>(c.w[static_cast<std::size_t>(n * c.k + k)]), sum);
      }
      const float v = sum * c.scale[static_cast<std::size_t>(n)];
      y.push_back(bias ? v + c.bias[static_cast<std::size_t>(n)] : v);
    }
  }
  return y;
}

void ExpectOracleBits(const Case& c, bool bias, DType out, const Stream& stream) {
  const support::Int8Weight w(c.w, c.scale, c.n, c.k);
  const auto x = support::ToBytes(c.x, c.x_dtype);
  const std::int64_t y_stride = c.n + 3;
  GuardedBytes y(c.rows * y_stride * SizeOf(out));
  GuardedBytes want(c.rows * y_stride * SizeOf(out));  // the gaps between rows keep their fill
  ASSERT_TRUE(MatmulInt8Weight({.x = MakeConstMatrix(x.data(), c.x_dtype, c.rows, c.k),
                                .w = w.view(),
                                .bias = bias ? c.bias.data() : nullptr,
                                .y = {y.data(), out, c.rows, c.n, y_stride}},
                               stream)
                  .ok());
  const std::vector<float> oracle = Oracle(c, bias);
  support::PutRows(oracle, out, c.rows, c.n, y_stride, want.data());
  EXPECT_TRUE(support::BytesEqual(y.data(), want.data(), want.size()))
      << Name(stream.isa) << " M " << c.rows << " N " << c.n << " K " << c.k << " " << Name(c.x_dtype) << " bias "
      << bias << " " << Name(out);
  EXPECT_TRUE(y.GuardsIntact());
}

TEST(MatmulInt8WeightTest, EveryPathAndThreadCountGivesTheChainsBits) {
  ThreadPool two(2);
  ThreadPool three(3);
  const std::int64_t shapes[][3] = {{1, 1, 1},    {7, 13, 7},   {0, 5, 9},    {5, 0, 9},      {1, 15, 63},
                                    {2, 16, 64},  {3, 17, 65},  {4, 33, 576}, {5, 64, 100},   {6, 65, 33},
                                    {13, 80, 63}, {97, 49, 20}, {25, 100, 5}, {1, 200, 1536}, {3, 17, 0}};
  for (const auto& [rows, n, k] : shapes) {
    for (const DType x_dtype : {DType::kF32, DType::kBF16}) {
      const Case c = MakeCase(rows, n, k, x_dtype);
      for (const Isa isa : support::Isas()) {
        for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
          for (const DType out : {DType::kF32, DType::kBF16}) {
            for (const bool bias : {false, true}) ExpectOracleBits(c, bias, out, CpuStream(isa, pool));
          }
        }
      }
    }
  }
}

TEST(MatmulInt8WeightTest, ReadsRowsWithAStride) {
  Case c = MakeCase(9, 21, 30, DType::kF32);
  const support::Int8Weight w(c.w, c.scale, c.n, c.k);
  std::vector<float> wide(9 * 35, NAN);
  for (std::size_t r = 0; r < 9; ++r) std::copy_n(c.x.begin() + static_cast<std::ptrdiff_t>(r * 30), 30, &wide[r * 35]);
  const std::vector<float> want = Oracle(c, /*bias=*/false);
  for (const Isa isa : support::Isas()) {
    std::vector<float> y(want.size());
    ASSERT_TRUE(
        MatmulInt8Weight(
            {.x = {wide.data(), DType::kF32, 9, 30, 35}, .w = w.view(), .y = MakeMatrix(y.data(), DType::kF32, 9, 21)},
            CpuStream(isa))
            .ok());
    EXPECT_TRUE(support::BytesEqual(y.data(), want.data(), want.size() * 4)) << Name(isa);
  }
}

TEST(MatmulInt8WeightTest, SmallestAndLargestFloatsGiveTheChainsBits) {
  // Denormal rows must not become zero, their sums must not lose the sign, and the sums of large rows may become
  // infinite.
  Case c = MakeCase(3, 18, 41, DType::kF32);
  for (std::size_t i = 0; i < 41; ++i) {
    c.x[i] = i % 2 == 0 ? 0x1p-149f : -0x1p-149f;
    c.x[41 + i] = i % 3 == 0 ? -0.0f : 0x1p-140f;
    c.x[82 + i] = i % 5 == 0 ? -3e38f : 1e36f;
  }
  for (const Isa isa : support::Isas()) ExpectOracleBits(c, /*bias=*/false, DType::kF32, CpuStream(isa));
}

TEST(MatmulInt8WeightTest, AgreesWithTorchao) {
  const support::Golden golden("tests/golden/kernels/int8_weight.txt");
  const struct {
    const char* name;
    std::int64_t rows, n, k;
  } cases[] = {{"odd", 7, 13, 77}, {"one", 1, 37, 200}, {"rows", 31, 19, 64}};
  for (const auto& shape : cases) {
    const std::int64_t rows = shape.rows, n = shape.n, k = shape.k;
    const std::string prefix = std::string(shape.name) + ".";
    const auto x = support::ToBytes(golden.Get<float>(prefix + "x"), DType::kBF16);
    const auto bias = golden.Get<float>(prefix + "bias");
    const auto want = golden.Get<double>(prefix + "y"), sum_abs = golden.Get<double>(prefix + "sum_abs");
    const support::Int8Weight w(golden.Get<std::int8_t>(prefix + "w"), golden.Get<float>(prefix + "scale"), n, k);
    for (const Isa isa : support::Isas()) {
      std::vector<float> y(want.size());
      ASSERT_TRUE(MatmulInt8Weight({.x = MakeConstMatrix(x.data(), DType::kBF16, rows, k),
                                    .w = w.view(),
                                    .bias = bias.data(),
                                    .y = MakeMatrix(y.data(), DType::kF32, rows, n)},
                                   CpuStream(isa))
                      .ok());
      // The chain, the scale and the bias are k + 2 roundings.
      EXPECT_TRUE(support::AllWithin(y, want,
                                     [&](std::size_t i) {
                                       return support::DotBound(
                                           k + 2, sum_abs[i] + std::fabs(bias[i % static_cast<std::size_t>(n)]));
                                     }))
          << shape.name << " " << Name(isa);
    }
  }
}

TEST(MatmulInt8WeightTest, RejectsBadArguments) {
  const Case c = MakeCase(2, 17, 65, DType::kF32);
  const support::Int8Weight weight(c.w, c.scale, 17, 65);
  std::vector<float> y(34);
  const Stream stream = CpuStream(Isa::kPlain);
  const MatmulInt8WeightArgs good = {.x = MakeConstMatrix(c.x.data(), DType::kF32, 2, 65),
                                     .w = weight.view(),
                                     .y = MakeMatrix(y.data(), DType::kF32, 2, 17)};
  EXPECT_TRUE(MatmulInt8Weight(good, stream).ok());
  const auto code = [&](auto change) {
    MatmulInt8WeightArgs args = good;
    change(args);
    return MatmulInt8Weight(args, stream).code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](auto& a) { a.x.dtype = DType::kF16; }), kInvalid);
  EXPECT_EQ(code([](auto& a) { a.x.cols = 64; }), kInvalid);
  EXPECT_EQ(code([](auto& a) { a.x.rows = -1; }), kInvalid);
  EXPECT_EQ(code([](auto& a) { a.y.rows = 1; }), kInvalid);
  EXPECT_EQ(code([](auto& a) { a.y.dtype = DType::kI8; }), kInvalid);
  EXPECT_EQ(code([](auto& a) { a.w.padded_k = 65; }), kInvalid);
  EXPECT_EQ(code([](auto& a) { a.w.tiles = nullptr; }), kInvalid);
  EXPECT_EQ(code([](auto& a) { a.w.scale = nullptr; }), kInvalid);
  EXPECT_EQ(code([](auto& a) { a.w.rows = -1; }), kInvalid);
}

TEST(MatmulInt8WeightTest, HasNoCudaPath) {
  const Case c = MakeCase(2, 17, 65, DType::kF32);
  const support::Int8Weight weight(c.w, c.scale, 17, 65);
  std::vector<float> y(34);
  Stream stream;
  stream.device = DeviceKind::kCuda;
  EXPECT_EQ(MatmulInt8Weight({.x = MakeConstMatrix(c.x.data(), DType::kF32, 2, 65),
                              .w = weight.view(),
                              .y = MakeMatrix(y.data(), DType::kF32, 2, 17)},
                             stream)
                .code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace nibble::kernels
