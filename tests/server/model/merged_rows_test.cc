#include "server/model/merged_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "server/model/dora.h"
#include "tests/support/random.h"

namespace nibble::model {
namespace {

using kernels::DType;

constexpr std::int64_t kRows = 300, kCols = 40, kRank = 3;  // more rows than a block of Norms
constexpr float kScaling = 1.5f;

class MergedRowsTest : public ::testing::Test {
 protected:
  MergedRowsTest() {
    std::fill_n(weight_.begin(), kCols, 0.0f);
    std::fill_n(b_.begin(), kRank, 0.0f);  // row 0 and its adapter are zeros
  }
  MergedRows Make() const {
    MergedRows merged(kernels::MakeConstMatrix(weight_.data(), DType::kF32, kRows, kCols));
    merged.SetAdapter(kernels::MakeConstMatrix(a_.data(), DType::kF32, kRank, kCols),
                      kernels::MakeConstMatrix(b_.data(), DType::kF32, kRows, kRank), kScaling);
    return merged;
  }
  double Want(std::int64_t r, std::int64_t c) const {
    double delta = 0;
    for (std::int64_t i = 0; i < kRank; ++i) {
      delta += static_cast<double>(b_[static_cast<std::size_t>(r * kRank + i)]) *
               static_cast<double>(a_[static_cast<std::size_t>(i * kCols + c)]);
    }
    return static_cast<double>(weight_[static_cast<std::size_t>(r * kCols + c)]) +
           delta * static_cast<double>(kScaling);
  }
  double WantNorm(std::int64_t r) const {
    double sum = 0;
    for (std::int64_t c = 0; c < kCols; ++c) sum += Want(r, c) * Want(r, c);
    return std::sqrt(sum);
  }

  const kernels::Stream stream_;
  std::vector<float> weight_ = support::NormalVector(1, kRows* kCols), a_ = support::NormalVector(2, kRank* kCols),
                     b_ = support::NormalVector(3, kRows* kRank);
  const std::vector<float> magnitudes_ = support::NormalVector(4, kRows);
};

TEST_F(MergedRowsTest, NormsAreThoseOfTheMergedRows) {
  std::vector<float> norms(kRows);
  ASSERT_TRUE(Make().Norms(norms.data(), stream_).ok());
  EXPECT_EQ(norms[0], 0);
  for (std::int64_t r = 0; r < kRows; ++r) {
    EXPECT_NEAR(static_cast<double>(norms[static_cast<std::size_t>(r)]), WantNorm(r), 1e-5 * WantNorm(r)) << r;
  }
}

TEST_F(MergedRowsTest, RowsOfDoraHaveTheirMagnitudeAsNorm) {
  MergedRows merged = Make();
  merged.SetMagnitudes(magnitudes_.data());
  const auto rows = merged.Rows(0, 290, stream_);
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (std::int64_t r = 0; r < rows->rows; ++r) {
    const double factor = r == 0 ? 0 : static_cast<double>(magnitudes_[static_cast<std::size_t>(r)]) / WantNorm(r);
    for (std::int64_t c = 0; c < kCols; ++c) {
      ASSERT_NEAR(static_cast<double>(rows->Row<float>(r)[c]), factor * Want(r, c), 1e-5) << r << " " << c;
    }
  }
  const std::vector<float> whole(rows->Row<float>(17), rows->Row<float>(17) + kCols);
  const auto one = merged.Rows(17, 18, stream_);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(std::vector<float>(one->Row<float>(0), one->Row<float>(0) + kCols), whole)
      << "rows do not depend on blocks";
}

TEST(DoraTest, OutputIsMultipliedBeforeTheBiasIsAdded) {
  std::vector<float> y = {1, 2, 3, 4};
  const float factor[] = {2, 0.5f}, bias[] = {10, 20};
  const kernels::Matrix rows = kernels::MakeMatrix(y.data(), DType::kF32, 2, 2);
  ApplyDora(rows, factor, nullptr, kernels::Stream());
  EXPECT_EQ(y, (std::vector<float>{2, 1, 6, 2}));
  ApplyDora(rows, factor, bias, kernels::Stream());
  EXPECT_EQ(y, (std::vector<float>{14, 20.5f, 22, 21}));
}

}  // namespace
}  // namespace nibble::model
