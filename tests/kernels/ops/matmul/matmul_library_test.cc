#include "kernels/ops/matmul/matmul_library.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/ops/matmul/matmul_library_table.h"
#include "tests/support/exact_product.h"
#include "tests/support/isas.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;

// A library in plain loops, f32 only.
class LoopLibrary : public DenseLibrary {
 public:
  const char* kernel_name() const override { return "loop_product"; }
  absl::Status Matmul(const ConstMatrix& x, const ConstMatrix& w, const Matrix& y, bool accumulate,
                      const Stream&) override {
    if (y.dtype != DType::kF32) return absl::UnimplementedError("f32 only");
    for (std::int64_t r = 0; r < x.rows; ++r) {
      for (std::int64_t n = 0; n < w.rows; ++n) {
        float sum = accumulate ? y.Row<float>(r)[n] : 0.0f;
        for (std::int64_t k = 0; k < x.cols; ++k) sum += x.Row<float>(r)[k] * w.Row<float>(n)[k];
        y.Row<float>(r)[n] = sum;
      }
    }
    return absl::OkStatus();
  }
};

struct Product {
  std::vector<float> x = support::NormalVector(1, 3 * 20), w = support::NormalVector(2, 7 * 20),
                     bias = support::NormalVector(3, 7), y = support::NormalVector(4, 3 * 7);
  MatmulLibraryArgs Args(bool accumulate) {
    return {MakeConstMatrix(x.data(), DType::kF32, 3, 20), MakeConstMatrix(w.data(), DType::kF32, 7, 20), bias.data(),
            accumulate, MakeMatrix(y.data(), DType::kF32, 3, 7)};
  }
};

// Multiplies with the loops and returns the counted launches.
auto LaunchesOf(const MatmulLibraryArgs& args) {
  LoopLibrary library;
  LaunchCounter launches;
  Stream stream = CpuStream(DetectIsa());
  stream.library = &library;
  stream.launches = &launches;
  const absl::Status status = MatmulLibrary(args, stream);
  EXPECT_TRUE(status.ok()) << status;
  return launches.Snapshot();
}

// The op computes this case without the library, so oneDNN and torch need not agree on it.
TEST(MatmulLibraryTest, ProductWithoutColumnsIsZero) {
  for (const bool accumulate : {false, true}) {
    Product p;
    MatmulLibraryArgs args = p.Args(accumulate);
    args.x.cols = args.w.cols = 0;
    const std::vector<float> old = p.y;
    const auto launches = LaunchesOf(args);
    for (std::size_t i = 0; i < old.size(); ++i) EXPECT_EQ(p.y[i], (accumulate ? old[i] : 0.0f) + p.bias[i % 7]) << i;
    EXPECT_TRUE(launches.empty());
  }
}

TEST(MatmulLibraryTest, ProductOldValueAndBiasAddUpAndOneLaunchIsCounted) {
  for (const bool accumulate : {false, true}) {
    Product p;
    const MatmulLibraryArgs args = p.Args(accumulate);
    const ConstMatrix old = args.y;
    const support::ExactProduct exact(args.x, args.w, args.bias, accumulate ? &old : nullptr);
    const auto launches = LaunchesOf(args);
    EXPECT_TRUE(exact.Holds(args.y));
    EXPECT_EQ(launches.at("loop_product"), 1u);
  }
}

TEST(MatmulLibraryTest, CudaStreamDoesNotUseTheProgramsLibrary) {
  Product p;
  LoopLibrary library;
  Stream stream = CpuStream(Isa::kPlain);
  stream.library = &library;
  stream.device = DeviceKind::kCuda;
  const absl::Status status = MatmulLibrary(p.Args(/*accumulate=*/false), stream);
  const bool built = Pick(kMatmulLibraryTable, stream) != nullptr;
  EXPECT_EQ(status.code(), built ? absl::StatusCode::kInternal : absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(),
            built ? "matmul_library: the stream has no CudaContext" : "matmul_library: no CUDA path in this build");
}

TEST(MatmulLibraryTest, ReportsMissingLibraryAndWrongArguments) {
  Product p;
  Stream stream = CpuStream(Isa::kPlain);
  EXPECT_EQ(MatmulLibrary(p.Args(/*accumulate=*/false), stream).code(), absl::StatusCode::kFailedPrecondition);
  LoopLibrary library;
  stream.library = &library;
  MatmulLibraryArgs args = p.Args(/*accumulate=*/false);
  args.w.cols = 19;
  EXPECT_EQ(MatmulLibrary(args, stream).code(), absl::StatusCode::kInvalidArgument);
  args = p.Args(/*accumulate=*/false);
  args.y.dtype = DType::kBF16;
  EXPECT_EQ(MatmulLibrary(args, stream).code(), absl::StatusCode::kUnimplemented) << "the library's own error";
  args.x.rows = args.y.rows = 0;
  EXPECT_TRUE(MatmulLibrary(args, stream).ok()) << "nothing to do: the library is not called";
}

}  // namespace
}  // namespace nibble::kernels
