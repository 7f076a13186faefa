#include "kernels/ops/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ops/attention/kv_store.h"
#include "tests/kernels/ops/attention/paged_cache.h"
#include "tests/support/isas.h"
#include "tests/support/numeric.h"

namespace nibble::kernels {
namespace {

using support::BytesEqual;
using support::CpuStream;
using support::Isas;

struct Shape {
  std::int64_t kv_heads;
  std::int64_t group;  // query heads that share a KV head
  std::int64_t head_dim;
  DType cache;
  std::int64_t heads() const { return kv_heads * group; }
};

// q, k, v of one sequence, f32.
struct Sequence {
  Sequence(const Shape& s, std::int64_t n, std::uint64_t seed)
      : length(n),
        q(support::NormalVector(seed, n * s.heads() * s.head_dim)),
        k(support::NormalVector(seed + 1000, n * s.kv_heads * s.head_dim)),
        v(support::NormalVector(seed + 2000, n * s.kv_heads * s.head_dim)) {}
  std::int64_t length;
  std::vector<float> q, k, v;
};

struct Result {
  std::vector<float> out;        // [T, H * d]
  std::vector<float> logsumexp;  // [T, H]
};

// Part of a step: rows [first, first + count) of one sequence.
struct Part {
  std::size_t sequence;
  std::int64_t first;
  std::int64_t count;
};

float Scale(const Shape& s) { return 1.0f / std::sqrt(static_cast<float>(s.head_dim)); }

// Stores and attends the rows of a step; writes results to the rows' places in each sequence's Result.
void Step(const Shape& s, PagedCache& cache, const std::vector<Sequence>& sequences, const std::vector<Part>& parts,
          const Stream& stream, std::vector<Result>* results) {
  std::vector<std::int32_t> sequence, position;
  std::vector<float> q, k, v;
  const auto append = [](const std::vector<float>& from, std::int64_t first, std::int64_t count,
                         std::vector<float>* to) {
    to->insert(to->end(), from.begin() + first, from.begin() + first + count);
  };
  const std::int64_t q_cols = s.heads() * s.head_dim;
  const std::int64_t kv_cols = s.kv_heads * s.head_dim;
  for (const Part& part : parts) {
    const Sequence& from = sequences[part.sequence];
    for (std::int64_t i = 0; i < part.count; ++i) {
      sequence.push_back(static_cast<std::int32_t>(part.sequence));
      position.push_back(static_cast<std::int32_t>(part.first + i));
    }
    append(from.q, part.first * q_cols, part.count * q_cols, &q);
    append(from.k, part.first * kv_cols, part.count * kv_cols, &k);
    append(from.v, part.first * kv_cols, part.count * kv_cols, &v);
  }
  const std::int64_t rows = static_cast<std::int64_t>(sequence.size());
  const KvRows kv_rows = cache.Rows(sequence, position);
  ASSERT_TRUE(KvStore({.k = MakeConstMatrix(k.data(), DType::kF32, rows, kv_cols),
                       .v = MakeConstMatrix(v.data(), DType::kF32, rows, kv_cols),
                       .cache = cache.view(),
                       .layer = 0,
                       .rows = kv_rows},
                      stream)
                  .ok());
  support::GuardedBytes out(rows * q_cols * 4);
  std::vector<float> logsumexp(static_cast<std::size_t>(rows * s.heads()));
  const absl::Status status = Attention({.q = MakeConstMatrix(q.data(), DType::kF32, rows, q_cols),
                                         .cache = cache.view(),
                                         .layer = 0,
                                         .rows = kv_rows,
                                         .num_heads = s.heads(),
                                         .scale = Scale(s),
                                         .out = MakeMatrix(out.data(), DType::kF32, rows, q_cols),
                                         .logsumexp = logsumexp.data()},
                                        stream);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(out.GuardsIntact());
  std::int64_t row = 0;
  for (const Part& part : parts) {
    Result& to = (*results)[part.sequence];
    for (std::int64_t i = 0; i < part.count; ++i, ++row) {
      std::copy_n(out.As<float>() + row * q_cols, q_cols, to.out.begin() + (part.first + i) * q_cols);
      std::copy_n(logsumexp.begin() + row * s.heads(), s.heads(), to.logsumexp.begin() + (part.first + i) * s.heads());
    }
  }
}

std::vector<Result> EmptyResults(const Shape& s, const std::vector<Sequence>& sequences) {
  std::vector<Result> results;
  for (const Sequence& sequence : sequences) {
    results.push_back({std::vector<float>(static_cast<std::size_t>(sequence.length * s.heads() * s.head_dim)),
                       std::vector<float>(static_cast<std::size_t>(sequence.length * s.heads()))});
  }
  return results;
}

std::int64_t Pages(const std::vector<Sequence>& sequences) {
  std::int64_t longest = 0;
  for (const Sequence& sequence : sequences) longest = std::max(longest, sequence.length);
  return (longest + kKvPageTokens - 1) / kKvPageTokens;
}

// Runs all sequences side by side, `chunk` rows of each per step.
std::vector<Result> RunInChunks(const Shape& s, const std::vector<Sequence>& sequences, std::int64_t chunk,
                                const Stream& stream, std::uint64_t page_seed) {
  PagedCache cache(s.cache, 1, s.kv_heads, s.head_dim, static_cast<std::int64_t>(sequences.size()), Pages(sequences),
                   page_seed);
  std::vector<Result> results = EmptyResults(s, sequences);
  for (std::int64_t first = 0;; first += chunk) {
    std::vector<Part> parts;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const std::int64_t count = std::min(chunk, sequences[i].length - first);
      if (count > 0) parts.push_back({i, first, count});
    }
    if (parts.empty()) return results;
    Step(s, cache, sequences, parts, stream, &results);
    if (::testing::Test::HasFatalFailure()) return results;
  }
}

void ExpectSameBits(const Result& got, const Result& want) {
  ASSERT_EQ(got.out.size(), want.out.size());
  EXPECT_TRUE(BytesEqual(got.out.data(), want.out.data(), 4 * want.out.size()));
  EXPECT_TRUE(BytesEqual(got.logsumexp.data(), want.logsumexp.data(), 4 * want.logsumexp.size()));
}

// f64 softmax attention over the values that the cache holds, with a bound from the sizes of the terms.
void ExpectNearF64(const Shape& s, const Sequence& sequence, const Result& got) {
  const auto cached = [&](float x) { return s.cache == DType::kBF16 ? static_cast<double>(ToFloat(ToBF16(x))) : x; };
  const std::int64_t d = s.head_dim;
  for (std::int64_t t = 0; t < sequence.length; ++t) {
    for (std::int64_t h = 0; h < s.heads(); ++h) {
      const std::int64_t kv_row = s.kv_heads * d;
      const std::int64_t kv = h / s.group * d;
      std::vector<double> score(static_cast<std::size_t>(t + 1));
      double max = -HUGE_VAL;
      double score_error = 0;  // the largest error of a score
      for (std::int64_t j = 0; j <= t; ++j) {
        double dot = 0, size = 0;
        for (std::int64_t i = 0; i < d; ++i) {
          const double term = static_cast<double>(sequence.q[static_cast<std::size_t>((t * s.heads() + h) * d + i)]) *
                              cached(sequence.k[static_cast<std::size_t>(j * kv_row + kv + i)]);
          dot += term;
          size += std::fabs(term);
        }
        const double scale = static_cast<double>(Scale(s));
        score[static_cast<std::size_t>(j)] = dot * scale;
        max = std::max(max, dot * scale);
        score_error = std::max(score_error, size * scale * support::Gamma(d + 2));
      }
      double sum = 0;
      for (double& p : score) {
        p = std::exp(p - max);  // from here on, `score` holds weights that are not divided by `sum` yet
        sum += p;
      }
      // Bounds the error of a weight: twice the score's error, and the roundings of exp, the sums and the rescaling.
      const double relative = 2 * score_error + support::Gamma(t + 40) + 40 * support::kEpsF32;
      for (std::int64_t i = 0; i < d; ++i) {
        double y = 0, size = 0;
        for (std::int64_t j = 0; j <= t; ++j) {
          const double term = score[static_cast<std::size_t>(j)] / sum *
                              cached(sequence.v[static_cast<std::size_t>(j * kv_row + kv + i)]);
          y += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(got.out[static_cast<std::size_t>((t * s.heads() + h) * d + i)], y, 2 * relative * size);
      }
      ASSERT_NEAR(got.logsumexp[static_cast<std::size_t>(t * s.heads() + h)], max + std::log(sum),
                  score_error + support::Gamma(t + 40) + support::kEpsF32 * 2 * (std::fabs(max) + std::log(sum)));
    }
  }
}

TEST(AttentionTest, PlainPathAgreesWithF64) {
  for (const DType cache : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t d : {8, 16, 40, 64}) {
      const Shape s{2, 3, d, cache};
      const std::vector<Sequence> sequences = {Sequence(s, 70, 1)};
      ExpectNearF64(s, sequences[0], RunInChunks(s, sequences, 70, CpuStream(Isa::kPlain), 1)[0]);
    }
  }
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const DType cache : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t d : {8, 16, 40, 64, 80, 128}) {
      for (const std::int64_t group : {1, 3, 4}) shapes.push_back({2, group, d, cache});
    }
  }
  return shapes;
}

