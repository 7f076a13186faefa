// Compares gradients of the autograd functions, which call kernels, with those that torch derives from the formulas.
// Checks what their graph keeps.
#include "server/trainer/autograd.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/ops/attention/rope.h"
#include "kernels/ops/norm/rms_norm_backward.h"
#include "kernels/ops/quantize/dequantize_nf4.h"
#include "kernels/ops/quantize/quantize_nf4.h"
#include "kernels/philox.h"
#include "server/trainer/fixed_order.h"
#include "server/trainer/recomputed_layer.h"
#include "server/trainer/torch_bridge.h"
#include "server/trainer/torch_runtime.h"
#include "tests/support/torch_memory.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

Tensor Random(std::initializer_list<std::int64_t> shape, std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn(shape);
}

// The largest |got - want|, divided by the largest |want|. `want` is the formula in f64.
double Distance(const Tensor& got, const Tensor& want) {
  const Tensor w = want.to(torch::kFloat64);
  return ((got.to(torch::kFloat64) - w).abs().max() / w.abs().max().clamp_min(1e-30)).item<double>();
}

class AutogradTest : public ::testing::Test {
 protected:
  AutogradTest() {
    context_.scratch = torch::empty({1 << 16});
    context_.stream.library = library_.get();
  }

  // The gradients of sum(y * weights) to the leaves.
  static std::vector<Tensor> Gradients(const Tensor& y, const Tensor& weights, const std::vector<Tensor>& leaves) {
    return torch::autograd::grad({(y * weights.to(y.scalar_type())).sum()}, leaves);
  }

  const std::unique_ptr<kernels::DenseLibrary> library_ = MakeTorchLibrary();
  AutogradContext context_;
};

constexpr double kF32 = 2e-5;  // kernel and formula differ by some hundred roundings in f32 at most

TEST_F(AutogradTest, RmsNormHasTheGradientOfItsFormula) {
  const Tensor x = Random({5, 48}, 1).requires_grad_();
  const Tensor weight = Random({48}, 2).requires_grad_();
  const Tensor g = Random({5, 48}, 3);
  const Tensor y = ApplyRmsNorm(x, weight, 1e-5, context_);
  const Tensor x64 = x.detach().to(torch::kFloat64).requires_grad_();
  const Tensor weight64 = weight.detach().to(torch::kFloat64).requires_grad_();
  const Tensor y64 = x64 * torch::rsqrt(x64.pow(2).mean(-1, true) + 1e-5) * weight64;
  EXPECT_LT(Distance(y, y64), kF32);
  const auto got = Gradients(y, g, {x, weight});
  const auto want = Gradients(y64, g, {x64, weight64});
  EXPECT_LT(Distance(got[0], want[0]), kF32);
  EXPECT_LT(Distance(got[1], want[1]), kF32);
}

// RmsNormGradients must take the gradient to the weight from the kernel, which sums in a fixed order. torch's sums have
// no fixed order.
TEST_F(AutogradTest, WeightGradientOfRmsNormIsThatOfTheKernel) {
  for (const torch::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    const Tensor x = Random({200, 48}, 1).to(type), g = Random({200, 48}, 3).to(type);
    const Tensor weight = Random({48}, 2).requires_grad_();
    const Tensor rstd = torch::rsqrt(x.to(torch::kFloat32).pow(2).mean(-1));
    const auto [grad_x, grad_weight] = RmsNormGradients(x, weight, rstd, g, context_);
    const Tensor want_x = torch::empty_like(x), want_weight = torch::empty({48});
    ASSERT_TRUE(kernels::RmsNormBackward({.x = ViewOf(x),
                                          .grad_y = ViewOf(g),
                                          .weight = weight.data_ptr<float>(),
                                          .rstd = rstd.data_ptr<float>(),
                                          .grad_x = ViewOf(want_x),
                                          .grad_weight = want_weight.data_ptr<float>()},
                                         context_.stream)
                    .ok());
    EXPECT_TRUE(torch::equal(grad_x, want_x));
    EXPECT_TRUE(torch::equal(grad_weight, want_weight)) << (grad_weight - want_weight).abs().max();
    EXPECT_FALSE(RmsNormGradients(x, weight.detach(), rstd, g, context_).second.defined());
  }
}

