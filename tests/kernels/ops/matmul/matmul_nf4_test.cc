#include "kernels/ops/matmul/matmul_nf4.h"

#include <gtest/gtest.h>

#include "tests/support/golden.h"
#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::AllWithin;
using support::CpuStream;
using support::GuardedBytes;
using support::Isas;

// x, w and bias in buffers of exactly their size, and the expected y: the f64 product of the rounded values.
struct Case {
  Case(std::int64_t m, std::int64_t n, std::int64_t k, DType x_type, DType y_type, bool with_bias,
       std::int64_t block = kNf4Block)
      : m(m), n(n), k(k), block(block), x_type(x_type), y_type(y_type) {
    const std::uint64_t seed = static_cast<std::uint64_t>(m * 1000003 + n * 1009 + k);
    const std::vector<float> x = support::NormalVector(seed, m * k);
    x_bytes = support::ToBytes(x, x_type);
    codes.resize(static_cast<std::size_t>(n * Nf4RowBytes(k)));
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(support::Bits(seed + 1, i));
    absmax = support::NormalVector(seed + 2, n * Nf4RowBlocks(k, block), 0.05f);
    for (float& a : absmax) a = std::fabs(a);
    if (with_bias) bias = support::NormalVector(seed + 3, n);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = with_bias ? static_cast<double>(bias[static_cast<std::size_t>(j)]) : 0.0;
        double abs = std::fabs(sum);
        for (std::int64_t l = 0; l < k; ++l) {
          const unsigned byte = codes[static_cast<std::size_t>(j * Nf4RowBytes(k) + l / 2)];
          float wv = kNf4Book[l % 2 == 0 ? byte >> 4 : byte & 15u] *
                     absmax[static_cast<std::size_t>(j * Nf4RowBlocks(k, block) + l / block)];
          float xv = x[static_cast<std::size_t>(i * k + l)];
          if (x_type == DType::kBF16) {
            wv = ToFloat(ToBF16(wv));
            xv = ToFloat(ToBF16(xv));
          }
          sum += static_cast<double>(wv) * static_cast<double>(xv);
          abs += std::fabs(static_cast<double>(wv) * static_cast<double>(xv));
        }
        want.push_back(sum);
        bound.push_back(support::DotBound(k + 1, abs, y_type));
      }
    }
  }

  MatmulNf4Args Args(void* y) const {
    return {MakeConstMatrix(x_bytes.data(), x_type, m, k),
            {codes.data(), absmax.data(), n, k, block},
            bias.empty() ? nullptr : bias.data(),
            MakeMatrix(y, y_type, m, n)};
  }

  void Check(const Stream& stream) const {
    GuardedBytes y(m * n * SizeOf(y_type));
    ASSERT_TRUE(MatmulNf4(Args(y.data()), stream).ok());
    EXPECT_TRUE(y.GuardsIntact());
    std::vector<float> got(want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      got[i] = y_type == DType::kF32 ? y.As<float>()[i] : ToFloat(y.As<BF16>()[i]);
    }
    EXPECT_TRUE(AllWithin(got, want, [&](std::size_t i) { return bound[i]; }))
        << Name(stream.isa) << " " << m << "x" << n << "x" << k << " in " << block << " " << Name(x_type) << " to "
        << Name(y_type);
  }

  std::int64_t m, n, k, block;
  DType x_type, y_type;
  std::vector<std::uint8_t> x_bytes, codes;
  std::vector<float> absmax, bias;
  std::vector<double> want, bound;
};

TEST(MatmulNf4Test, EveryPathIsWithinTheBoundOfTheExactProduct) {
  for (const DType x_type : {DType::kF32, DType::kBF16}) {
    for (const DType y_type : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t m : {1, 2, 3, 4, 5, 9, 33}) {
        for (const std::int64_t n : {1, 3, 4, 7, 16, 17, 37}) {
          for (const std::int64_t k : {1, 13, 63, 64, 65, 129, 320}) {
            const Case c(m, n, k, x_type, y_type, (m + n + k) % 2 == 0);
            for (const Isa isa : Isas()) c.Check(CpuStream(isa));
          }
        }
      }
    }
  }
}

TEST(MatmulNf4Test, EveryPathIsWithinTheBoundForEveryBlock) {
  for (const DType x_type : {DType::kF32, DType::kBF16}) {
    for (std::int64_t block = kNf4SmallestBlock; block <= kNf4LargestBlock; block *= 2) {
      for (const std::int64_t m : {1, 3, 4, 9}) {
        for (const std::int64_t n : {3, 8, 17}) {
          for (const std::int64_t k : {20, 96, 100, 1000, 4200}) {
            const Case c(m, n, k, x_type, DType::kF32, (m + n + k) % 2 == 0, block);
            for (const Isa isa : Isas()) c.Check(CpuStream(isa));
          }
        }
      }
    }
  }
}