TEST(AttentionTest, WholeChunkedAndTokenByTokenAreEqualOnEveryPath) {
  for (const Shape& s : Shapes()) {
    SCOPED_TRACE(::testing::Message() << "d " << s.head_dim << " group " << s.group << " cache " << Name(s.cache));
    const std::vector<Sequence> sequences = {Sequence(s, 100, 3)};
    const Result want = RunInChunks(s, sequences, 100, CpuStream(Isa::kPlain), 1)[0];
    for (const Isa isa : Isas()) {
      for (const std::int64_t chunk : {100, 1, 3, 32, 33}) {
        SCOPED_TRACE(::testing::Message() << Name(isa) << " chunk " << chunk);
        ExpectSameBits(RunInChunks(s, sequences, chunk, CpuStream(isa), static_cast<std::uint64_t>(chunk))[0], want);
      }
    }
  }
}

TEST(AttentionTest, ResultsAloneAndAmongEightSequencesAreEqualForAnyPagesAndThreads) {
  for (const Shape& s : {Shape{3, 3, 64, DType::kBF16}, Shape{1, 4, 40, DType::kF32}, Shape{2, 1, 128, DType::kBF16},
                         Shape{1, 40, 8, DType::kBF16}}) {
    SCOPED_TRACE(::testing::Message() << "d " << s.head_dim << " group " << s.group << " cache " << Name(s.cache));
    std::vector<Sequence> sequences;
    const std::int64_t lengths[] = {1, 31, 32, 33, 64, 65, 90, 7};
    for (std::uint64_t i = 0; i < 8; ++i) sequences.emplace_back(s, lengths[i], 10 * i);
    std::vector<Result> alone;
    for (const Sequence& sequence : sequences) {
      alone.push_back(RunInChunks(s, {sequence}, sequence.length, CpuStream(Isa::kPlain), 1)[0]);
    }
    for (const Isa isa : Isas()) {
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (const std::int64_t chunk : {90, 1, 20}) {
          SCOPED_TRACE(::testing::Message() << Name(isa) << " threads " << threads << " chunk " << chunk);
          const auto together =
              RunInChunks(s, sequences, chunk, CpuStream(isa, &pool), static_cast<std::uint64_t>(threads) + 50);
          for (std::size_t i = 0; i < sequences.size(); ++i) ExpectSameBits(together[i], alone[i]);
        }
      }
    }
  }
}

