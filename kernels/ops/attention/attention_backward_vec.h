// The body of attention_backward.h for any Vec (vec16_*.h): the operations of attention_backward_cpu.cc, for blocks of
// 64 queries by 64 keys at a time. Block sizes do not affect the result's bits: blocks follow each other in the order
// of the chains, and a masked key adds 0.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <new>
#include <utility>

#include "kernels/math.h"
#include "kernels/ops/attention/attention_backward_launch.h"
#include "kernels/ops/attention/register_tile_vec.h"
#include "kernels/vec_rows.h"

namespace nibble::kernels {

// Where the sums of each query head for grad_k and grad_v go: row r of the batch to row r - first_row of k and v
// [rows, H * d].
struct HeadSums {
  Matrix k, v;
  std::int64_t first_row = 0;
  float scale_k = 1;  // factor of the sums for grad_k; 1 if AddHeads scales them
};

// One head of one segment at a time; the scratch of one thread.
template <typename Vec>
class AttentionBackwardHead {
 public:
  // `longest`: rows of the longest segment.
  AttentionBackwardHead(const AttentionBackwardArgs& args, std::int64_t longest, const HeadSums& sums)
      : args_(args), sums_(sums), d_(args.q.cols / args.num_heads), padded_d_((d_ + 15) / 16 * 16) {
    const std::int64_t rows = (longest + kBlock - 1) / kBlock * kBlock;
    const std::int64_t block = kBlock * padded_d_;
    // The sum of the take() calls below.
    const std::int64_t floats = rows * padded_d_ + rows + 7 * block + 2 * kBlock * kBlock;
    scratch_.reset(new (std::align_val_t{64}, std::nothrow) float[static_cast<std::size_t>(floats)]);
    float* next = scratch_.get();
    const auto take = [&](std::int64_t n) { return std::exchange(next, next == nullptr ? nullptr : next + n); };
    grad_q_ = take(rows * padded_d_);
    delta_ = take(rows);
    q_ = take(block);
    grad_out_ = take(block);
    k_ = take(block);
    k_transposed_ = take(block);
    v_transposed_ = take(block);
    grad_k_ = take(block);
    grad_v_ = take(block);
    p_ = take(kBlock * kBlock);
    ds_ = take(kBlock * kBlock);
  }

  bool has_memory() const { return scratch_ != nullptr; }

  void Run(std::int64_t begin, std::int64_t size, std::int64_t head) {
    const std::int64_t kv_head = head / (args_.num_heads / args_.num_kv_heads);
    begin_ = begin;
    size_ = size;
    head_ = head;
    const ConstMatrix q = Head(args_.q, head), grad_out = Head(args_.grad_out, head);
    const ConstMatrix k = Head(args_.k, kv_head), v = Head(args_.v, kv_head);
    FindDelta(grad_out, Head(args_.out, head));
    std::fill_n(grad_q_, (size + kBlock - 1) / kBlock * kBlock * padded_d_, 0.0f);
    for (std::int64_t key = 0; key < size; key += kBlock) {
      LoadBlock(v, key, k_);  // k_ holds v until v is transposed
      Transpose(k_, v_transposed_);
      LoadBlock(k, key, k_);
      Transpose(k_, k_transposed_);
      std::fill_n(grad_k_, kBlock * padded_d_, 0.0f);
      std::fill_n(grad_v_, kBlock * padded_d_, 0.0f);
      for (std::int64_t query = key; query < size; query += kBlock) {
        LoadBlock(q, query, q_);
        LoadBlock(grad_out, query, grad_out_);
        Block(query, key);
      }
      const std::int64_t row = begin - sums_.first_row + key;
      Store(grad_k_, RowsFrom(key), sums_.scale_k, Head(sums_.k, head), row);
      Store(grad_v_, RowsFrom(key), 1.0f, Head(sums_.v, head), row);
    }
    Store(grad_q_, size, args_.scale, Head(args_.grad_q, head), begin);
  }

 private:
  static constexpr std::int64_t kBlock = 64;               // queries and keys
  static constexpr int kRows = 4;                          // of a tile of sums
  static constexpr int kWide = Vec::kVectors > 8 ? 4 : 1;  // vectors of a tile's row: kRows * kWide sums in registers

  struct Free {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };

  template <typename View>
  View Head(const View& m, std::int64_t head) const {
    return Columns(m, head * d_, d_);
  }
  std::int64_t RowsFrom(std::int64_t first) const { return std::min(kBlock, size_ - first); }

  void FindDelta(const ConstMatrix& grad_out, const ConstMatrix& out) {
    for (std::int64_t i = 0; i < size_; ++i) {
      Vec sum = Vec::Zero();
      for (std::int64_t c = 0; c < d_; c += 16)
        sum = Vec::Fma(LoadLanes<Vec>(grad_out, begin_ + i, c), LoadLanes<Vec>(out, begin_ + i, c), sum);
      delta_[i] = sum.ReduceSum();
    }
  }