// From K = 1025 on, the path with vdpbf16ps decodes K in several chunks.
TEST(MatmulNf4Test, LongRowsAreWithinTheBoundToo) {
  for (const std::int64_t m : {3, 14}) {
    for (const std::int64_t k : {1024, 1025, 2111}) {
      const Case c(m, 71, k, DType::kBF16, DType::kF32, /*with_bias=*/true);
      for (const Isa isa : Isas()) c.Check(CpuStream(isa));
    }
  }
}

TEST(MatmulNf4Test, ThreadsDoNotChangeBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t m : {1, 3, 12}) {
      const Case c(m, 210, 1000, dtype, DType::kF32, /*with_bias=*/true);
      for (const Isa isa : Isas()) {
        GuardedBytes want(m * 210 * 4);
        ASSERT_TRUE(MatmulNf4(c.Args(want.data()), CpuStream(isa)).ok());
        for (const int threads : {1, 2, 3}) {
          ThreadPool pool(threads);
          GuardedBytes got(m * 210 * 4);
          ASSERT_TRUE(MatmulNf4(c.Args(got.data()), CpuStream(isa, &pool)).ok());
          EXPECT_TRUE(support::BytesEqual(got.data(), want.data(), want.size())) << Name(isa) << " " << threads;
        }
      }
    }
  }
}

TEST(MatmulNf4Test, ProductWithoutColumnsIsTheBias) {
  for (const Isa isa : Isas()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t m : {1, 4, 6}) {
        for (const std::int64_t n : {3, 4, 5}) {
          const std::vector<float> bias = {1.5f, -2.0f, 3.25f, 0.0f, -7.0f};
          GuardedBytes y(m * n * 4);
          ASSERT_TRUE(MatmulNf4({MakeConstMatrix(nullptr, dtype, m, 0),
                                 {nullptr, nullptr, n, 0},
                                 bias.data(),
                                 MakeMatrix(y.data(), DType::kF32, m, n)},
                                CpuStream(isa))
                          .ok());
          for (std::int64_t i = 0; i < m * n; ++i) EXPECT_EQ(y.As<float>()[i], bias[static_cast<std::size_t>(i % n)]);
          EXPECT_TRUE(y.GuardsIntact());
        }
      }
    }
  }
}

TEST(MatmulNf4Test, ProductWithoutRowsWritesNothing) {
  const Case c(0, 4, 64, DType::kF32, DType::kF32, /*with_bias=*/false);
  for (const Isa isa : Isas()) c.Check(CpuStream(isa));
}

TEST(MatmulNf4Test, RejectsBadArguments) {
  const Case c(2, 4, 64, DType::kF32, DType::kF32, /*with_bias=*/false);
  std::vector<float> y(8);
  const auto code = [&](auto change) {
    MatmulNf4Args args = c.Args(y.data());
    change(args);
    return MatmulNf4(args, CpuStream(Isa::kPlain)).code();
  };
  using A = MatmulNf4Args;
  const auto bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](A&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](A& a) { a.x.cols = 63; }), bad);
  EXPECT_EQ(code([](A& a) { a.x.dtype = DType::kF16; }), bad);
  EXPECT_EQ(code([](A& a) { a.y.cols = 5; }), bad);
  EXPECT_EQ(code([](A& a) { a.y.dtype = DType::kI32; }), bad);
  EXPECT_EQ(code([](A& a) { a.w.codes = nullptr; }), bad);
  EXPECT_EQ(code([](A& a) { a.w.absmax = nullptr; }), bad);
  EXPECT_EQ(code([](A& a) { a.w.rows = -1; }), bad);
  EXPECT_EQ(code([](A& a) { a.w.block = 48; }), bad);
}

// Golden: the weight that bitsandbytes quantized and dequantized, multiplied in float64.
TEST(MatmulNf4Test, AgreesWithTheProductOfBitsandbytesWeights) {
  const support::Golden golden("tests/golden/kernels/nf4.txt");
  const std::vector<float> absmax = golden.Get<float>("weight.absmax");
  const std::vector<float> x = golden.Get<float>("matmul.x");
  const std::vector<float> bias = golden.Get<float>("matmul.bias");
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string name = dtype == DType::kF32 ? "matmul.f32" : "matmul.bf16";
    const std::vector<double> want = golden.Get<double>(name);
    const std::vector<double> sum_abs = golden.Get<double>(name + "_abs");
    const std::vector<std::uint8_t> bytes = support::ToBytes(x, dtype);
    for (const Isa isa : Isas()) {
      for (const std::int64_t m : {1, 5}) {
        std::vector<float> y(static_cast<std::size_t>(m * 6));
        ASSERT_TRUE(MatmulNf4({MakeConstMatrix(bytes.data(), dtype, m, 192),
                               {golden.Bytes("weight.codes").data(), absmax.data(), 6, 192},
                               bias.data(),
                               MakeMatrix(y.data(), DType::kF32, m, 6)},
                              CpuStream(isa))
                        .ok());
        EXPECT_TRUE(AllWithin(y, {want.begin(), want.begin() + m * 6}, [&](std::size_t i) {
          return support::DotBound(193, sum_abs[i]);
        })) << Name(isa);
      }
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
