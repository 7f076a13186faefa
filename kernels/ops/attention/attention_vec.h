// The body of attention.h for any Vec (vec16_*.h): the operations of attention_cpu.cc, for a tile of queries at a time.
// A tile holds rows of one sequence and the heads that share one KV head, so that a page of keys and values is loaded
// once for all of them. Queries are independent of each other, so tile and block sizes do not affect the result's bits.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/math.h"
#include "kernels/ops/attention/attention_launch.h"
#include "kernels/ops/attention/register_tile_vec.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// A block computes up to kMaxBlock queries at once; it keeps at most kRegisters vectors of sums and operands.
template <typename Vec, int kMaxBlock, int kRegisters>
class TiledAttention {
 public:
  static LaunchResult Run(const AttentionArgs& args, const Stream& stream) {
    const std::int64_t kv_heads = args.cache.num_kv_heads;
    const std::int64_t group = args.num_heads / kv_heads;
    const int threads = stream.pool == nullptr ? 1 : stream.pool->num_threads();
    // Heads of a group are split among tiles only when the tiles would be too few for the threads.
    std::int64_t heads = std::min<std::int64_t>(group, kMaxQueries);
    std::vector<Tile> tiles = MakeTiles(args, heads);
    while (heads > 1 && threads > 1 && static_cast<std::int64_t>(tiles.size()) * kv_heads < 2 * threads) {
      heads = (heads + 1) / 2;
      tiles = MakeTiles(args, heads);
    }
    const std::int64_t units = static_cast<std::int64_t>(tiles.size()) * kv_heads;
    stream.ParallelFor(units, 1, [&](std::int64_t begin, std::int64_t end) {
      TiledAttention attention(args);
      for (std::int64_t unit = begin; unit < end; ++unit) {
        const Tile& tile = tiles[static_cast<std::size_t>(unit / kv_heads)];
        if (args.cache.dtype == DType::kF32) {
          attention.template Attend<float>(tile, unit % kv_heads);
        } else {
          attention.template Attend<BF16>(tile, unit % kv_heads);
        }
      }
    });
    return {};
  }

 private:
  static constexpr std::int64_t kMaxQueries = 32;  // per tile; a multiple of 16, because Softmax computes 16 at a time
  static constexpr int kKeys = static_cast<int>(kKvPageTokens);
  static constexpr float kNegInf = -std::numeric_limits<float>::infinity();

  // Number of vectors side by side (4, 2 or 1, at most `most`) for a block of `block` queries.
  static constexpr int Wide(int block, int most) {
    int wide = most;
    while (wide > 1 && (block + 1) * wide > kRegisters) wide /= 2;
    return wide;
  }

  // Rows [row, row + num_rows) of one sequence, heads [head, head + num_heads) of each KV head's group.
  struct Tile {
    std::int64_t row, num_rows, head, num_heads;
  };

  static std::vector<Tile> MakeTiles(const AttentionArgs& args, std::int64_t heads) {
    const std::int64_t group = args.num_heads / args.cache.num_kv_heads;
    const std::int64_t max_rows = kMaxQueries / heads;
    std::vector<Tile> tiles;
    for (std::int64_t row = 0; row < args.rows.num_rows;) {
      std::int64_t end = row + 1;
      while (end < args.rows.num_rows && end - row < max_rows && args.rows.sequence[end] == args.rows.sequence[row])
        ++end;
      for (std::int64_t head = 0; head < group; head += heads) {
        tiles.push_back({row, end - row, head, std::min(heads, group - head)});
      }
      row = end;
    }
    return tiles;
  }

  explicit TiledAttention(const AttentionArgs& args)
      : args_(args),
        d_(args.cache.head_dim),
        padded_d_((d_ + 15) / 16 * 16),
        scratch_(new float[static_cast<std::size_t>(kMaxQueries * (d_ + padded_d_ + kKeys))]),
        q_(scratch_.get()),
        o_(q_ + kMaxQueries * d_),
        p_(o_ + kMaxQueries * padded_d_) {}

