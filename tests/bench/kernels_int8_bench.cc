// Speed of the int8, weight-only and dense products and of row quantization, with shapes of SmolLM2-135M (576, 1536)
// and of the 1.17 B benchmark model (2048, 8192). Products of few rows read the weights from memory: each case cycles
// through copies larger than the caches.
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/ops/matmul/matmul_dense.h"
#include "kernels/ops/matmul/matmul_int8.h"
#include "kernels/ops/matmul/matmul_int8_weight.h"
#include "kernels/ops/norm/rms_norm_quantize.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "kernels/ops/quantize/quantize_int8_transposed.h"
#include "kernels/weight_buffer.h"
#include "tests/bench/bench.h"
#include "tests/support/int8.h"

namespace nibble::bench {
namespace {

using kernels::DType;

struct Int8Problem {
  Int8Problem(std::int64_t m, std::int64_t n, std::int64_t k, const kernels::Stream& stream)
      : x(m, k),
        y(static_cast<std::size_t>(m * n)),
        copies(static_cast<std::size_t>(m > 4 ? 1 : std::max<std::int64_t>(1, kColdBytes / (n * k)))),
        tiles(copies),
        scale(static_cast<std::size_t>(n), 0.01f),
        row_sum(static_cast<std::size_t>(kernels::RoundUp(n, 16))) {
    std::vector<float> values = support::NormalVector(1, m * k);
    for (std::int64_t r = 0; r < m; ++r) {  // five outliers per row, about as many as in served models
      for (std::int64_t i = 0; i < 5; ++i) values[static_cast<std::size_t>(r * k + i * (k / 5))] = 60.0f;
    }
    ok = kernels::QuantizeInt8({kernels::MakeConstMatrix(values.data(), DType::kF32, m, k), x.view(), 8}, stream).ok();
    const std::vector<std::int8_t> codes = support::CodeVector(2, n * k);
    for (auto& t : tiles) {
      t = kernels::WeightBuffer(kernels::PackedInt8Bytes(n, k));
      kernels::PackInt8Weight(codes.data(), n, k, t.As<std::int8_t>(), row_sum.data());
    }
    args = {x.view(),
            {tiles[0].As<std::int8_t>(), scale.data(), row_sum.data(), n, k, kernels::Int8PaddedK(k)},
            nullptr,
            kernels::MakeMatrix(y.data(), DType::kF32, m, n)};
  }
  bool ok = false;
  support::Int8Rows x;
  std::vector<float> y;
  std::size_t copies;
  std::vector<kernels::WeightBuffer> tiles;
  std::vector<float> scale;
  std::vector<std::int32_t> row_sum;
  kernels::MatmulInt8Args args;
};

void AddMatmulInt8(Bench& bench, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto get = Lazily<Int8Problem>(m, n, k, bench.stream());
  const bool decode = m <= 4;
  bench.Add({CaseName("matmul_int8", m, n, k), decode ? Roof::kRead : Roof::kInt8,
             static_cast<double>(n * k) * (decode ? 1.0 : 2.0 * static_cast<double>(m)),
             [get, &bench] {
               Int8Problem& p = get();
               kernels::MatmulInt8Args args = p.args;
               args.x.rows = args.y.rows = std::min<std::int64_t>(8, args.x.rows);  // the plain loops are slow
               return p.ok && SameAsPlain(bench, args, kernels::MatmulInt8,
                                          static_cast<std::size_t>(args.y.rows * args.y.cols) * 4);
             },
             [get, &bench](std::int64_t call) {
               Int8Problem& p = get();
               kernels::MatmulInt8Args args = p.args;
               args.w.tiles = p.tiles[static_cast<std::size_t>(call) % p.copies].As<std::int8_t>();
               if (!kernels::MatmulInt8(args, bench.stream()).ok()) std::abort();
             }});
}

// The product of bf16 rows and the same weights.
void AddMatmulInt8Weight(Bench& bench, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto get = Lazily<Int8Problem>(m, n, k, bench.stream());
  const auto rows =
      std::make_shared<std::vector<std::uint8_t>>(support::ToBytes(support::NormalVector(3, m * k), DType::kBF16));
  const auto args = [get, rows, m, k] {
    const kernels::MatmulInt8Args& p = get().args;
    return kernels::MatmulInt8WeightArgs{
        .x = kernels::MakeConstMatrix(rows->data(), DType::kBF16, m, k), .w = p.w, .y = p.y};
  };
  const bool decode = m <= 4;
  bench.Add({CaseName("matmul_int8_weight", m, n, k), decode ? Roof::kRead : Roof::kF32,
             static_cast<double>(n * k) * (decode ? 1.0 : 2.0 * static_cast<double>(m)),
             [args, &bench] {
               kernels::MatmulInt8WeightArgs few = args();
               few.x.rows = few.y.rows = std::min<std::int64_t>(7, few.x.rows);  // the plain loops are slow
               return SameAsPlain(bench, few, kernels::MatmulInt8Weight,
                                  static_cast<std::size_t>(few.y.rows * few.y.cols) * 4);
             },
             [args, get, &bench](std::int64_t call) {
               Int8Problem& p = get();
               kernels::MatmulInt8WeightArgs one = args();
               one.w.tiles = p.tiles[static_cast<std::size_t>(call) % p.copies].As<std::int8_t>();
               if (!kernels::MatmulInt8Weight(one, bench.stream()).ok()) std::abort();
             }});
}

struct DenseProblem {
  DenseProblem(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype)
      : x(support::NormalVector(1, m * k)),
        y(static_cast<std::size_t>(m * n)),
        copies(static_cast<std::size_t>(m > 4 ? 1 : std::max<std::int64_t>(1, kColdBytes / (n * k * SizeOf(dtype))))),
        panels(copies) {
    const std::vector<std::uint8_t> rows = support::ToBytes(support::NormalVector(2, n * k), dtype);
    for (auto& p : panels) {
      p = kernels::WeightBuffer(kernels::PackedDenseElements(n, k) * SizeOf(dtype));
      kernels::PackDenseWeight(rows.data(), dtype, n, k, p.data());
    }
    args = {kernels::MakeConstMatrix(x.data(), DType::kF32, m, k),
            {panels[0].data(), dtype, n, k},
            nullptr,
            kernels::MakeMatrix(y.data(), DType::kF32, m, n)};
  }
  std::vector<float> x, y;
  std::size_t copies;
  std::vector<kernels::WeightBuffer> panels;
  kernels::MatmulDenseArgs args;
};

void AddMatmulDense(Bench& bench, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) {
  const auto get = Lazily<DenseProblem>(m, n, k, dtype);
  const bool decode = m <= 4;
  bench.Add({CaseName(std::string("matmul_dense ") + kernels::Name(dtype), m, n, k), decode ? Roof::kRead : Roof::kF32,
             static_cast<double>(n * k) * (decode ? static_cast<double>(SizeOf(dtype)) : 2.0 * static_cast<double>(m)),
             [get, &bench] {
               kernels::MatmulDenseArgs args = get().args;
               args.x.rows = args.y.rows = std::min<std::int64_t>(7, args.x.rows);  // the plain loops are slow
               return SameAsPlain(bench, args, kernels::MatmulDense,
                                  static_cast<std::size_t>(args.y.rows * args.y.cols) * 4);
             },
             [get, &bench](std::int64_t call) {
               DenseProblem& p = get();
               kernels::MatmulDenseArgs args = p.args;
               args.w.panels = p.panels[static_cast<std::size_t>(call) % p.copies].data();
               if (!kernels::MatmulDense(args, bench.stream()).ok()) std::abort();
             }});
}

void AddRmsNormQuantize(Bench& bench, std::int64_t m, std::int64_t k) {
  const auto x = std::make_shared<std::vector<float>>(support::NormalVector(1, m * k));
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t i = 0; i < 5; ++i) (*x)[static_cast<std::size_t>(r * k + i * (k / 5))] = 60.0f;
  }
  const auto weight = std::make_shared<std::vector<float>>(static_cast<std::size_t>(k), 1.0f);
  const auto out = std::make_shared<support::Int8Rows>(m, k);
  const auto op = [=](support::Int8Rows& to, const kernels::Stream& stream) {
    return kernels::RmsNormQuantize(
               {kernels::MakeConstMatrix(x->data(), DType::kF32, m, k), weight->data(), 1e-5f, to.view(), 8}, stream)
        .ok();
  };
  bench.Add({CaseName("rms_norm_quantize", m, 0, k), Roof::kRead, static_cast<double>(m * k) * 5.0,
             [=, &bench] {
               support::Int8Rows plain(m, k);
               kernels::Stream stream = bench.stream();
               if (!op(*out, stream)) return false;
               stream.isa = kernels::Isa::kPlain;
               return op(plain, stream) && static_cast<bool>(out->SameBytes(plain));
             },
             [=, &bench](std::int64_t) {
               if (!op(*out, bench.stream())) std::abort();
             }});
}

