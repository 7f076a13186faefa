// Merge-aware QLoRA computes the logits of the int8 model that a conversion makes of base and adapter.
#include "server/trainer/merge_aware_model.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "server/convert/convert.h"
#include "server/trainer/adapter_model.h"
#include "server/trainer/merged_linear.h"
#include "server/trainer/torch_bridge.h"
#include "tests/server/trainer/exact_model_fixture.h"
#include "tests/support/random.h"
#include "tests/support/torch_memory.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;

class MergeAwareModelTest : public ExactModelTest {
 protected:
  MergeAwareModelTest() : directory_(models_.nf4()) { Open(directory_); }

  // Makes an nf4 base of another family.
  void Use(const std::string& family) {
    const auto imported = Open(Import(family));
    directory_ = models_.Path(family + "-nf4");
    const auto made =
        convert::ConvertModel(base::RealFileSystem(), *imported, directory_, {.to = model::Format::kNf4}, stream_);
    ASSERT_TRUE(made.ok()) << made.status();
  }
  static model::AdapterConfig Adapter(std::vector<LinearKind> targets = {LinearKind::kQ, LinearKind::kV,
                                                                         LinearKind::kDown}) {
    model::AdapterConfig adapter;
    adapter.rank = 4;
    adapter.alpha = 8;
    adapter.targets = std::move(targets);
    return adapter;
  }
  // Sets B to values other than 0, because an adapter that is 0 has no effect.
  std::unique_ptr<ExactModel> Make(AdapterOptions options = {}) {
    options.cancelled = cancel_.callback();
    if (options.adapter.targets.empty()) options.adapter = Adapter();
    base_ = models_.Load(directory_);
    auto made = MakeMergeAwareModel(base_, options, stream_);
    EXPECT_TRUE(made.ok()) << made.status();
    SetValues(**made);
    return *std::move(made);
  }

  // The int8 model that `models convert` makes of the adapter on its base.
  std::shared_ptr<const model::LoadedModel> Converted(ExactModel& model, const model::AdapterConfig& adapter,
                                                      const std::string& name) {
    const auto lora = WriteAdapter(model, directory_, adapter, name);
    EXPECT_TRUE(convert::ConvertModel(base::RealFileSystem(), *lora, models_.Path(name + "-int8"), {}, stream_).ok());
    return models_.Load(models_.Path(name + "-int8"));
  }

  std::string directory_;
  std::shared_ptr<const model::LoadedModel> base_;
};

TEST_F(MergeAwareModelTest, TrainingGivesTheBitsOfTheConvertedModel) {
  const auto model = Make();
  const std::vector<std::string> trained = Training(*model);
  ASSERT_EQ(trained.size(), Batch().tokens.size());
  EXPECT_EQ(Serving(model->ServingWeights()), trained);
  EXPECT_EQ(Serving(Converted(*model, Adapter(), "adapter")->weights()), trained);
  for (Parameter& parameter : model->parameters()) {
    for (float& value : parameter.value.f32()) value = -value * 1.5f;
  }
  ASSERT_TRUE(model->Refresh().ok());
  EXPECT_NE(Training(*model), trained);
  EXPECT_EQ(Serving(Converted(*model, Adapter(), "changed")->weights()), Training(*model));
}

// The families have untied heads, biases, and norms of heads. Every linear has an rsLoRA adapter.
TEST_F(MergeAwareModelTest, EveryFamilyTrainsTheBitsThatItServes) {
  for (const std::string family : {"llama3", "qwen2", "qwen3", "phi3"}) {
    SCOPED_TRACE(family);
    Use(family);
    model::AdapterConfig adapter = Adapter({LinearKind::kQ, LinearKind::kK, LinearKind::kV, LinearKind::kO,
                                            LinearKind::kGate, LinearKind::kUp, LinearKind::kDown});
    adapter.rslora = true;
    const auto model = Make({.adapter = adapter});
    EXPECT_EQ(Gradients(*model), Gradients(*Make({.adapter = adapter, .activation_checkpointing = true})));
    EXPECT_EQ(Serving(Converted(*model, adapter, family + "-adapter")->weights()), Training(*model));
  }
}