  template <typename T>
  void Attend(const Tile& tile, std::int64_t kv_head) {
    const KvRows& rows = args_.rows;
    const std::int32_t* pages = rows.page_tables + rows.sequence[tile.row] * rows.pages_per_sequence;
    const std::int64_t last = rows.position[tile.row + tile.num_rows - 1] / kKvPageTokens;
    const int queries = static_cast<int>(tile.num_rows * tile.num_heads);
    Begin(tile, kv_head);
    std::int64_t first_row = 0;  // rows before first_row have their position in an earlier page
    for (std::int64_t page = 0; page <= last; ++page) {
      while (rows.position[tile.row + first_row] < page * kKvPageTokens) ++first_row;
      const T* keys =
          static_cast<const T*>(args_.cache.base) + args_.cache.SlabOffset(pages[page], args_.layer, kv_head);
      const T* values = keys + d_ * kKvPageTokens;
      const T* next = page == last ? nullptr
                                   : static_cast<const T*>(args_.cache.base) +
                                         args_.cache.SlabOffset(pages[page + 1], args_.layer, kv_head);
      const int first = static_cast<int>(first_row * tile.num_heads);
      for (int q = first; q < queries; ++q) {
        const std::int64_t position = rows.position[tile.row + q / tile.num_heads];
        seen_[q] = static_cast<int>(std::min(kKvPageTokens, position + 1 - page * kKvPageTokens));
      }
      for (int q = first; q < queries;) {
        const T* prefetch = q == first ? next : nullptr;
        q += Block(q, queries, [&]<int kBlock>() { Scores<T, kBlock>(keys, q, prefetch); });
      }
      Softmax(first, queries);
      for (int q = first; q < queries;) q += Block(q, queries, [&]<int kBlock>() { AddValues<T, kBlock>(values, q); });
    }
    End(tile, kv_head);
  }

  // Calls body<n>() for the n queries that make an even split of the remaining ones; returns n.
  template <typename Body>
  static int Block(int q, int queries, Body body) {
    const int blocks = (queries - q + kMaxBlock - 1) / kMaxBlock;
    const int n = (queries - q + blocks - 1) / blocks;
    switch (n) {
      case 1:
        if constexpr (kMaxBlock >= 1) body.template operator()<1>();
        break;
      case 2:
        if constexpr (kMaxBlock >= 2) body.template operator()<2>();
        break;
      case 3:
        if constexpr (kMaxBlock >= 3) body.template operator()<3>();
        break;
      case 4:
        if constexpr (kMaxBlock >= 4) body.template operator()<4>();
        break;
      case 5:
        if constexpr (kMaxBlock >= 5) body.template operator()<5>();
        break;
      case 6:
        if constexpr (kMaxBlock >= 6) body.template operator()<6>();
        break;
      case 7:
        if constexpr (kMaxBlock >= 7) body.template operator()<7>();
        break;
      case 8:
        if constexpr (kMaxBlock >= 8) body.template operator()<8>();
        break;
      case 9:
        if constexpr (kMaxBlock >= 9) body.template operator()<9>();
        break;
      case 10:
        if constexpr (kMaxBlock >= 10) body.template operator()<10>();
        break;
    }
    return n;
  }

  // Copies the tile's queries as f32, row by row; sets outputs, maxima and sums to their initial values.
  void Begin(const Tile& tile, std::int64_t kv_head) {
    std::int64_t n = 0;
    for (std::int64_t r = 0; r < tile.num_rows; ++r) {
      for (std::int64_t h = 0; h < tile.num_heads; ++h, ++n) {
        const std::int64_t offset = Offset(args_.q.stride, tile, kv_head, r, h);
        for (std::int64_t i = 0; i < d_; ++i) {
          q_[n * d_ + i] = args_.q.dtype == DType::kF32 ? static_cast<const float*>(args_.q.data)[offset + i]
                                                        : ToFloat(static_cast<const BF16*>(args_.q.data)[offset + i]);
        }
        max_[n] = kNegInf;
        sum_[n] = 0;
      }
    }
    std::fill(o_, o_ + n * padded_d_, 0.0f);
  }

  std::int64_t Offset(std::int64_t stride, const Tile& tile, std::int64_t kv_head, std::int64_t r,
                      std::int64_t h) const {
    const std::int64_t group = args_.num_heads / args_.cache.num_kv_heads;
    return (tile.row + r) * stride + (kv_head * group + tile.head + h) * d_;
  }

