// Compares the gradients of linears that have adapters to those that torch derives from the formula, and checks what
// the graph of such a linear keeps.
#include "server/trainer/adapter_linear.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>

#include "kernels/ops/quantize/dequantize_nf4.h"
#include "kernels/ops/quantize/quantize_nf4.h"
#include "kernels/philox.h"
#include "server/trainer/torch_bridge.h"
#include "tests/server/trainer/autograd_fixture.h"
#include "tests/support/torch_memory.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

class AdapterLinearTest : public AutogradTest {
 protected:
  static constexpr std::int64_t kIn = 128, kOut = 48, kRank = 4;

  AdapterLinearTest() {
    codes_ = torch::empty({kOut, kIn / 2}, torch::kUInt8);
    absmax_ = torch::empty({kOut * kIn / 64});
    const Tensor weight = Random({kOut, kIn}, 10);
    const absl::Status status = kernels::QuantizeNf4(
        {.x = ViewOf(weight), .codes = codes_.data_ptr<std::uint8_t>(), .absmax = absmax_.data_ptr<float>()},
        context_.stream);
    EXPECT_TRUE(status.ok()) << status;
    linear_.weight = kernels::Nf4Weight{codes_.data_ptr<std::uint8_t>(), absmax_.data_ptr<float>(), kOut, kIn};
    linear_.bias = bias_.data_ptr<float>();
    linear_.lora_a = Random({kRank, kIn}, 12).mul_(0.1).requires_grad_();
    linear_.lora_b = Random({kOut, kRank}, 13).requires_grad_();
    linear_.scaling = 2.0;
    x_ = Random({7, kIn}, 14).requires_grad_();
    g_ = Random({7, kOut}, 15);
  }

  Tensor Weight64() {
    const Tensor weight = torch::empty({kOut, kIn});
    const auto& packed = std::get<kernels::Nf4Weight>(linear_.weight);
    EXPECT_TRUE(kernels::DequantizeNf4({.w = packed, .out = ViewOf(weight)}, context_.stream).ok());
    return weight.to(torch::kFloat64);
  }
  // Compares output and gradients with the formula in f64, on rows and adapter of f32 or bf16 compute.
  void ExpectFormula(const Tensor& input, const Tensor& weight64, double bound) {
    const Tensor leaf = input.detach().requires_grad_();
    const Tensor y = ApplyAdapterLinear(leaf, linear_, {}, context_);
    const Tensor x = leaf.detach().to(torch::kFloat64).requires_grad_();
    const Tensor a = linear_.lora_a.detach().to(torch::kFloat64).requires_grad_();
    const Tensor b = linear_.lora_b.detach().to(torch::kFloat64).requires_grad_();
    const Tensor want = x.mm(weight64.t()) + bias_.to(torch::kFloat64) + 2.0 * x.mm(a.t()).mm(b.t());
    EXPECT_LT(Distance(y, want), bound);
    const auto got = Gradients(y, g_, {leaf, linear_.lora_a, linear_.lora_b}), wanted = Gradients(want, g_, {x, a, b});
    for (std::size_t i = 0; i < 3; ++i) EXPECT_LT(Distance(got[i], wanted[i]), bound) << i;
  }

  const Tensor bias_ = Random({kOut}, 11);
  Tensor codes_, absmax_, x_, g_;
  AdapterLinear linear_;
};

TEST_F(AdapterLinearTest, HasTheGradientsOfTheDequantizedFormula) { ExpectFormula(x_, Weight64(), kF32Bound); }

// PEFT's DoRA: y = (m / n - 1) base(x) + (m / n) scaling B(A(x)), where n passes no gradient.
TEST_F(AdapterLinearTest, DoraHasTheGradientsOfTheFormulaWithFixedNorms) {
  linear_.magnitude = Random({kOut}, 17).abs_().add_(1).requires_grad_();
  linear_.RefreshDora(context_.stream);
  const Tensor y = ApplyAdapterLinear(x_, linear_, std::nullopt, context_);
  const auto f64 = [](const Tensor& t) { return t.detach().to(torch::kFloat64).requires_grad_(); };
  const Tensor x = f64(x_), a = f64(linear_.lora_a), b = f64(linear_.lora_b), m = f64(linear_.magnitude);
  const Tensor norms = (Weight64() + 2.0 * b.mm(a)).detach().norm(2, 1);
  EXPECT_LT(Distance(linear_.norms, norms), kF32Bound);
  const Tensor base = x.mm(Weight64().t());
  const Tensor factor = m / norms;
  const Tensor want = base + bias_.to(torch::kFloat64) + (factor - 1) * base + factor * 2.0 * x.mm(a.t()).mm(b.t());
  EXPECT_LT(Distance(y, want), kF32Bound);
  const auto got = Gradients(y, g_, {x_, linear_.lora_a, linear_.lora_b, linear_.magnitude});
  const auto wanted = Gradients(want, g_, {x, a, b, m});
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_LT(Distance(got[i], wanted[i]), kF32Bound) << i;
}

