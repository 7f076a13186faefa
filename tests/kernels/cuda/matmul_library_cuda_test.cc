// Compares cuBLASLt's float product with the exact one, within the bound of an inner product.
#include <gtest/gtest.h>

#include "kernels/ops/matmul/matmul_library.h"
#include "tests/support/cuda_fixture.h"
#include "tests/support/exact_product.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::DeviceBytes;

using Launches = std::map<std::string, std::uint64_t>;

struct Shape {
  std::int64_t m, n, k;
};

// A product whose rows have a gap of `gap` elements after them. The gaps of x and w hold NaN, so that the test notices
// a kernel that multiplies them; the gaps of y must not change.
struct Product {
  Product(const Shape& s, DType x_type, DType w_type, DType y_type, std::int64_t gap)
      : x_bytes(Rows(1, s.m, s.k, gap, x_type)),
        w_bytes(Rows(2, s.n, s.k, gap, w_type)),
        y_bytes(Rows(3, s.m, s.n, gap, y_type)),
        bias(support::NormalVector(4, s.n)),
        x{x_bytes.data(), x_type, s.m, s.k, s.k + gap},
        w{w_bytes.data(), w_type, s.n, s.k, s.k + gap},
        y{y_bytes.data(), y_type, s.m, s.n, s.n + gap} {}

  static std::vector<std::uint8_t> Rows(std::uint64_t seed, std::int64_t rows, std::int64_t columns, std::int64_t gap,
                                        DType dtype) {
    const std::int64_t stride = columns + gap;
    std::vector<float> values = support::NormalVector(seed, rows * stride);
    for (std::int64_t i = 0; i < rows * stride; ++i) {
      if (i % stride >= columns) values[static_cast<std::size_t>(i)] = std::nanf("");
    }
    return support::ToBytes(values, dtype);
  }

  // Runs on the device, `offset` bytes into each allocation; copies y back into y_bytes.
  absl::Status Run(CudaContext& context, const Stream& stream, bool with_bias, bool accumulate, std::int64_t offset) {
    const auto moved = [offset](const std::vector<std::uint8_t>& bytes) {
      std::vector<std::uint8_t> all(static_cast<std::size_t>(offset));
      all.insert(all.end(), bytes.begin(), bytes.end());
      return all;
    };
    DeviceBytes dx(context, moved(x_bytes)), dw(context, moved(w_bytes)), dy(context, moved(y_bytes));
    DeviceBytes dbias(context, bias);
    MatmulLibraryArgs args{x, w, with_bias ? dbias.As<float>() : nullptr, accumulate, y};
    args.x.data = dx.As<std::uint8_t>() + offset;
    args.w.data = dw.As<std::uint8_t>() + offset;
    args.y.data = dy.As<std::uint8_t>() + offset;
    const absl::Status status = MatmulLibrary(args, stream);
    const std::uint8_t* back = dy.Back() + offset;
    if (!y_bytes.empty()) std::memcpy(y_bytes.data(), back, y_bytes.size());
    return status;
  }

  std::vector<std::uint8_t> x_bytes, w_bytes, y_bytes;
  std::vector<float> bias;
  ConstMatrix x, w;
  Matrix y;
};

class MatmulLibraryCudaTest : public support::CudaTest {
 protected:
  void ExpectExact(const Shape& shape, DType x, DType w, DType y, std::int64_t gap, std::int64_t offset, bool with_bias,
                   bool accumulate) {
    SCOPED_TRACE(::testing::Message() << shape.m << "x" << shape.n << "x" << shape.k << " " << Name(x) << " " << Name(w)
                                      << " to " << Name(y) << " gap " << gap << " offset " << offset << " bias "
                                      << with_bias << " accumulate " << accumulate);
    Product p(shape, x, w, y, gap);
    const std::vector<std::uint8_t> before = p.y_bytes;
    const ConstMatrix old = p.y;
    const support::ExactProduct exact(p.x, p.w, with_bias ? p.bias.data() : nullptr, accumulate ? &old : nullptr);
    const absl::Status status = p.Run(*context_, stream_, with_bias, accumulate, offset);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(exact.Holds(p.y));
    const auto between = static_cast<std::size_t>(gap * SizeOf(y));
    for (std::int64_t row = 0; row < shape.m; ++row) {
      const auto at = static_cast<std::size_t>((row * p.y.stride + shape.n) * SizeOf(y));
      EXPECT_TRUE(support::BytesEqual(p.y_bytes.data() + at, before.data() + at, between)) << "between the rows of y";
    }
  }
};

constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

TEST_F(MatmulLibraryCudaTest, EveryTypeAndShapeIsWithinTheBoundOfTheExactProduct) {
  for (const Shape& shape :
       {Shape{1, 1, 1}, {1, 7, 13}, {7, 13, 31}, {3, 8, 32}, {5, 64, 576}, {33, 65, 33}, {129, 130, 1024}}) {
    for (const DType x : kTypes) {
      for (const DType w : kTypes) {
        for (const DType y : kTypes) {
          for (const bool bias : {false, true}) {
            for (const bool accumulate : {false, true}) ExpectExact(shape, x, w, y, 0, 0, bias, accumulate);
          }
        }
      }
    }
  }
}

// Rows of 64 with a gap of 8 are read in place. With a gap of 3, or 4 bytes into an allocation, they are copied first.
// Rows of 29 with a gap of 3 are always copied, although the start of each row is aligned.
TEST_F(MatmulLibraryCudaTest, RowsMayHaveGapsAndAnyOffset) {
  for (const Shape& shape : {Shape{4, 16, 64}, {7, 13, 29}, {7, 13, 31}, {9, 24, 40}}) {
    for (const DType type : kTypes) {
      for (const std::int64_t gap : {3, 8}) {
        for (const std::int64_t offset : {0, 4}) {
          for (const bool bias : {false, true}) {
            for (const bool accumulate : {false, true}) {
              ExpectExact(shape, type, type, type, gap, offset, bias, accumulate);
            }
          }
        }
      }
    }
  }
}

TEST_F(MatmulLibraryCudaTest, ProductWithoutColumnsIsZero) {
  for (const DType type : kTypes) {
    for (const bool bias : {false, true}) {
      for (const bool accumulate : {false, true}) ExpectExact({3, 5, 0}, type, type, type, 0, 0, bias, accumulate);
    }
  }
}

TEST_F(MatmulLibraryCudaTest, NothingIsLaunchedWithoutRows) {
  for (const Shape& shape : {Shape{0, 7, 13}, {7, 0, 13}}) {
    Product p(shape, DType::kF32, DType::kF32, DType::kF32, 0);
    const absl::Status status = p.Run(*context_, stream_, /*with_bias=*/true, /*accumulate=*/true, /*offset=*/0);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(launches_.total(), 0u);
}

TEST_F(MatmulLibraryCudaTest, WrongShapesAreRefusedBeforeAnyLaunch) {
  Product p({3, 8, 16}, DType::kF32, DType::kF32, DType::kF32, 0);
  const auto code = [&] {
    return p.Run(*context_, stream_, /*with_bias=*/false, /*accumulate=*/false, /*offset=*/0).code();
  };
  p.w.cols = 15;
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  p.w.cols = 16;
  p.y.cols = 9;
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(launches_.total(), 0u);
}

TEST_F(MatmulLibraryCudaTest, EachLaunchIsCounted) {
  Product plain({4, 16, 64}, DType::kBF16, DType::kBF16, DType::kBF16, 0);
  ASSERT_TRUE(plain.Run(*context_, stream_, /*with_bias=*/false, /*accumulate=*/true, /*offset=*/0).ok());
  EXPECT_EQ(launches_.Snapshot(), (Launches{{"cublaslt:matmul", 1}})) << "all in place";
  Product mixed({4, 16, 64}, DType::kF32, DType::kBF16, DType::kF32, 0);
  ASSERT_TRUE(mixed.Run(*context_, stream_, /*with_bias=*/true, /*accumulate=*/false, /*offset=*/0).ok());
  EXPECT_EQ(launches_.Snapshot(),
            (Launches{{"cublaslt:matmul", 2}, {"matmul_library_widen", 1}, {"matmul_library_epilogue", 1}}));
}

}  // namespace
}  // namespace nibble::kernels