  // p[q] = scale * q . k for the 32 keys of a page: lanes are keys, one chain over the dimensions each. Meanwhile
  // prefetches `next`, the next page's slab (or null): pages may lie anywhere, so the processor cannot predict them.
  template <typename T, int kBlock>
  void Scores(const T* keys, int first, const T* next) {
    constexpr int kWide = Wide(kBlock, 2);
    const float* q = q_ + first * d_;
    for (int key = 0; key < kKeys; key += kWide * Vec::kLanes) {
      Vec acc[kBlock][kWide];
#pragma GCC unroll 16
      for (int b = 0; b < kBlock; ++b) {
#pragma GCC unroll 4
        for (int w = 0; w < kWide; ++w) acc[b][w] = Vec::Zero();
      }
      for (std::int64_t i = 0; i < d_; ++i) {
        if (key == 0 && next != nullptr) {  // next has 2 * 32 * d elements: 64 for each i
#pragma GCC unroll 4
          for (std::size_t line = 0; line < sizeof(T); ++line)
            __builtin_prefetch(next + 64 * i + 64 / sizeof(T) * line, /*rw=*/0, /*locality=*/2);
        }
        Vec k[kWide];
#pragma GCC unroll 4
        for (int w = 0; w < kWide; ++w) k[w] = Vec::Load(keys + i * kKeys + key + w * Vec::kLanes);
#pragma GCC unroll 16
        for (int b = 0; b < kBlock; ++b) {
          const Vec x = Vec::Set1(q[b * d_ + i]);
#pragma GCC unroll 4
          for (int w = 0; w < kWide; ++w) acc[b][w] = Vec::Fma(x, k[w], acc[b][w]);
        }
      }
      const Vec scale = Vec::Set1(args_.scale);
#pragma GCC unroll 16
      for (int b = 0; b < kBlock; ++b) {
#pragma GCC unroll 4
        for (int w = 0; w < kWide; ++w) (acc[b][w] * scale).Store(p_ + (first + b) * kKeys + key + w * Vec::kLanes);
      }
    }
  }

  // Turns the page's scores into exponentials against the new running maxima; rescales sums and outputs.
  void Softmax(int first, int queries) {
    alignas(64) float correction[kMaxQueries] = {};
    for (int q = first; q < queries; ++q) {
      float* p = p_ + q * kKeys;
      Vec s0 = Vec::Load(p);
      Vec s1 = Vec::Load(p + 16);
      if (seen_[q] < kKeys) {
        const Vec seen = Vec::Set1(static_cast<float>(seen_[q]));
        s0 = Vec::SelectLess(Vec::Load(kLaneIndex), seen, s0, Vec::Set1(kNegInf));
        s1 = Vec::SelectLess(Vec::Load(kLaneIndex + 16), seen, s1, Vec::Set1(kNegInf));
        s0.Store(p);
        s1.Store(p + 16);
      }
      const float page_max = Vec::Max(s0, s1).ReduceMax();
      const float new_max = page_max > max_[q] ? page_max : max_[q];
      correction[q] = max_[q] - new_max;
      max_[q] = new_max;
    }
    for (int q = first / 16 * 16; q < queries; q += 16) Exp(Vec::Load(correction + q)).Store(correction + q);
    for (int q = first; q < queries; ++q) {
      float* p = p_ + q * kKeys;
      const Vec against = Vec::Set1(max_[q]);
      const Vec p0 = Exp(Vec::Load(p) - against);
      const Vec p1 = Exp(Vec::Load(p + 16) - against);
      p0.Store(p);
      p1.Store(p + 16);
      sum_[q] = std::fma(sum_[q], correction[q], (p0 + p1).ReduceSum());
      if (correction[q] == 1.0f) continue;  // x * 1 is x
      const Vec factor = Vec::Set1(correction[q]);
      for (float* o = o_ + q * padded_d_; o < o_ + (q + 1) * padded_d_; o += 16) (Vec::Load(o) * factor).Store(o);
    }
  }

