// Checks that linears whose input the graph does not keep compute it again for their gradients: in f32 with the same
// bits, in bf16 from the rounded copies that the graph keeps.
#include "server/trainer/recomputed_rows.h"

#include "server/trainer/adapter_linear.h"
#include "server/trainer/coded_rows.h"
#include "server/trainer/float_linear.h"
#include "server/trainer/segment_attention.h"
#include "server/trainer/torch_bridge.h"
#include "tests/server/trainer/autograd_fixture.h"
#include "tests/support/torch_memory.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

constexpr auto kF32 = torch::kFloat32, kBf16 = torch::kBFloat16;
constexpr double kEps = 1e-5;

class RecomputedRowsTest : public AutogradTest {
 protected:
  static constexpr std::int64_t kTokens = 64, kIn = 64, kOut = 48, kRank = 4;

  RecomputedRowsTest() {
    linear_.weight = FloatWeight::Make(Random({kOut, kIn}, 1), /*bf16_compute=*/true);
    linear_.lora_a = Random({kRank, kIn}, 2).requires_grad_();
    linear_.lora_b = Random({kOut, kRank}, 3).requires_grad_();
    linear_.scaling = 2.0;
    x_ = Random({kTokens, kIn}, 4).requires_grad_();
    norm_ = Random({kIn}, 5).requires_grad_();
    g_ = Random({kTokens, kOut}, 6);
  }

  Tensor Apply(const FloatInput& input) { return ApplyAdapterLinear(input, linear_, std::nullopt, context_); }
  static Tensor Rounded(const Tensor& x) { return x.detach().to(kBf16).to(kF32); }

  AdapterLinear linear_;
  Tensor x_, norm_, g_;
};

TEST_F(RecomputedRowsTest, RowsAreComputedOnceForAllReadersAndFreedWithTheLast) {
  int calls = 0;
  auto rows = c10::make_intrusive<RecomputedRows>([&] {
    ++calls;
    return x_.detach();
  });
  const c10::weak_intrusive_ptr<RecomputedRows> watched(rows);
  FloatInput input(x_, std::move(rows));
  const Tensor y = Apply(input) + Apply(input) + Apply(input);
  input = FloatInput();
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(watched.expired());
  const auto got = Gradients(y, g_, {x_, linear_.lora_a, linear_.lora_b});
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(watched.expired());
  const auto want = Gradients(Apply(x_) + Apply(x_) + Apply(x_), g_, {x_, linear_.lora_a, linear_.lora_b});
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
}

TEST_F(RecomputedRowsTest, GraphWithoutABackwardPassFreesTheRows) {
  auto rows = c10::make_intrusive<RecomputedRows>([&] { return x_.detach(); });
  const c10::weak_intrusive_ptr<RecomputedRows> watched(rows);
  {
    const Tensor y = Apply(FloatInput(x_, std::move(rows)));
  }
  EXPECT_TRUE(watched.expired());
}

TEST_F(RecomputedRowsTest, InF32GradientsHaveTheBitsOfRowsThatAreKept) {
  const auto gradients = [&](const FloatInput& input) {
    return Gradients(Apply(input), g_, {x_, norm_, linear_.lora_a, linear_.lora_b});
  };
  const auto got = gradients(ApplyRmsNormToInput(x_, norm_, kEps, context_, kF32));
  const auto want = gradients(ApplyRmsNorm(x_, norm_, kEps, context_));
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;

  FloatLinear trained{.master = Random({kOut, kIn}, 7).requires_grad_(), .rounded = {}, .bias = {}};
  const auto of_trained = [&](const FloatInput& input) {
    return Gradients(ApplyFloatLinear(input, trained, context_), g_, {x_, norm_, trained.master});
  };
  const auto got_trained = of_trained(ApplyRmsNormToInput(x_, norm_, kEps, context_, kF32));
  const auto want_trained = of_trained(ApplyRmsNorm(x_, norm_, kEps, context_));
  for (std::size_t i = 0; i < want_trained.size(); ++i) {
    EXPECT_TRUE(torch::equal(got_trained[i], want_trained[i])) << i;
  }
}

// Only the gradient to A reads the rows; that to B reads x A^T of the forward pass.
TEST_F(RecomputedRowsTest, InBf16TheGradientReadsTheNormOfTheKeptCopy) {
  const Tensor rounded = Rounded(x_).requires_grad_();
  const auto gradients = [&](const FloatInput& input) {
    return Gradients(Apply(input), g_, {linear_.lora_a, linear_.lora_b});
  };
  const auto got = gradients(ApplyRmsNormToInput(x_, norm_, kEps, context_, kBf16));
  const auto exact = gradients(ApplyRmsNorm(x_, norm_, kEps, context_, kBf16));
  const auto of_copy = gradients(ApplyRmsNorm(rounded, norm_, kEps, context_, kBf16));
  EXPECT_TRUE(torch::equal(got[0], of_copy[0]));
  EXPECT_FALSE(torch::equal(got[0], exact[0]));
  EXPECT_TRUE(torch::equal(got[1], exact[1]));
  EXPECT_LE((got[0] - exact[0]).norm().item<double>(), 0x1p-7 * exact[0].norm().item<double>());
}