  // Rows [first, first + 64) of the segment as f32 [64, padded_d]; 0 past its end and past d.
  void LoadBlock(const ConstMatrix& from, std::int64_t first, float* to) const {
    const std::int64_t rows = RowsFrom(first);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < d_; c += 16)
        LoadLanes<Vec>(from, begin_ + first + r, c).Store(to + r * padded_d_ + c);
    }
    std::fill(to + rows * padded_d_, to + kBlock * padded_d_, 0.0f);
  }

  void Transpose(const float* block, float* to) const {
    for (std::int64_t c = 0; c < d_; ++c) {
      for (std::int64_t r = 0; r < kBlock; ++r) to[c * kBlock + r] = block[r * padded_d_ + c];
    }
  }

  // `rows` rows [padded_d], times factor, to the rows of `to` from `first` on.
  void Store(const float* from, std::int64_t rows, float factor, const Matrix& to, std::int64_t first) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < d_; c += 16)
        StoreLanes(Vec::Set1(factor) * Vec::Load(from + r * padded_d_ + c), to, first + r, c);
    }
  }

  // The right factor of a product: rows of b, `stride` elements apart.
  struct Right {
    const float* b;
    std::int64_t stride;
  };
  // AddToTile for kRows rows and `columns` columns, a multiple of 16.
  static void Tiles(TileLeft left, Right right, std::int64_t n, bool from_zero, float* sums, std::int64_t stride,
                    std::int64_t columns) {
    std::int64_t column = 0;
    for (; column + kWide * 16 <= columns; column += kWide * 16)
      AddToTile<Vec, kRows, kWide>(left, right.b + column, right.stride, n, from_zero, sums + column, stride);
    for (; column < columns; column += 16)
      AddToTile<Vec, kRows, 1>(left, right.b + column, right.stride, n, from_zero, sums + column, stride);
  }

  // Adds what the queries from `query` on and the keys from `key` on contribute to grad_q_, grad_k_ and grad_v_.
  void Block(std::int64_t query, std::int64_t key) {
    const bool diagonal = query == key;
    const std::int64_t queries = (RowsFrom(query) + kRows - 1) / kRows * kRows;
    const std::int64_t keys = (RowsFrom(key) + kRows - 1) / kRows * kRows;
    for (std::int64_t i = 0; i < queries; i += kRows) {
      // A query of the diagonal block sees the keys up to itself: later vectors are neither computed nor read.
      const std::int64_t columns = ((diagonal ? i + kRows : keys) + 15) / 16 * 16;
      Tiles({q_ + i * padded_d_, padded_d_, 1}, {k_transposed_, kBlock}, d_, /*from_zero=*/true, p_ + i * kBlock,
            kBlock, columns);
      Tiles({grad_out_ + i * padded_d_, padded_d_, 1}, {v_transposed_, kBlock}, d_, /*from_zero=*/true,
            ds_ + i * kBlock, kBlock, columns);
      for (std::int64_t r = i; r < i + kRows; ++r) FindScores(query + r, diagonal ? r + 1 : kBlock, r, columns);
    }
    for (std::int64_t j = 0; j < keys; j += kRows) {
      const std::int64_t first = diagonal ? j : 0;  // the first query that sees a key of the tile
      const std::int64_t n = queries - first;
      const auto left = [&](const float* scores) { return TileLeft{scores + first * kBlock + j, 1, kBlock}; };
      Tiles(left(p_), {grad_out_ + first * padded_d_, padded_d_}, n, /*from_zero=*/false, grad_v_ + j * padded_d_,
            padded_d_, padded_d_);
      Tiles(left(ds_), {q_ + first * padded_d_, padded_d_}, n, /*from_zero=*/false, grad_k_ + j * padded_d_, padded_d_,
            padded_d_);
    }
    for (std::int64_t i = 0; i < queries; i += kRows) {
      Tiles({ds_ + i * kBlock, kBlock, 1}, {k_, padded_d_}, diagonal ? i + kRows : keys, /*from_zero=*/false,
            grad_q_ + (query + i) * padded_d_, padded_d_, padded_d_);
    }
  }

  // Turns a row of products into probabilities and gradients of scores; 0 past the `seen` first keys.
  void FindScores(std::int64_t query, std::int64_t seen, std::int64_t row, std::int64_t columns) {
    float* p = p_ + row * kBlock;
    float* ds = ds_ + row * kBlock;
    if (query >= size_) {
      std::fill_n(p, columns, 0.0f);
      std::fill_n(ds, columns, 0.0f);
      return;
    }
    const Vec scale = Vec::Set1(args_.scale), delta = Vec::Set1(delta_[query]);
    const Vec logsumexp = Vec::Set1(args_.logsumexp.template Row<float>(begin_ + query)[head_]);
    for (std::int64_t j = 0; j < columns; j += 16) {
      Vec probability = Exp(Vec::Load(p + j) * scale - logsumexp);
      Vec gradient = probability * (Vec::Load(ds + j) - delta);
      if (seen < j + 16) {
        const Vec lane = Vec::Load(kLaneIndex), end = Vec::Set1(static_cast<float>(seen - j));
        probability = Vec::SelectLess(lane, end, probability, Vec::Zero());
        gradient = Vec::SelectLess(lane, end, gradient, Vec::Zero());
      }
      probability.Store(p + j);
      gradient.Store(ds + j);
    }
  }

  static constexpr float kLaneIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

  const AttentionBackwardArgs& args_;
  const HeadSums sums_;
  const std::int64_t d_, padded_d_;
  std::unique_ptr<float[], Free> scratch_;
  float* grad_q_;        // [rows of the segment, padded_d]
  float* delta_;         // [rows of the segment]: grad_out . out
  float* q_;             // [64, padded_d]
  float* grad_out_;      // [64, padded_d]
  float* k_;             // [64, padded_d]
  float* k_transposed_;  // [d, 64]
  float* v_transposed_;  // [d, 64]
  float* grad_k_;        // [64, padded_d]
  float* grad_v_;        // [64, padded_d]
  float* p_;             // [64, 64]: products q . k, then probabilities
  float* ds_;            // [64, 64]: products grad_out . v, then gradients of the scores
  std::int64_t begin_ = 0, size_ = 0, head_ = 0;
};