TEST_F(MergeAwareModelTest, StartsAsQLoraDoes) {
  base_ = models_.Load(directory_);
  const auto merged = MakeMergeAwareModel(base_, {.adapter = Adapter(), .init_seed = 9}, stream_);
  const auto separate = AdapterModel::Create(base_, {.adapter = Adapter(), .init_seed = 9}, stream_);
  ASSERT_TRUE(merged.ok() && separate.ok());
  ASSERT_EQ((*merged)->parameters().size(), (*separate)->parameters().size());
  for (std::size_t i = 0; i < (*merged)->parameters().size(); ++i) {
    const Parameter &a = (*merged)->parameters()[i], &b = (*separate)->parameters()[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_TRUE(std::equal(a.value.f32().begin(), a.value.f32().end(), b.value.f32().begin())) << a.name;
  }
}

// The gradients of a separate adapter on the same base point the same way: only the rounding to int8 differs.
TEST_F(MergeAwareModelTest, GradientsPointWhereThoseOfQLoraPoint) {
  Make();  // sets base_
  const auto separate = AdapterModel::Create(base_, {.adapter = Adapter(), .bf16_compute = false}, stream_);
  ASSERT_TRUE(separate.ok()) << separate.status();
  SetValues(**separate);
  const auto want = Gradients(**separate);
  for (const bool bf16 : {false, true}) ExpectAlike(Gradients(*Make({.bf16_compute = bf16})), want);
}

// dB = s g^T (x A^T), dA = s (g B)^T x and dx = g W of the rows and weights that the product read, by torch in f64.
TEST_F(MergeAwareModelTest, GradientsOfALinearAreThoseOfItsFormulas) {
  base_ = models_.Load(directory_);
  TrainingContext context;
  context.stream = stream_;
  MergedWeight weight;
  weight.base = base_->weights().layers[0].linear(LinearKind::kDown).nf4;
  const std::int64_t n = weight.base.rows, k = weight.base.cols, r = 3, rows = 5;
  torch::manual_seed(1);
  weight.scaling = 0.75;
  weight.lora_a = torch::randn({r, k}).requires_grad_(true);
  weight.lora_b = torch::randn({n, r}).requires_grad_(true);
  MergeScratch scratch = {torch::empty({n * k}), torch::empty({n * k})};
  weight.Merge(scratch, stream_);
  context.scratch = torch::empty({n * k});
  const torch::Tensor x = torch::randn({rows, k}).requires_grad_(true);
  const CodedRowOptions how = {.max_outliers = 2};
  const CodedInput input = {x, std::make_shared<CodedRows>(QuantizeRows(x.detach(), how, context))};
  const torch::Tensor y = ApplyMergedLinear(input, weight, context);
  const torch::Tensor g = torch::randn({rows, n});
  y.backward(g);

  torch::Tensor merged = torch::empty({n, k});
  UnpackInt8(weight.merged.view(), merged, stream_);
  merged = merged * weight.merged.scale.unsqueeze(1);
  const torch::Tensor read = input.rows->Values(stream_).to(torch::kFloat64), g64 = g.to(torch::kFloat64);
  const torch::Tensor a = weight.lora_a.detach().to(torch::kFloat64), b = weight.lora_b.detach().to(torch::kFloat64);
  const auto near = [](const torch::Tensor& got, const torch::Tensor& want) {
    const double bound = 1e-5 * want.abs().max().item<double>();
    EXPECT_LT((got.to(torch::kFloat64) - want).abs().max().item<double>(), bound);
  };
  near(y.detach(), torch::mm(read, merged.to(torch::kFloat64).t()));
  near(x.grad(), torch::mm(g64, merged.to(torch::kFloat64)));
  near(weight.lora_b.grad(), torch::mm(g64.t(), torch::mm(read, a.t())) * weight.scaling);
  near(weight.lora_a.grad(), torch::mm(torch::mm(g64, b).t(), read) * weight.scaling);
}

// The backward pass of a linear needs less memory than one byte per element of the weight.
TEST_F(MergeAwareModelTest, BackwardMakesNoGradientOfAWeight) {
  constexpr std::int64_t kSize = 1024, kRank = 4, kTokens = 8;
  const torch::Tensor codes = torch::zeros({kSize, kSize / 2}, torch::kUInt8),
                      absmax = torch::ones({kSize * kSize / 64});
  MergedWeight weight;
  weight.base = kernels::Nf4Weight{codes.data_ptr<std::uint8_t>(), absmax.data_ptr<float>(), kSize, kSize};
  weight.scaling = 2.0;
  weight.lora_a = torch::ones({kRank, kSize}).requires_grad_(true);
  weight.lora_b = torch::ones({kSize, kRank}).requires_grad_(true);
  MergeScratch scratch = {torch::empty({kSize * kSize}), torch::empty({kSize * kSize})};
  weight.Merge(scratch, stream_);
  const torch::Tensor x = torch::ones({kTokens, kSize}).requires_grad_(true), g = torch::ones({kTokens, kSize});
  for (const torch::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    TrainingContext context;
    context.stream = stream_;
    context.scratch = torch::empty({kSize * kSize}, type);
    const CodedInput input = {x, std::make_shared<CodedRows>(QuantizeRows(x.detach(), {}, context))};
    const torch::Tensor y = ApplyMergedLinear(input, weight, context);
    const auto peak = [](const auto& made) {
      support::TorchMemory memory;
      made();
      return memory.peak_bytes();
    };
    EXPECT_LT(peak([&] { return torch::autograd::grad({y}, {x, weight.lora_a, weight.lora_b}, {g}); }), kSize * kSize);
    EXPECT_GE(peak([&] { return torch::mm(g.t(), x.detach()); }), 4 * kSize * kSize) << "the measure counts a gradient";
  }
}

TEST_F(MergeAwareModelTest, PassStoppedAnywhereLeavesNothingBehind) {
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

TEST_F(MergeAwareModelTest, RecordsAfterItsGradientsAreFreed) {
  const auto model = Make();
  const std::vector<std::string> trained = Training(*model);
  model->ReleaseGradients();
  EXPECT_EQ(Training(*model), trained);
  for (const Parameter& parameter : model->parameters()) {
    EXPECT_FALSE(parameter.value.f32().empty());
    EXPECT_EQ(parameter.grad.count, 0);
  }
}

TEST_F(MergeAwareModelTest, RefusesDropoutAndFloatBases) {
  model::AdapterConfig adapter = Adapter();
  adapter.dropout = 0.1;
  base_ = models_.Load(directory_);
  EXPECT_TRUE(absl::IsInvalidArgument(MakeMergeAwareModel(base_, {.adapter = adapter}, stream_).status()));
  base_ = models_.Load(models_.bf16());
  EXPECT_TRUE(absl::IsInvalidArgument(MakeMergeAwareModel(base_, {.adapter = Adapter()}, stream_).status()));
}

}  // namespace
}  // namespace nibble::trainer
