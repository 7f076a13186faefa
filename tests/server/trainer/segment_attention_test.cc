// Compares attention by segment with the formula in f64 and with a dense mask, and its bits with those of the serving
// kernel. Checks what its graph keeps.
#include "server/trainer/segment_attention.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "kernels/ops/attention/attention.h"
#include "server/trainer/torch_bridge.h"
#include "tests/support/cancel_at.h"
#include "tests/support/torch_memory.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

struct Case {
  std::int64_t heads, kv_heads, dim;
  std::vector<std::int64_t> segments;
  std::int64_t tokens;  // those past segments.back() are padding
};

// The output and the gradients to q, k and v.
using Results = std::vector<Tensor>;
using Attention = std::function<Tensor(const Tensor& q, const Tensor& k, const Tensor& v)>;

class SegmentAttentionTest : public ::testing::Test {
 protected:
  // q, k, v and the gradient of the output: f32 tensors whose values `type` can hold exactly.
  static std::vector<Tensor> Inputs(const Case& c, torch::ScalarType type) {
    torch::manual_seed(7);
    std::vector<Tensor> inputs;
    for (const std::int64_t heads : {c.heads, c.kv_heads, c.kv_heads, c.heads}) {
      inputs.push_back(torch::randn({c.tokens, heads * c.dim}).to(type).to(torch::kFloat32));
    }
    return inputs;
  }
  // K and V are cached in `type`.
  static std::unique_ptr<PagedSegments> Segments(const Case& c, torch::ScalarType type) {
    model::ModelConfig config;
    config.num_heads = c.heads;
    config.num_kv_heads = c.kv_heads;
    config.head_dim = c.dim;
    auto segments = PagedSegments::Create(
        config, type == torch::kBFloat16 ? kernels::DType::kBF16 : kernels::DType::kF32, c.segments);
    EXPECT_TRUE(segments.ok()) << segments.status();
    return *std::move(segments);
  }
  static Results Run(const Attention& attention, const std::vector<Tensor>& inputs, torch::ScalarType type) {
    std::vector<Tensor> leaves;
    for (std::size_t i = 0; i < 3; ++i) leaves.push_back(inputs[i].detach().to(type).requires_grad_());
    const Tensor y = attention(leaves[0], leaves[1], leaves[2]);
    Results results = torch::autograd::grad({y}, leaves, {inputs[3].to(y.scalar_type())});
    results.insert(results.begin(), y.detach());
    return results;
  }
  // K and V are cached in `type`, which is also the type of the result.
  Results BySegment(const Case& c, const std::vector<Tensor>& inputs, torch::ScalarType type) {
    return BySegment(c, inputs, type, type);
  }
  Results BySegment(const Case& c, const std::vector<Tensor>& inputs, torch::ScalarType type,
                    torch::ScalarType result) {
    const auto segments = Segments(c, type);
    return Run(
        [&](const Tensor& q, const Tensor& k, const Tensor& v) {
          return ApplySegmentAttention(q, k, v, *segments, c.heads, c.kv_heads, context_, result);
        },
        inputs, torch::kFloat32);
  }
  // One call of torch over all tokens; a dense mask hides the other segments from each token.
  static Tensor Masked(const Tensor& q, const Tensor& k, const Tensor& v, const Case& c) {
    Tensor mask = torch::full({c.tokens, c.tokens}, -std::numeric_limits<float>::infinity());
    for (std::size_t s = 0; s + 1 < c.segments.size(); ++s) {
      const std::int64_t begin = c.segments[s], n = c.segments[s + 1] - begin;
      mask.narrow(0, begin, n).narrow(1, begin, n).masked_fill_(torch::ones({n, n}, torch::kBool).tril(), 0.0);
    }
    for (std::int64_t t = c.segments.back(); t < c.tokens; ++t) mask[t][t] = 0.0;
    const auto heads = [&](const Tensor& x, std::int64_t n) {
      return x.view({c.tokens, n, c.dim}).transpose(0, 1).repeat_interleave(c.heads / n, 0).unsqueeze(0);
    };
    const Tensor y = at::scaled_dot_product_attention(heads(q, c.heads), heads(k, c.kv_heads), heads(v, c.kv_heads),
                                                      mask.to(q.scalar_type()));
    return y.squeeze(0).transpose(0, 1).reshape({c.tokens, c.heads * c.dim});
  }
  // Elementwise bounds on the distance from the formula's results in f64, for a result and its gradient that are
  // rounded to `unit`, and chains of f32.
  static Results Bounds(const Case& c, const std::vector<Tensor>& inputs, double unit) {
    Results bounds;
    for (const Tensor& t : {inputs[0], inputs[0], inputs[1], inputs[2]})
      bounds.push_back(torch::zeros(t.sizes(), torch::kFloat64));
    const std::int64_t group = c.heads / c.kv_heads;
    for (std::size_t s = 0; s + 1 < c.segments.size(); ++s) {
      const std::int64_t begin = c.segments[s], n = c.segments[s + 1] - begin;
      const double roundings = 3 * unit + 0x1p-24 * static_cast<double>(c.heads / c.kv_heads * n + c.dim);
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const auto rows = [&](const Tensor& x, std::int64_t head) {
          return x.narrow(0, begin, n).narrow(1, head * c.dim, c.dim).to(torch::kFloat64);
        };
        const Tensor q = rows(inputs[0], h), k = rows(inputs[1], h / group), v = rows(inputs[2], h / group),
                     g = rows(inputs[3], h);
        const double scale = 1.0 / std::sqrt(static_cast<double>(c.dim));
        Tensor scores = q.mm(k.t()) * scale;
        scores.masked_fill_(torch::ones({n, n}, torch::kBool).triu(1), -std::numeric_limits<double>::infinity());
        const Tensor p = torch::softmax(scores, -1);
        const Tensor out = p.mm(v);
        // Bounds the rounding of a row's sum of g * out, which is a term of the gradient of each of its scores.
        const Tensor slack = (g.abs() * out.abs()).sum(-1, true);
        const Tensor ds = p * ((g.mm(v.t()) - (g * out).sum(-1, true)).abs() + slack + g.abs().mm(v.abs().t()));
        const auto add = [&](const Tensor& bound, std::int64_t head, const Tensor& by) {
          bound.narrow(0, begin, n).narrow(1, head * c.dim, c.dim).add_(by * roundings);
        };
        add(bounds[0], h, p.mm(v.abs()));
        add(bounds[1], h, ds.mm(k.abs()) * scale);
        add(bounds[2], h / group, ds.t().mm(q.abs()) * scale);
        add(bounds[3], h / group, p.t().mm(g.abs()));
      }
    }
    return bounds;
  }

  TrainingContext context_;
};

