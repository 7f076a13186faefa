// Adapters on an int8 base, as method lora trains them: the lora model, its merged forms, and its way through PEFT.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

#include "server/base/error.h"
#include "server/convert/adapter_model.h"
#include "server/convert/export.h"
#include "server/model/loaded_model.h"
#include "server/model/peft_adapter.h"
#include "tests/server/convert/convert_fixture.h"

namespace nibble::convert {
namespace {

using kernels::DType;
using model::Artifact;
using model::Format;
using ::testing::HasSubstr;

class Int8LoraTest : public ConvertTest {
 protected:
  // Makes an int8 base with these options, and an adapter on it.
  void Make(const ConvertOptions& options) {
    const auto source = Import("hf_tied_bf16", DType::kBF16, "source");
    ASSERT_TRUE(Convert(*source, "base", options).ok());
    base_ = Open("base");
    lora_ = Lora(*base_, "lora");
  }
  // A weight of the base, dequantized in double, with its adapter.
  std::vector<double> Merged(const std::string& path) const {
    const auto codes = *base_->Tensor(path + ".weight");
    const auto scale = *base_->FloatTensor(path + ".weight_scale");
    std::vector<double> merged;
    for (std::size_t i = 0; i < codes.bytes.size(); ++i) {
      merged.push_back(std::to_integer<std::int8_t>(codes.bytes[i]) *
                       static_cast<double>(scale[i / static_cast<std::size_t>(codes.shape[1])]));
    }
    AddAdapter(*lora_, path, merged);
    return merged;
  }
  std::unique_ptr<Artifact> base_, lora_;
};

TEST_F(Int8LoraTest, KeepsTheTensorsAndOptionsOfItsBase) {
  Make({.act_outliers = 3});
  const model::ArtifactInfo& info = lora_->info();
  EXPECT_EQ(info.format, Format::kLora);
  EXPECT_EQ(info.base_format, Format::kInt8);
  EXPECT_EQ(info.determinism(), model::Determinism::kBitwise);
  EXPECT_EQ(info.act_outliers, 3);
  EXPECT_TRUE(info.int8_head);
  EXPECT_EQ(info.base_digest, base_->info().weights_digest);
  EXPECT_EQ(model::ToJson(info)["base_format"], "int8");
  EXPECT_EQ(model::ReadBytes(directory_.Path("lora/model.safetensors")),
            model::ReadBytes(directory_.Path("base/model.safetensors")));
  const auto loaded = model::LoadedModel::Load(directory_.Path("lora"), {.max_positions = 16}, kernels::Stream());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const model::DecoderWeights& weights = (*loaded)->weights();
  EXPECT_EQ(weights.act_outliers, 3);
  EXPECT_EQ(weights.head.kind, model::LinearWeight::Kind::kInt8);
  EXPECT_EQ(weights.layers[0].linear(model::LinearKind::kQ).kind, model::LinearWeight::Kind::kInt8);
  EXPECT_TRUE(weights.layers[0].linear(model::LinearKind::kQ).lora.has_value());
  EXPECT_FALSE(weights.layers[0].linear(model::LinearKind::kUp).lora.has_value());
}

TEST_F(Int8LoraTest, AWeightOnlyBaseStaysWeightOnly) {
  Make({.weight_only = true});
  EXPECT_TRUE(lora_->info().weight_only);
  EXPECT_EQ(model::ToJson(lora_->info())["version"], 2);
  const auto loaded = model::LoadedModel::Load(directory_.Path("lora"), {.max_positions = 16}, kernels::Stream());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->weights().input_dtype, DType::kBF16);
  EXPECT_EQ((*loaded)->weights().layers[0].linear(model::LinearKind::kQ).kind, model::LinearWeight::Kind::kInt8Weight);
  ASSERT_TRUE(Convert(*lora_, "int8", {}).ok());
  EXPECT_TRUE(Open("int8")->info().weight_only);
  EXPECT_EQ(base::ReasonMetadata(Convert(*lora_, "outliers", {.act_outliers = 4}).status())["field"], "act_outliers");
  ASSERT_TRUE(Convert(*lora_, "codes", {.weight_only = false}).ok());
  EXPECT_EQ(Open("codes")->info().act_outliers, kernels::kDefaultOutliers);
}

TEST_F(Int8LoraTest, OnlyAdaptedWeightsAreQuantizedAgain) {
  Make({.act_outliers = 3});
  ASSERT_TRUE(Convert(*lora_, "int8", {}).ok());
  const auto int8 = Open("int8");
  EXPECT_EQ(int8->info().act_outliers, 3);
  EXPECT_TRUE(int8->info().int8_head);
  EXPECT_EQ(int8->info().base_digest, lora_->info().weights_digest);
  for (const model::TensorSpec& spec : model::RequiredTensors(base_->config())) {
    const std::string path = spec.name.substr(0, spec.name.rfind('.'));
    const auto got = *int8->Tensor(spec.name), stored = *base_->Tensor(spec.name);
    if (!lora_->adapter()->On(path).has_value()) {
      EXPECT_TRUE(std::ranges::equal(got.bytes, stored.bytes)) << spec.name;
      if (base_->tensors().contains(spec.name + "_scale")) {
        EXPECT_EQ(*int8->FloatTensor(spec.name + "_scale"), *base_->FloatTensor(spec.name + "_scale")) << spec.name;
      }
      continue;
    }
    const std::vector<double> merged = Merged(path);
    const auto scale = *int8->FloatTensor(spec.name + "_scale");
    for (std::size_t i = 0; i < merged.size(); ++i) {
      const double want = merged[i] / static_cast<double>(scale[i / static_cast<std::size_t>(got.shape[1])]);
      // Half a code, and the f32 rounding of the scale and of the merged weight.
      ASSERT_LE(std::fabs(std::to_integer<std::int8_t>(got.bytes[i]) - want), 0.5001) << spec.name << " " << i;
    }
  }
}

TEST_F(Int8LoraTest, RefusesABf16HeadForAnInt8HeadAndTheTargetNf4) {
  Make({});
  const absl::Status refused = Convert(*lora_, "bf16-head", {.int8_head = false}).status();
  EXPECT_EQ(base::ReasonMetadata(refused)["field"], "head");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is bf16, wanted int8: the base of the adapter"));
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("bf16-head")));
  EXPECT_EQ(base::ReasonMetadata(Convert(*lora_, "nf4", {.to = Format::kNf4}).status())["field"], "target");
}

