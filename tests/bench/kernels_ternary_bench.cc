// Speed of BitNet's ops, with shapes of the 1.17 B benchmark model (2048, 8192), of BitNet b1.58 2B4T (2560, 6912), of
// SmolLM2-135M (576, 1536) and of larger models (4096).
// Products of few rows read the weights from memory: each case cycles through copies larger than the caches.
#include <memory>
#include <vector>

#include "kernels/ops/matmul/matmul_ternary.h"
#include "kernels/ops/quantize/dequantize_ternary.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "kernels/ops/quantize/ternarize.h"
#include "kernels/ops/quantize/ternarize_backward.h"
#include "kernels/weight_buffer.h"
#include "tests/bench/bench.h"
#include "tests/bench/ggml_peer.h"
#include "tests/support/int8.h"
#include "tests/support/ternary.h"

namespace nibble::bench {
namespace {

using kernels::DType;

// Number of copies of the weight that a case cycles through; 1 unless it has few rows.
std::int64_t ColdCopies(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m > 8 ? 1 : std::max<std::int64_t>(1, kColdBytes / (n * k / 4));
}

struct MatmulProblem {
  MatmulProblem(std::int64_t m, std::int64_t n, std::int64_t k)
      : x(m, k),
        y(static_cast<std::size_t>(m * n)),
        scale(static_cast<std::size_t>(n), 0.01f),
        tiles(static_cast<std::size_t>(ColdCopies(m, n, k))) {
    const std::vector<float> values = support::NormalVector(1, m * k);
    ok = kernels::QuantizeInt8(
             {kernels::MakeConstMatrix(values.data(), DType::kF32, m, k), x.view(), 0, {kernels::kBitNetMinAbsmax}},
             kernels::Stream{})
             .ok();
    const support::TernaryWeight weight(support::TernaryVector(2, n * k), scale, n, k);
    ok = ok && weight.ok;
    for (auto& t : tiles) {
      t = kernels::WeightBuffer(kernels::PackedTernaryBytes(n, k));
      std::memcpy(t.data(), weight.view().tiles, static_cast<std::size_t>(t.size()));
    }
    args = {x.view(),
            {tiles[0].data(), scale.data(), n, k, kernels::TernaryPaddedK(k)},
            nullptr,
            kernels::MakeMatrix(y.data(), DType::kF32, m, n)};
  }
  bool ok = false;
  support::Int8Rows x;
  std::vector<float> y, scale;
  std::vector<kernels::WeightBuffer> tiles;
  kernels::MatmulTernaryArgs args;
};

// Up to 2 rows are compared with the read roof (2 bits per weight), more rows with the int8 roof.
void AddMatmul(Bench& bench, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto get = Lazily<MatmulProblem>(m, n, k);
  const bool decode = m <= 2;
  bench.Add({CaseName("matmul_ternary", m, n, k), decode ? Roof::kRead : Roof::kInt8,
             static_cast<double>(n * k) * (decode ? 0.25 : 2.0 * static_cast<double>(m)),
             [get, &bench] {
               MatmulProblem& p = get();
               kernels::MatmulTernaryArgs args = p.args;
               args.x.rows = args.y.rows = std::min<std::int64_t>(8, args.x.rows);  // the plain loops are slow
               return p.ok && SameAsPlain(bench, args, kernels::MatmulTernary,
                                          static_cast<std::size_t>(args.y.rows * args.y.cols) * 4);
             },
             [get, &bench](std::int64_t call) {
               MatmulProblem& p = get();
               kernels::MatmulTernaryArgs args = p.args;
               args.w.tiles = p.tiles[static_cast<std::size_t>(call) % p.tiles.size()].data();
               if (!kernels::MatmulTernary(args, bench.stream()).ok()) std::abort();
             }});
}

// Nibble and llama.cpp do the same work, starting from f32 rows: Nibble quantizes them and then multiplies, llama.cpp
// does both within its product. One call multiplies with all copies of the weight. For few rows, the work of a case is
// the bytes of all copies in its format.
struct Race {
  Race(std::int64_t m, std::int64_t n, std::int64_t k, const std::string& directory, int threads)
      : ours(m, n, k), x(support::NormalVector(1, m * k)), wide(static_cast<std::size_t>(n * k)) {
    const std::vector<std::int8_t> codes = support::TernaryVector(2, n * k);
    for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = 0.01f * codes[i];
    theirs = std::make_unique<GgmlProduct>(directory, GgmlProduct::kTq2, wide, x, m, n, k,
                                           static_cast<std::int64_t>(ours.tiles.size()), threads);
  }
  void RunOurs(const kernels::Stream& stream) {
    const kernels::ConstMatrix xm = kernels::MakeConstMatrix(x.data(), DType::kF32, ours.args.x.rows, ours.args.x.cols);
    for (auto& t : ours.tiles) {
      kernels::MatmulTernaryArgs args = ours.args;
      args.w.tiles = t.data();
      if (!kernels::QuantizeActivations({xm, args.x, 0, {kernels::kBitNetMinAbsmax}}, stream).ok() ||
          !kernels::MatmulTernary(args, stream).ok()) {
        std::abort();
      }
    }
  }
  MatmulProblem ours;
  std::vector<float> x, wide;
  std::unique_ptr<GgmlProduct> theirs;
};

void AddRace(Bench& bench, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto get = Lazily<Race>(m, n, k, bench.peer(), bench.threads());
  const bool decode = m <= 2;
  const double copies = static_cast<double>(ColdCopies(m, n, k));
  const double work = copies * static_cast<double>(n * k) * (decode ? 0.25 : 2.0 * static_cast<double>(m));
  const Roof roof = decode ? Roof::kRead : Roof::kInt8;
  bench.Add({CaseName("nibble quantize + ternary", m, n, k), roof, work,
             [get, &bench] {
               Race& race = get();
               race.RunOurs(bench.stream());
               if (!race.theirs->Run()) return false;
               // Both round activations to 8 bits: the outputs agree to about a hundredth of their magnitude.
               double difference = 0, size = 0;
               for (std::size_t i = 0; i < race.ours.y.size(); ++i) {
                 const double d = race.ours.y[i] - race.theirs->y()[i];
                 difference += d * d;
                 size += static_cast<double>(race.ours.y[i]) * race.ours.y[i];
               }
               return size > 0 && difference < 4e-4 * size;
             },
             [get, &bench](std::int64_t) { get().RunOurs(bench.stream()); }});
  // TQ2_0 has 66 bytes for 256 weights.
  bench.Add({CaseName("llama.cpp TQ2_0", m, n, k), roof, decode ? work * 66.0 / 64.0 : work, [] { return true; },
             [get](std::int64_t) {
               if (!get().theirs->Run()) std::abort();
             }});
}

struct WeightProblem {
  WeightProblem(std::int64_t n, std::int64_t k)
      : w(support::NormalVector(1, n * k, 0.02f)),
        grad(support::NormalVector(2, n * k)),
        out(w.size()),
        scale(static_cast<std::size_t>(n)),
        tiles(static_cast<std::size_t>(kernels::PackedTernaryBytes(n, k))),
        wm(kernels::MakeConstMatrix(w.data(), DType::kF32, n, k)),
        n(n),
        k(k) {}
  kernels::TernarizeArgs Ternarize(std::vector<std::uint8_t>& to) { return {wm, scale.data(), nullptr, to.data()}; }
  kernels::PackedTernaryWeight Packed() { return {tiles.data(), scale.data(), n, k, kernels::TernaryPaddedK(k)}; }