const Case kCases[] = {
    {4, 2, 8, {0, 5, 12, 13, 33}, 40},              // ragged, with padding
    {9, 3, 64, {0, 1, 32, 65, 98, 300, 301}, 320},  // sizes around 32 and 64, the blocks; three query heads per KV head
    {2, 2, 16, {0, 0, 64, 64, 128}, 128},           // empty segments; nothing to pad
    {6, 1, 32, {0, 700}, 700},                      // one segment larger than the block sizes of the kernel
    {4, 4, 16, {0, 31, 61}, 61},                    // no padding past the last segment
    {2, 1, 8, {0, 30, 1500}, 1536},                 // more rows than kForwardRows
};

TEST_F(SegmentAttentionTest, AgreesWithTheFormulaAndWithTheDenseMask) {
  const char* names[] = {"output", "gradient to q", "gradient to k", "gradient to v"};
  for (const Case& c : kCases) {
    for (const auto& [type, unit] : {std::pair{torch::kFloat32, 0x1p-20}, std::pair{torch::kBFloat16, 0x1p-8}}) {
      const std::vector<Tensor> inputs = Inputs(c, type);
      const Attention masked = [&](const Tensor& q, const Tensor& k, const Tensor& v) { return Masked(q, k, v, c); };
      const Results got = BySegment(c, inputs, type), formula = Run(masked, inputs, torch::kFloat64),
                    dense = Run(masked, inputs, type);
      const Results bounds = Bounds(c, inputs, unit);
      const std::int64_t end = c.segments.back();
      for (std::size_t i = 0; i < got.size(); ++i) {
        const auto exceeds = [&](const Tensor& a, const Tensor& b, double factor) {
          const Tensor excess = (a.to(torch::kFloat64) - b.to(torch::kFloat64)).abs() - factor * (bounds[i] + 1e-12);
          return excess.narrow(0, 0, end).max().item<double>();
        };
        EXPECT_LE(exceeds(got[i], formula[i], 1), 0)
            << names[i] << " of " << c.tokens << " tokens, " << c10::toString(type);
        EXPECT_LE(exceeds(got[i], dense[i], 2), 0)
            << names[i] << " of " << c.tokens << " tokens, " << c10::toString(type);
        if (end < c.tokens) {
          EXPECT_EQ(got[i].narrow(0, end, c.tokens - end).abs().max().item<float>(), 0.0f)
              << names[i] << " past the segments";
        }
      }
    }
  }
}

