// Speed of the NF4 codecs and product, with shapes of SmolLM2-135M (576, 1536) and of larger models (4096).
// Dequantizing writes about four (bf16) or seven (f32) bytes for each byte that it reads, so its rate counts both.
// Products of few rows cycle through copies of the weight that no cache holds.
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/matmul/matmul_nf4.h"
#include "kernels/ops/quantize/dequantize_nf4.h"
#include "kernels/ops/quantize/quantize_nf4.h"
#include "tests/bench/bench.h"
#include "tests/support/numeric.h"
#include "tests/support/random.h"

namespace nibble::bench {
namespace {

using kernels::DType;

struct Weight {
  Weight(std::int64_t n, std::int64_t k, std::int64_t copies, std::int64_t block = kernels::kNf4Block)
      : n(n), k(k), block(block), codes(static_cast<std::size_t>(copies)) {
    absmax.resize(static_cast<std::size_t>(n * kernels::Nf4RowBlocks(k, block)), 0.05f);
    for (auto& copy : codes) {
      copy.resize(static_cast<std::size_t>(n * kernels::Nf4RowBytes(k)));
      for (std::size_t i = 0; i < copy.size(); ++i) copy[i] = static_cast<std::uint8_t>(support::Bits(1, i));
    }
  }
  kernels::Nf4Weight view(std::int64_t call) const {
    return {codes[static_cast<std::size_t>(call) % codes.size()].data(), absmax.data(), n, k, block};
  }
  double bytes_per_weight() const { return 0.5 + 4.0 / static_cast<double>(block); }
  std::int64_t n, k, block;
  std::vector<std::vector<std::uint8_t>> codes;
  std::vector<float> absmax;
};

kernels::Stream Plain(kernels::Stream stream) {
  stream.isa = kernels::Isa::kPlain;
  return stream;
}

// The op in a case's name: with the type, and with the block unless it has 64 weights.
std::string BlockCase(const std::string& op, DType dtype, std::int64_t block) {
  return op + " " + Name(dtype) + (block == kernels::kNf4Block ? "" : " block " + std::to_string(block));
}

void AddDequantize(Bench& bench, std::int64_t n, std::int64_t k, DType dtype, std::int64_t block = kernels::kNf4Block) {
  const auto w = std::make_shared<Weight>(n, k, 1, block);
  const auto out = std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(n * k * SizeOf(dtype)));
  const auto run = [=](std::vector<std::uint8_t>* to, const kernels::Stream& stream) {
    return kernels::DequantizeNf4({w->view(0), kernels::MakeMatrix(to->data(), dtype, n, k)}, stream).ok();
  };
  bench.Add({CaseName(BlockCase("dequantize_nf4", dtype, block), 0, n, k), Roof::kRead,
             static_cast<double>(n * k) * (w->bytes_per_weight() + static_cast<double>(SizeOf(dtype))),
             [=, &bench] {
               std::vector<std::uint8_t> plain(out->size());
               return run(out.get(), bench.stream()) && run(&plain, Plain(bench.stream())) && plain == *out;
             },
             [=, &bench](std::int64_t) {
               if (!run(out.get(), bench.stream())) std::abort();
             }});
}

void AddQuantize(Bench& bench, std::int64_t n, std::int64_t k) {
  const auto x = std::make_shared<std::vector<float>>(support::NormalVector(1, n * k));
  const auto w = std::make_shared<Weight>(n, k, 2);
  const auto run = [=](std::size_t copy, const kernels::Stream& stream) {
    return kernels::QuantizeNf4(
               {kernels::MakeConstMatrix(x->data(), DType::kF32, n, k), w->codes[copy].data(), w->absmax.data()},
               stream)
        .ok();
  };
  bench.Add(
      {CaseName("quantize_nf4 f32", 0, n, k), Roof::kRead, static_cast<double>(n * k) * (4.0 + w->bytes_per_weight()),
       [=, &bench] { return run(0, bench.stream()) && run(1, Plain(bench.stream())) && w->codes[0] == w->codes[1]; },
       [=, &bench](std::int64_t) {
         if (!run(0, bench.stream())) std::abort();
       }});
}

struct MatmulProblem {
  MatmulProblem(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t copies, DType dtype, std::int64_t block)
      : w(n, k, copies, block),
        x(support::ToBytes(support::NormalVector(2, m * k), dtype)),
        y(static_cast<std::size_t>(m * n)) {}
  Weight w;
  std::vector<std::uint8_t> x;
  std::vector<float> y;
};

void AddMatmul(Bench& bench, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype,
               std::int64_t block = kernels::kNf4Block) {
  const bool decode = m <= 4;
  const std::int64_t copies = decode ? std::max<std::int64_t>(1, kColdBytes * 2 / (n * k)) : 1;
  const auto get = Lazily<MatmulProblem>(m, n, k, copies, dtype, block);
  const auto run = [=](std::int64_t call, std::int64_t rows, const kernels::Stream& stream) {
    MatmulProblem& p = get();
    return kernels::MatmulNf4({kernels::MakeConstMatrix(p.x.data(), dtype, rows, k), p.w.view(call), nullptr,
                               kernels::MakeMatrix(p.y.data(), DType::kF32, rows, n)},
                              stream)
        .ok();
  };
  const double weights = static_cast<double>(n * k);
  bench.Add({CaseName(BlockCase("matmul_nf4", dtype, block), m, n, k), decode ? Roof::kRead : Roof::kF32,
             weights * (decode ? 0.5 + 4.0 / static_cast<double>(block) : 2.0 * static_cast<double>(m)),
             [=, &bench] {  // BEST_EFFORT: close to the plain loops, not equal to them
               const std::int64_t rows = std::min<std::int64_t>(m, 5);  // the plain loops are slow
               if (!run(0, rows, bench.stream())) return false;
               const std::vector<float> fast = get().y;
               if (!run(0, rows, Plain(bench.stream()))) return false;
               return support::Cosine(fast, get().y) > 0.999999;
             },
             [=, &bench](std::int64_t call) {
               if (!run(call, m, bench.stream())) std::abort();
             }});
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  using nibble::kernels::DType;
  nibble::bench::Bench bench(argc, argv);
  nibble::bench::AddQuantize(bench, 1536, 576);
  nibble::bench::AddQuantize(bench, 4096, 4096);
  for (const std::int64_t block : {32, 256, 4096}) {
    nibble::bench::AddDequantize(bench, 4096, 4096, DType::kBF16, block);
    for (const std::int64_t m : {1, 256}) nibble::bench::AddMatmul(bench, m, 4096, 4096, DType::kBF16, block);
  }
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    nibble::bench::AddDequantize(bench, 1536, 576, dtype);
    nibble::bench::AddDequantize(bench, 4096, 4096, dtype);
    for (const std::int64_t m : {1, 4, 256, 1024}) {
      nibble::bench::AddMatmul(bench, m, 1536, 576, dtype);
      nibble::bench::AddMatmul(bench, m, 576, 1536, dtype);
      nibble::bench::AddMatmul(bench, m, 192, 576, dtype);
      nibble::bench::AddMatmul(bench, m, 4096, 4096, dtype);
    }
  }
  return bench.Run();
}