// Prefill of one sequence beside decode of others, as the scheduler mixes them.
TEST(AttentionTest, MixedPrefillAndDecodeStepsChangeNoBit) {
  const Shape s{1, 3, 64, DType::kBF16};
  const std::vector<Sequence> sequences = {Sequence(s, 80, 1), Sequence(s, 40, 2), Sequence(s, 36, 3)};
  const std::vector<Result> want = RunInChunks(s, sequences, 80, CpuStream(Isa::kPlain), 1);
  for (const Isa isa : Isas()) {
    PagedCache cache(s.cache, 1, s.kv_heads, s.head_dim, 3, Pages(sequences), 9);
    std::vector<Result> got = EmptyResults(s, sequences);
    ThreadPool pool(2);
    const Stream stream = CpuStream(isa, &pool);
    Step(s, cache, sequences, {{1, 0, 38}, {0, 0, 17}}, stream, &got);
    Step(s, cache, sequences, {{2, 0, 35}, {1, 38, 1}, {0, 17, 47}}, stream, &got);
    Step(s, cache, sequences, {{0, 64, 16}, {1, 39, 1}, {2, 35, 1}}, stream, &got);
    for (std::size_t i = 0; i < 3; ++i) ExpectSameBits(got[i], want[i]);
  }
}

// A later token must not affect an earlier row, not even by a NaN or an infinity.
TEST(AttentionTest, NonFiniteValuesOfLaterPositionsDoNotReachEarlierRows) {
  const Shape s{1, 2, 16, DType::kF32};
  std::vector<Sequence> clean = {Sequence(s, 40, 1)};
  std::vector<Sequence> dirty = clean;
  for (std::int64_t i = 35 * 16; i < 36 * 16; ++i) {
    dirty[0].k[static_cast<std::size_t>(i)] = std::nanf("");
    dirty[0].v[static_cast<std::size_t>(i)] = HUGE_VALF;
  }
  for (const Isa isa : Isas()) {
    const Result a = RunInChunks(s, clean, 40, CpuStream(isa), 1)[0];
    const Result b = RunInChunks(s, dirty, 40, CpuStream(isa), 1)[0];
    EXPECT_TRUE(BytesEqual(b.out.data(), a.out.data(), 35 * 32 * 4));
    EXPECT_TRUE(std::isnan(b.out[35 * 32]));
    EXPECT_TRUE(std::isnan(b.out[39 * 32]));
  }
}

