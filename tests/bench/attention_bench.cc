// Measures the parts of a step other than its matrix products: attention in decode and prefill, gated_mul, rope,
// sampling and log-probabilities.
//   attention_bench --threads 2 [--isa avx2] [--clock cpu --threads 1]
#include <cmath>

#include "kernels/ops/attention/attention.h"
#include "kernels/ops/attention/rope.h"
#include "kernels/ops/elementwise/gated_mul.h"
#include "kernels/ops/loss/log_softmax_gather.h"
#include "kernels/ops/sample/sample.h"
#include "tests/bench/bench.h"
#include "tests/support/isas.h"
#include "tests/support/random.h"

namespace nibble::bench {
namespace {

using kernels::BF16;
using kernels::DType;

struct AttentionShape {
  const char* name;
  std::int64_t kv_heads, group, head_dim;
  std::int64_t sequences, first, rows;  // each sequence has `rows` rows from position `first`
  DType cache;
};

// Owns everything that an attention case borrows.
class AttentionCase {
 public:
  explicit AttentionCase(const AttentionShape& s) : shape_(s) {
    const std::int64_t pages = (s.first + s.rows + kernels::kKvPageTokens - 1) / kernels::kKvPageTokens;
    const std::int64_t heads = s.kv_heads * s.group;
    args_.cache = {nullptr, s.cache, s.sequences * pages, 1, s.kv_heads, s.head_dim};
    const auto values = support::NormalVector(1, 1 << 16);
    const std::int64_t elements = args_.cache.num_pages * args_.cache.PageElements();
    std::vector<float> cache(static_cast<std::size_t>(elements));
    for (std::size_t i = 0; i < cache.size(); ++i) cache[i] = values[(i * 7919) % values.size()];
    cache_ = support::ToBytes(cache, s.cache);
    args_.cache.base = cache_.data();
    for (std::int64_t i = 0; i < args_.cache.num_pages; ++i) {
      pages_.push_back(static_cast<std::int32_t>((i * 31 + 7) % args_.cache.num_pages));  // scattered
    }
    for (std::int64_t i = 0; i < s.sequences; ++i) {
      for (std::int64_t r = 0; r < s.rows; ++r) {
        sequence_.push_back(static_cast<std::int32_t>(i));
        position_.push_back(static_cast<std::int32_t>(s.first + r));
      }
    }
    const std::int64_t rows = s.sequences * s.rows;
    q_ = support::NormalVector(2, rows * heads * s.head_dim);
    out_.resize(q_.size());
    args_.rows = {rows, sequence_.data(), position_.data(), pages_.data(), s.sequences, pages};
    args_.num_heads = heads;
    args_.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    args_.q = kernels::MakeConstMatrix(q_.data(), DType::kF32, rows, heads * s.head_dim);
    args_.out = kernels::MakeMatrix(out_.data(), DType::kF32, rows, heads * s.head_dim);
  }

  bool Check(const kernels::Stream& stream) {
    if (!kernels::Attention(args_, stream).ok()) return false;
    const std::vector<float> got = out_;
    kernels::Stream plain = stream;
    plain.isa = kernels::Isa::kPlain;
    return kernels::Attention(args_, plain).ok() && out_ == got;
  }
  void Run(const kernels::Stream& stream) { (void)kernels::Attention(args_, stream); }
  double CacheBytes() const {
    return static_cast<double>(shape_.sequences * shape_.kv_heads * 2 * shape_.head_dim * (shape_.first + 1) *
                               SizeOf(shape_.cache));
  }
  // Two products for each row and key that the row sees.
  double Flops() const {
    double keys = 0;
    for (const std::int32_t p : position_) keys += p + 1;
    return 4.0 * keys * static_cast<double>(args_.num_heads * shape_.head_dim);
  }