TEST_F(AutogradTest, RecomputedLayerThatNeverRunsBackwardIsFreed) {
  const auto held = std::make_shared<int>(0);
  const Tensor x = Random({2, 3}, 1).requires_grad_();
  const auto run = [&] { return RunRecomputed(x, [held](Tensor h) { return h * 2.0; }); };
  {
    const Tensor y = run();
    EXPECT_GT(held.use_count(), 1) << "the graph holds the body";
  }
  EXPECT_EQ(held.use_count(), 1);
  const std::vector<Tensor> gradient = torch::autograd::grad({run().sum()}, {x});
  EXPECT_TRUE(torch::equal(gradient[0], torch::full({2, 3}, 2.0)));
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(AutogradTest, BackwardPassOfRopeRotatesBack) {
  const std::int64_t positions = 9;
  const std::vector<float> frequencies = {1.0f, 0.3f, 0.1f, 0.01f};
  std::vector<float> cos(positions * 4), sin(positions * 4);
  kernels::FillRopeTable(frequencies.data(), 4, 0, positions, cos.data(), sin.data());
  const std::vector<std::int32_t> position = {0, 1, 2, 0, 8};
  const Tensor leaf = Random({5, 16}, 4).requires_grad_();
  const Tensor g = Random({5, 16}, 5);
  const Tensor y = ApplyRope(leaf * 1.0, 2, position.data(), cos.data(), sin.data(), positions, context_);
  const Tensor leaf64 = leaf.detach().to(torch::kFloat64).requires_grad_();
  const Tensor index = torch::tensor(std::vector<std::int64_t>(position.begin(), position.end()));
  const auto table = [&](std::vector<float>& values) {
    return torch::from_blob(values.data(), {positions, 4}).to(torch::kFloat64).index_select(0, index).unsqueeze(1);
  };
  const Tensor heads = leaf64.view({5, 2, 8});
  const Tensor a = heads.narrow(2, 0, 4), b = heads.narrow(2, 4, 4);
  const Tensor y64 = torch::cat({a * table(cos) - b * table(sin), b * table(cos) + a * table(sin)}, 2).view({5, 16});
  EXPECT_LT(Distance(y, y64), kF32);
  EXPECT_LT(Distance(Gradients(y, g, {leaf})[0], Gradients(y64, g, {leaf64})[0]), kF32);
}

// The gradients of a repeated token are added in the order of its occurrences, for any number of threads.
TEST_F(AutogradTest, ThreadsChangeNoBitOfTheEmbeddingsGradient) {
  const std::vector<std::int32_t> ids = {3, 0, 3, 7, 3, 0, 3};
  const Tensor master = Random({9, 200}, 30).requires_grad_(), table = master.detach().to(torch::kBFloat16);
  const Tensor g = Random({7, 200}, 31);
  kernels::ThreadPool pool(3);
  std::vector<Tensor> gradients;
  for (kernels::ThreadPool* threads : {static_cast<kernels::ThreadPool*>(nullptr), &pool}) {
    context_.stream.pool = threads;
    gradients.push_back(Gradients(ApplyEmbedding(ids, table, master, context_), g, {master})[0]);
  }
  EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
  EXPECT_TRUE(torch::equal(gradients[0][3], ((g[0] + g[2]) + g[4]) + g[6]));
  EXPECT_EQ(gradients[0][1].abs().max().item<float>(), 0.0f);
}

TEST_F(AutogradTest, GatedMulHasTheGradientOfItsFormula) {
  const Tensor gate = Random({3, 33}, 6).requires_grad_(), up = Random({3, 33}, 7).requires_grad_();
  const Tensor g = Random({3, 33}, 8);
  const Tensor y = ApplyGatedMul(kernels::Activation::kSilu, gate, up, context_);
  const Tensor gate64 = gate.detach().to(torch::kFloat64).requires_grad_(),
               up64 = up.detach().to(torch::kFloat64).requires_grad_();
  const Tensor y64 = torch::silu(gate64) * up64;
  EXPECT_LT(Distance(y, y64), kF32);
  const auto got = Gradients(y, g, {gate, up}), want = Gradients(y64, g, {gate64, up64});
  EXPECT_LT(Distance(got[0], want[0]), kF32);
  EXPECT_LT(Distance(got[1], want[1]), kF32);
}

class Nf4LinearTest : public AutogradTest {
 protected:
  static constexpr std::int64_t kIn = 128, kOut = 48, kRank = 4;

  Nf4LinearTest() {
    codes_ = torch::empty({kOut, kIn / 2}, torch::kUInt8);
    absmax_ = torch::empty({kOut * kIn / 64});
    const Tensor weight = Random({kOut, kIn}, 10);
    const absl::Status status = kernels::QuantizeNf4(
        {.x = ViewOf(weight), .codes = codes_.data_ptr<std::uint8_t>(), .absmax = absmax_.data_ptr<float>()},
        context_.stream);
    EXPECT_TRUE(status.ok()) << status;
    linear_.weight = {codes_.data_ptr<std::uint8_t>(), absmax_.data_ptr<float>(), kOut, kIn};
    linear_.bias = bias_.data_ptr<float>();
    linear_.lora_a = Random({kRank, kIn}, 12).mul_(0.1).requires_grad_();
    linear_.lora_b = Random({kOut, kRank}, 13).requires_grad_();
    linear_.scaling = 2.0;
    x_ = Random({7, kIn}, 14).requires_grad_();
    g_ = Random({7, kOut}, 15);
  }

  Tensor Weight64() {
    const Tensor weight = torch::empty({kOut, kIn});
    EXPECT_TRUE(kernels::DequantizeNf4({.w = linear_.weight, .out = ViewOf(weight)}, context_.stream).ok());
    return weight.to(torch::kFloat64);
  }

  const Tensor bias_ = Random({kOut}, 11);
  Tensor codes_, absmax_, x_, g_;
  Nf4Linear linear_;
};

TEST_F(Nf4LinearTest, HasTheGradientsOfTheDequantizedFormula) {
  const Tensor y = ApplyNf4Linear(x_, linear_, {}, context_);
  const Tensor x = x_.detach().to(torch::kFloat64).requires_grad_();
  const Tensor a = linear_.lora_a.detach().to(torch::kFloat64).requires_grad_();
  const Tensor b = linear_.lora_b.detach().to(torch::kFloat64).requires_grad_();
  const Tensor want = x.mm(Weight64().t()) + bias_.to(torch::kFloat64) + 2.0 * x.mm(a.t()).mm(b.t());
  EXPECT_LT(Distance(y, want), kF32);
  const auto got = Gradients(y, g_, {x_, linear_.lora_a, linear_.lora_b}), wanted = Gradients(want, g_, {x, a, b});
  for (std::size_t i = 0; i < 3; ++i) EXPECT_LT(Distance(got[i], wanted[i]), kF32) << i;
}

// Linears that a job does not train only pass the gradient on to their input.
TEST_F(Nf4LinearTest, WithoutAnAdapterOnlyTheInputHasAGradient) {
  linear_.lora_a = linear_.lora_b = Tensor();
  linear_.dropout = 0.5;  // applies to adapters only
  const Tensor y = ApplyNf4Linear(x_, linear_, DropoutKey{3, 4}, context_);
  const Tensor x = x_.detach().to(torch::kFloat64).requires_grad_();
  const Tensor want = x.mm(Weight64().t()) + bias_.to(torch::kFloat64);
  EXPECT_LT(Distance(y, want), kF32);
  EXPECT_LT(Distance(Gradients(y, g_, {x_})[0], Gradients(want, g_, {x})[0]), kF32);
  // The first layers of a model get no gradient to pass on.
  EXPECT_FALSE(ApplyNf4Linear(x_.detach(), linear_, std::nullopt, context_).requires_grad());
}

TEST_F(Nf4LinearTest, DropoutDrawsTheSameMaskAgainAndGradientsUseIt) {
  linear_.dropout = 0.5;
  const DropoutKey key = {3, 4};
  const Tensor y = ApplyNf4Linear(x_, linear_, key, context_);
  EXPECT_TRUE(torch::equal(y, ApplyNf4Linear(x_, linear_, key, context_)));
  EXPECT_FALSE(torch::equal(y, ApplyNf4Linear(x_, linear_, DropoutKey{3, 5}, context_)));
  // `probe` shows the mask, 0 or 1 / (1 - p): A is the identity, x is ones, and B selects the first kOut columns.
  linear_.lora_a = torch::eye(kIn).requires_grad_();
  linear_.lora_b = Random({kOut, kIn}, 16).requires_grad_();
  const auto got = Gradients(ApplyNf4Linear(x_, linear_, key, context_), g_, {x_, linear_.lora_a, linear_.lora_b});
  const Tensor ones = torch::ones({7, kIn});
  Nf4Linear probe = linear_;
  probe.bias = nullptr;
  probe.lora_b = torch::zeros({kOut, kIn});
  const Tensor base = ApplyNf4Linear(ones, probe, key, context_);
  probe.lora_b = torch::cat({torch::eye(kOut), torch::zeros({kOut, kIn - kOut})}, 1);
  const Tensor mask = (ApplyNf4Linear(ones, probe, key, context_) - base) / 2.0;  // 0 or 2
  const Tensor kept = (mask > 1).to(torch::kFloat64) * 2.0;
  EXPECT_LT((mask - kept).abs().max().item<double>(), 1e-4);
  EXPECT_GT(kept.sum().item<double>(), 0);
  EXPECT_LT(kept.sum().item<double>(), 2.0 * 7 * kOut);
  // dB = scaling * g^T (x * mask), compared in the columns whose mask is known.
  const Tensor want = 2.0 * g_.to(torch::kFloat64).t().mm(x_.detach().to(torch::kFloat64).narrow(1, 0, kOut) * kept);
  EXPECT_LT(Distance(got[2].narrow(1, 0, kOut), want), kF32);
}

// The mask's 1 / (1 - p) is f32 for any compute type, and the product is rounded once. Here the weight is 0, and A and
// B are the identity, so y is x after dropout.
TEST_F(Nf4LinearTest, DropoutRoundsOnceAndDrawsFromItsOwnStream) {
  constexpr double kShare = 0.1;
  // The letters of "dropout", plus the stream of the DropoutKey, 4. Initial adapters are drawn from streams 0, 1, ...
  constexpr std::uint64_t kStream = 0x64726f706f7574 + 4;
  const Tensor codes = torch::full({kIn, kIn / 2}, 0x77, torch::kUInt8), absmax = torch::zeros({kIn * kIn / 64});
  Nf4Linear probe;
  probe.weight = {codes.data_ptr<std::uint8_t>(), absmax.data_ptr<float>(), kIn, kIn};
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
      const Tensor y = ApplyNf4Linear(x, probe, DropoutKey{3, 4}, context_);
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

TEST_F(Nf4LinearTest, IsOneNodeOfTheGraph) {
  const Tensor y = ApplyNf4Linear(x_, linear_, {}, context_);
  std::size_t ours = 0, leaves = 0, others = 0;
  for (const std::string& name : NodeNames(y)) {
    if (name.find("Nf4LinearFunction") != std::string::npos) {
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
  const std::multiset<std::string> names = NodeNames(ApplyNf4Linear(x_, linear_, {}, context_));
  EXPECT_EQ(names.size(), 2u);
  EXPECT_EQ(
      std::count_if(names.begin(), names.end(),
                    [](const std::string& name) { return name.find("FrozenNf4LinearFunction") != std::string::npos; }),
      1);
}

// The graph keeps x A^T, and x, codes, absmax, A and B by reference, but no mask. The input is a copy here, so that
// keeping it counts.
TEST_F(Nf4LinearTest, GraphKeepsTheExpectedNumberOfBytes) {
  const auto kept = [&](std::optional<DropoutKey> key) {
    return support::KeptBytes([&] { return ApplyNf4Linear(x_.clone(), linear_, key, context_); });
  };
  constexpr std::int64_t kInput = 7 * kIn * 4, kDown = 7 * kRank * 4;
  EXPECT_EQ(kept(std::nullopt), kInput + kDown);
  linear_.dropout = 0.5;
  EXPECT_EQ(kept(DropoutKey{3, 4}), kInput + kDown) << "the mask is drawn again";
  linear_.lora_a = linear_.lora_b = Tensor();
  EXPECT_EQ(kept(std::nullopt), 0) << "a frozen linear needs nothing but its packed weight";
}

// Through 32 layers, gradients need only the memory of each layer's x and x A^T, not of a dequantized weight.
TEST_F(Nf4LinearTest, GradientsKeepNoDequantizedWeightThrough32Layers) {
  constexpr std::int64_t kSize = 256, kTokens = 8, kLayers = 32;
  const Tensor codes = torch::zeros({kSize, kSize / 2}, torch::kUInt8), absmax = torch::ones({kSize * kSize / 64});
  Nf4Linear layer;
  layer.weight = {codes.data_ptr<std::uint8_t>(), absmax.data_ptr<float>(), kSize, kSize};
  layer.lora_a = torch::zeros({kRank, kSize}).requires_grad_();
  layer.lora_b = torch::zeros({kSize, kRank}).requires_grad_();
  layer.scaling = 1.0;
  const auto peak = [&](bool gradients) {
    support::TorchMemory memory;
    const torch::AutoGradMode mode(gradients);
    Tensor y = torch::ones({kTokens, kSize});
    for (std::int64_t i = 0; i < kLayers; ++i) y = ApplyNf4Linear(y, layer, {}, context_);
    return memory.peak_bytes();
  };
  const std::int64_t extra = peak(true) - peak(false);
  EXPECT_GE(extra, (kLayers - 2) * kTokens * kSize * 4);
  EXPECT_LE(extra, kLayers * kTokens * (kSize + kRank) * 4 + 4096);
  EXPECT_LT(extra, 2 * kSize * kSize * 4);  // 32 dequantized weights would be 8 MiB
  // The backward pass makes none either: it needs less than half of a weight beyond what is kept.
  const auto backward_peak = [&] {
    support::TorchMemory memory;
    Tensor y = torch::ones({kTokens, kSize});
    for (std::int64_t i = 0; i < kLayers; ++i) y = ApplyNf4Linear(y, layer, {}, context_);
    const std::vector<Tensor> gradients = torch::autograd::grad({y.sum()}, {layer.lora_a, layer.lora_b});
    return memory.peak_bytes();
  };
  EXPECT_LT(backward_peak() - peak(false), kLayers * kTokens * (kSize + kRank) * 4 + kSize * kSize * 4 / 2);
}

TEST_F(AutogradTest, ChunkedLossIsCrossEntropyOverTheRowsWithATarget) {
  const std::int64_t tokens = 300, vocab = 50;  // more than one chunk of rows
  const Tensor hidden = Random({tokens, 32}, 30).requires_grad_();
  const Tensor head = Random({vocab, 32}, 31);
  std::vector<std::int32_t> targets;
  std::vector<std::int64_t> wanted;
  for (std::int64_t t = 0; t < tokens; ++t) {
    targets.push_back(t % 7 == 0 ? -1 : static_cast<std::int32_t>(t * 13 % vocab));
    wanted.push_back(t % 7 == 0 ? -100 : t * 13 % vocab);
  }
  double sum = 0;
  const FrozenHead frozen = {head, head};
  const Tensor loss = ApplyChunkedLoss(hidden, frozen, targets, 0.25, &sum, context_);
  const Tensor hidden64 = hidden.detach().to(torch::kFloat64).requires_grad_();
  const Tensor want =
      torch::nn::functional::cross_entropy(hidden64.mm(head.to(torch::kFloat64).t()), torch::tensor(wanted),
                                           torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  EXPECT_NEAR(sum, want.item<double>(), 1e-4 * want.item<double>());
  EXPECT_NEAR(loss.item<double>(), 0.25 * sum, 1e-9 * sum);
  const Tensor got = torch::autograd::grad({loss}, {hidden})[0];
  EXPECT_LT(Distance(got, 0.25 * torch::autograd::grad({want}, {hidden64})[0]), kF32);
  EXPECT_EQ(got.index_select(0, torch::tensor({0, 7, 14})).abs().max().item<float>(), 0.0f);
}

}  // namespace
}  // namespace nibble::trainer