// Scores in the hundreds: one key takes all the weight, the others' exponentials vanish, and rescaling by 0 gives no
// NaN.
TEST(AttentionTest, ExtremeScoresStayFinite) {
  const Shape s{1, 1, 16, DType::kF32};
  std::vector<Sequence> sequences = {Sequence(s, 100, 1)};
  for (float& x : sequences[0].q) x *= 300.0f;
  const Result plain = RunInChunks(s, sequences, 100, CpuStream(Isa::kPlain), 1)[0];
  ExpectNearF64(s, sequences[0], plain);
  for (const Isa isa : Isas()) ExpectSameBits(RunInChunks(s, sequences, 7, CpuStream(isa), 1)[0], plain);
}

// q and out are parts of wider matrices: their strides exceed the length of their rows.
TEST(AttentionTest, RowsMayBeStrided) {
  const Shape s{2, 2, 16, DType::kF32};
  const std::vector<Sequence> sequences = {Sequence(s, 40, 1)};
  const Result want = RunInChunks(s, sequences, 40, CpuStream(Isa::kPlain), 1)[0];
  PagedCache cache(s.cache, 1, 2, 16, 1, 2, 1);
  std::vector<Result> results = EmptyResults(s, sequences);
  Step(s, cache, sequences, {{0, 0, 40}}, CpuStream(Isa::kPlain), &results);
  constexpr std::int64_t kCols = 64, kQStride = 100, kOutStride = 70;
  std::vector<float> q(40 * kQStride, std::nanf(""));
  for (std::int64_t r = 0; r < 40; ++r)
    std::copy_n(sequences[0].q.begin() + r * kCols, kCols, q.begin() + r * kQStride);
  const std::vector<std::int32_t> sequence(40, 0);
  std::vector<std::int32_t> position(40);
  for (std::size_t i = 0; i < 40; ++i) position[i] = static_cast<std::int32_t>(i);
  for (const Isa isa : Isas()) {
    std::vector<float> out(40 * kOutStride, 7.0f), logsumexp(160);
    AttentionArgs args{.q = MakeConstMatrix(q.data(), DType::kF32, 40, kCols),
                       .cache = cache.view(),
                       .layer = 0,
                       .rows = cache.Rows(sequence, position),
                       .num_heads = 4,
                       .scale = Scale(s),
                       .out = MakeMatrix(out.data(), DType::kF32, 40, kCols),
                       .logsumexp = logsumexp.data()};
    args.q.stride = kQStride;
    args.out.stride = kOutStride;
    ASSERT_TRUE(Attention(args, CpuStream(isa)).ok());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t row = i / kOutStride, column = i % kOutStride;
      ASSERT_EQ(out[i], column < kCols ? want.out[row * kCols + column] : 7.0f) << Name(isa) << " " << i;
    }
    EXPECT_EQ(logsumexp, want.logsumexp) << Name(isa);
  }
}

