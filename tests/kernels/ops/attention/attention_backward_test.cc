#include "kernels/ops/attention/attention_backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/isas.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::kernels {
namespace {

using support::AllWithin;
using support::CpuStream;
using support::Gamma;
using support::GuardedBytes;

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

// The types of q and out, of k and v, and of grad_out.
struct Types {
  DType q = DType::kF32, kv = DType::kF32, grad = DType::kF32;
};
constexpr Types kBF16 = {DType::kBF16, DType::kBF16, DType::kBF16};

// Rows in segments, and the gradient of their result. q, k, v and grad_out hold values that their types can represent;
// out is rounded to its type when it is passed to the op.
struct Rows {
  std::int64_t kv_heads, group, d;
  std::vector<std::int64_t> segments;
  Types types = {};
  Floats q = {}, k = {}, v = {}, grad_out = {}, out = {}, logsumexp = {};

  std::int64_t heads() const { return kv_heads * group; }
  std::int64_t cols() const { return heads() * d; }
  std::int64_t kv_cols() const { return kv_heads * d; }
  std::int64_t rows() const { return segments.back(); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(d)); }
};

// The gradients in f64 and, for each, a bound on the rounding error of the op.
struct Exact {
  Doubles grad_q, grad_k, grad_v, bound_q, bound_k, bound_v;
};

double At(const Floats& m, std::int64_t i) { return static_cast<double>(m[static_cast<std::size_t>(i)]); }

// Also fills in `out` and `logsumexp` of the rows, which the op reads.
Exact ExactGradients(Rows& rows) {
  const auto q_size = static_cast<std::size_t>(rows.rows() * rows.cols());
  const auto kv_size = static_cast<std::size_t>(rows.rows() * rows.kv_cols());
  Exact exact = {Doubles(q_size), Doubles(kv_size), Doubles(kv_size),
                 Doubles(q_size), Doubles(kv_size), Doubles(kv_size)};
  rows.out.assign(q_size, 0.0f);
  rows.logsumexp.assign(static_cast<std::size_t>(rows.rows() * rows.heads()), 0.0f);
  const std::int64_t d = rows.d;
  const double scale = static_cast<double>(rows.scale());
  for (std::size_t s = 0; s + 1 < rows.segments.size(); ++s) {
    const std::int64_t begin = rows.segments[s], end = rows.segments[s + 1];
    const double chain = Gamma(d + rows.group * (end - begin) + 8);
    for (std::int64_t h = 0; h < rows.heads(); ++h) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t qi = i * rows.cols() + h * d;
        const auto kv = [&](std::int64_t j) { return j * rows.kv_cols() + h / rows.group * d; };
        const auto count = static_cast<std::size_t>(i - begin + 1);
        Doubles score(count), p(count), grad_p(count), size_p(count);
        double max = -HUGE_VAL, sum = 0, score_error = 0, delta = 0, size_delta = 0;
        for (std::size_t j = 0; j < count; ++j) {
          double size = 0;
          for (std::int64_t c = 0; c < d; ++c) {
            const std::int64_t at = kv(begin + static_cast<std::int64_t>(j)) + c;
            score[j] += scale * At(rows.q, qi + c) * At(rows.k, at);
            size += std::fabs(scale * At(rows.q, qi + c) * At(rows.k, at));
            grad_p[j] += At(rows.grad_out, qi + c) * At(rows.v, at);
            size_p[j] += std::fabs(At(rows.grad_out, qi + c) * At(rows.v, at));
          }
          max = std::max(max, score[j]);
          score_error = std::max(score_error, size * Gamma(d + 3));
        }
        for (const double x : score) sum += std::exp(x - max);
        const double logsumexp = max + std::log(sum);
        rows.logsumexp[static_cast<std::size_t>(i * rows.heads() + h)] = static_cast<float>(logsumexp);
        for (std::size_t j = 0; j < count; ++j) p[j] = std::exp(score[j] - logsumexp);
        for (std::int64_t c = 0; c < d; ++c) {
          double y = 0;
          for (std::size_t j = 0; j < count; ++j) y += p[j] * At(rows.v, kv(begin + static_cast<std::int64_t>(j)) + c);
          rows.out[static_cast<std::size_t>(qi + c)] = static_cast<float>(y);
          const double stored = At(rows.out, qi + c);  // the op reads the rounded value
          delta += At(rows.grad_out, qi + c) * stored;
          size_delta += std::fabs(At(rows.grad_out, qi + c) * stored);
        }
        // Bounds the relative error of a probability, from the score, the rounded logsumexp, their difference and Exp.
        const double relative =
            std::expm1(score_error + 4 * support::kEpsF32 * (std::fabs(max) + std::fabs(logsumexp) + 1));
        for (std::size_t j = 0; j < count; ++j) {
          const double ds = p[j] * (grad_p[j] - delta);
          const double size_ds = p[j] * (size_p[j] + size_delta);
          const double error_ds = size_ds * (relative + chain);
          for (std::int64_t c = 0; c < d; ++c) {
            const std::int64_t at = kv(begin + static_cast<std::int64_t>(j)) + c;
            const auto to_q = static_cast<std::size_t>(qi + c), to_kv = static_cast<std::size_t>(at);
            // 1e-40 covers results that are subnormal in f32.
            const double k = scale * At(rows.k, at), q = scale * At(rows.q, qi + c), g = At(rows.grad_out, qi + c);
            exact.grad_q[to_q] += ds * k;
            exact.bound_q[to_q] += std::fabs(k) * (error_ds + std::fabs(ds) * chain) + 1e-40;
            exact.grad_k[to_kv] += ds * q;
            exact.bound_k[to_kv] += std::fabs(q) * (error_ds + std::fabs(ds) * chain) + 1e-40;
            exact.grad_v[to_kv] += p[j] * g;
            exact.bound_v[to_kv] += std::fabs(p[j] * g) * (relative + chain) + 1e-40;
          }
        }
      }
    }
  }
  return exact;
}

