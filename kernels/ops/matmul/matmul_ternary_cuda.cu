// Few rows: 4-way dot products straight from the weight's tiles, epilogue in the same kernel. More rows: the codes are
// written by rows as int8 for cuBLASLt. Integer sums do not depend on the order, so both give the CPU's bits.
#include "kernels/cuda/integer_matmul.cuh"
#include "kernels/ops/matmul/matmul_ternary_launch.h"

namespace nibble::kernels {

// Outside the anonymous namespace, where argument-dependent lookup from IntegerEpilogue finds it.
__device__ inline int WeightCode(const PackedTernaryWeight& w, std::int64_t n, std::int64_t k) {
  return ((w.tiles[TernaryByte(w.padded_k, n, k)] >> TernaryShift(k)) & 3) - 1;
}

namespace {

using Epilogue = IntegerEpilogue<PackedTernaryWeight>;

// Up to this many rows, it costs less to read the tiles again for every kRowsAtATime rows than to write the weight's
// codes to scratch and read them there.
constexpr std::int64_t kFewRows = 16;
constexpr int kRowsAtATime = 4;  // rows that share one read of the tiles
constexpr int kDotThreads = 128;
constexpr int kDotGroups = kDotThreads / 16;  // a group has one thread (a lane) for each output of a tile
constexpr int kOnes = 0x01010101;             // four int8 of 1

// A word holds one output's 16 codes of a tile (formats/ternary.h). Returns codes 4 * plane to 4 * plane + 3, one per
// byte, as stored: 0, 1 or 2.
__device__ inline int PlaneOf(unsigned word, int plane) {
  return static_cast<int>((word >> (2 * plane)) & 0x03030303u);
}

// A thread block computes 16 outputs of kRowsAtATime rows; its groups share the tiles along k. Stored codes are larger
// by 1, so each sum is too large by the sum of the row's own codes: the thread block computes and subtracts that.
template <typename Y>
__global__ void __launch_bounds__(kDotThreads) Dot(Epilogue epilogue, Y* y, std::int64_t y_stride) {
  __shared__ int partial[kDotGroups][kRowsAtATime][16];
  __shared__ int row_sum[kRowsAtATime];
  const QuantizedRows& x = epilogue.x;
  const PackedTernaryWeight& w = epilogue.w;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 16;
  const int group = thread / 16;
  const int num_tiles = static_cast<int>(w.padded_k / kTernaryBlock);
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kRowsAtATime;
  const auto* tiles = reinterpret_cast<const unsigned*>(w.tiles) + std::int64_t{blockIdx.x} * num_tiles * 16;
  if (thread < kRowsAtATime) row_sum[thread] = 0;
  __syncthreads();
  int acc[kRowsAtATime] = {};
#pragma unroll 4
  for (int t = group; t < num_tiles; t += kDotGroups) {
    const unsigned word = tiles[t * 16 + lane];
#pragma unroll
    for (int m = 0; m < kRowsAtATime; ++m) {
      if (first_row + m >= x.rows) continue;
      const int4 a = reinterpret_cast<const int4*>(x.codes + (first_row + m) * x.stride)[t];
      acc[m] = __dp4a(a.x, PlaneOf(word, 0), acc[m]);
      acc[m] = __dp4a(a.y, PlaneOf(word, 1), acc[m]);
      acc[m] = __dp4a(a.z, PlaneOf(word, 2), acc[m]);
      acc[m] = __dp4a(a.w, PlaneOf(word, 3), acc[m]);
    }
  }
  for (int m = 0; m < kRowsAtATime && first_row + m < x.rows; ++m) {
    int sum = 0;
    const int* words = reinterpret_cast<const int*>(x.codes + (first_row + m) * x.stride);
    for (int i = thread; i < num_tiles * 4; i += kDotThreads) sum = __dp4a(words[i], kOnes, sum);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (thread % 32 == 0) atomicAdd(&row_sum[m], sum);  // integers: the order does not matter
  }
#pragma unroll
  for (int m = 0; m < kRowsAtATime; ++m) partial[group][m][lane] = acc[m];
  __syncthreads();
  for (int i = thread; i < kRowsAtATime * 16; i += kDotThreads) {
    const std::int64_t row = first_row + i / 16;
    const std::int64_t n = std::int64_t{blockIdx.x} * 16 + i % 16;
    if (row >= x.rows || n >= w.rows) continue;
    int sum = -row_sum[i / 16];
    for (int g = 0; g < kDotGroups; ++g) sum += partial[g][i / 16][i % 16];
    StoreElement(y + row * y_stride + n, epilogue(row, n, sum));
  }
}

// tiles -> rows of padded_k codes -1, 0, 1; num_tiles is the number of tiles along k. A thread unpacks a word: one
// output's 16 codes of a tile.
__global__ void UnpackTernary(const unsigned* tiles, std::int64_t num_words, std::int64_t num_tiles,
                              std::int8_t* rows) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < num_words; i += step) {
    // Neighbouring threads take neighbouring tiles of one output, so that they write to neighbouring addresses.
    const std::int64_t n = i / num_tiles;
    const std::int64_t t = i % num_tiles;
    const unsigned word = tiles[(n / 16 * num_tiles + t) * 16 + n % 16];
    int4 codes;
    codes.x = static_cast<int>(__vsub4(static_cast<unsigned>(PlaneOf(word, 0)), kOnes));
    codes.y = static_cast<int>(__vsub4(static_cast<unsigned>(PlaneOf(word, 1)), kOnes));
    codes.z = static_cast<int>(__vsub4(static_cast<unsigned>(PlaneOf(word, 2)), kOnes));
    codes.w = static_cast<int>(__vsub4(static_cast<unsigned>(PlaneOf(word, 3)), kOnes));
    reinterpret_cast<int4*>(rows)[i] = codes;
  }
}

