// Compares gradients of the autograd functions, which call kernels, with those that torch derives from the formulas.
#include "server/trainer/autograd.h"

#include "kernels/ops/attention/rope.h"
#include "kernels/ops/norm/rms_norm_backward.h"
#include "server/trainer/chunked_loss.h"
#include "server/trainer/fixed_order.h"
#include "server/trainer/recomputed_layer.h"
#include "server/trainer/torch_bridge.h"
#include "tests/server/trainer/autograd_fixture.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

TEST_F(AutogradTest, RmsNormHasTheGradientOfItsFormula) {
  const Tensor x = Random({5, 48}, 1).requires_grad_();
  const Tensor weight = Random({48}, 2).requires_grad_();
  const Tensor g = Random({5, 48}, 3);
  const Tensor y = ApplyRmsNorm(x, weight, 1e-5, context_);
  const Tensor x64 = x.detach().to(torch::kFloat64).requires_grad_();
  const Tensor weight64 = weight.detach().to(torch::kFloat64).requires_grad_();
  const Tensor y64 = x64 * torch::rsqrt(x64.pow(2).mean(-1, true) + 1e-5) * weight64;
  EXPECT_LT(Distance(y, y64), kF32Bound);
  const auto got = Gradients(y, g, {x, weight});
  const auto want = Gradients(y64, g, {x64, weight64});
  EXPECT_LT(Distance(got[0], want[0]), kF32Bound);
  EXPECT_LT(Distance(got[1], want[1]), kF32Bound);
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
  EXPECT_LT(Distance(y, y64), kF32Bound);
  EXPECT_LT(Distance(Gradients(y, g, {leaf})[0], Gradients(y64, g, {leaf64})[0]), kF32Bound);
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
  EXPECT_LT(Distance(y, y64), kF32Bound);
  const auto got = Gradients(y, g, {gate, up}), want = Gradients(y64, g, {gate64, up64});
  EXPECT_LT(Distance(got[0], want[0]), kF32Bound);
  EXPECT_LT(Distance(got[1], want[1]), kF32Bound);
}

// The result has the bits of an f32 graph; the gradients are those at inputs rounded to bf16.
TEST_F(AutogradTest, GatedMulCanKeepItsInputsInBf16) {
  const Tensor gate = Random({3, 33}, 6).requires_grad_(), up = Random({3, 33}, 7).requires_grad_();
  const Tensor g = Random({3, 33}, 8);
  const auto apply = [&](const Tensor& a, const Tensor& b, torch::ScalarType kept) {
    return ApplyGatedMul(kernels::Activation::kSilu, a, b, context_, torch::kFloat32, kept);
  };
  const Tensor y = apply(gate, up, torch::kBFloat16);
  EXPECT_TRUE(torch::equal(y, apply(gate, up, torch::kFloat32)));
  const auto rounded = [](const Tensor& x) { return x.detach().to(torch::kBFloat16).to(torch::kFloat32); };
  const Tensor gate16 = rounded(gate).requires_grad_(), up16 = rounded(up).requires_grad_();
  const auto got = Gradients(y, g, {gate, up}),
             want = Gradients(apply(gate16, up16, torch::kFloat32), g, {gate16, up16});
  EXPECT_TRUE(torch::equal(got[0], want[0]));
  EXPECT_TRUE(torch::equal(got[1], want[1]));
  EXPECT_FALSE(torch::equal(got[0], Gradients(apply(gate, up, torch::kFloat32), g, {gate, up})[0]));
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
  const Tensor want = torch::cross_entropy_loss(hidden64.mm(head.to(torch::kFloat64).t()), torch::tensor(wanted), {},
                                                at::Reduction::Sum);
  EXPECT_NEAR(sum, want.item<double>(), 1e-4 * want.item<double>());
  EXPECT_NEAR(loss.item<double>(), 0.25 * sum, 1e-9 * sum);
  const Tensor got = torch::autograd::grad({loss}, {hidden})[0];
  EXPECT_LT(Distance(got, 0.25 * torch::autograd::grad({want}, {hidden64})[0]), kF32Bound);
  EXPECT_EQ(got.index_select(0, torch::tensor({0, 7, 14})).abs().max().item<float>(), 0.0f);
}

}  // namespace
}  // namespace nibble::trainer