Rows RandomRows(std::int64_t kv_heads, std::int64_t group, std::int64_t d, const std::vector<std::int64_t>& segments,
                Types types = {}, float q_size = 1.0f) {
  Rows rows{kv_heads, group, d, segments, types};
  const auto normal = [&](std::uint64_t seed, std::int64_t cols, float size, DType dtype) {
    Floats x = support::NormalVector(seed, rows.rows() * cols);
    for (float& value : x) value = dtype == DType::kBF16 ? ToFloat(ToBF16(value * size)) : value * size;
    return x;
  };
  rows.q = normal(1, rows.cols(), q_size, types.q);
  rows.k = normal(2, rows.kv_cols(), 1, types.kv);
  rows.v = normal(3, rows.kv_cols(), 1, types.kv);
  rows.grad_out = normal(4, rows.cols(), 1, types.grad);
  return rows;
}

struct Gradients {
  Floats q, k, v;
};

// Runs the op on copies of the inputs in the type of `rows`, with results between guards.
Gradients Backward(const Rows& rows, const Stream& stream) {
  const auto q = support::ToBytes(rows.q, rows.types.q), k = support::ToBytes(rows.k, rows.types.kv),
             v = support::ToBytes(rows.v, rows.types.kv), out = support::ToBytes(rows.out, rows.types.q),
             grad_out = support::ToBytes(rows.grad_out, rows.types.grad);
  const std::int64_t n = rows.rows();
  GuardedBytes grad_q(n * rows.cols() * 4), grad_k(n * rows.kv_cols() * 4), grad_v(n * rows.kv_cols() * 4);
  const auto in = [&](const auto& bytes, DType dtype, std::int64_t cols) {
    return MakeConstMatrix(bytes.data(), dtype, n, cols);
  };
  const absl::Status status =
      AttentionBackward({.q = in(q, rows.types.q, rows.cols()),
                         .k = in(k, rows.types.kv, rows.kv_cols()),
                         .v = in(v, rows.types.kv, rows.kv_cols()),
                         .out = in(out, rows.types.q, rows.cols()),
                         .grad_out = in(grad_out, rows.types.grad, rows.cols()),
                         .logsumexp = MakeConstMatrix(rows.logsumexp.data(), DType::kF32, n, rows.heads()),
                         .segments = rows.segments.data(),
                         .num_segments = static_cast<std::int64_t>(rows.segments.size()) - 1,
                         .num_heads = rows.heads(),
                         .num_kv_heads = rows.kv_heads,
                         .scale = rows.scale(),
                         .grad_q = MakeMatrix(grad_q.data(), DType::kF32, n, rows.cols()),
                         .grad_k = MakeMatrix(grad_k.data(), DType::kF32, n, rows.kv_cols()),
                         .grad_v = MakeMatrix(grad_v.data(), DType::kF32, n, rows.kv_cols())},
                        stream);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(grad_q.GuardsIntact() && grad_k.GuardsIntact() && grad_v.GuardsIntact());
  const auto floats = [](GuardedBytes& bytes) {
    return Floats(bytes.As<float>(), bytes.As<float>() + bytes.size() / 4);
  };
  return {floats(grad_q), floats(grad_k), floats(grad_v)};
}

