#include "server/serve/onednn_library.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <dnnl.hpp>
#include <list>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "server/base/mutex.h"
#include "server/base/strings.h"

namespace nibble::serve {
namespace {

using kernels::ConstMatrix;
using kernels::DType;
using kernels::Matrix;

dnnl::memory::data_type ToDnnl(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// Rows of w that are widened to f32 at a time.
constexpr std::int64_t kWidenedRows = 256;

// Maximum number of cached products, one per shape. The machine code of one takes 0.3 MiB and 0.3 ms to make. A model
// has about six shapes for each number of rows.
constexpr std::size_t kMaxProducts = 128;

// Prompts have any length. More than 16 rows are multiplied in pieces of powers of two, so that a piece has one of only
// 20 different numbers of rows.
std::int64_t PieceRows(std::int64_t rows) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rows)));
  return rows <= 16 ? rows : std::min<std::int64_t>(256, power);
}

class OneDnnLibrary : public kernels::DenseLibrary {
 public:
  // oneDNN has no bf16 products below AVX-512.
  explicit OneDnnLibrary(bool use_bf16)
      : engine_(dnnl::engine::kind::cpu, /*index=*/0),
        bf16_(use_bf16 && dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core) {
    // oneDNN's own cache would keep another 1024.
    dnnl::set_primitive_cache_capacity(0);
  }

  const char* kernel_name() const override { return "onednn:matmul"; }