TEST_F(Int8LoraTest, Bf16HeadStaysUnlessAnInt8HeadIsRequested) {
  Make({.int8_head = false});
  ASSERT_TRUE(Convert(*lora_, "same", {}).ok());
  EXPECT_FALSE(Open("same")->info().int8_head);
  ASSERT_TRUE(Convert(*lora_, "int8-head", {.int8_head = true}).ok());
  EXPECT_TRUE(Open("int8-head")->info().int8_head);
}

TEST_F(Int8LoraTest, MergedBf16ModelIsWithinRoundingOfTheMergedWeights) {
  Make({});
  ASSERT_TRUE(Convert(*lora_, "merged", {.to = Format::kBF16}).ok());
  const auto merged = Open("merged");
  EXPECT_FALSE(merged->adapter().has_value());
  for (const model::TensorSpec& spec : model::RequiredTensors(base_->config())) {
    if (spec.shape.size() != 2) continue;
    const std::vector<double> want = Merged(spec.name.substr(0, spec.name.rfind('.')));
    const std::vector<float> got = *merged->FloatTensor(spec.name);
    ASSERT_EQ(got.size(), want.size()) << spec.name;
    for (std::size_t i = 0; i < got.size(); ++i) {
      // Half a step of bf16, and the roundings of the f32 sum.
      ASSERT_NEAR(static_cast<double>(got[i]), want[i], std::fabs(want[i]) * 0x1p-8 + 1e-6) << spec.name << " " << i;
    }
  }
}

// PEFT has no int8 bases: adapter_config.json names the model that was quantized, and the metadata of the exported file
// has the digest of the int8 base.
TEST_F(Int8LoraTest, ExportedAdapterReturnsToItsBase) {
  Make({});
  ASSERT_TRUE(ExportPeft(files_, *lora_, directory_.Path("peft")).ok());
  EXPECT_THAT(model::ReadBytes(directory_.Path("peft/README.md")), HasSubstr("a base in int8"));
  auto adapter = model::ReadPeftAdapter(files_, directory_.Path("peft"), base_->config());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const auto make = [&](const std::string& target) {
    return MakeAdapterModel(files_, *base_, *adapter, base::Json::object(), directory_.Path("scratch"),
                            directory_.Path(target), kernels::Stream(), "import");
  };
  const auto again = make("again");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->weights_digest, lora_->info().weights_digest);
  adapter->config.base_digest.clear();  // PEFT's own adapters have no digest
  EXPECT_EQ(make("unnamed")->base_format, Format::kInt8);
  adapter->config.base_digest = std::string(64, '0');
  EXPECT_EQ(base::Reason(make("other").status()), "BASE_MISMATCH");
}

}  // namespace
}  // namespace nibble::convert