// A float weight in each type, with f32 and bf16 compute. With bf16 compute, forward products round an f32 weight to
// bf16, and f32 backward products read it unrounded, so the bound there is that of bf16 roundings.
TEST_F(AdapterLinearTest, FloatWeightHasTheGradientsOfTheFormula) {
  for (const torch::ScalarType stored : {torch::kFloat32, torch::kBFloat16}) {
    const Tensor weight = Random({kOut, kIn}, 10).to(stored);
    for (const bool bf16_compute : {false, true}) {
      for (const torch::ScalarType backward : {torch::kFloat32, torch::kBFloat16}) {
        if (!bf16_compute && backward == torch::kBFloat16) continue;
        SCOPED_TRACE(testing::Message() << stored << " bf16_compute " << bf16_compute << " backward " << backward);
        context_.scratch = torch::empty({kOut * kIn}, backward);
        linear_.weight = FloatWeight::Make(weight, bf16_compute);
        ExpectFormula(x_.detach().to(bf16_compute ? torch::kBFloat16 : torch::kFloat32), weight.to(torch::kFloat64),
                      bf16_compute ? 0.02 : kF32Bound);
      }
    }
  }
}

TEST_F(AdapterLinearTest, FloatWeightIsNeverCopiedIfItHasTheTypeOfTheProducts) {
  const Tensor weight = Random({kOut, kIn}, 10).to(torch::kBFloat16);
  EXPECT_EQ(FloatWeight::Make(weight, /*bf16_compute=*/true).rounded.data_ptr(), weight.data_ptr());
  EXPECT_FALSE(FloatWeight::Make(weight, /*bf16_compute=*/false).rounded.defined());
}

TEST_F(AdapterLinearTest, FrozenFloatLinearPassesItsGradientOn) {
  const Tensor weight = Random({kOut, kIn}, 10);
  linear_.weight = FloatWeight::Make(weight, /*bf16_compute=*/false);
  linear_.lora_a = linear_.lora_b = Tensor();
  const Tensor y = ApplyAdapterLinear(x_, linear_, std::nullopt, context_);
  const Tensor x = x_.detach().to(torch::kFloat64).requires_grad_();
  const Tensor want = x.mm(weight.to(torch::kFloat64).t()) + bias_.to(torch::kFloat64);
  EXPECT_LT(Distance(y, want), kF32Bound);
  EXPECT_LT(Distance(Gradients(y, g_, {x_})[0], Gradients(want, g_, {x})[0]), kF32Bound);
  EXPECT_EQ(support::KeptBytes([&] { return ApplyAdapterLinear(x_.clone(), linear_, std::nullopt, context_); }), 0)
      << "a frozen linear needs nothing but its weight";
}

// Linears that a job does not train only pass the gradient on to their input.
TEST_F(AdapterLinearTest, WithoutAnAdapterOnlyTheInputHasAGradient) {
  linear_.lora_a = linear_.lora_b = Tensor();
  linear_.dropout = 0.5;  // applies to adapters only
  const Tensor y = ApplyAdapterLinear(x_, linear_, DropoutKey{3, 4}, context_);
  const Tensor x = x_.detach().to(torch::kFloat64).requires_grad_();
  const Tensor want = x.mm(Weight64().t()) + bias_.to(torch::kFloat64);
  EXPECT_LT(Distance(y, want), kF32Bound);
  EXPECT_LT(Distance(Gradients(y, g_, {x_})[0], Gradients(want, g_, {x})[0]), kF32Bound);
  // The first layers of a model get no gradient to pass on.
  EXPECT_FALSE(ApplyAdapterLinear(x_.detach(), linear_, std::nullopt, context_).requires_grad());
}

