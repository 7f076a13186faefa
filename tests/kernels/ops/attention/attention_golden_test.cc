// Compares the plain paths of attention, rope and gated_mul with torch and transformers (tests/golden/kernels), within
// bounds computed from each case.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ops/attention/attention.h"
#include "kernels/ops/attention/kv_store.h"
#include "kernels/ops/attention/rope.h"
#include "kernels/ops/elementwise/gated_mul.h"
#include "kernels/ops/elementwise/gated_mul_backward.h"
#include "tests/kernels/ops/attention/paged_cache.h"
#include "tests/support/golden.h"
#include "tests/support/isas.h"
#include "tests/support/numeric.h"

namespace nibble::kernels {
namespace {

using support::AllWithin;
using support::Gamma;
using support::kEpsF32;

const Stream plain = support::CpuStream(Isa::kPlain);

const support::Golden& Values() {
  static const support::Golden golden("tests/golden/kernels/attention.txt");
  return golden;
}

std::vector<float> Widened(const std::string& name) {
  std::vector<float> out;
  for (const BF16 x : Values().Get<BF16>(name)) out.push_back(ToFloat(x));
  return out;
}

void CheckAttention(const std::string& name, DType cache_type) {
  SCOPED_TRACE(name + " " + Name(cache_type));
  const auto shape = Values().Get<std::int64_t>(name + ".shape");
  const std::int64_t kv_heads = shape[0], group = shape[1], d = shape[2], length = shape[3];
  const auto rows = Values().Get<std::int32_t>(name + ".rows");
  const auto q = Widened(name + ".q"), k = Widened(name + ".k"), v = Widened(name + ".v");
  const std::int64_t num_rows = static_cast<std::int64_t>(rows.size()), heads = kv_heads * group;

  PagedCache cache(cache_type, 1, kv_heads, d, 1, (length + kKvPageTokens - 1) / kKvPageTokens, 3);
  std::vector<std::int32_t> all(static_cast<std::size_t>(length));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  ASSERT_TRUE(KvStore({.k = MakeConstMatrix(k.data(), DType::kF32, length, kv_heads * d),
                       .v = MakeConstMatrix(v.data(), DType::kF32, length, kv_heads * d),
                       .cache = cache.view(),
                       .layer = 0,
                       .rows = cache.Rows(std::vector<std::int32_t>(all.size()), all)},
                      plain)
                  .ok());
  std::vector<float> out(q.size()), logsumexp(static_cast<std::size_t>(num_rows * heads));
  const std::vector<std::int32_t> sequence(rows.size());
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  ASSERT_TRUE(Attention({.q = MakeConstMatrix(q.data(), DType::kF32, num_rows, heads * d),
                         .cache = cache.view(),
                         .layer = 0,
                         .rows = cache.Rows(sequence, rows),
                         .num_heads = heads,
                         .scale = scale,
                         .out = MakeMatrix(out.data(), DType::kF32, num_rows, heads * d),
                         .logsumexp = logsumexp.data()},
                        plain)
                  .ok());

  // score_error bounds the rounding error of every score: of its dot product, of the scale, and of the multiplication
  // by the scale.
  double score_error = 0, max_score = 0;
  for (std::int64_t r = 0; r < num_rows; ++r) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t j = 0; j <= rows[static_cast<std::size_t>(r)]; ++j) {
        double size = 0;
        for (std::int64_t i = 0; i < d; ++i) {
          size += std::fabs(static_cast<double>(q[static_cast<std::size_t>((r * heads + h) * d + i)]) *
                            k[static_cast<std::size_t>((j * kv_heads + h / group) * d + i)]);
        }
        score_error = std::max(score_error, size * static_cast<double>(scale) * Gamma(d + 3));
        max_score = std::max(max_score, size * static_cast<double>(scale));
      }
    }
  }
  double max_value = 0;
  for (const float x : v) max_value = std::max(max_value, std::fabs(static_cast<double>(x)));
  // Bounds the error of a weight: twice the score's error, and the roundings of the subtraction, of exp, of the sums
  // and of the rescaling at each page. Weights sum to 1.
  const double weight = 2 * score_error + 2 * kEpsF32 * max_score + Gamma(2 * length + 10);
  EXPECT_TRUE(AllWithin(out, Values().Get<double>(name + ".out"), [&](std::size_t) { return 2 * weight * max_value; }));
  EXPECT_TRUE(AllWithin(logsumexp, Values().Get<double>(name + ".logsumexp"),
                        [&](std::size_t) { return score_error + Gamma(length + 10) + 4 * kEpsF32 * max_score; }));
}

