// Shared by the AVX paths of matmul_nf4. x is copied once into the order in which a path decodes a block's codes,
// padded with zeros to whole blocks. For few rows the codes are decoded as they are multiplied; for more, tiles of
// decoded rows of w are multiplied (a path with vdpbf16ps uses kernels/pair_product.h instead). A Path is in an
// anonymous namespace, so that the linker cannot share an instantiation with the path of another instruction set. A
// Path has
//   X                                          f32 or bf16: the type of x
//   Element                                    f32 or bf16: the type of the copy of x and of decoded w
//   Pack(const X* x, Element* out)             64 elements of x in the path's order
//   Decode(codes, absmax, Element* out)        64 weights, rounded to X, in the path's order
//   Few<M>(x, stride, codes, row_bytes, absmax, row_blocks, whole, float* out)  M x 4 dot products over `whole` whole
//                                              blocks, added to out
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

template <typename Path>
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
        blocks_(Nf4RowBlocks(k_)),
        padded_k_(blocks_ * kNf4Block) {}

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
    for (std::int64_t b = 0; b < k_ / kNf4Block; ++b) Path::Pack(x + b * kNf4Block, out + b * kNf4Block);
    if (const std::int64_t tail = k_ % kNf4Block; tail != 0) {
      X padded[kNf4Block] = {};
      std::copy_n(x + k_ - tail, tail, padded);
      Path::Pack(padded, out + padded_k_ - kNf4Block);
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

  // One block of each of up to four rows, padded with zeros to a whole block; missing rows hold zeros.
  struct PaddedBlocks {
    std::uint8_t codes[kMatmulNf4Quad][kNf4Block / 2] = {};
    float absmax[kMatmulNf4Quad] = {};
  };
  void CopyBlock(std::int64_t first, std::int64_t rows, std::int64_t block, PaddedBlocks* padded) const {
    const std::int64_t elements = std::min(kNf4Block, k_ - block * kNf4Block);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(Codes(first + r) + block * (kNf4Block / 2), Nf4RowBytes(elements), padded->codes[r]);
      padded->absmax[r] = Absmax(first + r)[block];
    }
  }

  template <int kM>
  void Few() {
    const std::int64_t whole = k_ / kNf4Block;
    const std::int64_t grain = std::max<std::int64_t>(1, kMatmulNf4PieceWeights / (4 * (k_ + 1))) * kMatmulNf4Quad;
    stream_.ParallelFor(n_, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; n += kMatmulNf4Quad) {
        const std::int64_t rows = std::min(kMatmulNf4Quad, end - n);
        float out[kM * kMatmulNf4Quad] = {};
        if (rows == kMatmulNf4Quad && whole > 0) {  // without a whole block rows may have no bytes at all
          Path::template Few<kM>(x_.get(), padded_k_, Codes(n), Nf4RowBytes(k_), Absmax(n), blocks_, whole, out);
        }
        // The remainder: the last partial block, and all blocks of the last rows if they are fewer than four.
        for (std::int64_t b = rows == kMatmulNf4Quad ? whole : 0; b < blocks_; ++b) {
          PaddedBlocks padded;
          CopyBlock(n, rows, b, &padded);
          Path::template Few<kM>(x_.get() + b * kNf4Block, padded_k_, padded.codes[0], kNf4Block / 2, padded.absmax, 1,
                                 1, out);
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
      const std::int64_t whole = k_ / kNf4Block;
      for (std::int64_t b = 0; b < whole; ++b) {
        Path::Decode(Codes(n + r) + b * (kNf4Block / 2), Absmax(n + r)[b], w + b * kNf4Block);
      }
      if (whole < blocks_) {
        PaddedBlocks padded;
        CopyBlock(n + r, 1, whole, &padded);
        Path::Decode(padded.codes[0], padded.absmax[0], w + whole * kNf4Block);
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

  const std::uint8_t* Codes(std::int64_t n) const { return args_.w.codes + n * Nf4RowBytes(k_); }
  const float* Absmax(std::int64_t n) const { return args_.w.absmax + n * blocks_; }

  const MatmulNf4Args& args_;
  const Stream& stream_;
  const std::int64_t m_, n_, k_, blocks_, padded_k_;
  Buffer x_;
};

}  // namespace nibble::kernels