TEST_F(AdapterLinearTest, DropoutDrawsTheSameMaskAgainAndGradientsUseIt) {
  linear_.dropout = 0.5;
  const DropoutKey key = {3, 4};
  const Tensor y = ApplyAdapterLinear(x_, linear_, key, context_);
  EXPECT_TRUE(torch::equal(y, ApplyAdapterLinear(x_, linear_, key, context_)));
  EXPECT_FALSE(torch::equal(y, ApplyAdapterLinear(x_, linear_, DropoutKey{3, 5}, context_)));
  // `probe` shows the mask, 0 or 1 / (1 - p): A is the identity, x is ones, and B selects the first kOut columns.
  linear_.lora_a = torch::eye(kIn).requires_grad_();
  linear_.lora_b = Random({kOut, kIn}, 16).requires_grad_();
  const auto got = Gradients(ApplyAdapterLinear(x_, linear_, key, context_), g_, {x_, linear_.lora_a, linear_.lora_b});
  const Tensor ones = torch::ones({7, kIn});
  AdapterLinear probe = linear_;
  probe.bias = nullptr;
  probe.lora_b = torch::zeros({kOut, kIn});
  const Tensor base = ApplyAdapterLinear(ones, probe, key, context_);
  probe.lora_b = torch::cat({torch::eye(kOut), torch::zeros({kOut, kIn - kOut})}, 1);
  const Tensor mask = (ApplyAdapterLinear(ones, probe, key, context_) - base) / 2.0;  // 0 or 2
  const Tensor kept = (mask > 1).to(torch::kFloat64) * 2.0;
  EXPECT_LT((mask - kept).abs().max().item<double>(), 1e-4);
  EXPECT_GT(kept.sum().item<double>(), 0);
  EXPECT_LT(kept.sum().item<double>(), 2.0 * 7 * kOut);
  // dB = scaling * g^T (x * mask), compared in the columns whose mask is known.
  const Tensor want = 2.0 * g_.to(torch::kFloat64).t().mm(x_.detach().to(torch::kFloat64).narrow(1, 0, kOut) * kept);
  EXPECT_LT(Distance(got[2].narrow(1, 0, kOut), want), kF32Bound);
}

// The mask's 1 / (1 - p) is f32 for any compute type, and the product is rounded once. Here the weight is 0, and A and
// B are the identity, so y is x after dropout.
TEST_F(AdapterLinearTest, DropoutRoundsOnceAndDrawsFromItsOwnStream) {
  constexpr double kShare = 0.1;
  // The letters of "dropout", plus the stream of the DropoutKey, 4. Initial adapters are drawn from streams 0, 1, ...
  constexpr std::uint64_t kStream = 0x64726f706f7574 + 4;
  const Tensor codes = torch::full({kIn, kIn / 2}, 0x77, torch::kUInt8), absmax = torch::zeros({kIn * kIn / 64});
  AdapterLinear probe;
  probe.weight = kernels::Nf4Weight{codes.data_ptr<std::uint8_t>(), absmax.data_ptr<float>(), kIn, kIn};
  probe.lora_a = torch::eye(kIn).requires_grad_();
  probe.lora_b = torch::eye(kIn).requires_grad_();
  probe.scaling = 1.0;
  probe.dropout = kShare;
  const Tensor mask = torch::empty({7, kIn});
  for (std::int64_t i = 0; i < mask.numel(); ++i) {
    const bool kept = kernels::PhiloxUniform(3, static_cast<std::uint64_t>(i), kStream) >= kShare;
    mask.data_ptr<float>()[i] = kept ? static_cast<float>(1.0 / (1.0 - kShare)) : 0.0f;
  }
  kernels::ThreadPool pool(3);
  for (kernels::ThreadPool* threads : {static_cast<kernels::ThreadPool*>(nullptr), &pool}) {
    for (const torch::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
      context_.stream.pool = threads;
      context_.scratch = torch::empty({1 << 16}, type);
      const auto dropped = [&](const Tensor& t) { return (t.detach().to(torch::kFloat32) * mask).to(type); };
      const Tensor x = x_.detach().to(type).requires_grad_(), g = Random({7, kIn}, 17).to(type);
      const Tensor y = ApplyAdapterLinear(x, probe, DropoutKey{3, 4}, context_);
      EXPECT_TRUE(torch::equal(y, dropped(x).to(torch::kFloat32))) << type;
      EXPECT_TRUE(torch::equal(Gradients(y, g.to(torch::kFloat32), {x})[0], dropped(g))) << type;
    }
  }
}

// The names of a graph's nodes.
std::multiset<std::string> NodeNames(const Tensor& y) {
  std::multiset<std::string> names;
  std::set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open = {y.grad_fn().get()};
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    names.insert(node->name());
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return names;
}