  // o[q] += p[q] . v over the keys that each query sees, in order. Later rows see more keys: the keys that the whole
  // block sees are added together, the rest one query at a time.
  template <typename T, int kBlock>
  void AddValues(const T* values, int first) {
    const int shared = seen_[first];
    AddRange<T, kBlock>(values, first, 0, shared);
    for (int q = first; q < first + kBlock; ++q) {
      if (seen_[q] > shared) AddRange<T, 1>(values, q, shared, seen_[q]);
    }
  }

  template <typename T, int kBlock>
  void AddRange(const T* values, int first, int begin, int end) {
    constexpr int kWide = Wide(kBlock, 4);
    std::int64_t column = 0;
    for (; column + kWide * 16 <= d_; column += kWide * 16)
      AddColumns<T, kBlock, kWide>(values, first, column, begin, end);
    for (; column + 16 <= d_; column += 16) AddColumns<T, kBlock, 1>(values, first, column, begin, end);
    if (column == d_) return;
    // The last columns, fewer than 16. A full load also reads the next position's values, whose lanes are not used; at
    // the end of the page it would read past the page.
    const int inside = static_cast<int>((kKeys * d_ - 16 - column) / d_) + 1;
    AddColumns<T, kBlock, 1>(values, first, column, begin, std::min(end, inside));
    for (int key = std::max(begin, inside); key < end; ++key) {
      const Vec v = Vec::LoadPartial(values + key * d_ + column, static_cast<int>(d_ - column));
      for (int q = first; q < first + kBlock; ++q) {
        float* o = o_ + q * padded_d_ + column;
        Vec::Fma(Vec::Set1(p_[q * kKeys + key]), v, Vec::Load(o)).Store(o);
      }
    }
  }

  template <typename T, int kBlock, int kWide>
  void AddColumns(const T* values, int first, std::int64_t column, int begin, int end) {
    AddToTile<Vec, kBlock, kWide>({p_ + first * kKeys + begin, kKeys, 1}, values + begin * d_ + column, d_, end - begin,
                                  /*from_zero=*/false, o_ + first * padded_d_ + column, padded_d_);
  }

  void End(const Tile& tile, std::int64_t kv_head) {
    std::int64_t n = 0;
    for (std::int64_t r = 0; r < tile.num_rows; ++r) {
      for (std::int64_t h = 0; h < tile.num_heads; ++h, ++n) {
        const std::int64_t offset = Offset(args_.out.stride, tile, kv_head, r, h);
        const Vec sum = Vec::Set1(sum_[n]);
        for (std::int64_t i = 0; i < d_; i += 16) {
          const Vec y = Vec::Load(o_ + n * padded_d_ + i) / sum;
          const int lanes = static_cast<int>(std::min<std::int64_t>(16, d_ - i));
          if (args_.out.dtype == DType::kF32) {
            y.StorePartial(static_cast<float*>(args_.out.data) + offset + i, lanes);
          } else {
            y.StorePartial(static_cast<BF16*>(args_.out.data) + offset + i, lanes);
          }
        }
        if (args_.logsumexp != nullptr) {
          args_.logsumexp[Offset(args_.num_heads * d_, tile, kv_head, r, h) / d_] = max_[n] + Log(sum_[n]);
        }
      }
    }
  }

  static constexpr float kLaneIndex[kKeys] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                              16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

  const AttentionArgs& args_;
  std::int64_t d_;
  std::int64_t padded_d_;
  std::unique_ptr<float[]> scratch_;
  float* q_;  // [queries, d]
  float* o_;  // [queries, padded_d]; lanes past d are undefined
  float* p_;  // [queries, 32], scores and then exponentials
  float max_[kMaxQueries];
  float sum_[kMaxQueries];
  int seen_[kMaxQueries];  // keys of the current page that each query sees
};

template <typename Vec>
LaunchResult AttentionVec(const AttentionArgs& args, const Stream& stream) {
  // One of the kVectors vectors is left for a broadcast. On AVX2 (8 vectors), 6 sums and one operand use the others.
  return TiledAttention<Vec, /*kMaxBlock=*/(Vec::kVectors > 8 ? 10 : 6), /*kRegisters=*/Vec::kVectors - 1>::Run(args,
                                                                                                                stream);
}

}  // namespace nibble::kernels