template <typename Y>
LaunchResult Multiply(const MatmulTernaryArgs& args, const Stream& stream) {
  const Epilogue epilogue{args.x, args.w, args.bias};
  const auto output_tiles = static_cast<unsigned>((args.w.rows + 15) / 16);
  // Without columns there is nothing to unpack or multiply: the fused kernel's sums are 0.
  if (args.x.rows <= kFewRows || args.w.padded_k == 0) {
    const dim3 grid(output_tiles, static_cast<unsigned>((args.x.rows + kRowsAtATime - 1) / kRowsAtATime));
    Dot<<<grid, kDotThreads, 0, CudaStreamOf(stream)>>>(epilogue, args.y.Row<Y>(0), args.y.stride);
    return Launched(stream, "matmul_ternary");
  }
  return MultiplyManyIntegerRows<Y>(epilogue, args.y, stream, {"matmul_ternary", "matmul_ternary_epilogue"},
                                    [&](std::int8_t* rows) {
                                      const std::int64_t num_tiles = args.w.padded_k / kTernaryBlock;
                                      const std::int64_t num_words = std::int64_t{output_tiles} * 16 * num_tiles;
                                      UnpackTernary<<<GridFor(num_words), kCudaThreads, 0, CudaStreamOf(stream)>>>(
                                          reinterpret_cast<const unsigned*>(args.w.tiles), num_words, num_tiles, rows);
                                      return Launched(stream, "matmul_ternary_unpack");
                                    });
}

}  // namespace

LaunchResult MatmulTernaryCuda(const MatmulTernaryArgs& args, const Stream& stream) {
  if (const LaunchResult context = NeedsContext(stream); context.code != LaunchCode::kOk) return context;
  const DeviceGuard guard(stream.cuda->device_index());
  if (args.x.wide_codes != nullptr) return {LaunchCode::kUnimplemented, "16-bit activations are not supported on CUDA"};
  if (!IsAligned(args.x.codes, 16) || !IsAligned(args.w.tiles, 4)) {
    return {LaunchCode::kInternal, "codes must be aligned to 16 bytes and tiles to 4 on CUDA"};
  }
  return args.y.dtype == DType::kF32 ? Multiply<float>(args, stream) : Multiply<BF16>(args, stream);
}

}  // namespace nibble::kernels