void ExpectSameBits(const Gradients& got, const Gradients& want) {
  for (const Floats Gradients::* part : {&Gradients::q, &Gradients::k, &Gradients::v}) {
    ASSERT_EQ((got.*part).size(), (want.*part).size());
    EXPECT_TRUE(support::BytesEqual((got.*part).data(), (want.*part).data(), 4 * (want.*part).size()));
  }
}

void ExpectWithin(const Gradients& got, const Exact& exact) {
  EXPECT_TRUE(AllWithin(got.q, exact.grad_q, [&](std::size_t i) { return exact.bound_q[i]; }));
  EXPECT_TRUE(AllWithin(got.k, exact.grad_k, [&](std::size_t i) { return exact.bound_k[i]; }));
  EXPECT_TRUE(AllWithin(got.v, exact.grad_v, [&](std::size_t i) { return exact.bound_v[i]; }));
}

TEST(AttentionBackwardTest, PlainPathAgreesWithF64) {
  for (const std::int64_t d : {1, 7, 16, 40, 64}) {
    Rows rows = RandomRows(2, 3, d, {0, 33, 34, 34, 104});
    const Exact exact = ExactGradients(rows);
    SCOPED_TRACE(d);
    ExpectWithin(Backward(rows, CpuStream(Isa::kPlain)), exact);
  }
}

// Scores in the hundreds: one key has all the weight, and the exponentials of the others are 0.
TEST(AttentionBackwardTest, ExtremeScoresAgreeWithF64) {
  Rows rows = RandomRows(1, 2, 16, {0, 100}, {}, 300.0f);
  const Exact exact = ExactGradients(rows);
  for (const Isa isa : support::Isas()) ExpectWithin(Backward(rows, CpuStream(isa)), exact);
}

TEST(AttentionBackwardTest, EveryPathAndThreadCountGivesThePlainBits) {
  ThreadPool two(2), three(3);
  // The last two: an f32 result of a bf16 cache, and an f32 gradient of a bf16 result.
  for (const Types types : {Types{}, kBF16, Types{DType::kF32, DType::kBF16, DType::kF32},
                            Types{DType::kBF16, DType::kBF16, DType::kF32}}) {
    for (const std::int64_t d : {1, 16, 40, 80}) {
      for (const auto& [kv_heads, group] : {std::pair{2, 1}, {1, 3}, {2, 4}}) {
        for (const std::vector<std::int64_t>& segments :
             {std::vector<std::int64_t>{0, 1}, {0, 64, 128}, {0, 3, 3, 70}, {0, 17, 150}}) {
          SCOPED_TRACE(::testing::Message() << Name(types.q) << " " << Name(types.grad) << " d " << d << " heads "
                                            << kv_heads << " x " << group << " rows " << segments.back());
          Rows rows = RandomRows(kv_heads, group, d, segments, types);
          ExactGradients(rows);
          const Gradients want = Backward(rows, CpuStream(Isa::kPlain));
          for (const Isa isa : support::Isas()) {
            SCOPED_TRACE(Name(isa));
            for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three})
              ExpectSameBits(Backward(rows, CpuStream(isa, pool)), want);
          }
        }
      }
    }
  }
}