  absl::Status Matmul(const ConstMatrix& x, const ConstMatrix& w, const Matrix& y, bool accumulate,
                      const kernels::Stream&) override {
    if (x.rows == 0 || w.rows == 0) return absl::OkStatus();
    // oneDNN multiplies operands of one type, and f32 operands only into f32. Other mixes are widened to f32; w in
    // pieces of kWidenedRows rows, because a whole output head in f32 would take too much memory.
    const bool is_f32 = x.dtype == DType::kF32 && w.dtype == DType::kF32 && y.dtype == DType::kF32;
    const bool is_bf16 = x.dtype == DType::kBF16 && w.dtype == DType::kBF16;
    if (is_f32 || (bf16_ && is_bf16)) return Multiply(x, w, y, accumulate);
    std::vector<float> wide_x, wide_w, wide_y;
    const ConstMatrix a = Widen(x, &wide_x);
    for (std::int64_t begin = 0; begin < w.rows; begin += kWidenedRows) {
      const std::int64_t count = std::min(kWidenedRows, w.rows - begin);
      const ConstMatrix b = Widen(Rows(w, begin, count), &wide_w);
      const Matrix part = Columns(y, begin, count);
      if (y.dtype == DType::kF32) {
        if (absl::Status status = Multiply(a, b, part, accumulate); !status.ok()) return status;
        continue;
      }
      wide_y.resize(static_cast<std::size_t>(y.rows * count));
      const Matrix wide = kernels::MakeMatrix(wide_y.data(), DType::kF32, y.rows, count);
      if (absl::Status status = Multiply(a, b, wide, /*accumulate=*/false); !status.ok()) return status;
      for (std::int64_t r = 0; r < y.rows; ++r) {
        auto* const out = part.Row<kernels::BF16>(r);
        for (std::int64_t c = 0; c < count; ++c) {
          const float before = accumulate ? kernels::ToFloat(out[c]) : 0.0f;
          out[c] = kernels::RoundTo<kernels::BF16>(wide.Row<float>(r)[c] + before);
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  using Key =
      std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, int, int, bool>;

  static ConstMatrix Rows(ConstMatrix m, std::int64_t begin, std::int64_t count) {
    m.data = static_cast<const char*>(m.data) + begin * m.stride * static_cast<std::int64_t>(SizeOf(m.dtype));
    m.rows = count;
    return m;
  }
  static Matrix Columns(Matrix m, std::int64_t begin, std::int64_t count) {
    m.data = static_cast<char*>(m.data) + begin * static_cast<std::int64_t>(SizeOf(m.dtype));
    m.cols = count;
    return m;
  }

  absl::Status Multiply(const ConstMatrix& a, const ConstMatrix& b, const Matrix& y, bool accumulate) {
    for (std::int64_t begin = 0; begin < a.rows;) {
      const std::int64_t count = PieceRows(a.rows - begin);
      Matrix part = y;
      part.data = static_cast<char*>(y.data) + begin * y.stride * static_cast<std::int64_t>(SizeOf(y.dtype));
      part.rows = count;
      if (absl::Status status = MultiplyPiece(Rows(a, begin, count), b, part, accumulate); !status.ok()) return status;
      begin += count;
    }
    return absl::OkStatus();
  }

  absl::Status MultiplyPiece(const ConstMatrix& a, const ConstMatrix& b, const Matrix& y, bool accumulate) {
    try {
      const dnnl::memory::desc a_desc({a.rows, a.cols}, ToDnnl(a.dtype), {a.stride, 1});
      const dnnl::memory::desc b_desc({b.cols, b.rows}, ToDnnl(b.dtype), {1, b.stride});
      const dnnl::memory::desc y_desc({y.rows, y.cols}, ToDnnl(y.dtype), {y.stride, 1});
      const dnnl::matmul product = Product(a, b, y, accumulate, a_desc, b_desc, y_desc);
      dnnl::stream stream(engine_);
      product.execute(stream, {{DNNL_ARG_SRC, dnnl::memory(a_desc, engine_, const_cast<void*>(a.data))},
                               {DNNL_ARG_WEIGHTS, dnnl::memory(b_desc, engine_, const_cast<void*>(b.data))},
                               {DNNL_ARG_DST, dnnl::memory(y_desc, engine_, y.data)}});
      stream.wait();
    } catch (const dnnl::error& error) {
      return absl::InternalError(base::StrCat("oneDNN: ", error.what()));
    }
    return absl::OkStatus();
  }

  static ConstMatrix Widen(const ConstMatrix& m, std::vector<float>* storage) {
    if (m.dtype == DType::kF32) return m;
    storage->resize(static_cast<std::size_t>(m.rows * m.cols));
    for (std::int64_t r = 0; r < m.rows; ++r) {
      for (std::int64_t c = 0; c < m.cols; ++c) {
        (*storage)[static_cast<std::size_t>(r * m.cols + c)] = kernels::ToFloat(m.Row<kernels::BF16>(r)[c]);
      }
    }
    return kernels::MakeConstMatrix(storage->data(), DType::kF32, m.rows, m.cols);
  }

  dnnl::matmul Product(const ConstMatrix& a, const ConstMatrix& b, const Matrix& y, bool accumulate,
                       const dnnl::memory::desc& a_desc, const dnnl::memory::desc& b_desc,
                       const dnnl::memory::desc& y_desc) {
    const Key key(a.rows, a.cols, b.rows, a.stride, b.stride, y.stride, static_cast<int>(a.dtype),
                  static_cast<int>(y.dtype), accumulate);
    base::MutexLock lock(mutex_);
    if (const auto it = places_.find(key); it != places_.end()) {
      products_.splice(products_.begin(), products_, it->second);
      return it->second->second;
    }
    dnnl::primitive_attr attributes;
    if (accumulate) {
      dnnl::post_ops post;
      post.append_sum(1.0f);
      attributes.set_post_ops(post);
    }
    dnnl::matmul product(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a_desc, b_desc, y_desc), attributes, engine_));
    if (products_.size() == kMaxProducts) {
      places_.erase(products_.back().first);
      products_.pop_back();
    }
    products_.emplace_front(key, product);
    places_[key] = products_.begin();
    return product;
  }

  dnnl::engine engine_;
  const bool bf16_;
  base::Mutex mutex_;
  using Products = std::list<std::pair<Key, dnnl::matmul>>;
  Products products_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  std::map<Key, Products::iterator> places_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<kernels::DenseLibrary> MakeOneDnnLibrary(bool use_bf16) {
  return std::make_unique<OneDnnLibrary>(use_bf16);
}

}  // namespace nibble::serve
