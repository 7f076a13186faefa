// Copies of modules other than linears, which are trained with an adapter (model/saved_modules.h). On float and nf4
// bases, they are compared with finite differences and with serving; on an int8 base and in merge-aware training, they
// have the bits of serving.
#include "server/model/saved_modules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "server/model/trainer_logprobs.h"
#include "server/trainer/adapter_model.h"
#include "server/trainer/int8_adapter_model.h"
#include "server/trainer/merge_aware_model.h"
#include "tests/server/trainer/exact_model_fixture.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;

class SavedModulesTest : public ExactModelTest {
 protected:
  // All modules that an adapter on the model can save, beside adapters on three linears.
  model::AdapterConfig Everything() const {
    model::AdapterConfig adapter;
    adapter.rank = 4;
    adapter.alpha = 8;
    adapter.targets = {LinearKind::kQ, LinearKind::kV, LinearKind::kDown};
    adapter.modules_to_save = {"norm", "embed_tokens"};
    if (!config_.tied_embeddings) adapter.modules_to_save.push_back("lm_head");
    return adapter;
  }
  // Changes every parameter: B is 0 at the start. Copies stay near the base's values.
  static void Move(TrainingModel& model) {
    std::uint64_t seed = 0;
    for (Parameter& parameter : model.parameters()) {
      const bool is_copy = parameter.name.find(".lora_") == std::string::npos;
      const auto values = support::NormalVector(++seed, parameter.value.count, 0.05f);
      for (std::size_t i = 0; i < values.size(); ++i) {
        float& value = parameter.value.f32()[i];
        value = is_copy ? value + values[i] : values[i];
      }
    }
    EXPECT_TRUE(model.Refresh().ok());
  }
  std::unique_ptr<AdapterModel> OnFloats(const std::string& directory, const AdapterOptions& options) {
    auto made = AdapterModel::Create(models_.Load(directory), options, stream_);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  std::string ConvertedTo(const std::string& source, const std::string& name, const convert::ConvertOptions& options) {
    const auto opened = Open(source);
    const auto made = convert::ConvertModel(base::RealFileSystem(), *opened, models_.Path(name), options, stream_);
    EXPECT_TRUE(made.ok()) << made.status();
    return models_.Path(name);
  }
};

TEST_F(SavedModulesTest, CopiesStartAsTheBaseAndAreServedAsTrained) {
  for (const std::string& base : {models_.nf4(), models_.bf16(), models_.f32()}) {
    SCOPED_TRACE(base);
    Open(base);
    const std::vector<std::int32_t> tokens = Batch().tokens;
    for (const bool bf16 : {false, true}) {
      model::AdapterConfig plain = Everything();
      plain.modules_to_save.clear();
      const auto model = OnFloats(base, {.adapter = Everything(), .bf16_compute = bf16});
      EXPECT_EQ(*model->TrainingLogprobs(tokens),
                *OnFloats(base, {.adapter = plain, .bf16_compute = bf16})->TrainingLogprobs(tokens));
      EXPECT_EQ(Serving(model->ServingWeights()), Serving(models_.Load(base)->weights()));
      Move(*model);
      const std::string name = base + (bf16 ? "-bf16" : "-f32");
      WriteAdapter(*model, base, Everything(), name);
      const auto served = models_.Load(models_.Path(name));
      EXPECT_EQ(Serving(model->ServingWeights()), Serving(served->weights()));
      const auto logprobs = *model->TrainingLogprobs(tokens);
      const auto difference = model::MaxLogprobDifference(*served, {{{tokens, logprobs}}}, stream_);
      ASSERT_TRUE(difference.ok()) << difference.status();
      EXPECT_LT(*difference, 0.02) << "rounding to bf16";
    }
  }
}

// The families have untied heads, norms of heads, and norms within blocks.
TEST_F(SavedModulesTest, GradientsOfEveryFamilyMatchFiniteDifferences) {
  for (const std::string family : {"llama3", "qwen2", "qwen3", "phi3", "bitnet"}) {
    SCOPED_TRACE(family);
    const std::string base = Import(family);
    Open(base);
    const auto model = OnFloats(base, {.adapter = Everything(), .bf16_compute = false});
    Move(*model);
    ExpectFiniteDifferences(*model, Batch());
    const auto recomputed =
        OnFloats(base, {.adapter = Everything(), .bf16_compute = false, .activation_checkpointing = true});
    Move(*recomputed);
    EXPECT_EQ(Gradients(*recomputed), Gradients(*model));
  }
}

TEST_F(SavedModulesTest, VectorsHaveTheLearningRateOfB) {
  Open(models_.f32());
  const auto model = OnFloats(models_.f32(), {.adapter = Everything(), .lora_plus_ratio = 8});
  for (const Parameter& parameter : model->parameters()) {
    const bool fast = parameter.shape.size() == 1 || parameter.name.ends_with(model::kLoraBSuffix);
    EXPECT_EQ(parameter.lr_factor, fast ? 8.0 : 1.0) << parameter.name;
  }
}

TEST_F(SavedModulesTest, AdapterOnInt8TrainsTheBitsThatItServes) {
  for (const std::string family : {"llama3", "qwen2", "qwen3", "phi3"}) {
    const std::string source = Import(family);
    for (const bool weight_only : {true, false}) {
      const std::string name = family + (weight_only ? "-float" : "-codes");
      SCOPED_TRACE(name);
      const std::string base = ConvertedTo(source, name, {.weight_only = weight_only, .int8_head = false});
      const auto make = [&](bool checkpointing) {
        auto made = MakeInt8AdapterModel(models_.Load(base),
                                         {.adapter = Everything(), .activation_checkpointing = checkpointing}, stream_);
        EXPECT_TRUE(made.ok()) << made.status();
        return *std::move(made);
      };
      const auto model = make(false);
      EXPECT_EQ(Training(*model), Serving(models_.Load(base)->weights())) << "starts as the base";
      Move(*model);
      const std::vector<std::string> trained = Training(*model);
      EXPECT_EQ(Serving(model->ServingWeights()), trained);
      WriteAdapter(*model, base, Everything(), name + "-adapter");
      EXPECT_EQ(Serving(models_.Load(models_.Path(name + "-adapter"))->weights()), trained);
      const auto recomputed = make(true);
      Move(*recomputed);
      EXPECT_EQ(Gradients(*recomputed), Gradients(*model));
    }
  }
}

TEST_F(SavedModulesTest, MergeAwareTrainingHasTheBitsOfTheConvertedModel) {
  for (const std::string family : {"llama3", "qwen2", "qwen3", "phi3"}) {
    SCOPED_TRACE(family);
    const std::string base = ConvertedTo(Import(family), family + "-nf4", {.to = model::Format::kNf4});
    auto made = MakeMergeAwareModel(models_.Load(base), {.adapter = Everything()}, stream_);
    ASSERT_TRUE(made.ok()) << made.status();
    Move(**made);
    WriteAdapter(**made, base, Everything(), family + "-adapter");
    const std::string int8 = ConvertedTo(models_.Path(family + "-adapter"), family + "-int8", {});
    EXPECT_EQ(Serving(models_.Load(int8)->weights()), Training(**made));
  }
}

// The gradients on an int8 base, of its copies too, point where those on the float base point.
TEST_F(SavedModulesTest, GradientsOnInt8PointWhereThoseOfTheFloatBasePoint) {
  const std::string base = ConvertedTo(models_.bf16(), "int8-bf16-head", {.int8_head = false});
  const auto separate = OnFloats(models_.bf16(), {.adapter = Everything(), .bf16_compute = false});
  Move(*separate);
  const auto int8 = MakeInt8AdapterModel(models_.Load(base), {.adapter = Everything()}, stream_);
  ASSERT_TRUE(int8.ok()) << int8.status();
  Move(**int8);
  ExpectAlike(Gradients(**int8), Gradients(*separate));
}

}  // namespace
}  // namespace nibble::trainer
