// The graph that BitLinear leaves for the backward pass: its nodes, and the bytes that they keep.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/trainer/bit_linear.h"
#include "tests/server/trainer/bit_linear_fixture.h"
#include "tests/support/torch_memory.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

// Counts the nodes of the graph of `outputs`, by kind.
std::map<std::string, int> CountNodes(const std::vector<Tensor>& outputs) {
  std::map<std::string, int> count;
  std::set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  for (const Tensor& y : outputs) open.push_back(y.grad_fn().get());
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    const std::string name = node->name();
    ++count[name.find("BitLinearFunction") != std::string::npos  ? "linear"
            : name.find("NormRowsFunction") != std::string::npos ? "norm"
            : name.find("AccumulateGrad") != std::string::npos   ? "leaf"
                                                                 : name];
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return count;
}

TEST_F(BitLinearTest, LinearThatQuantizesItsInputIsOneNode) {
  BitWeight weight;
  weight.master = torch::randn({32, 64}).requires_grad_();
  weight.bias = torch::randn({32}).requires_grad_();
  weight.Ternarize(context_.stream);
  const Tensor x = torch::randn({6, 64}).requires_grad_();
  for (const BitLinearOptions& options : {With(kernels::Ste::kIdentity, false), With(kernels::Ste::kRoundOnly, true)}) {
    EXPECT_EQ(CountNodes({ApplyBitLinear({x, nullptr}, weight, options, context_)}),
              (std::map<std::string, int>{{"leaf", 3}, {"linear", 1}}));
  }
}

TEST_F(BitLinearTest, NormedLinearsWithOneInputAreOneNodeEach) {
  const Tensor x = torch::randn({6, 64}).requires_grad_(), norm = torch::ones({64}).requires_grad_();
  std::vector<BitWeight> weights(3);
  const BitLinearOptions options;
  const CodedInput input = NormCodedInput(x, norm, 1e-5, options, context_);
  std::vector<Tensor> out;
  for (BitWeight& weight : weights) {
    weight.master = torch::randn({32, 64}).requires_grad_();
    weight.Ternarize(context_.stream);
    out.push_back(ApplyBitLinear(input, weight, options, context_));
  }
  EXPECT_EQ(CountNodes(out), (std::map<std::string, int>{{"leaf", 5}, {"linear", 3}, {"norm", 1}}));
}

// Inputs are copies here, so that keeping one counts: in the decoder, no other node keeps the input of a linear or of
// its norm (an attention keeps q, k and v, a gated product its two factors, a sum nothing).
TEST_F(BitLinearTest, GraphKeepsTheExpectedNumberOfBytes) {
  constexpr std::int64_t kTokens = 7, kIn = 128, kOut = 32;
  constexpr std::int64_t kCodes = kTokens * kIn, kScales = kTokens * 4;  // one byte per activation, one f32 per row
  constexpr std::int64_t kInput = kTokens * kIn * 4;                     // the input itself, f32
  BitWeight weight;
  weight.master = torch::randn({kOut, kIn}).requires_grad_();
  weight.bias = torch::randn({kOut}).requires_grad_();
  weight.Ternarize(context_.stream);
  const Tensor x = torch::randn({kTokens, kIn}).requires_grad_(), norm = torch::ones({kIn}).requires_grad_();
  const BitLinearOptions identity = With(kernels::Ste::kIdentity, false);
  const BitLinearOptions round_only = With(kernels::Ste::kRoundOnly, false);
  const BitLinearOptions scaled = With(kernels::Ste::kRoundOnly, true);
  BitLinearOptions wide = identity;
  wide.activations.bits = 16;

  // A linear alone: integer rows and their scales; the packed weight by reference.
  const auto alone = [&](const BitLinearOptions& options) {
    return support::KeptBytes([&] { return ApplyBitLinear({x.clone(), nullptr}, weight, options, context_); });
  };
  EXPECT_EQ(alone(identity), kCodes + kScales);
  EXPECT_EQ(alone(round_only), kCodes + kScales) << "the master exists anyway";
  EXPECT_EQ(alone(scaled), kCodes + kScales + kInput) << "the gradient of the scale needs the input itself";
  EXPECT_EQ(alone(wide), 2 * kCodes + kScales);

  // After a norm, three linears share their rows. The norm keeps 1/rms of each row and its input: its gradient needs x,
  // and the codes are too coarse.
  const auto normed = [&](const BitLinearOptions& options, torch::ScalarType kept = torch::kFloat32) {
    return support::KeptBytes([&] {
      const CodedInput input = NormCodedInput(x.clone(), norm, 1e-5, options, context_, kept);
      std::vector<Tensor> out;
      for (int i = 0; i < 3; ++i) out.push_back(ApplyBitLinear(input, weight, options, context_));
      return out;
    });
  };
  EXPECT_EQ(normed(identity), kCodes + 2 * kScales + kInput);
  EXPECT_EQ(normed(round_only), kCodes + 2 * kScales + kInput);
  EXPECT_EQ(normed(scaled), kCodes + 2 * kScales + kInput) << "the norm has the linears' rows and its own input";
  EXPECT_EQ(normed(wide), 2 * kCodes + 2 * kScales + kInput);
  EXPECT_EQ(normed(identity, torch::kBFloat16), kCodes + 2 * kScales + kInput / 2);
  EXPECT_EQ(normed(scaled, torch::kBFloat16), kCodes + 2 * kScales + kInput);
}

TEST_F(BitLinearTest, PackedWeightIsKeptByReference) {
  BitWeight weight;
  weight.master = torch::randn({32, 64}).requires_grad_();
  weight.Ternarize(context_.stream);
  const auto tiles = weight.tiles.use_count(), scale = weight.scale.use_count();
  const BitLinearOptions options;
  const Tensor x = torch::randn({6, 64}).requires_grad_();
  {
    const Tensor y = ApplyBitLinear({x, nullptr}, weight, options, context_);
    EXPECT_EQ(weight.tiles.use_count(), tiles + 1);
    EXPECT_EQ(weight.scale.use_count(), scale + 1);
  }
  EXPECT_EQ(weight.tiles.use_count(), tiles);
  EXPECT_EQ(weight.scale.use_count(), scale);
}

// With gradients, a linear without a norm keeps integer rows and their scales, one byte per activation; its packed
// weight exists anyway.
TEST_F(BitLinearTest, GraphKeepsOnlyIntegerRows) {
  constexpr std::int64_t kSize = 256, kTokens = 64, kLayers = 32;
  BitWeight weight;
  weight.master = torch::randn({kSize, kSize}).requires_grad_();
  weight.Ternarize(context_.stream);
  const BitLinearOptions options;
  const auto peak = [&](bool gradients) {
    context_.transient = {};
    support::TorchMemory memory;
    const torch::AutoGradMode mode(gradients);
    Tensor y = torch::ones({kTokens, kSize});
    for (std::int64_t i = 0; i < kLayers; ++i) y = ApplyBitLinear({y, nullptr}, weight, options, context_);
    return memory.peak_bytes();
  };
  const std::int64_t extra = peak(true) - peak(false);
  const std::int64_t rows = kTokens * (kSize + 4);  // i8 codes and an f32 scale
  // The peak without gradients includes the rows of the layers at work, at most two. 4096 bytes: small tensors.
  EXPECT_GE(extra, (kLayers - 2) * rows);
  EXPECT_LE(extra, kLayers * rows + 4096);
}

}  // namespace
}  // namespace nibble::trainer
