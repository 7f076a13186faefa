// Adapters on an int8 base are trained with the bits that nibbled serves: the base's own product of codes, or of bf16
// rows in a weight-only base, plus the adapter.
#include "server/trainer/int8_adapter_model.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/matmul/matmul_dense.h"
#include "kernels/ops/matmul/matmul_int8.h"
#include "kernels/ops/matmul/matmul_int8_weight.h"
#include "server/trainer/adapter_linear.h"
#include "server/trainer/fixed_order.h"
#include "server/trainer/packed_int8.h"
#include "server/trainer/torch_bridge.h"
#include "tests/server/trainer/autograd_fixture.h"
#include "tests/server/trainer/exact_model_fixture.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using torch::Tensor;

model::AdapterConfig SomeAdapter(bool all_linears = false) {
  model::AdapterConfig adapter;
  adapter.rank = 4;
  adapter.alpha = 8;
  adapter.targets = {LinearKind::kQ, LinearKind::kV, LinearKind::kDown};
  if (all_linears) {
    adapter.targets = {LinearKind::kQ,    LinearKind::kK,  LinearKind::kV,   LinearKind::kO,
                       LinearKind::kGate, LinearKind::kUp, LinearKind::kDown};
  }
  return adapter;
}

class Int8AdapterModelTest : public ExactModelTest {
 protected:
  Int8AdapterModelTest() { Use(models_.int8()); }

  void Use(const std::string& directory) {
    directory_ = directory;
    Open(directory);
  }
  std::unique_ptr<ExactModel> Make(AdapterOptions options = {}) {
    options.cancelled = cancel_.callback();
    if (options.adapter.targets.empty()) options.adapter = SomeAdapter();
    auto made = MakeInt8AdapterModel(models_.Load(directory_), options, stream_);
    EXPECT_TRUE(made.ok()) << made.status();
    SetValues(**made);
    return *std::move(made);
  }
  // The logits of the adapter on the base as nibbled loads both.
  std::vector<std::string> Loaded(ExactModel& model, const model::AdapterConfig& adapter, const std::string& name) {
    WriteAdapter(model, directory_, adapter, name);
    const auto loaded = models_.Load(models_.Path(name));
    EXPECT_EQ(loaded->info().determinism(), model::Determinism::kBitwise);
    return Serving(loaded->weights());
  }

  std::string directory_;
};

TEST_F(Int8AdapterModelTest, TrainingGivesTheBitsOfTheServedAdapter) {
  for (const std::string& base : {models_.int8(), models_.weight_only()}) {
    Use(base);
    const auto model = Make();
    const std::vector<std::string> trained = Training(*model);
    ASSERT_EQ(trained.size(), Batch().tokens.size());
    EXPECT_NE(Serving(models_.Load(base)->weights()), trained) << "the adapter has an effect";
    EXPECT_EQ(Serving(model->ServingWeights()), trained);
    EXPECT_EQ(Loaded(*model, SomeAdapter(), base + "-adapter"), trained);
    for (Parameter& parameter : model->parameters()) {
      for (float& value : parameter.value.f32()) value = -value * 1.5f;
    }
    ASSERT_TRUE(model->Refresh().ok());
    EXPECT_NE(Training(*model), trained);
    EXPECT_EQ(Serving(model->ServingWeights()), Training(*model));
  }
}

// The families have untied heads, biases, and norms of heads. Every linear has an adapter: rsLoRA with an int8 head,
// DoRA with a bf16 head.
TEST_F(Int8AdapterModelTest, EveryFamilyTrainsTheBitsThatItServes) {
  for (const std::string family : {"llama3", "qwen2", "qwen3", "phi3"}) {
    const auto imported = Open(Import(family));
    for (const bool int8_head : {true, false}) {
      for (const bool weight_only : {true, false}) {
        const std::string name = family + (int8_head ? "-int8" : "-bf16") + (weight_only ? "-float" : "-codes");
        SCOPED_TRACE(name);
        const auto made = convert::ConvertModel(base::RealFileSystem(), *imported, models_.Path(name),
                                                {.weight_only = weight_only, .int8_head = int8_head}, stream_);
        ASSERT_TRUE(made.ok()) << made.status();
        Use(models_.Path(name));
        model::AdapterConfig adapter = SomeAdapter(/*all_linears=*/true);
        adapter.rslora = int8_head;
        adapter.dora = !int8_head;
        const auto model = Make({.adapter = adapter});
        EXPECT_EQ(Gradients(*model), Gradients(*Make({.adapter = adapter, .activation_checkpointing = true})));
        EXPECT_EQ(Loaded(*model, adapter, name + "-adapter"), Training(*model));
      }
    }
  }
}

// The gradients of the adapter on the float base point the same way: only the rounding to int8 differs.
TEST_F(Int8AdapterModelTest, GradientsPointWhereThoseOfTheFloatBasePoint) {
  const auto separate =
      AdapterModel::Create(models_.Load(models_.bf16()), {.adapter = SomeAdapter(), .bf16_compute = false}, stream_);
  ASSERT_TRUE(separate.ok()) << separate.status();
  SetValues(**separate);
  const auto want = Gradients(**separate);
  for (const std::string& base : {models_.int8(), models_.weight_only()}) {
    Use(base);
    for (const bool bf16 : {false, true}) ExpectAlike(Gradients(*Make({.bf16_compute = bf16})), want);
  }
}

