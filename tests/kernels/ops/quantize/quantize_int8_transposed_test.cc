#include "kernels/ops/quantize/quantize_int8_transposed.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/ops/quantize/quantize_int8.h"
#include "tests/support/int8.h"
#include "tests/support/isas.h"

namespace nibble::kernels {
namespace {

using support::CpuStream;
using support::Int8Rows;

std::vector<float> Transposed(const std::vector<float>& x, std::int64_t rows, std::int64_t cols) {
  std::vector<float> result(x.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      result[static_cast<std::size_t>(c * rows + r)] = x[static_cast<std::size_t>(r * cols + c)];
    }
  }
  return result;
}

// The plain quantize_int8 of the transpose, and the same codes packed.
struct Wanted {
  Wanted(const std::vector<float>& x, std::int64_t rows, std::int64_t cols, DType dtype, const QuantizeOptions& how)
      : codes(cols, rows) {
    const auto bytes = support::ToBytes(Transposed(x, rows, cols), dtype);
    EXPECT_TRUE(
        QuantizeInt8({MakeConstMatrix(bytes.data(), dtype, cols, rows), codes.view(), 0, how}, CpuStream(Isa::kPlain))
            .ok());
    const QuantizedRows q = codes.view();
    std::vector<std::int8_t> dense;
    for (std::int64_t c = 0; c < cols; ++c)
      dense.insert(dense.end(), q.codes + c * q.stride, q.codes + c * q.stride + rows);
    tiles.resize(static_cast<std::size_t>(PackedInt8Bytes(cols, rows)));
    row_sum.resize(static_cast<std::size_t>(RoundUp(cols, kInt8TileRows)));
    PackInt8Weight(dense.data(), cols, rows, tiles.data(), row_sum.data());
  }
  Int8Rows codes;
  std::vector<std::int8_t> tiles;
  std::vector<std::int32_t> row_sum;
};

TEST(QuantizeInt8TransposedTest, EveryPathGivesTheCodesOfTheTranspose) {
  ThreadPool three(3);
  for (const auto& [rows, cols] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {7, 13}, {13, 7}, {64, 16}, {65, 17}, {63, 64}, {200, 65}, {3, 129}, {130, 300}}) {
    const auto x = support::AwkwardRows(static_cast<std::uint64_t>(rows), rows, cols);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto bytes = support::ToBytes(x, dtype);
      for (const bool per_tensor : {false, true}) {
        QuantizeOptions how;
        how.per_tensor = per_tensor;
        Wanted want(x, rows, cols, dtype, how);
        for (const Isa isa : support::Isas()) {
          for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &three}) {
            SCOPED_TRACE(testing::Message() << Name(isa) << " " << rows << " x " << cols << " " << Name(dtype)
                                            << (per_tensor ? " per tensor" : ""));
            Int8Rows got(cols, rows);
            const QuantizedRows view = got.view();
            QuantizeInt8TransposedArgs args = {.x = MakeConstMatrix(bytes.data(), dtype, rows, cols),
                                               .scale = view.scale,
                                               .codes = view.codes,
                                               .stride = view.stride,
                                               .how = how};
            ASSERT_TRUE(QuantizeInt8Transposed(args, CpuStream(isa, pool)).ok());
            EXPECT_TRUE(got.GuardsIntact());
            EXPECT_TRUE(
                support::BytesEqual(view.codes, want.codes.view().codes, static_cast<std::size_t>(cols * view.stride)));
            EXPECT_TRUE(support::BytesEqual(view.scale, want.codes.view().scale, static_cast<std::size_t>(cols) * 4));

            support::GuardedBytes tiles(PackedInt8Bytes(cols, rows)), scale(cols * 4),
                row_sum(RoundUp(cols, kInt8TileRows) * 4);
            args.codes = nullptr;
            args.scale = scale.As<float>();
            args.tiles = tiles.As<std::int8_t>();
            args.row_sum = row_sum.As<std::int32_t>();
            ASSERT_TRUE(QuantizeInt8Transposed(args, CpuStream(isa, pool)).ok());
            EXPECT_TRUE(tiles.GuardsIntact() && scale.GuardsIntact() && row_sum.GuardsIntact());
            EXPECT_TRUE(support::BytesEqual(tiles.data(), want.tiles.data(), want.tiles.size()));
            EXPECT_TRUE(support::BytesEqual(row_sum.data(), want.row_sum.data(), want.row_sum.size() * 4));
            EXPECT_TRUE(support::BytesEqual(scale.data(), want.codes.view().scale, static_cast<std::size_t>(cols) * 4));
          }
        }
      }
    }
  }
}

TEST(QuantizeInt8TransposedTest, EveryPathDrawsTheSameForStochasticRounding) {
  const std::int64_t rows = 70, cols = 45;
  const auto x = support::AwkwardRows(5, rows, cols);
  QuantizeOptions how;
  how.stochastic = {.enabled = true, .seed = 3, .stream = 9};
  const auto run = [&](Isa isa) {
    std::vector<std::int8_t> codes(static_cast<std::size_t>(cols * 128));
    std::vector<float> scale(static_cast<std::size_t>(cols));
    EXPECT_TRUE(QuantizeInt8Transposed({.x = MakeConstMatrix(x.data(), DType::kF32, rows, cols),
                                        .scale = scale.data(),
                                        .codes = codes.data(),
                                        .stride = 128,
                                        .how = how},
                                       CpuStream(isa))
                    .ok());
    return codes;
  };
  const std::vector<std::int8_t> want = run(Isa::kPlain);
  for (const Isa isa : support::Isas()) EXPECT_EQ(run(isa), want) << Name(isa);
  how.stochastic.seed = 4;
  EXPECT_NE(run(Isa::kPlain), want);
}

TEST(QuantizeInt8TransposedTest, RejectsBadArguments) {
  const std::vector<float> x(70, 2.0f);
  std::vector<std::int8_t> codes(70 * 64), tiles(static_cast<std::size_t>(PackedInt8Bytes(70, 1)));
  std::vector<float> scale(70);
  std::vector<std::int32_t> sums(80);
  const Stream stream = CpuStream(Isa::kPlain);
  const QuantizeInt8TransposedArgs good = {
      .x = MakeConstMatrix(x.data(), DType::kF32, 1, 70), .scale = scale.data(), .codes = codes.data(), .stride = 64};
  ASSERT_TRUE(QuantizeInt8Transposed(good, stream).ok());
  std::vector<QuantizeInt8TransposedArgs> bad(7, good);
  bad[0].x.rows = 0;
  bad[1].x.dtype = DType::kF16;
  bad[2].scale = nullptr;
  bad[3].codes = nullptr;
  bad[4].stride = 40;
  bad[5].how.bits = 4;
  bad[6].tiles = tiles.data();
  bad[6].row_sum = sums.data();
  for (const QuantizeInt8TransposedArgs& args : bad) {
    EXPECT_EQ(QuantizeInt8Transposed(args, stream).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace nibble::kernels
