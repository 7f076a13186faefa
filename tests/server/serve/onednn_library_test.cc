#include "server/serve/onednn_library.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/dtype.h"
#include "server/base/process_memory.h"
#include "tests/support/exact_product.h"
#include "tests/support/isas.h"
#include "tests/support/random.h"

namespace nibble::serve {
namespace {

using kernels::DType;

// A matrix of random values in a given type.
class Operand {
 public:
  Operand(std::uint64_t seed, DType dtype, std::int64_t rows, std::int64_t cols)
      : wide_(support::NormalVector(seed, rows * cols)), dtype_(dtype), rows_(rows), cols_(cols) {
    for (const float value : wide_) narrow_.push_back(kernels::RoundTo<kernels::BF16>(value));
  }
  kernels::Matrix View() {
    void* const data = dtype_ == DType::kF32 ? static_cast<void*>(wide_.data()) : static_cast<void*>(narrow_.data());
    return kernels::MakeMatrix(data, dtype_, rows_, cols_);
  }

 private:
  std::vector<float> wide_;
  std::vector<kernels::BF16> narrow_;
  const DType dtype_;
  const std::int64_t rows_, cols_;
};

// Machines below AVX-512, where oneDNN has no bf16 products, must serve bf16 models too. So this tests with bf16
// products (if the CPU has them) and without.
TEST(OneDnnLibraryTest, MultipliesEveryMixOfTypesOnEveryCpu) {
  for (const bool use_bf16 : {true, false}) {
    const auto library = MakeOneDnnLibrary(use_bf16);
    for (const std::int64_t m : {1, 5, 301}) {      // 301 becomes pieces of 256, 32 and 13 rows
      for (const std::int64_t n : {1, 256, 600}) {  // a piece of w is 256 rows
        for (const DType x_type : {DType::kF32, DType::kBF16}) {
          for (const DType w_type : {DType::kF32, DType::kBF16}) {
            for (const DType y_type : {DType::kF32, DType::kBF16}) {
              for (const bool accumulate : {false, true}) {
                SCOPED_TRACE(::testing::Message()
                             << use_bf16 << " " << m << " x " << n << " " << static_cast<int>(x_type) << " "
                             << static_cast<int>(w_type) << " " << static_cast<int>(y_type) << " " << accumulate);
                Operand x(1, x_type, m, 70), w(2, w_type, n, 70), y(3, y_type, m, n);
                const kernels::ConstMatrix old = y.View();
                const support::ExactProduct exact(x.View(), w.View(), nullptr, accumulate ? &old : nullptr);
                const absl::Status status =
                    library->Matmul(x.View(), w.View(), y.View(), accumulate, support::CpuStream(kernels::DetectIsa()));
                ASSERT_TRUE(status.ok()) << status;
                ASSERT_TRUE(exact.Holds(y.View()));
              }
            }
          }
        }
      }
    }
  }
}

// Sanitizers' allocators keep freed memory.
#if !defined(NIBBLE_ASAN) && !defined(NIBBLE_TSAN)
// The machine code of a product takes 0.3 MiB. One product for every number of rows would take about 400 MiB.
TEST(OneDnnLibraryTest, MemoryIsBoundedForAllPromptLengths) {
  constexpr std::int64_t kMaxRows = 1500;
  const auto library = MakeOneDnnLibrary();
  Operand x(1, DType::kF32, kMaxRows, 32), w(2, DType::kF32, 48, 32), y(3, DType::kF32, kMaxRows, 48);
  const auto multiply = [&](std::int64_t m) {
    const auto rows = [&](kernels::Matrix matrix) {
      matrix.rows = m;
      return matrix;
    };
    const absl::Status status = library->Matmul(rows(x.View()), w.View(), rows(y.View()), /*accumulate=*/false,
                                                support::CpuStream(kernels::DetectIsa()));
    ASSERT_TRUE(status.ok()) << status;
  };
  for (std::int64_t m = 1; m <= 16; ++m) multiply(m);
  for (const std::int64_t m : {32, 64, 128, 256}) multiply(m);
  const std::uint64_t before = base::ResidentBytes();
  for (std::int64_t m = 1; m <= kMaxRows; ++m) multiply(m);
  EXPECT_LT(base::ResidentBytes(), before + (4u << 20)) << "a product was made for another number of rows";
}
#endif

}  // namespace
}  // namespace nibble::serve