// Stores the sum of the heads of each group, times factor, in a row of `to` [T, KV * d]. sums [H * d]: of that row.
template <typename Vec>
void AddHeads(const AttentionBackwardArgs& args, const ConstMatrix& sums, float factor, const Matrix& to,
              std::int64_t row) {
  const std::int64_t d = args.q.cols / args.num_heads;
  const std::int64_t group = args.num_heads / args.num_kv_heads;
  for (std::int64_t kv_head = 0; kv_head < args.num_kv_heads; ++kv_head) {
    const Matrix out = Columns(to, kv_head * d, d);
    for (std::int64_t c = 0; c < d; c += 16) {
      const auto of = [&](std::int64_t h) { return LoadLanes<Vec>(Columns(sums, (kv_head * group + h) * d, d), 0, c); };
      Vec sum = of(0);
      for (std::int64_t h = 1; h < group; ++h) sum = sum + of(h);
      StoreLanes(Vec::Set1(factor) * sum, out, row, c);
    }
  }
}

template <typename Vec>
LaunchResult AttentionBackwardVec(const AttentionBackwardArgs& args, const Stream& stream) {
  const std::int64_t begin = args.segments[0], rows = args.segments[args.num_segments] - begin;
  const std::int64_t cols = args.q.cols;
  if (rows * cols == 0) return {};
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < args.num_segments; ++s)
    longest = std::max(longest, args.segments[s + 1] - args.segments[s]);
  // A KV head that only one query head reads needs no sums.
  const bool shared = args.num_heads != args.num_kv_heads;
  HeadSums sums = {args.grad_k, args.grad_v, 0, args.scale};
  std::unique_ptr<float[]> memory;
  if (shared) {
    memory.reset(new (std::nothrow) float[static_cast<std::size_t>(2 * rows * cols)]);
    if (memory == nullptr) return {LaunchCode::kResourceExhausted, "no memory for the sums of the heads"};
    const auto matrix = [&](float* data) { return Matrix{data, DType::kF32, rows, cols, cols}; };
    sums = {matrix(memory.get()), matrix(memory.get() + rows * cols), begin, 1.0f};
  }
  std::atomic<bool> out_of_memory{false};
  // Units are ordered by head, so that threads get equal parts of every segment.
  stream.ParallelFor(args.num_heads * args.num_segments, 1, [&](std::int64_t first, std::int64_t last) {
    AttentionBackwardHead<Vec> run(args, longest, sums);
    if (!run.has_memory()) {
      out_of_memory = true;
      return;
    }
    for (std::int64_t unit = first; unit < last; ++unit) {
      const std::int64_t s = unit % args.num_segments;
      run.Run(args.segments[s], args.segments[s + 1] - args.segments[s], unit / args.num_segments);
    }
  });
  if (out_of_memory) return {LaunchCode::kResourceExhausted, "no memory for the gradients of a segment"};
  if (!shared) return {};
  constexpr std::int64_t kGrain = 16;  // rows, of some kilobytes each
  stream.ParallelFor(rows, kGrain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const auto of_row = [&](const Matrix& m) {
        return ConstMatrix{m.template Row<float>(row), DType::kF32, 1, cols, cols};
      };
      AddHeads<Vec>(args, of_row(sums.k), args.scale, args.grad_k, begin + row);
      AddHeads<Vec>(args, of_row(sums.v), 1.0f, args.grad_v, begin + row);
    }
  });
  return {};
}

}  // namespace nibble::kernels