TEST_F(Int8AdapterModelTest, DropoutAppliesInTrainingOnly) {
  model::AdapterConfig adapter = SomeAdapter();
  const auto plain = Make({.adapter = adapter});
  adapter.dropout = 0.5;
  const auto model = Make({.adapter = adapter, .dropout_seed = 3});
  EXPECT_EQ(Training(*model), Training(*plain));
  EXPECT_EQ(Loaded(*model, adapter, "dropped"), Training(*model));
  model->BeginStep(0);
  plain->BeginStep(0);
  const auto gradients = Gradients(*model);
  EXPECT_NE(gradients, Gradients(*plain));
  EXPECT_EQ(gradients, Gradients(*model)) << "a micro-batch has the same mask in each pass";
}

TEST_F(Int8AdapterModelTest, PassStoppedAnywhereLeavesNothingBehind) {
  const auto model = Make();
  cancel_.Restart(0);
  const auto whole = Gradients(*model);
  const int calls = cancel_.calls();
  EXPECT_GT(calls, 2 * 7);  // one for each linear of the two layers, in the forward pass alone
  for (int at = 1; at <= calls; ++at) {
    cancel_.Restart(at);
    EXPECT_EQ(model->ForwardBackward(Batch(), 1.0, 0).status().code(), absl::StatusCode::kCancelled) << at;
  }
  cancel_.Restart(0);
  EXPECT_EQ(Gradients(*model), whole);
}

TEST_F(Int8AdapterModelTest, RecordsAfterItsGradientsAreFreed) {
  const auto model = Make();
  const std::vector<std::string> trained = Training(*model);
  model->ReleaseGradients();
  EXPECT_EQ(Training(*model), trained);
  for (const Parameter& parameter : model->parameters()) EXPECT_EQ(parameter.grad.count, 0);
}

TEST_F(Int8AdapterModelTest, OtherBasesAreRefused) {
  for (const std::string& base : {models_.bf16(), models_.nf4()}) {
    const auto refused = MakeInt8AdapterModel(models_.Load(base), {.adapter = SomeAdapter()}, stream_);
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  }
}

// A linear of odd shape on codes with outliers, or on bf16 rows.
class Int8AdapterLinearTest : public AutogradTest, public ::testing::WithParamInterface<bool> {
 protected:
  static constexpr std::int64_t kIn = 83, kOut = 37, kRank = 3, kRows = 7;

  Int8AdapterLinearTest() {
    linear_.weight = weight_.view();
    linear_.bias = bias_.data_ptr<float>();
    linear_.lora_a = Random({kRank, kIn}, 22).mul_(0.1).requires_grad_();
    linear_.lora_b = Random({kOut, kRank}, 23).requires_grad_();
    linear_.scaling = 0.75;
    Tensor x = Random({kRows, kIn}, 24);
    x[1][5] = 90;  // an outlier
    if (float_rows()) x = x.to(torch::kBFloat16);
    input_.x = x.requires_grad_();
    if (!float_rows()) input_ = WithRows(input_, {.max_outliers = 2}, context_);
  }
  static bool float_rows() { return GetParam(); }
  Tensor Apply() { return ApplyAdapterLinear(input_, linear_, std::nullopt, context_); }
  Tensor Read() { return (float_rows() ? input_.x.detach() : input_.rows->Values(context_.stream)).contiguous(); }
  Tensor Weight64() {
    const Tensor codes = torch::empty({kOut, kIn});
    UnpackInt8(weight_.view(), codes, context_.stream);
    return (codes * weight_.scale.unsqueeze(1)).to(torch::kFloat64);
  }

  const PackedInt8 weight_ = PackInt8Rows(Random({kOut, kIn}, 20), {}, {});
  const Tensor bias_ = Random({kOut}, 21), g_ = Random({kRows, kOut}, 25);
  AdapterLinear linear_;
  CodedInput input_;
};

TEST_P(Int8AdapterLinearTest, IsTheServedProductPlusTheAdapter) {
  const torch::NoGradGuard no_gradients;
  const Tensor want = torch::empty({kRows, kOut});
  const float* bias = bias_.data_ptr<float>();
  if (float_rows()) {
    ASSERT_TRUE(kernels::MatmulInt8Weight({.x = ViewOf(input_.x), .w = weight_.view(), .bias = bias, .y = ViewOf(want)},
                                          context_.stream)
                    .ok());
  } else {
    ASSERT_TRUE(kernels::MatmulInt8({.x = input_.rows->view(), .w = weight_.view(), .bias = bias, .y = ViewOf(want)},
                                    context_.stream)
                    .ok());
    EXPECT_EQ(input_.rows->num_outliers[1].item<int>(), 1);
    EXPECT_EQ(Read()[1][5].item<float>(), 90) << "the adapter reads an outlier as it is";
  }
  Tensor panels_a, panels_b;
  const Tensor read = Read(), down = torch::empty({kRows, kRank});
  ASSERT_TRUE(kernels::MatmulDense({.x = ViewOf(read), .w = PackDense(linear_.lora_a, panels_a, {}), .y = ViewOf(down)},
                                   context_.stream)
                  .ok());
  down.mul_(0.75f);
  ASSERT_TRUE(
      kernels::MatmulDense(
          {.x = ViewOf(down), .w = PackDense(linear_.lora_b, panels_b, {}), .y = ViewOf(want), .accumulate = true},
          context_.stream)
          .ok());
  EXPECT_TRUE(torch::equal(Apply(), want));
}