TEST_F(AdapterLinearTest, IsOneNodeOfTheGraph) {
  const Tensor y = ApplyAdapterLinear(x_, linear_, {}, context_);
  std::size_t ours = 0, leaves = 0, others = 0;
  for (const std::string& name : NodeNames(y)) {
    if (name.find("AdapterLinearFunction") != std::string::npos) {
      ++ours;
    } else if (name.find("AccumulateGrad") != std::string::npos) {
      ++leaves;
    } else {
      ++others;
    }
  }
  EXPECT_EQ(ours, 1u);
  EXPECT_EQ(leaves, 3u);
  EXPECT_EQ(others, 0u);
  // Without an adapter, too, the graph has only one node and the input's leaf.
  linear_.lora_a = linear_.lora_b = Tensor();
  const std::multiset<std::string> names = NodeNames(ApplyAdapterLinear(x_, linear_, {}, context_));
  EXPECT_EQ(names.size(), 2u);
  EXPECT_EQ(
      std::count_if(names.begin(), names.end(),
                    [](const std::string& name) { return name.find("FrozenLinearFunction") != std::string::npos; }),
      1);
}

// The graph keeps x A^T, and x, codes, absmax, A and B by reference, but no mask. The input is a copy here, so that
// keeping it counts.
TEST_F(AdapterLinearTest, GraphKeepsTheExpectedNumberOfBytes) {
  const auto kept = [&](std::optional<DropoutKey> key) {
    return support::KeptBytes([&] { return ApplyAdapterLinear(x_.clone(), linear_, key, context_); });
  };
  constexpr std::int64_t kInput = 7 * kIn * 4, kDown = 7 * kRank * 4;
  EXPECT_EQ(kept(std::nullopt), kInput + kDown);
  linear_.dropout = 0.5;
  EXPECT_EQ(kept(DropoutKey{3, 4}), kInput + kDown) << "the mask is drawn again";
  linear_.lora_a = linear_.lora_b = Tensor();
  EXPECT_EQ(kept(std::nullopt), 0) << "a frozen linear needs nothing but its packed weight";
}

// Through 32 layers, gradients need only the memory of each layer's x and x A^T, not of a dequantized weight.
TEST_F(AdapterLinearTest, GradientsKeepNoDequantizedWeightThrough32Layers) {
  constexpr std::int64_t kSize = 256, kTokens = 8, kLayers = 32;
  const Tensor codes = torch::zeros({kSize, kSize / 2}, torch::kUInt8), absmax = torch::ones({kSize * kSize / 64});
  AdapterLinear layer;
  layer.weight = kernels::Nf4Weight{codes.data_ptr<std::uint8_t>(), absmax.data_ptr<float>(), kSize, kSize};
  layer.lora_a = torch::zeros({kRank, kSize}).requires_grad_();
  layer.lora_b = torch::zeros({kSize, kRank}).requires_grad_();
  layer.scaling = 1.0;
  const auto peak = [&](bool gradients) {
    support::TorchMemory memory;
    const torch::AutoGradMode mode(gradients);
    Tensor y = torch::ones({kTokens, kSize});
    for (std::int64_t i = 0; i < kLayers; ++i) y = ApplyAdapterLinear(y, layer, {}, context_);
    return memory.peak_bytes();
  };
  const std::int64_t extra = peak(true) - peak(false);
  // The peak without gradients includes x of the layers at work, at most two. 4096 bytes: small tensors.
  EXPECT_GE(extra, (kLayers - 2) * kTokens * kSize * 4);
  EXPECT_LE(extra, kLayers * kTokens * (kSize + kRank) * 4 + 4096);
  EXPECT_LT(extra, 2 * kSize * kSize * 4);  // 32 dequantized weights would be 8 MiB
  // The backward pass makes none either: it needs less than half of a weight beyond what is kept.
  const auto backward_peak = [&] {
    support::TorchMemory memory;
    Tensor y = torch::ones({kTokens, kSize});
    for (std::int64_t i = 0; i < kLayers; ++i) y = ApplyAdapterLinear(y, layer, {}, context_);
    const std::vector<Tensor> gradients = torch::autograd::grad({y.sum()}, {layer.lora_a, layer.lora_b});
    return memory.peak_bytes();
  };
  EXPECT_LT(backward_peak() - peak(false), kLayers * kTokens * (kSize + kRank) * 4 + kSize * kSize * 4 / 2);
}

}  // namespace
}  // namespace nibble::trainer