TEST(AttentionTest, Bf16InputAndOutputUseTheSameArithmetic) {
  const Shape s{2, 2, 40, DType::kBF16};
  std::vector<Sequence> sequences = {Sequence(s, 50, 1)};
  for (float& x : sequences[0].q) x = ToFloat(ToBF16(x));
  const auto q = support::ConvertTo<BF16>(sequences[0].q);
  const Result want = RunInChunks(s, sequences, 50, CpuStream(Isa::kPlain), 1)[0];
  PagedCache cache(s.cache, 1, s.kv_heads, s.head_dim, 1, 2, 1);
  std::vector<Result> results = EmptyResults(s, sequences);
  Step(s, cache, sequences, {{0, 0, 50}}, CpuStream(Isa::kPlain), &results);
  const std::vector<std::int32_t> sequence(50, 0);
  std::vector<std::int32_t> position(50);
  for (std::size_t i = 0; i < 50; ++i) position[i] = static_cast<std::int32_t>(i);
  for (const Isa isa : Isas()) {
    support::GuardedBytes out(50 * 160 * 2);
    ASSERT_TRUE(Attention({.q = MakeConstMatrix(q.data(), DType::kBF16, 50, 160),
                           .cache = cache.view(),
                           .layer = 0,
                           .rows = cache.Rows(sequence, position),
                           .num_heads = 4,
                           .scale = Scale(s),
                           .out = MakeMatrix(out.data(), DType::kBF16, 50, 160),
                           .logsumexp = nullptr},
                          CpuStream(isa))
                    .ok());
    EXPECT_TRUE(out.GuardsIntact());
    const auto narrow = support::ConvertTo<BF16>(want.out);
    EXPECT_TRUE(BytesEqual(out.data(), narrow.data(), out.size())) << Name(isa);
  }
}

TEST(AttentionTest, RejectsArgumentsThatDoNotFit) {
  const Shape s{2, 2, 8, DType::kF32};
  PagedCache cache(s.cache, 1, 2, 8, 1, 1, 1);
  std::vector<float> q(64), out(64);
  const std::vector<std::int32_t> sequence = {0, 0}, position = {0, 32};
  AttentionArgs args{.q = MakeConstMatrix(q.data(), DType::kF32, 2, 32),
                     .cache = cache.view(),
                     .layer = 0,
                     .rows = cache.Rows(sequence, position),
                     .num_heads = 4,
                     .scale = 1.0f,
                     .out = MakeMatrix(out.data(), DType::kF32, 2, 32),
                     .logsumexp = nullptr};
  const Stream stream = CpuStream(Isa::kPlain);
  EXPECT_NE(Attention(args, stream).message().find("position[1] is 32"), std::string::npos);
  args.num_heads = 3;
  EXPECT_NE(Attention(args, stream).message().find("num_heads"), std::string::npos);
  args.num_heads = 4;
  args.out = MakeMatrix(q.data(), DType::kF32, 2, 32);
  EXPECT_NE(Attention(args, stream).message().find("out that does not alias q"), std::string::npos);
}

}  // namespace
}  // namespace nibble::kernels