TEST_F(SegmentAttentionTest, F32ResultOfABf16CacheAgreesWithTheFormulaToF32Precision) {
  for (const Case& c : kCases) {
    const std::vector<Tensor> inputs = Inputs(c, torch::kBFloat16);
    const Attention masked = [&](const Tensor& q, const Tensor& k, const Tensor& v) { return Masked(q, k, v, c); };
    const Results got = BySegment(c, inputs, torch::kBFloat16, torch::kFloat32),
                  formula = Run(masked, inputs, torch::kFloat64);
    const Results bounds = Bounds(c, inputs, 0x1p-20);
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].scalar_type(), torch::kFloat32);
      const Tensor excess = (got[i].to(torch::kFloat64) - formula[i]).abs() - (bounds[i] + 1e-12);
      EXPECT_LE(excess.narrow(0, 0, c.segments.back()).max().item<double>(), 0) << i << " of " << c.tokens << " tokens";
    }
  }
}

TEST_F(SegmentAttentionTest, HasTheBitsOfTheServingKernel) {
  const Case c = {9, 3, 64, {0, 37, 1240}, 1280};
  torch::manual_seed(8);
  const Tensor q = torch::randn({c.tokens, 9 * 64}), k = torch::randn({c.tokens, 3 * 64}),
               v = torch::randn({c.tokens, 3 * 64});
  const auto segments = Segments(c, torch::kBFloat16);
  const Tensor got = ApplySegmentAttention(q, k, v, *segments, 9, 3, context_, torch::kBFloat16);
  // The cache still holds k and v.
  const Tensor rows = q.narrow(0, 0, 1240);
  Tensor want = torch::empty(rows.sizes(), torch::kBFloat16);
  ASSERT_TRUE(kernels::Attention({.q = ViewOf(rows),
                                  .cache = segments->cache(),
                                  .layer = 0,
                                  .rows = segments->Rows(0, 1240),
                                  .num_heads = 9,
                                  .scale = 0.125f,
                                  .out = ViewOf(want)},
                                 context_.stream)
                  .ok());
  EXPECT_TRUE(torch::equal(got.narrow(0, 0, 1240), want));
}

TEST_F(SegmentAttentionTest, ShortSegmentsTakeOnlyThePagesThatTheyFill) {
  Case c = {1, 1, 8, {0, 100 * kernels::kKvPageTokens}, 0};
  for (int i = 0; i < 50; ++i) c.segments.push_back(c.segments.back() + 1);
  EXPECT_EQ(Segments(c, torch::kBFloat16)->cache().num_pages, 150);
}

TEST_F(SegmentAttentionTest, PackingChangesNoBitOfAnExample) {
  const Case packed = {9, 3, 64, {0, 37, 137, 140, 301}, 301};
  const std::vector<Tensor> inputs = Inputs(packed, torch::kBFloat16);
  const Results together = BySegment(packed, inputs, torch::kBFloat16);
  for (std::size_t s = 0; s + 1 < packed.segments.size(); ++s) {
    const std::int64_t begin = packed.segments[s], n = packed.segments[s + 1] - begin;
    std::vector<Tensor> own;
    for (const Tensor& input : inputs) own.push_back(input.narrow(0, begin, n).clone());
    const Results alone = BySegment({9, 3, 64, {0, n}, n}, own, torch::kBFloat16);
    for (std::size_t i = 0; i < alone.size(); ++i)
      EXPECT_TRUE(torch::equal(together[i].narrow(0, begin, n), alone[i])) << s << " " << i;
  }
}

// A dense mask of these 2,000 tokens alone would take 8 MB in bf16, its scores 72 MB.
TEST_F(SegmentAttentionTest, PackedRowCostsTheMemoryOfItsExamples) {
  constexpr std::int64_t kExamples = 16, kTokens = 125;
  const auto peak = [&](std::int64_t examples) {
    Case c = {9, 3, 64, {}, examples * kTokens};
    for (std::int64_t s = 0; s <= examples; ++s) c.segments.push_back(s * kTokens);
    const std::vector<Tensor> inputs = Inputs(c, torch::kBFloat16);
    BySegment(c, inputs, torch::kBFloat16);
    support::TorchMemory memory;
    BySegment(c, inputs, torch::kBFloat16);
    return memory.peak_bytes();
  };
  EXPECT_LE(static_cast<double>(peak(kExamples)), 1.2 * kExamples * static_cast<double>(peak(1)));
}

