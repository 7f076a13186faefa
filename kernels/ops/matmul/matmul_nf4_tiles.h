// Shared by the AVX paths of matmul_nf4. They read w in strips of 64 elements along a row. A strip lies in one block
// and has one scale, except that it has two if blocks have 32 elements. x is copied once into the order in which a path
// decodes a strip's codes, padded with zeros to whole strips. For few rows the codes are decoded as they are
// multiplied; for more, tiles of decoded rows of w are multiplied (a path with vdpbf16ps uses kernels/pair_product.h
// instead). A Path is in an anonymous namespace, so that the linker cannot share an instantiation with the path of
// another instruction set. A Path has
//   X                                          f32 or bf16: the type of x
//   Element                                    f32 or bf16: the type of the copy of x and of decoded w
//   Pack(const X* x, Element* out)             64 elements of x in the path's order
//   Decode<kScales>(codes, absmax, out)        64 weights, rounded to X, in the path's order; kScales is 1 or 2
//   Few<M, kScales>(x, stride, w, whole, out)  M x 4 dot products over `whole` whole strips, added to out
//   Tile(x, w, padded_k, float* out)           4 x 4 dot products of decoded rows, overwrites out
// Decode and Tile may be missing in a Path that is used only for few rows.
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "kernels/ops/matmul/matmul_nf4_launch.h"

namespace nibble::kernels {

// Up to this many rows of x, codes are decoded as they are multiplied.
inline constexpr std::int64_t kMatmulNf4FewRows = 4;
inline constexpr std::int64_t kMatmulNf4Quad = 4;       // a tile is 4 x 4: sixteen accumulators
inline constexpr std::int64_t kMatmulNf4TileRows = 16;  // rows of w decoded at a time: 512 KiB of f32 at K = 8192
inline constexpr std::int64_t kMatmulNf4PieceWeights = 65536;  // a thread's range has at least about this many elements

// Distance in bytes from the codes being read to the codes to prefetch: the same place in a later quad of rows, since
// quads follow each other in memory. The hardware prefetcher does not detect four short rows read side by side: without
// this prefetch, weights that are not in the cache arrive at half the speed.
static inline std::int64_t Nf4PrefetchBytes(std::int64_t row_bytes) {
  constexpr std::int64_t kAheadBytes = 4096;
  const std::int64_t quad = kMatmulNf4Quad * row_bytes;
  return quad >= kAheadBytes ? quad : (kAheadBytes + quad - 1) / quad * quad;
}

inline constexpr std::int64_t kNf4Strip = 64;

// Rows of w, each in the memory after the one before it.
struct Nf4Rows {
  const std::uint8_t* codes;
  std::int64_t row_bytes;
  const float* absmax;
  std::int64_t row_blocks;
  int strip_shift;  // of blocks of at least 64 elements: a strip's number >> strip_shift is its block's

  // The scale of a strip; with kScales 2, the first of its two.
  template <int kScales>
  const float* Scale(std::int64_t row, std::int64_t strip) const {
    return absmax + row * row_blocks + (kScales == 2 ? 2 * strip : strip >> strip_shift);
  }
};

template <typename Path, int kScales>
class MatmulNf4Run {
 public:
  using X = typename Path::X;
  using Element = typename Path::Element;

  MatmulNf4Run(const MatmulNf4Args& args, const Stream& stream)
      : args_(args),
        stream_(stream),
        m_(args.x.rows),
        n_(args.w.rows),
        k_(args.x.cols),
        blocks_(Nf4RowBlocks(k_, args.w.block)),
        strips_((k_ + kNf4Strip - 1) / kNf4Strip),
        padded_k_(strips_ * kNf4Strip) {}

  LaunchResult Run() {
    const bool few = m_ <= kMatmulNf4FewRows;
    const std::int64_t rows = few ? m_ : (m_ + kMatmulNf4Quad - 1) / kMatmulNf4Quad * kMatmulNf4Quad;
    x_ = Allocate(rows * padded_k_);
    if (x_ == nullptr) return {LaunchCode::kResourceExhausted, "no memory for the copy of x"};
    stream_.ParallelFor(rows, std::max<std::int64_t>(1, kMatmulNf4PieceWeights / (k_ + 1)),
                        [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t r = begin; r < end; ++r) PackRow(r);
                        });
    if constexpr (requires { &Path::Tile; }) {
      if (!few) return Tiles();
    }
    switch (m_) {
      case 1: Few<1>(); break;
      case 2: Few<2>(); break;
      case 3: Few<3>(); break;
      default: Few<4>(); break;
    }
    return {};
  }

 private:
  struct Free {
    void operator()(Element* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  using Buffer = std::unique_ptr<Element[], Free>;

  static Buffer Allocate(std::int64_t elements) {
    const std::size_t bytes = static_cast<std::size_t>(std::max<std::int64_t>(elements, 1)) * sizeof(Element);
    return Buffer(static_cast<Element*>(::operator new(bytes, std::align_val_t{64}, std::nothrow)));
  }

  void PackRow(std::int64_t r) {
    Element* out = x_.get() + r * padded_k_;
    if (r >= m_) {
      std::fill_n(out, padded_k_, Element{});
      return;
    }
    const X* x = args_.x.template Row<X>(r);
    for (std::int64_t s = 0; s < k_ / kNf4Strip; ++s) Path::Pack(x + s * kNf4Strip, out + s * kNf4Strip);
    if (const std::int64_t tail = k_ % kNf4Strip; tail != 0) {
      X padded[kNf4Strip] = {};
      std::copy_n(x + k_ - tail, tail, padded);
      Path::Pack(padded, out + padded_k_ - kNf4Strip);
    }
  }

  // Writes sums plus bias to [rows, columns] outputs of y, from (row, column) on. `out` holds four sums per row.
  void Finish(const float* out, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        const float sum = out[i * kMatmulNf4Quad + j];
        const float y = args_.bias == nullptr ? sum : sum + args_.bias[column + j];
        if (args_.y.dtype == DType::kF32) {
          args_.y.Row<float>(row + i)[column + j] = y;
        } else {
          args_.y.Row<BF16>(row + i)[column + j] = ToBF16(y);
        }
      }
    }
  }