TEST(AttentionBackwardTest, NoRowsAndNoSegmentsAreNoWork) {
  for (const std::vector<std::int64_t>& segments : {std::vector<std::int64_t>{0}, {0, 0}, {0, 0, 0}}) {
    Rows rows = RandomRows(2, 2, 16, segments);
    for (const Isa isa : support::Isas()) EXPECT_TRUE(Backward(rows, CpuStream(isa)).q.empty());
  }
}

TEST(AttentionBackwardTest, SegmentsAreIndependent) {
  Rows both = RandomRows(1, 2, 40, {0, 50, 120});
  ExactGradients(both);
  for (const Isa isa : support::Isas()) {
    const Gradients want = Backward(both, CpuStream(isa));
    Rows changed = both;
    for (std::int64_t i = 0; i < 50 * changed.kv_cols(); ++i) changed.k[static_cast<std::size_t>(i)] = HUGE_VALF;
    const Gradients got = Backward(changed, CpuStream(isa));
    EXPECT_TRUE(std::equal(got.q.begin() + 50 * both.cols(), got.q.end(), want.q.begin() + 50 * both.cols()));
    EXPECT_TRUE(std::equal(got.k.begin() + 50 * both.kv_cols(), got.k.end(), want.k.begin() + 50 * both.kv_cols()));
    EXPECT_TRUE(std::equal(got.v.begin() + 50 * both.kv_cols(), got.v.end(), want.v.begin() + 50 * both.kv_cols()));
    EXPECT_TRUE(std::isnan(got.q[0]));
  }
}

// Heads are columns of wider matrices, and the segments do not cover all rows: nothing outside them is written.
TEST(AttentionBackwardTest, RowsMayBeStridedAndOutsideEverySegment) {
  Rows rows = RandomRows(2, 2, 16, {5, 40, 75});
  ExactGradients(rows);
  const std::int64_t n = rows.rows() + 3;
  const auto padded = [&](const Floats& from, std::int64_t cols) {
    Floats to(static_cast<std::size_t>(n * (cols + 9)), std::nanf(""));
    for (std::int64_t r = 0; r < rows.rows(); ++r)
      std::copy_n(from.begin() + r * cols, cols, to.begin() + r * (cols + 9));
    return to;
  };
  const auto q = padded(rows.q, rows.cols()), k = padded(rows.k, rows.kv_cols()), v = padded(rows.v, rows.kv_cols()),
             out = padded(rows.out, rows.cols()), grad_out = padded(rows.grad_out, rows.cols()),
             logsumexp = padded(rows.logsumexp, rows.heads());
  const auto in = [&](const Floats& x, std::int64_t cols) {
    return ConstMatrix{x.data(), DType::kF32, n, cols, cols + 9};
  };
  const Gradients want = Backward(rows, CpuStream(Isa::kPlain));
  for (const Isa isa : support::Isas()) {
    SCOPED_TRACE(Name(isa));
    const auto result = [&](std::int64_t cols) { return Floats(static_cast<std::size_t>(n * (cols + 9)), 7.0f); };
    Floats grad_q = result(rows.cols()), grad_k = result(rows.kv_cols()), grad_v = result(rows.kv_cols());
    const auto to = [&](Floats& x, std::int64_t cols) { return Matrix{x.data(), DType::kF32, n, cols, cols + 9}; };
    ASSERT_TRUE(AttentionBackward({.q = in(q, rows.cols()),
                                   .k = in(k, rows.kv_cols()),
                                   .v = in(v, rows.kv_cols()),
                                   .out = in(out, rows.cols()),
                                   .grad_out = in(grad_out, rows.cols()),
                                   .logsumexp = in(logsumexp, rows.heads()),
                                   .segments = rows.segments.data(),
                                   .num_segments = 2,
                                   .num_heads = 4,
                                   .num_kv_heads = 2,
                                   .scale = rows.scale(),
                                   .grad_q = to(grad_q, rows.cols()),
                                   .grad_k = to(grad_k, rows.kv_cols()),
                                   .grad_v = to(grad_v, rows.kv_cols())},
                                  CpuStream(isa))
                    .ok());
    const auto check = [&](const Floats& got, const Floats& whole, std::int64_t cols) {
      for (std::int64_t i = 0; i < n * (cols + 9); ++i) {
        const std::int64_t row = i / (cols + 9), column = i % (cols + 9);
        const bool inside = row >= 5 && row < 75 && column < cols;
        ASSERT_EQ(At(got, i), inside ? At(whole, row * cols + column) : 7.0) << "row " << row << " column " << column;
      }
    };
    check(grad_q, want.q, rows.cols());
    check(grad_k, want.k, rows.kv_cols());
    check(grad_v, want.v, rows.kv_cols());
  }
}

