// Few rows: dot products straight from the weight's tiles, epilogue in the same kernel. More rows: the tiles are
// written by rows to scratch for cuBLASLt (int8 in, int32 out), then one epilogue kernel runs. Integer sums do not
// depend on the order, so both give the CPU's bits.
#include "kernels/cuda/integer_matmul.cuh"
#include "kernels/ops/matmul/matmul_int8_launch.h"

namespace nibble::kernels {

// Outside the anonymous namespace, where argument-dependent lookup from IntegerEpilogue finds it.
__device__ inline int WeightCode(const PackedInt8Weight& w, std::int64_t n, std::int64_t k) {
  return Int8Code(w, n, k);
}

namespace {

using Epilogue = IntegerEpilogue<PackedInt8Weight>;

// Up to this many rows, it costs less to read the tiles again for every kRowsAtATime rows than to write the weight's
// codes to scratch and read them there.
constexpr std::int64_t kFewRows = 16;
constexpr int kRowsAtATime = 4;  // rows that share one read of the tiles
constexpr int kDotThreads = 128;
constexpr int kDotGroups = kDotThreads / 16;  // a group has one thread (a lane) for each output of a tile
constexpr int kUnpackThreads = 256;           // one for each word of a 16 x 16 square

// A thread block computes 16 outputs of kRowsAtATime rows; its groups share the tiles along k.
template <typename Y>
__global__ void __launch_bounds__(kDotThreads) Dot(Epilogue epilogue, Y* y, std::int64_t y_stride) {
  __shared__ int partial[kDotGroups][kRowsAtATime][16];
  const QuantizedRows& x = epilogue.x;
  const PackedInt8Weight& w = epilogue.w;
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const int group = static_cast<int>(threadIdx.x) / 16;
  const int words = static_cast<int>(w.padded_k / 4);
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kRowsAtATime;
  const int* tile = reinterpret_cast<const int*>(w.tiles) + std::int64_t{blockIdx.x} * words * 16;
  int acc[kRowsAtATime] = {};
  for (int k = group; k < words; k += kDotGroups) {
    const int codes = tile[k * 16 + lane];
#pragma unroll
    for (int m = 0; m < kRowsAtATime; ++m) {
      if (first_row + m < x.rows) {
        acc[m] = __dp4a(reinterpret_cast<const int*>(x.codes + (first_row + m) * x.stride)[k], codes, acc[m]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kRowsAtATime; ++m) partial[group][m][lane] = acc[m];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRowsAtATime * 16; i += kDotThreads) {
    const std::int64_t row = first_row + i / 16;
    const std::int64_t n = std::int64_t{blockIdx.x} * 16 + i % 16;
    if (row >= x.rows || n >= w.rows) continue;
    int sum = 0;
    for (int g = 0; g < kDotGroups; ++g) sum += partial[g][i / 16][i % 16];
    StoreElement(y + row * y_stride + n, epilogue(row, n, sum));
  }
}

// tiles -> rows of padded_k bytes, 16 x 16 words at a time. Rows past N are zero in the tiles already.
__global__ void __launch_bounds__(kUnpackThreads) UnpackTiles(const int* tiles, int words, int* rows) {
  __shared__ int square[16][17];  // a 17th word per row, so that the words of a column are in different banks
  const int fast = static_cast<int>(threadIdx.x) % 16;
  const int slow = static_cast<int>(threadIdx.x) / 16;
  const std::int64_t n = std::int64_t{blockIdx.x} * 16;
  const int k = static_cast<int>(blockIdx.y) * 16;
  square[slow][fast] = tiles[(std::int64_t{blockIdx.x} * words + k + slow) * 16 + fast];
  __syncthreads();
  rows[(n + slow) * words + k + fast] = square[fast][slow];
}

template <typename Y>
LaunchResult FewRows(const MatmulInt8Args& args, const Epilogue& epilogue, const Stream& stream) {
  const dim3 grid(static_cast<unsigned>((args.w.rows + 15) / 16),
                  static_cast<unsigned>((args.x.rows + kRowsAtATime - 1) / kRowsAtATime));
  Dot<<<grid, kDotThreads, 0, CudaStreamOf(stream)>>>(epilogue, args.y.Row<Y>(0), args.y.stride);
  return Launched(stream, "matmul_int8");
}

template <typename Y>
LaunchResult ManyRows(const MatmulInt8Args& args, const Epilogue& epilogue, const Stream& stream) {
  return MultiplyManyIntegerRows<Y>(
      epilogue, args.y, stream, {"matmul_int8", "matmul_int8_epilogue"}, [&](std::int8_t* rows) {
        const dim3 grid(static_cast<unsigned>((args.w.rows + 15) / 16), static_cast<unsigned>(args.w.padded_k / 64));
        UnpackTiles<<<grid, kUnpackThreads, 0, CudaStreamOf(stream)>>>(reinterpret_cast<const int*>(args.w.tiles),
                                                                       static_cast<int>(args.w.padded_k / 4),
                                                                       reinterpret_cast<int*>(rows));
        return Launched(stream, "matmul_int8_unpack");
      });
}

template <typename Y>
LaunchResult Multiply(const MatmulInt8Args& args, const Stream& stream) {
  const Epilogue epilogue{args.x, args.w, args.bias};
  // Without columns there is nothing to unpack or multiply: the fused kernel's sums are 0.
  const bool few = args.x.rows <= kFewRows || args.w.padded_k == 0;
  return few ? FewRows<Y>(args, epilogue, stream) : ManyRows<Y>(args, epilogue, stream);
}

}  // namespace

LaunchResult MatmulInt8Cuda(const MatmulInt8Args& args, const Stream& stream) {
  if (const LaunchResult context = NeedsContext(stream); context.code != LaunchCode::kOk) return context;
  const DeviceGuard guard(stream.cuda->device_index());
  if (args.x.rows == 0 || args.w.rows == 0) return {};
  if (!IsAligned(args.x.codes, 4) || !IsAligned(args.w.tiles, 4)) {
    return {LaunchCode::kInternal, "codes and tiles must be aligned to 4 bytes on CUDA"};
  }
  return args.y.dtype == DType::kF32 ? Multiply<float>(args, stream) : Multiply<BF16>(args, stream);
}

}  // namespace nibble::kernels
