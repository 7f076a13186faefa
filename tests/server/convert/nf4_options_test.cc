// NF4 models with other blocks than 64, and with scales that stay in f32.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/formats/nf4.h"
#include "server/convert/adapter_model.h"
#include "server/convert/convert.h"
#include "server/convert/export.h"
#include "server/model/loaded_model.h"
#include "tests/server/convert/convert_fixture.h"

namespace nibble::convert {
namespace {

using kernels::DType;
using model::Artifact;
using model::Format;
using testing::HasSubstr;

class Nf4OptionsTest : public ConvertTest {
 protected:
  void SetUp() override { source_ = Import("hf_tied_bf16", DType::kBF16, "source"); }
  std::unique_ptr<Artifact> Nf4(const std::string& name, const model::Nf4Options& options) {
    const auto report = Convert(*source_, name, {.to = Format::kNf4, .nf4 = options});
    EXPECT_TRUE(report.ok()) << report.status();
    return Open(name);
  }
  std::unique_ptr<Artifact> source_;
};

// The largest magnitude of each block of a row.
std::vector<float> BlockMaxima(const std::vector<float>& weight, std::int64_t rows, std::int64_t cols,
                               std::int64_t block) {
  std::vector<float> maxima;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t first = 0; first < cols; first += block) {
      float top = 0;
      for (std::int64_t c = first; c < std::min(first + block, cols); ++c) {
        top = std::max(top, std::fabs(weight[static_cast<std::size_t>(r * cols + c)]));
      }
      maxima.push_back(top);
    }
  }
  return maxima;
}

TEST_F(Nf4OptionsTest, ScalesInF32AreTheMaximaOfTheirBlocks) {
  for (const std::int64_t block : {32, 64, 128}) {
    const auto made = Nf4("nf4-" + std::to_string(block), {.block = block, .double_quant = false});
    EXPECT_EQ(made->info().nf4, (model::Nf4Options{.block = block, .double_quant = false}));
    for (const auto& spec : model::RequiredTensors(source_->config())) {
      if (spec.role != model::TensorRole::kLinear) continue;
      const std::vector<float> weight = *source_->FloatTensor(spec.name);
      EXPECT_EQ(*made->FloatTensor(spec.name + model::kNf4AbsmaxSuffix),
                BlockMaxima(weight, spec.shape[0], spec.shape[1], block))
          << spec.name;
      EXPECT_FALSE(made->tensors().contains(spec.name + model::kNf4FactorSuffix));
      EXPECT_FALSE(made->tensors().contains(spec.name + model::kNf4OffsetSuffix));
    }
  }
}

TEST_F(Nf4OptionsTest, DequantizedWeightsFollowTheStoredCodesAndScales) {
  const std::string name = "model.layers.1.mlp.down_proj.weight";  // two blocks of 32 in a row
  for (const model::Nf4Options& options :
       {model::Nf4Options{.block = 32, .scaler_block = 32}, model::Nf4Options{.block = 32, .double_quant = false}}) {
    const std::string tag = options.double_quant ? "coded" : "float";
    const auto made = Nf4(tag, options);
    const auto codes = *made->Tensor(name);
    const std::int64_t rows = codes.shape[0], cols = codes.shape[1] * 2;
    ASSERT_EQ(cols, 64);
    std::vector<float> scales;
    if (options.double_quant) {
      const auto stored = *made->Tensor(name + "_absmax");
      const auto factor = *made->FloatTensor(name + "_absmax_factor");
      const float offset = (*made->FloatTensor(name + "_absmax_offset"))[0];
      ASSERT_EQ(factor.size(), static_cast<std::size_t>(rows * 2 / 32));
      for (std::size_t i = 0; i < stored.bytes.size(); ++i) {
        scales.push_back(static_cast<float>(std::to_integer<std::int8_t>(stored.bytes[i])) / factor[i / 32] + offset);
      }
    } else {
      scales = *made->FloatTensor(name + "_absmax");
    }
    ASSERT_TRUE(Convert(*made, tag + "-bf16", {.to = Format::kBF16}).ok());
    const std::vector<float> got = *Open(tag + "-bf16")->FloatTensor(name);
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const auto byte = std::to_integer<unsigned>(codes.bytes[static_cast<std::size_t>(i / 2)]);
      const float value =
          kernels::kNf4Book[i % 2 == 0 ? byte >> 4 : byte & 15u] * scales[static_cast<std::size_t>(i / 32)];
      ASSERT_EQ(got[static_cast<std::size_t>(i)], kernels::ToFloat(kernels::ToBF16(value))) << tag << " " << i;
    }
  }
}

