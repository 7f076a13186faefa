// Adapters on a base that stays in f32 or bf16, as method lora trains them.
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

class FloatLoraTest : public ConvertTest, public testing::WithParamInterface<DType> {
 protected:
  void SetUp() override {
    base_ = Import("hf_sharded_f32", GetParam(), "base");
    lora_ = Lora(*base_, "lora");
  }
  // A linear with the adapter of the lora model merged, in double from the stored parts.
  std::vector<double> Merged(const std::string& path) const {
    const std::vector<float> stored = *base_->FloatTensor(path + ".weight");
    std::vector<double> merged(stored.begin(), stored.end());
    AddAdapter(*lora_, path, merged);
    return merged;
  }
  std::unique_ptr<Artifact> base_, lora_;
};

TEST_P(FloatLoraTest, KeepsTheTensorsOfItsBase) {
  EXPECT_EQ(lora_->info().format, Format::kLora);
  EXPECT_EQ(lora_->info().base_format, base_->info().format);
  EXPECT_EQ(lora_->info().base_digest, base_->info().weights_digest);
  EXPECT_EQ(lora_->info().kv_dtype, base_->info().kv_dtype);
  EXPECT_EQ(model::ToJson(lora_->info())["base_format"], Name(base_->info().format));
  EXPECT_EQ(model::ReadBytes(directory_.Path("lora/model.safetensors")),
            model::ReadBytes(directory_.Path("base/model.safetensors")));
  const auto loaded = model::LoadedModel::Load(directory_.Path("lora"), {.max_positions = 16}, kernels::Stream());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const model::LayerWeights& layer = (*loaded)->weights().layers[0];
  EXPECT_EQ((*loaded)->weights().input_dtype, GetParam());
  EXPECT_EQ(layer.linear(model::LinearKind::kQ).kind, model::LinearWeight::Kind::kLibrary);
  EXPECT_EQ(layer.linear(model::LinearKind::kQ).library.dtype, GetParam());
  EXPECT_TRUE(layer.linear(model::LinearKind::kQ).lora.has_value());
  EXPECT_FALSE(layer.linear(model::LinearKind::kUp).lora.has_value());
}

TEST_P(FloatLoraTest, Int8CodesAreThoseOfTheMergedWeights) {
  ASSERT_TRUE(Convert(*lora_, "int8", {}).ok());
  ASSERT_TRUE(Convert(*base_, "base_int8", {}).ok());
  const auto int8 = Open("int8"), base_int8 = Open("base_int8");
  EXPECT_EQ(int8->info().base_digest, lora_->info().weights_digest);
  EXPECT_FALSE(int8->info().int8_head) << "the head stays as trained";
  for (const auto& [path, trained] : {std::pair{std::string("model.layers.1.mlp.down_proj"), true},
                                      std::pair{std::string("model.layers.1.mlp.up_proj"), false}}) {
    const std::vector<double> merged = Merged(path);
    const auto got = *int8->Tensor(path + ".weight");
    const auto scale = *int8->FloatTensor(path + ".weight_scale");
    ASSERT_EQ(got.bytes.size(), merged.size());
    for (std::size_t i = 0; i < merged.size(); ++i) {
      const double want = merged[i] / static_cast<double>(scale[i / static_cast<std::size_t>(got.shape[1])]);
      ASSERT_LE(std::fabs(std::to_integer<std::int8_t>(got.bytes[i]) - want), 0.5001) << path << " " << i;
    }
    const auto of_base = *base_int8->Tensor(path + ".weight");
    EXPECT_EQ(std::equal(got.bytes.begin(), got.bytes.end(), of_base.bytes.begin()), !trained) << path;
  }
}

TEST_P(FloatLoraTest, MergedBf16ModelIsWithinRoundingOfTheMergedWeights) {
  ASSERT_TRUE(Convert(*lora_, "merged", {.to = Format::kBF16}).ok());
  const auto merged = Open("merged");
  EXPECT_EQ(merged->info().format, Format::kBF16);
  EXPECT_FALSE(merged->adapter().has_value());
  for (const model::TensorSpec& spec : model::RequiredTensors(base_->config())) {
    if (spec.role != model::TensorRole::kLinear) continue;
    const std::vector<double> want = Merged(spec.name.substr(0, spec.name.rfind('.')));
    const std::vector<float> got = *merged->FloatTensor(spec.name);
    ASSERT_EQ(got.size(), want.size()) << spec.name;
    for (std::size_t i = 0; i < got.size(); ++i) {
      // Half a step of bf16, and the roundings of the f32 sum.
      ASSERT_NEAR(static_cast<double>(got[i]), want[i], std::fabs(want[i]) * 0x1p-8 + 1e-6) << spec.name << " " << i;
    }
  }
}

// A PEFT adapter that names this base by its digest stays on it. Without a digest, it gets the base in nf4.
TEST_P(FloatLoraTest, ExportedAdapterReturnsToTheFloatBaseThatItNames) {
  ASSERT_TRUE(ExportPeft(files_, *lora_, directory_.Path("peft")).ok());
  EXPECT_THAT(model::ReadBytes(directory_.Path("peft/README.md")),
              HasSubstr(std::string("a base in ") + Name(base_->info().format)));
  auto adapter = model::ReadPeftAdapter(files_, directory_.Path("peft"), base_->config());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const auto make = [&](const std::string& target) {
    return MakeAdapterModel(files_, *base_, *adapter, base::Json::object(), directory_.Path("scratch"),
                            directory_.Path(target), kernels::Stream(), "import");
  };
  const auto again = make("again");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->weights_digest, lora_->info().weights_digest);
  EXPECT_EQ(again->base_format, base_->info().format);
  adapter->config.base_digest.clear();
  const auto quantized = make("quantized");
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  EXPECT_EQ(quantized->base_format, Format::kNf4);
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("scratch")));
}

INSTANTIATE_TEST_SUITE_P(Bases, FloatLoraTest, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(kernels::Name(info.param)); });

// nibble.json of an adapter on nf4 has no base_format, so its checksum stays that of earlier versions.
TEST(BaseFormatTest, IsWrittenUnlessItIsNf4) {
  model::ArtifactInfo info;
  info.format = Format::kLora;
  EXPECT_FALSE(model::ToJson(info).contains("base_format"));
  EXPECT_EQ(model::ParseArtifactInfo(model::ToJson(info))->base_format, Format::kNf4);
  info.base_format = Format::kBF16;
  EXPECT_EQ(model::ParseArtifactInfo(model::ToJson(info))->base_format, Format::kBF16);
  info.base_format = Format::kInt8;
  EXPECT_EQ(model::ParseArtifactInfo(model::ToJson(info))->base_format, Format::kInt8);
  info.base_format = Format::kTernary;
  EXPECT_THAT(std::string(model::ParseArtifactInfo(model::ToJson(info)).status().message()),
              HasSubstr("\"base_format\" is \"ternary\""));
}

}  // namespace
}  // namespace nibble::convert
