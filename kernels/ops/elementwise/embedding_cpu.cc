// Plain loops, the only path of this op.
#include <cstring>

#include "kernels/element.h"
#include "kernels/ops/elementwise/embedding_launch.h"

namespace nibble::kernels {
namespace {

void CopyRow(const ConstMatrix& table, std::int64_t id, const Matrix& out, std::int64_t row) {
  const std::int64_t cols = table.cols;
  if (table.dtype == out.dtype) {
    const std::int64_t size = SizeOf(table.dtype);
    std::memcpy(static_cast<char*>(out.data) + row * out.stride * size,
                static_cast<const char*>(table.data) + id * table.stride * size, static_cast<std::size_t>(cols * size));
  } else {
    for (std::int64_t k = 0; k < cols; ++k) SetElement(out, row, k, Element(table, id, k));
  }
}

void UnpackRow(const PackedInt8Weight& packed, std::int64_t id, const Matrix& out, std::int64_t row) {
  const float scale = packed.scale[id];
  for (std::int64_t k = 0; k < packed.cols; ++k) {
    SetElement(out, row, k, static_cast<float>(Int8Code(packed, id, k)) * scale);
  }
}

}  // namespace

LaunchResult EmbeddingCpu(const EmbeddingArgs& args, const Stream& stream) {
  stream.ParallelFor(args.num_ids, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      if (args.table.data != nullptr) {
        CopyRow(args.table, args.ids[t], args.out, t);
      } else {
        UnpackRow(args.packed, args.ids[t], args.out, t);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