TEST_F(SegmentAttentionTest, GraphKeepsInputsOutputAndOneNumberPerHeadAndToken) {
  const Case c = {4, 2, 16, {0, 64, 96}, 96};
  const std::vector<Tensor> inputs = Inputs(c, torch::kBFloat16);
  const auto kept = [&](torch::ScalarType cached, torch::ScalarType result,
                        std::optional<torch::ScalarType> type = std::nullopt) {
    const auto segments = Segments(c, cached);
    return support::KeptBytes([&] {
      std::vector<Tensor> leaves;
      for (std::size_t i = 0; i < 3; ++i) leaves.push_back(inputs[i].detach().requires_grad_());
      return ApplySegmentAttention(leaves[0], leaves[1], leaves[2], *segments, c.heads, c.kv_heads, context_, result,
                                   type);
    });
  };
  // Inputs that are kept in a narrower type are copied. An f32 result of a bf16 cache is recomputed in the backward
  // pass, so its graph keeps neither the result nor the sums.
  const std::int64_t q = c.tokens * c.heads * c.dim, kv = c.tokens * c.kv_heads * c.dim, sums = c.tokens * c.heads * 4;
  EXPECT_EQ(kept(torch::kFloat32, torch::kFloat32), sums);
  EXPECT_EQ(kept(torch::kBFloat16, torch::kBFloat16), 2 * (q + 2 * kv) + sums);
  EXPECT_EQ(kept(torch::kBFloat16, torch::kFloat32), 2 * 2 * kv);
  EXPECT_EQ(kept(torch::kBFloat16, torch::kFloat32, torch::kBFloat16), 2 * (2 * q + 2 * kv) + sums);
}

// The result has the bits of an f32 graph; the gradients differ by roundings of q, k, v and the result to bf16.
TEST_F(SegmentAttentionTest, GraphOfAnF32ResultCanKeepBf16) {
  const Case c = {4, 2, 16, {0, 64, 96}, 96};
  const std::vector<Tensor> inputs = Inputs(c, torch::kFloat32);
  const auto segments = Segments(c, torch::kBFloat16);
  const auto run = [&](torch::ScalarType kept) {
    const auto attention = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return ApplySegmentAttention(q, k, v, *segments, c.heads, c.kv_heads, context_, torch::kFloat32, kept);
    };
    return Run(attention, inputs, torch::kFloat32);
  };
  const Results exact = run(torch::kFloat32), kept = run(torch::kBFloat16);
  EXPECT_TRUE(torch::equal(kept[0], exact[0]));
  for (std::size_t i = 1; i < exact.size(); ++i) {
    EXPECT_FALSE(torch::equal(kept[i], exact[i])) << i;
    EXPECT_LE((kept[i] - exact[i]).norm().item<double>(), 0x1p-7 * exact[i].norm().item<double>()) << i;
  }
}

// The backward pass of a long segment takes a KV head at a time, so that it can be cancelled in between.
TEST_F(SegmentAttentionTest, LongSegmentHasTheBitsOfItsHeadsAloneAndCanBeCancelledBetweenThem) {
  const std::int64_t tokens = kForwardRows + 76;
  const Case c = {4, 2, 8, {0, tokens}, tokens}, alone = {2, 1, 8, {0, tokens}, tokens};
  const std::vector<Tensor> inputs = Inputs(c, torch::kBFloat16);
  support::CancelAt cancel;
  context_.cancelled = cancel.callback();
  const Results whole = BySegment(c, inputs, torch::kBFloat16);
  EXPECT_EQ(cancel.calls(), 4) << "two pieces forward, two heads backward";
  cancel.Restart(4);
  EXPECT_THROW(BySegment(c, inputs, torch::kBFloat16), StoppedError);
  context_.cancelled = {};
  for (std::int64_t head = 0; head < 2; ++head) {
    const auto part = [&](const Tensor& x) { return x.narrow(1, head * x.size(1) / 2, x.size(1) / 2).contiguous(); };
    const Results of_head =
        BySegment(alone, {part(inputs[0]), part(inputs[1]), part(inputs[2]), part(inputs[3])}, torch::kBFloat16);
    for (std::size_t i = 0; i < whole.size(); ++i)
      EXPECT_TRUE(torch::equal(part(whole[i]), of_head[i])) << head << " " << i;
  }
}

TEST_F(SegmentAttentionTest, ChecksForCancellationEvery1024Rows) {
  support::CancelAt cancel;
  context_.cancelled = cancel.callback();
  const Case c = {2, 1, 8, {0, 600, 1200, 1300}, 1300};
  const std::vector<Tensor> inputs = Inputs(c, torch::kFloat32);
  BySegment(c, inputs, torch::kFloat32);
  EXPECT_EQ(cancel.calls(), 4) << "two pieces forward; backward the first segment, then the other two together";
  cancel.Restart(3);
  EXPECT_THROW(BySegment(c, inputs, torch::kFloat32), StoppedError);
  const Case longer = {2, 1, 8, {0, 3 * kForwardRows}, 3 * kForwardRows};
  cancel.Restart(0);
  BySegment(longer, Inputs(longer, torch::kFloat32), torch::kFloat32);
  EXPECT_EQ(cancel.calls(), 4) << "three pieces forward, one head backward";
  cancel.Restart(2);
  EXPECT_THROW(BySegment(longer, Inputs(longer, torch::kFloat32), torch::kFloat32), StoppedError);
  cancel.Restart(1);
  EXPECT_THROW(BySegment(c, inputs, torch::kFloat32), StoppedError);
}

}  // namespace
}  // namespace nibble::trainer