  std::vector<float> w, grad, out, scale;
  std::vector<std::uint8_t> tiles;
  kernels::ConstMatrix wm;
  std::int64_t n, k;
};

// The ops that a training step runs on each weight; the work is the bytes that must be moved.
void AddWeightOps(Bench& bench, std::int64_t n, std::int64_t k) {
  const auto get = Lazily<WeightProblem>(n, k);
  const double weights = static_cast<double>(n * k);
  kernels::Stream plain = bench.stream();
  plain.isa = kernels::Isa::kPlain;
  bench.Add({CaseName("ternarise", 1, n, k), Roof::kRead, weights * 8.25,  // reads w twice
             [get, plain, &bench] {
               WeightProblem& p = get();
               std::vector<std::uint8_t> want(p.tiles.size());
               return kernels::Ternarize(p.Ternarize(want), plain).ok() &&
                      kernels::Ternarize(p.Ternarize(p.tiles), bench.stream()).ok() && p.tiles == want;
             },
             [get, &bench](std::int64_t) {
               if (!kernels::Ternarize(get().Ternarize(get().tiles), bench.stream()).ok()) std::abort();
             }});
  bench.Add({CaseName("dequantize_ternary bf16", 1, n, k), Roof::kRead, weights * 2.25,
             [get, plain, &bench] {
               WeightProblem& p = get();
               std::vector<kernels::BF16> want(p.w.size()), got(p.w.size());
               if (!kernels::Ternarize(p.Ternarize(p.tiles), bench.stream()).ok()) return false;
               const auto run = [&](std::vector<kernels::BF16>& to, const kernels::Stream& stream) {
                 return kernels::DequantizeTernary({p.Packed(), kernels::MakeMatrix(to.data(), DType::kBF16, p.n, p.k)},
                                                   stream)
                     .ok();
               };
               return run(want, plain) && run(got, bench.stream()) &&
                      std::memcmp(want.data(), got.data(), want.size() * 2) == 0;
             },
             [get, &bench](std::int64_t) {
               WeightProblem& p = get();
               const kernels::Matrix out = kernels::MakeMatrix(p.out.data(), DType::kBF16, p.n, p.k);
               if (!kernels::DequantizeTernary({p.Packed(), out}, bench.stream()).ok()) std::abort();
             }});
  bench.Add(
      {CaseName("ternarise_backward round_only", 1, n, k), Roof::kRead, weights * 20.0,  // reads w and g twice
       [get, plain, &bench] {
         WeightProblem& p = get();
         const auto run = [&](std::vector<float>& to, const kernels::Stream& stream) {
           return kernels::TernarizeBackward(
                      {p.wm, 0.016f, kernels::MakeConstMatrix(p.grad.data(), DType::kF32, p.n, p.k),
                       kernels::Ste::kRoundOnly, /*scale_grad=*/true,
                       kernels::MakeMatrix(to.data(), DType::kF32, p.n, p.k)},
                      stream)
               .ok();
         };
         std::vector<float> want(p.w.size());
         return run(want, plain) && run(p.out, bench.stream()) && p.out == want;
       },
       [get, &bench](std::int64_t) {
         WeightProblem& p = get();
         const kernels::ConstMatrix grad = kernels::MakeConstMatrix(p.grad.data(), DType::kF32, p.n, p.k);
         const kernels::Matrix out = kernels::MakeMatrix(p.out.data(), DType::kF32, p.n, p.k);
         if (!kernels::TernarizeBackward({p.wm, 0.016f, grad, kernels::Ste::kRoundOnly, true, out}, bench.stream())
                  .ok()) {
           std::abort();
         }
       }});
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  nibble::bench::Bench bench(argc, argv);
  for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 8, 32, 512}) {
    nibble::bench::AddMatmul(bench, m, 2048, 2048);
    nibble::bench::AddMatmul(bench, m, 8192, 2048);
    nibble::bench::AddMatmul(bench, m, 2048, 8192);
  }
  for (const std::int64_t m : {1, 2, 4, 8, 512}) {
    if (bench.peer().empty()) break;
    nibble::bench::AddRace(bench, m, 4096, 4096);
    nibble::bench::AddRace(bench, m, 8192, 2048);
  }
  nibble::bench::AddMatmul(bench, 1, 2560, 2560);
  nibble::bench::AddMatmul(bench, 1, 13824, 2560);
  nibble::bench::AddMatmul(bench, 1, 2560, 6912);
  nibble::bench::AddMatmul(bench, 1, 1536, 576);
  nibble::bench::AddMatmul(bench, 256, 1536, 576);
  nibble::bench::AddWeightOps(bench, 2048, 8192);
  return bench.Run();
}