// dx = g (W + s B A), dA = s (g B)^T x, dB = s g^T (x A^T), where W is the dequantized weight, and x has
// the values that the product reads: those of the coded rows, or the bf16 rows.
TEST_P(Int8AdapterLinearTest, HasTheGradientsOfTheFormulaInPlainLoops) {
  const auto got = Gradients(Apply(), g_, {input_.x, linear_.lora_a, linear_.lora_b});
  const auto f64 = [](const Tensor& t) { return t.detach().to(torch::kFloat64).contiguous(); };
  const Tensor w = Weight64(), x = f64(Read()), a = f64(linear_.lora_a), b = f64(linear_.lora_b), g = f64(g_);
  Tensor dx = torch::zeros_like(x), da = torch::zeros_like(a), db = torch::zeros_like(b);
  const auto at = [](const Tensor& t) { return t.accessor<double, 2>(); };
  auto W = at(w), X = at(x), A = at(a), B = at(b), G = at(g), DX = at(dx), DA = at(da), DB = at(db);
  for (std::int64_t t = 0; t < kRows; ++t) {
    for (std::int64_t n = 0; n < kOut; ++n) {
      for (std::int64_t k = 0; k < kIn; ++k) {
        DX[t][k] += G[t][n] * W[n][k];
        for (std::int64_t r = 0; r < kRank; ++r) {
          DX[t][k] += 0.75 * G[t][n] * B[n][r] * A[r][k];
          DA[r][k] += 0.75 * G[t][n] * B[n][r] * X[t][k];
          DB[n][r] += 0.75 * G[t][n] * X[t][k] * A[r][k];
        }
      }
    }
  }
  // The gradient of bf16 rows is rounded to bf16, and so is what the graph keeps for dB.
  EXPECT_LT(Distance(got[0], dx), float_rows() ? 0.01 : kF32Bound);
  EXPECT_LT(Distance(got[1], da), kF32Bound);
  EXPECT_LT(Distance(got[2], db), float_rows() ? 0.01 : kF32Bound);
}

TEST_P(Int8AdapterLinearTest, WithoutAnAdapterTheInputHasTheGradientOfTheWeight) {
  linear_.lora_a = linear_.lora_b = Tensor();
  const Tensor got = Gradients(Apply(), g_, {input_.x})[0];
  EXPECT_LT(Distance(got, g_.to(torch::kFloat64).mm(Weight64())), float_rows() ? 0.01 : kF32Bound);
}

INSTANTIATE_TEST_SUITE_P(Rows, Int8AdapterLinearTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "Bf16" : "Codes"); });

// The loss uses the logits of the served head. Its gradient passes straight through the quantizer of hidden states.
TEST(Int8HeadTest, LossHasTheGradientOfTheDequantizedHead) {
  TrainingContext context;
  context.scratch = torch::empty({1});
  const std::int64_t vocabulary = 45, hidden_size = 34, tokens = 5;
  const PackedInt8 packed = PackInt8Rows(Random({vocabulary, hidden_size}, 31), {}, {});
  const Tensor codes = torch::empty({vocabulary, hidden_size});
  UnpackInt8(packed.view(), codes, {});
  const Tensor weight = (codes * packed.scale.unsqueeze(1)).to(torch::kFloat64);
  const std::vector<std::int32_t> targets = {4, -1, 44, 0, 17};
  for (const bool float_rows : {false, true}) {
    const Int8Head head = {packed.view(), float_rows, {.max_outliers = 1}};
    const Tensor hidden = Random({tokens, hidden_size}, 32).requires_grad_();
    double loss_sum = 0;
    ApplyInt8Loss(hidden, head, targets, 0.5, &loss_sum, context).backward();
    const Tensor logits = Int8Logits(hidden.detach(), head, context).to(torch::kFloat64).requires_grad_();
    const Tensor logprobs = torch::log_softmax(logits, 1);
    const Tensor want = -(logprobs[0][4] + logprobs[2][44] + logprobs[3][0] + logprobs[4][17]);
    EXPECT_NEAR(loss_sum, want.item<double>(), 1e-4);
    want.backward();
    EXPECT_LT(Distance(hidden.grad(), 0.5 * logits.grad().mm(weight)), kF32Bound) << float_rows;
  }
}

}  // namespace
}  // namespace nibble::trainer