TEST_F(Nf4OptionsTest, SmallerBlocksAndFloatScalesHaveSmallerErrors) {
  const auto error = [&](const std::string& name, const model::Nf4Options& options) {
    const auto report = Convert(*source_, name, {.to = Format::kNf4, .nf4 = options});
    EXPECT_TRUE(report.ok()) << report.status();
    double sum = 0;
    for (const LayerError& layer : report->layers) sum += layer.relative_error;
    return sum;
  };
  const double of_64 = error("64", {});
  EXPECT_LT(error("32", {.block = 32}), of_64);
  EXPECT_LT(error("float", {.double_quant = false}), of_64);
}

TEST_F(Nf4OptionsTest, ModelAndItsAdapterLoadAndBecomeInt8) {
  for (const model::Nf4Options& options :
       {model::Nf4Options{.block = 32}, model::Nf4Options{.block = 4096, .double_quant = false}}) {
    const std::string tag = std::to_string(options.block);
    const auto made = Nf4("nf4-" + tag, options);
    const auto lora = Lora(*made, "lora-" + tag);
    EXPECT_EQ(lora->info().nf4, options);
    ASSERT_TRUE(Convert(*lora, "int8-" + tag, {}).ok());
    EXPECT_EQ(Open("int8-" + tag)->info().nf4, model::Nf4Options()) << "an int8 model has no nf4 options";
    for (const Artifact* artifact : {made.get(), lora.get()}) {
      const auto loaded = model::LoadedModel::Load(artifact->directory(), {}, kernels::Stream());
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      const kernels::Nf4Weight& weight = (*loaded)->weights().layers[0].linears[0].nf4;
      EXPECT_EQ(weight.block, options.block);
    }
  }
}

TEST_F(Nf4OptionsTest, ExportedAdapterFindsItsBaseInTheFloatModel) {
  const model::Nf4Options options = {.block = 32, .double_quant = false};
  const auto lora = Lora(*Nf4("nf4", options), "lora");
  ASSERT_TRUE(ExportPeft(files_, *lora, directory_.Path("peft")).ok());
  const auto adapter = model::ReadPeftAdapter(files_, directory_.Path("peft"), source_->config());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->config.base_nf4, options);
  const auto made = MakeAdapterModel(files_, *source_, *adapter, {}, directory_.Path("scratch"),
                                     directory_.Path("again"), kernels::Stream(), "import");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->weights_digest, lora->info().weights_digest);
  EXPECT_EQ(made->nf4, options);
}

TEST_F(Nf4OptionsTest, RefusesBlocksOfAnotherSize) {
  for (const model::Nf4Options& options :
       {model::Nf4Options{.block = 48}, model::Nf4Options{.block = 16}, model::Nf4Options{.scaler_block = 8192}}) {
    const absl::Status status = Convert(*source_, "bad", {.to = Format::kNf4, .nf4 = options}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("wanted a power of two from 32 to 4096"));
  }
}

// Models with the default options have the nibble.json that earlier versions wrote. Those versions refuse a model with
// other options, instead of misreading its scales.
TEST(Nf4OptionsInfoTest, OnlyModelsWithOtherOptionsHaveVersionFour) {
  model::ArtifactInfo info;
  info.format = Format::kNf4;
  EXPECT_EQ(model::ToJson(info)["version"], 1);
  EXPECT_FALSE(model::ToJson(info).contains("nf4"));
  for (const model::Nf4Options& options : {model::Nf4Options{.block = 128}, model::Nf4Options{.scaler_block = 64},
                                           model::Nf4Options{.block = 32, .double_quant = false}}) {
    info.nf4 = options;
    EXPECT_EQ(model::ToJson(info)["version"], 4);
    EXPECT_EQ(model::ParseArtifactInfo(model::ToJson(info))->nf4, options);
  }
  const auto refused = [&](const auto& edit) { return ErrorOfEdited(info, edit); };
  EXPECT_THAT(refused([](auto& json) { json["nf4"]["block"] = 48; }), HasSubstr("\"block\" is 48"));
  EXPECT_THAT(refused([](auto& json) { json["nf4"].erase("double_quant"); }), HasSubstr("double_quant"));
  EXPECT_THAT(refused([](auto& json) { json.erase("nf4"); }), HasSubstr("no \"nf4\""));
  EXPECT_THAT(refused([](auto& json) { json["version"] = 1; }), HasSubstr("version 1"));
  EXPECT_THAT(refused([](auto& json) { json["format"] = "int8"; }), HasSubstr("in a model in int8"));
  EXPECT_THAT(refused([](auto& json) { json["version"] = 5; }), HasSubstr("reads 1 to 4"));
}

}  // namespace
}  // namespace nibble::convert