// torch's autograd through scaled_dot_product_attention, in float64.
TEST(AttentionBackwardTest, AgreesWithTorch) {
  const support::Golden golden("tests/golden/kernels/attention.txt");
  for (const std::string name : {"backward", "backward_sharp"}) {
    SCOPED_TRACE(name);
    const auto shape = golden.Get<std::int64_t>(name + ".shape");
    Rows rows{shape[0], shape[1], shape[2], golden.Get<std::int64_t>(name + ".segments")};
    const auto widened = [&](const char* part) {
      Floats x;
      for (const BF16 value : golden.Get<BF16>(name + part)) x.push_back(ToFloat(value));
      return x;
    };
    rows.q = widened(".q");
    rows.k = widened(".k");
    rows.v = widened(".v");
    rows.grad_out = widened(".grad_out");
    const Exact exact = ExactGradients(rows);
    const Gradients got = Backward(rows, CpuStream(Isa::kPlain));
    EXPECT_TRUE(
        AllWithin(got.q, golden.Get<double>(name + ".grad_q"), [&](std::size_t i) { return exact.bound_q[i]; }));
    EXPECT_TRUE(
        AllWithin(got.k, golden.Get<double>(name + ".grad_k"), [&](std::size_t i) { return exact.bound_k[i]; }));
    EXPECT_TRUE(
        AllWithin(got.v, golden.Get<double>(name + ".grad_v"), [&](std::size_t i) { return exact.bound_v[i]; }));
  }
}

TEST(AttentionBackwardTest, RejectsArgumentsThatDoNotFit) {
  Floats x(256), y(256);
  const auto in = [&](std::int64_t cols) { return MakeConstMatrix(x.data(), DType::kF32, 4, cols); };
  const auto to = [&](std::int64_t cols) { return MakeMatrix(y.data(), DType::kF32, 4, cols); };
  std::vector<std::int64_t> segments = {0, 4};
  const AttentionBackwardArgs good{in(32), in(16), in(16), in(32), in(32), in(4),  segments.data(),
                                   1,      4,      2,      1.0f,   to(32), to(16), to(16)};
  const Stream stream = CpuStream(Isa::kPlain);
  ASSERT_TRUE(AttentionBackward(good, stream).ok());
  const auto message = [&](auto change) {
    AttentionBackwardArgs args = good;
    change(args);
    const absl::Status status = AttentionBackward(args, stream);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message([](auto& a) { a.num_heads = 3; }),
            "attention_backward: wanted num_heads above 0, a multiple of num_kv_heads");
  EXPECT_EQ(message([&](auto& a) { a.k = in(32); }), "attention_backward: k is [4, 32] with stride 32, wanted [4, 16]");
  EXPECT_EQ(message([&](auto& a) { a.logsumexp = in(2); }),
            "attention_backward: logsumexp is [4, 2] with stride 2, wanted [4, 4]");
  EXPECT_EQ(message([](auto& a) { a.grad_v.dtype = DType::kBF16; }), "attention_backward: grad_v has dtype bf16");
  EXPECT_EQ(message([](auto& a) { a.scale = HUGE_VALF; }), "attention_backward: wanted a finite scale");
  EXPECT_EQ(message([](auto& a) { a.segments = nullptr; }),
            "attention_backward: wanted segments, with the end of the last one");
  segments = {0, 5};
  EXPECT_EQ(message([](auto&) {}), "attention_backward: wanted segments within the rows of q");
  segments = {4, 0};
  EXPECT_EQ(message([](auto&) {}), "attention_backward: wanted segments in ascending order");
  segments = {-1, 4};
  EXPECT_EQ(message([](auto&) {}), "attention_backward: wanted segments from row 0 on");
}

}  // namespace
}  // namespace nibble::kernels