 private:
  AttentionShape shape_;
  kernels::AttentionArgs args_;
  std::vector<std::uint8_t> cache_;
  std::vector<std::int32_t> pages_, sequence_, position_;
  std::vector<float> q_, out_;
};

void AddAttention(Bench* bench) {
  const AttentionShape shapes[] = {
      {"decode 8 x 2048 keys, 9/3 heads of 64, bf16", 3, 3, 64, 8, 2047, 1, DType::kBF16},
      {"decode 1 x 8192 keys, 9/3 heads of 64, bf16", 3, 3, 64, 1, 8191, 1, DType::kBF16},
      {"decode 1 x 512 keys, 9/3 heads of 64, bf16", 3, 3, 64, 1, 511, 1, DType::kBF16},
      {"decode 8 x 2048 keys, 32/8 heads of 128, bf16", 8, 4, 128, 8, 2047, 1, DType::kBF16},
      {"decode 8 x 2048 keys, 8/8 heads of 64, f32", 8, 1, 64, 8, 2047, 1, DType::kF32},
      {"prefill 256 of 256, 9/3 heads of 64, bf16", 3, 3, 64, 1, 0, 256, DType::kBF16},
      {"prefill 64 at 2048, 9/3 heads of 64, bf16", 3, 3, 64, 1, 2048, 64, DType::kBF16},
      {"prefill 64 at 2048, 32/8 heads of 128, bf16", 8, 4, 128, 1, 2048, 64, DType::kBF16},
  };
  for (const AttentionShape& shape : shapes) {
    auto state = std::make_shared<AttentionCase>(shape);
    const bool decode = shape.rows == 1;
    bench->Add({.name = shape.name,
                .roof = decode ? Roof::kRead : Roof::kF32,
                .work = decode ? state->CacheBytes() : state->Flops(),
                .check = [=] { return state->Check(bench->stream()); },
                .run = [=](std::int64_t) { state->Run(bench->stream()); }});
  }
}

void AddSiluAndRope(Bench* bench) {
  constexpr std::int64_t kRows = 64, kWidth = 1536, kHeads = 9, kHeadDim = 64;
  struct State {
    std::vector<float> gate = support::NormalVector(3, kRows* kWidth), up = support::NormalVector(4, kRows* kWidth),
                       y = gate, x = support::NormalVector(5, kRows * kHeads * kHeadDim);
    std::vector<std::int32_t> position = std::vector<std::int32_t>(kRows, 1);
    std::vector<float> cos = std::vector<float>(kHeadDim, 0.6f), sin = std::vector<float>(kHeadDim, 0.8f);
  };
  auto s = std::make_shared<State>();
  const auto silu = [=] {
    return kernels::GatedMul(
        {kernels::Activation::kSilu, kernels::MakeConstMatrix(s->gate.data(), DType::kF32, kRows, kWidth),
         kernels::MakeConstMatrix(s->up.data(), DType::kF32, kRows, kWidth),
         kernels::MakeMatrix(s->y.data(), DType::kF32, kRows, kWidth)},
        bench->stream());
  };
  bench->Add({.name = "gated_mul 64 x 1536, f32",
              .roof = Roof::kRead,
              .work = 12.0 * kRows * kWidth,
              .check =
                  [=] {
                    if (!silu().ok()) return false;
                    for (std::size_t i = 0; i < s->y.size(); ++i) {
                      const double gate = s->gate[i], want = gate / (1 + std::exp(-gate)) * s->up[i];
                      if (!(std::abs(s->y[i] - want) <= 1e-5 * std::abs(want) + 1e-7)) return false;
                    }
                    return true;
                  },
              .run = [=](std::int64_t) { (void)silu(); }});
  const auto rope = [=] {
    return kernels::Rope({.x = kernels::MakeMatrix(s->x.data(), DType::kF32, kRows, kHeads * kHeadDim),
                          .num_heads = kHeads,
                          .position = s->position.data(),
                          .cos = s->cos.data(),
                          .sin = s->sin.data(),
                          .table_positions = 2},
                         bench->stream());
  };
  bench->Add(
      {.name = "rope 64 x 9 heads of 64, f32",
       .roof = Roof::kRead,
       .work = 8.0 * kRows * kHeads * kHeadDim,
       .check =
           [=] {
             const std::vector<float> x = s->x;
             if (!rope().ok()) return false;
             for (std::size_t i = 0; i < x.size(); ++i) {  // 0.6 and 0.8 are the cosine and sine everywhere
               const bool first = i % kHeadDim < kHeadDim / 2;
               const double other = first ? -x[i + kHeadDim / 2] : x[i - kHeadDim / 2];
               if (!(std::abs(s->x[i] - (0.6 * x[i] + 0.8 * other)) <= 1e-5 * (std::abs(x[i]) + std::abs(other))))
                 return false;
             }
             return true;
           },
       .run = [=](std::int64_t) { (void)rope(); }});
}

void AddSampling(Bench* bench) {
  for (const std::int64_t vocabulary : {49152, 151936}) {
    // Each check names `logits`, so that its case owns the data behind `matrix`.
    auto logits = std::make_shared<std::vector<float>>(support::NormalVector(6, vocabulary, 2.5f));
    const auto matrix = kernels::MakeConstMatrix(logits->data(), DType::kF32, 1, vocabulary);
    const std::string suffix = ", V " + std::to_string(vocabulary);
    const std::pair<const char*, kernels::SampleParams> cases[] = {
        {"sample greedy", {}},
        {"sample T 1", {.temperature = 1.0f}},
        {"sample T 0.8, top_p 0.95", {.temperature = 0.8f, .top_p = 0.95f}},
        {"sample T 0.8, top_k 50, top_p 0.9", {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f}},
        {"sample T 1, min_p 0.05", {.temperature = 1.0f, .min_p = 0.05f}},
    };
    const auto add = [&](const std::string& name, const kernels::SampleParams& params,
                         const std::shared_ptr<std::vector<std::uint32_t>>& allowed) {
      const auto draw = [=](std::int64_t count, const kernels::Stream& stream) {
        kernels::SampleParams with_counter = params;
        with_counter.counter = static_cast<std::uint64_t>(count);
        std::int32_t token = -1;
        (void)kernels::Sample({.logits = matrix,
                               .params = &with_counter,
                               .token = &token,
                               .allowed = allowed == nullptr ? nullptr : allowed->data()},
                              stream);
        return token;
      };
      bench->Add({.name = name + suffix,
                  .roof = Roof::kRead,
                  .work = 4.0 * static_cast<double>(vocabulary),
                  .check =
                      [=] {
                        const std::int32_t token = draw(0, bench->stream());  // -1 if the kernel fails
                        return token >= 0 && token == draw(0, {}) && logits->size() > 1;
                      },
                  .run = [=](std::int64_t count) { (void)draw(count, bench->stream()); }});
    };
    for (const auto& [name, params] : cases) add(name, params, nullptr);
    const auto num_words = static_cast<std::size_t>(vocabulary / 32);
    // Without every 16th token, and with one token in 1024: like masks within and between the texts of a JSON object.
    const auto most = std::make_shared<std::vector<std::uint32_t>>(num_words, 0xfffefffe);
    const auto few = std::make_shared<std::vector<std::uint32_t>>(num_words);
    for (std::size_t i = 0; i < num_words; i += 32) (*few)[i] = 1;
    add("sample T 1, 15 of 16 tokens allowed", {.temperature = 1.0f}, most);
    add("sample T 1, 1 of 1024 tokens allowed", {.temperature = 1.0f}, few);
    const auto gather = [=](const kernels::Stream& stream) {
      const std::int32_t target = 17;
      std::vector<float> logprob(6);
      std::vector<std::int32_t> id(5);
      (void)kernels::LogSoftmaxGather({.logits = matrix,
                                       .target = &target,
                                       .logprob = logprob.data(),
                                       .logsumexp = nullptr,
                                       .top_n = 5,
                                       .top_id = id.data(),
                                       .top_logprob = logprob.data() + 1},
                                      stream);
      return logprob;
    };
    bench->Add({.name = "log_softmax_gather top 5" + suffix,
                .roof = Roof::kRead,
                .work = 4.0 * static_cast<double>(vocabulary),
                .check =
                    [=] {
                      const std::vector<float> logprob = gather(bench->stream());  // zeros if the kernel fails
                      return logprob[0] < 0 && logprob == gather({}) && logits->size() > 1;
                    },
                .run = [=](std::int64_t) { (void)gather(bench->stream()); }});
  }
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  nibble::bench::Bench bench(argc, argv);
  nibble::bench::AddAttention(&bench);
  nibble::bench::AddSiluAndRope(&bench);
  nibble::bench::AddSampling(&bench);
  return bench.Run();
}