// The operand of a backward product: x [m, k] f32 read, codes of its transpose written in the packed form.
void AddQuantizeTransposed(Bench& bench, std::int64_t m, std::int64_t k) {
  const auto x = std::make_shared<std::vector<float>>(support::NormalVector(1, m * k));
  const auto tiles =
      std::make_shared<std::vector<std::int8_t>>(static_cast<std::size_t>(kernels::PackedInt8Bytes(k, m)));
  const auto scale = std::make_shared<std::vector<float>>(static_cast<std::size_t>(k));
  const auto sums = std::make_shared<std::vector<std::int32_t>>(static_cast<std::size_t>(kernels::RoundUp(k, 16)));
  // `args` points into these, which the case must keep.
  const auto kept = std::make_tuple(x, scale, sums);
  const kernels::QuantizeInt8TransposedArgs args = {.x = kernels::MakeConstMatrix(x->data(), DType::kF32, m, k),
                                                    .scale = scale->data(),
                                                    .tiles = tiles->data(),
                                                    .row_sum = sums->data()};
  bench.Add({CaseName("quantize_int8_transposed", m, 0, k), Roof::kRead, static_cast<double>(m * k) * 5.0,
             [=, &bench, kept = kept] {
               kernels::Stream stream = bench.stream();
               if (!kernels::QuantizeInt8Transposed(args, stream).ok()) return false;
               const std::vector<std::int8_t> fast = *tiles;
               stream.isa = kernels::Isa::kPlain;
               return kernels::QuantizeInt8Transposed(args, stream).ok() && *tiles == fast;
             },
             [=, &bench](std::int64_t) {
               if (!kernels::QuantizeInt8Transposed(args, bench.stream()).ok()) std::abort();
             }});
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  using nibble::kernels::DType;
  nibble::bench::Bench bench(argc, argv);
  for (const std::int64_t m : {1, 2, 3, 4, 8, 32, 512}) {
    nibble::bench::AddMatmulInt8(bench, m, 2048, 2048);
    nibble::bench::AddMatmulInt8(bench, m, 8192, 2048);
    nibble::bench::AddMatmulInt8(bench, m, 2048, 8192);
  }
  nibble::bench::AddMatmulInt8(bench, 1, 576, 576);
  nibble::bench::AddMatmulInt8(bench, 1, 1536, 576);
  nibble::bench::AddMatmulInt8(bench, 1, 49152, 576);
  nibble::bench::AddMatmulInt8(bench, 256, 1536, 576);
  for (const std::int64_t m : {1, 2, 8, 256}) {
    nibble::bench::AddMatmulInt8Weight(bench, m, 2048, 2048);
    nibble::bench::AddMatmulDense(bench, m, 2048, 2048, DType::kBF16);
    nibble::bench::AddMatmulDense(bench, m, 2048, 2048, DType::kF32);
  }
  for (const std::int64_t m : {1, 8, 512}) {
    nibble::bench::AddRmsNormQuantize(bench, m, 576);
    nibble::bench::AddRmsNormQuantize(bench, m, 2048);
  }
  nibble::bench::AddQuantizeTransposed(bench, 1024, 576);
  nibble::bench::AddQuantizeTransposed(bench, 1024, 2048);
  nibble::bench::AddQuantizeTransposed(bench, 8192, 2048);
  return bench.Run();
}