  // One strip of each of up to four rows, padded with zeros to a whole strip; missing rows hold zeros.
  struct PaddedStrips {
    std::uint8_t codes[kMatmulNf4Quad][kNf4Strip / 2] = {};
    float absmax[kMatmulNf4Quad][kScales] = {};
  };
  void CopyStrip(const Nf4Rows& w, std::int64_t rows, std::int64_t strip, PaddedStrips* padded) const {
    const std::int64_t elements = std::min(kNf4Strip, k_ - strip * kNf4Strip);
    const int scales = std::min(kScales, elements > kNf4Strip / 2 ? 2 : 1);  // the second half may lie past K
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(w.codes + r * w.row_bytes + strip * (kNf4Strip / 2), Nf4RowBytes(elements), padded->codes[r]);
      std::copy_n(w.template Scale<kScales>(r, strip), scales, padded->absmax[r]);
    }
  }

  template <int kM>
  void Few() {
    const std::int64_t whole = k_ / kNf4Strip;
    const std::int64_t grain = std::max<std::int64_t>(1, kMatmulNf4PieceWeights / (4 * (k_ + 1))) * kMatmulNf4Quad;
    stream_.ParallelFor(n_, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; n += kMatmulNf4Quad) {
        const std::int64_t rows = std::min(kMatmulNf4Quad, end - n);
        const Nf4Rows w = Rows(n);
        float out[kM * kMatmulNf4Quad] = {};
        if (rows == kMatmulNf4Quad && whole > 0) {  // without a whole strip rows may have no bytes at all
          Path::template Few<kM, kScales>(x_.get(), padded_k_, w, whole, out);
        }
        // The remainder: the last partial strip, and all strips of the last rows if they are fewer than four.
        for (std::int64_t s = rows == kMatmulNf4Quad ? whole : 0; s < strips_; ++s) {
          PaddedStrips padded;
          CopyStrip(w, rows, s, &padded);
          const Nf4Rows strip = {padded.codes[0], kNf4Strip / 2, padded.absmax[0], kScales, 0};
          Path::template Few<kM, kScales>(x_.get() + s * kNf4Strip, padded_k_, strip, 1, out);
        }
        Finish(out, 0, kM, n, rows);
      }
    });
  }

  void DecodeRows(std::int64_t n, std::int64_t rows, Element* w) const {
    for (std::int64_t r = 0; r < kMatmulNf4TileRows; ++r, w += padded_k_) {
      if (r >= rows) {
        std::fill_n(w, padded_k_, Element{});
        continue;
      }
      const Nf4Rows row = Rows(n + r);
      const std::int64_t whole = k_ / kNf4Strip;
      for (std::int64_t s = 0; s < whole; ++s) {
        Path::template Decode<kScales>(row.codes + s * (kNf4Strip / 2), row.template Scale<kScales>(0, s),
                                       w + s * kNf4Strip);
      }
      if (whole < strips_) {
        PaddedStrips padded;
        CopyStrip(row, 1, whole, &padded);
        Path::template Decode<kScales>(padded.codes[0], padded.absmax[0], w + whole * kNf4Strip);
      }
    }
  }

  LaunchResult Tiles() {
    std::atomic<bool> out_of_memory{false};
    stream_.ParallelFor(n_, kMatmulNf4TileRows, [&](std::int64_t begin, std::int64_t end) {
      const Buffer w = Allocate(kMatmulNf4TileRows * padded_k_);
      if (w == nullptr) {
        out_of_memory = true;
        return;
      }
      for (std::int64_t n = begin; n < end; n += kMatmulNf4TileRows) {
        const std::int64_t rows = std::min(kMatmulNf4TileRows, end - n);
        DecodeRows(n, rows, w.get());
        for (std::int64_t m = 0; m < m_; m += kMatmulNf4Quad) {
          for (std::int64_t j = 0; j < rows; j += kMatmulNf4Quad) {
            float out[kMatmulNf4Quad * kMatmulNf4Quad];
            Path::Tile(x_.get() + m * padded_k_, w.get() + j * padded_k_, padded_k_, out);
            Finish(out, m, std::min(kMatmulNf4Quad, m_ - m), n + j, std::min(kMatmulNf4Quad, rows - j));
          }
        }
      }
    });
    if (out_of_memory) return {LaunchCode::kResourceExhausted, "no memory for a tile of w"};
    return {};
  }

  // The rows of w from n on.
  Nf4Rows Rows(std::int64_t n) const {
    const std::int64_t bytes = Nf4RowBytes(k_);
    const int shift = kScales == 2 ? 0 : Nf4BlockShift(args_.w.block / kNf4Strip);
    return {args_.w.codes + n * bytes, bytes, args_.w.absmax + n * blocks_, blocks_, shift};
  }

  const MatmulNf4Args& args_;
  const Stream& stream_;
  const std::int64_t m_, n_, k_, blocks_, strips_, padded_k_;
  Buffer x_;
};

template <typename Path>
LaunchResult MatmulNf4On(const MatmulNf4Args& args, const Stream& stream) {
  if (args.w.block < kNf4Strip) return MatmulNf4Run<Path, 2>(args, stream).Run();
  return MatmulNf4Run<Path, 1>(args, stream).Run();
}

}  // namespace nibble::kernels