TEST(AttentionGoldenTest, MatchesTorchScaledDotProductAttention) {
  for (const DType cache : {DType::kF32, DType::kBF16}) {  // the golden's values are exact in both
    CheckAttention("grouped", cache);
    CheckAttention("sharp", cache);
  }
}

TEST(RopeGoldenTest, TableAndRotationMatchTransformers) {
  const auto positions = Values().Get<std::int32_t>("rope.positions");
  const auto inv_freq = Values().Get<float>("rope.inv_freq");
  const std::int64_t half = static_cast<std::int64_t>(inv_freq.size());
  const auto want_cos = Values().Get<float>("rope.cos"), want_sin = Values().Get<float>("rope.sin");
  std::vector<float> cos(want_cos.size()), sin(want_sin.size());
  for (std::size_t p = 0; p < positions.size(); ++p) {
    const std::int64_t at = static_cast<std::int64_t>(p) * half;
    FillRopeTable(inv_freq.data(), half, positions[p], 1, cos.data() + at, sin.data() + at);
  }
  for (std::size_t i = 0; i < cos.size(); ++i) {  // torch's float32 functions are within an ulp of the nearest float
    EXPECT_LE(support::UlpDistance(cos[i], want_cos[i]), 1) << i;
    EXPECT_LE(support::UlpDistance(sin[i], want_sin[i]), 1) << i;
  }
  auto x = Widened("rope.x");
  const auto before = x;
  const std::int64_t rows = static_cast<std::int64_t>(positions.size());
  const std::int64_t cols = static_cast<std::int64_t>(x.size()) / rows;
  std::vector<std::int32_t> index(positions.size());
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int32_t>(i);
  ASSERT_TRUE(Rope({.x = MakeMatrix(x.data(), DType::kF32, rows, cols),
                    .num_heads = cols / (2 * half),
                    .position = index.data(),
                    .cos = cos.data(),
                    .sin = sin.data(),
                    .table_positions = rows},
                   plain)
                  .ok());
  // The entries of the table may be an ulp off. The two products and their sum add two roundings.
  EXPECT_TRUE(AllWithin(x, Values().Get<double>("rope.y"), [&](std::size_t i) {
    const std::size_t h = static_cast<std::size_t>(half);
    const std::size_t other = i % (2 * h) < h ? i + h : i - h;
    return Gamma(5) * (std::fabs(before[i]) + std::fabs(before[other]));
  }));
}

TEST(GatedMulGoldenTest, ForwardAndBackwardMatchTorchAutograd) {
  const auto gate = Widened("silu.gate"), up = Widened("silu.up"), grad = Widened("silu.grad");
  const std::int64_t n = static_cast<std::int64_t>(gate.size());
  const auto view = [&](const std::vector<float>& x) { return MakeConstMatrix(x.data(), DType::kF32, 1, n); };
  std::vector<float> y(gate.size()), grad_gate(gate.size()), grad_up(gate.size());
  const auto out = [&](std::vector<float>& x) { return MakeMatrix(x.data(), DType::kF32, 1, n); };
  ASSERT_TRUE(GatedMul({Activation::kSilu, view(gate), view(up), out(y)}, plain).ok());
  ASSERT_TRUE(
      GatedMulBackward({Activation::kSilu, view(gate), view(up), view(grad), out(grad_gate), out(grad_up)}, plain)
          .ok());
  // Where exp overflows, the sigmoid becomes 0; its exact value there is below 2^-127.
  const auto term = [&](std::size_t i, double factor) {
    const double s = 1.0 / (1.0 + std::exp(-static_cast<double>(gate[i])));
    return factor * (s * Gamma(14) + 0x1p-127);
  };
  EXPECT_TRUE(AllWithin(y, Values().Get<double>("silu.y"),
                        [&](std::size_t i) { return term(i, std::fabs(static_cast<double>(gate[i]) * up[i])); }));
  EXPECT_TRUE(AllWithin(grad_up, Values().Get<double>("silu.grad_up"),
                        [&](std::size_t i) { return term(i, std::fabs(static_cast<double>(grad[i]) * gate[i])); }));
  EXPECT_TRUE(AllWithin(grad_gate, Values().Get<double>("silu.grad_gate"), [&](std::size_t i) {
    return term(i, std::fabs(static_cast<double>(grad[i]) * up[i]) * (1.0 + std::fabs(static_cast<double>(gate[i]))));
  }));
}

}  // namespace
}  // namespace nibble::kernels