// The memory of the input is free again as soon as no handle refers to it, although the graph still stands.
TEST_F(RecomputedRowsTest, GraphDoesNotKeepTheInput) {
  for (const torch::ScalarType type : {kF32, kBf16}) {
    const auto is_free = [&](FloatInput input) {
      const Tensor y = Apply(input);
      const void* memory = input.x.data_ptr();
      input = FloatInput();
      return context_.transient.Empty({kTokens, kIn}, type).data_ptr() == memory;
    };
    EXPECT_TRUE(is_free(ApplyRmsNormToInput(x_, norm_, kEps, context_, type)));
    FloatInput kept = ApplyRmsNormToInput(x_, norm_, kEps, context_, type);
    kept.recomputed = {};
    EXPECT_FALSE(is_free(std::move(kept)));
  }
}

TEST_F(RecomputedRowsTest, DropoutDropsTheRecomputedRows) {
  linear_.dropout = 0.5;
  const auto gradients = [&](const FloatInput& input) {
    return Gradients(ApplyAdapterLinear(input, linear_, DropoutKey{3, 4}, context_), g_, {x_, linear_.lora_a});
  };
  const auto got = gradients(ApplyRmsNormToInput(x_, norm_, kEps, context_, kF32));
  const auto want = gradients(ApplyRmsNorm(x_, norm_, kEps, context_));
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
}

TEST_F(RecomputedRowsTest, TransientSumIsASumWithItsGradients) {
  const Tensor y = Random({kTokens, kIn}, 10).requires_grad_(), g = Random({kTokens, kIn}, 11);
  const Tensor sum = ApplyTransientAdd(x_, y, context_);
  EXPECT_TRUE(torch::equal(sum, x_ + y));
  for (const Tensor& gradient : Gradients(sum, g, {x_, y})) EXPECT_TRUE(torch::equal(gradient, g));
}

TEST_F(RecomputedRowsTest, TransientMemoryServesEveryTypeThatFits) {
  const void* memory = context_.transient.Empty({8, 8}).data_ptr();
  for (const torch::ScalarType type : {torch::kBFloat16, torch::kInt8, torch::kInt16, torch::kFloat32}) {
    const Tensor tensor = context_.transient.Empty({4, 8}, type);
    EXPECT_EQ(tensor.data_ptr(), memory);
    EXPECT_EQ(tensor.scalar_type(), type);
    EXPECT_EQ(tensor.sizes(), (std::vector<std::int64_t>{4, 8}));
  }
}

TEST_F(RecomputedRowsTest, ProductAndAttentionAreRecomputedFromTheirCopies) {
  const Tensor gate = Random({kTokens, kIn}, 8), up = Random({kTokens, kIn}, 9);
  const auto activation = kernels::Activation::kSilu;
  for (const torch::ScalarType type : {kF32, kBf16}) {
    const FloatInput product = ApplyGatedMulToInput(activation, gate, up, context_, type, kBf16);
    EXPECT_TRUE(torch::equal(product.x, ApplyGatedMul(activation, gate, up, context_, type)));
    EXPECT_TRUE(torch::equal(product.recomputed->Values(),
                             ApplyGatedMul(activation, Rounded(gate), Rounded(up), context_, type)));
  }
  model::ModelConfig config;
  config.num_heads = config.num_kv_heads = 4;
  config.head_dim = 16;
  const auto segments = PagedSegments::Create(config, kernels::DType::kBF16, {0, kTokens});
  ASSERT_TRUE(segments.ok()) << segments.status();
  const auto attend = [&](torch::ScalarType kept) {
    return ApplySegmentAttentionToInput(x_, gate, up, **segments, 4, 4, context_, kF32, kept);
  };
  const FloatInput mixed = attend(kBf16);
  EXPECT_TRUE(torch::equal(mixed.recomputed->Values(), Rounded(mixed.x)));
  EXPECT_FALSE(attend(kF32).recomputed.defined()) << "with a bf16 cache, an f32 graph does not keep the result";
}

// Codes are made again as well: those of the norm of the kept copy, and those of recomputed rows.
TEST_F(RecomputedRowsTest, ValuesOfCodesAreThoseOfTheKeptCopy) {
  const CodedRowOptions how = {.max_outliers = 2};
  const CodedInput input = NormCodedInput(x_, norm_, kEps, how, context_, kBf16, /*recompute=*/true);
  const CodedInput of_copy =
      NormCodedInput(Rounded(x_), norm_, kEps, how, context_, /*kept=*/std::nullopt, /*recompute=*/true);
  EXPECT_TRUE(torch::equal(input.recomputed->Values(), of_copy.rows->Values(context_.stream)));
  EXPECT_FALSE(torch::equal(input.recomputed->Values(), input.rows->Values(context_.stream)));
  EXPECT_TRUE(torch::equal(of_copy.recomputed->Values(), of_copy.rows->Values(context_.stream))) << "in f32 exact";

  const FloatInput product =
      ApplyGatedMulToInput(kernels::Activation::kSilu, x_.detach(), x_.detach(), context_, kF32, kBf16);
  const CodedInput coded = WithRows({product, nullptr}, how, context_);
  const CodedRows again = QuantizeRows(product.recomputed->Values(), how, context_);
  EXPECT_TRUE(torch::equal(coded.recomputed->Values(), again.Values(context_.stream)));
}

}  // namespace
}  // namespace nibble::trainer
