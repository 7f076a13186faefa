// transformers' "bitnet" checkpoints: tests/golden/model/make_bitnet_golden.py made the folders and the logprobs.
#include "server/model/hf_bitnet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "server/base/error.h"
#include "server/model/safetensors.h"
#include "server/model/safetensors_writer.h"
#include "tests/server/model/family_fixture.h"

namespace nibble::model {
namespace {

using base::Json;
using kernels::DType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The example in transformers' unpack_weights.
TEST(HfBitNetTest, RowsArePackedInStripesLowBitsFirst) {
  const std::string bytes = "\xA1\x18\x90\x0A";
  const auto codes = UnpackHfBitNet(bytes, 8, 2);
  ASSERT_TRUE(codes.ok()) << codes.status();
  EXPECT_THAT(*codes, ElementsAre(0, -1, -1, 1, -1, 1, -1, 1, 1, 0, 0, -1, 1, -1, 1, -1));
  EXPECT_EQ(*PackHfBitNet(*codes, 8, 2), bytes);
}

TEST(HfBitNetTest, RejectsInvalidCodes) {
  EXPECT_TRUE(absl::IsInvalidArgument(UnpackHfBitNet("\xC0", 4, 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(UnpackHfBitNet("\x00\x00", 4, 1).status()));
  const std::int8_t two[] = {0, 0, 2, 0};
  EXPECT_TRUE(absl::IsInvalidArgument(PackHfBitNet(two, 4, 1).status()));
  EXPECT_THAT(std::string(PackHfBitNet(two, 2, 2).status().message()), HasSubstr("multiples of 4"));
}

TEST(HfBitNetTest, FloatsOfOneMagnitudeAreTernary) {
  const float ternary[] = {0.25f, 0.0f, -0.25f, -0.0f};
  const auto values = AsTernary(ternary);
  ASSERT_TRUE(values.has_value());
  EXPECT_THAT(values->codes, ElementsAre(1, 0, -1, 0));
  EXPECT_EQ(values->scale, 0.25f);
  const float masters[] = {0.25f, 0.0f, -0.24f};
  EXPECT_FALSE(AsTernary(masters).has_value());
  const float broken[] = {0.25f, NAN};
  EXPECT_FALSE(AsTernary(broken).has_value());
  const float zeros[] = {0.0f, 0.0f};
  EXPECT_EQ(AsTernary(zeros)->scale, 1.0f);
}

TEST(HfBitNetTest, ReadsConfigAndNamesUnsupportedSettings) {
  const auto parse = [](Json quantization) {
    return ParseHfBitNet(Json{{"quantization_config", std::move(quantization)}});
  };
  EXPECT_FALSE(ParseHfBitNet(Json::object())->has_value());
  EXPECT_EQ((*parse({{"quant_method", "bitnet"}}))->linear_class, HfLinearClass::kBitLinear);
  HfBitNet all;
  all.linear_class = HfLinearClass::kAutoBitLinearOnline;
  all.use_rms_norm = true;
  all.rms_norm_eps = 1e-5;
  auto again = parse(ToJson(all));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->linear_class, all.linear_class);
  EXPECT_TRUE((*again)->use_rms_norm);
  EXPECT_EQ((*again)->rms_norm_eps, 1e-5);
  // use_rms_norm puts a norm before every converted linear, but not before float linears.
  all.float_linears = {LinearKind::kO, LinearKind::kDown};
  EXPECT_TRUE(absl::IsUnimplemented(parse(ToJson(all)).status()));
  all.use_rms_norm = false;
  EXPECT_EQ(ToJson(all)["modules_to_not_convert"], Json({"lm_head", "o_proj", "down_proj"}));
  again = parse(ToJson(all));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->float_linears, all.float_linears);
  for (const auto& [key, value] : {std::pair<const char*, Json>{"quant_method", "gptq"},
                                   {"linear_class", "other"},
                                   {"modules_to_not_convert", {"lm_head", "model.layers.0.mlp.down_proj"}}}) {
    Json json = ToJson(HfBitNet());
    json[key] = value;
    const auto status = parse(json).status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_EQ(base::Reason(status), "UNSUPPORTED_MODEL");
    EXPECT_THAT(std::string(status.message()), HasSubstr(key));
  }
}

class HfBitNetImportTest : public FamilyFixture {
 protected:
  struct Values {
    DType dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };
  static std::string Bytes(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }

  void Use(const std::string& name) { Copy("bitnet", name); }
  // Rewrites the source's tensors. The tensors that `others` names get the type, shape and bytes given there.
  void Replace(const std::map<std::string, Values>& others) {
    const std::string path = Source() + "/model.safetensors", old = Source() + "/old.safetensors";
    std::filesystem::rename(path, old);
    const auto stored = OpenSafetensors(old);
    ASSERT_TRUE(stored.ok()) << stored.status();
    const auto& tensors = stored->tensors;
    std::vector<TensorPlan> plan;
    for (const auto& [tensor_name, tensor] : tensors) {
      const auto other = others.find(tensor_name);
      plan.push_back(other == others.end() ? TensorPlan{tensor_name, *tensor.dtype, tensor.shape}
                                           : TensorPlan{tensor_name, other->second.dtype, other->second.shape});
    }
    auto writer = *SafetensorsWriter::Create(base::RealFileSystem(), path, plan);
    for (const TensorPlan& tensor : writer->order()) {
      const auto other = others.find(tensor.name);
      const auto& bytes = tensors.at(tensor.name).bytes;
      ASSERT_TRUE(
          writer
              ->Put(tensor.name, other == others.end()
                                     ? std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())
                                     : std::string_view(other->second.bytes))
              .ok());
    }
    ASSERT_TRUE(writer->Finish().ok());
    std::filesystem::remove(old);
  }
};

TEST_F(HfBitNetImportTest, PackedModelsGiveTransformersLogprobs) {
  for (const char* name : {"bitlinear", "auto_packed", "rms_norm"}) {
    Use(name);
    const auto model = Load();
    ASSERT_TRUE(model.ok()) << name << ": " << model.status();
    EXPECT_EQ((*model)->info().format, Format::kTernary);
    ExpectLogprobsOfTransformers(**model, "bitnet", name);
    Clear();
  }
}

// BitLinear adds the bias after scaling, AutoBitLinear before.
TEST_F(HfBitNetImportTest, PackedModelsWithBiasesGiveTransformersLogprobs) {
  for (const char* name : {"bias_bitlinear", "bias_packed"}) {
    Copy("bitnet_bias", name);
    const auto model = Load();
    ASSERT_TRUE(model.ok()) << name << ": " << model.status();
    ExpectLogprobsOfTransformers(**model, "bitnet_bias", name);
    Clear();
  }
}

// transformers' integrations/bitnet.py: AutoBitLinear.forward, BitLinear.forward.
TEST_F(HfBitNetImportTest, BiasIsMultipliedByWeightScaleOnlyForAutoBitLinear) {
  const std::string path = "model.layers.1.self_attn.q_proj";
  constexpr std::size_t kSize = 32;
  std::vector<float> bias(kSize, 0.0f);
  bias[0] = 3.0f;
  bias[1] = -0.5f;
  bias[31] = 0.1f;
  std::vector<float> halves(kSize * kSize, 0.5f);  // not packed: the codes times 0.5
  halves[1] = -0.5f;
  halves[2] = 0.0f;
  const std::vector<float> quarter = {0.25f}, large = {4.0f};
  const Values scale = {DType::kF32, {1}, Bytes(quarter)};
  const auto imported = [&](const char* name, const std::map<std::string, Values>& others) {
    Copy("bitnet_bias", name);
    Replace(others);
    const auto report = ImportModel(base::RealFileSystem(), Source(), directory_.Path("model"), DType::kBF16);
    EXPECT_TRUE(report.ok()) << name << ": " << report.status();
    auto artifact = *Artifact::Open(directory_.Path("model"));
    EXPECT_EQ(artifact->Tensor(path + ".bias")->dtype, DType::kF32);
    return artifact;
  };
  std::vector<float> scaled(kSize, 0.0f);
  scaled[0] = 0.75f;
  scaled[1] = -0.125f;
  scaled[31] = 0.025f;
  const Values stored_bias = {DType::kF32, {kSize}, Bytes(bias)};
  {
    const auto artifact = imported("bias_packed", {{path + ".bias", stored_bias}, {path + ".weight_scale", scale}});
    EXPECT_EQ(*artifact->FloatTensor(path + ".bias"), scaled);
    EXPECT_EQ((*artifact->FloatTensor(path + ".weight_scale"))[0], 0.25f);
    Clear();
  }
  {  // the weight's scale becomes 0.5 * 0.25; the bias is still multiplied by 0.25
    const auto artifact = imported("bias_packed", {{path + ".bias", stored_bias},
                                                   {path + ".weight_scale", scale},
                                                   {path + ".weight", {DType::kF32, {kSize, kSize}, Bytes(halves)}}});
    EXPECT_EQ(*artifact->FloatTensor(path + ".bias"), scaled);
    EXPECT_EQ((*artifact->FloatTensor(path + ".weight_scale"))[0], 0.125f);
    Clear();
  }
  {
    const auto artifact = imported("bias_bitlinear", {{path + ".bias", stored_bias}, {path + ".weight_scale", scale}});
    EXPECT_EQ(*artifact->FloatTensor(path + ".bias"), bias);
    EXPECT_EQ((*artifact->FloatTensor(path + ".weight_scale"))[0], 4.0f);  // BitLinear stores the inverse, 0.25
    Clear();
  }
  bias[1] = 3e38f;  // four times this exceeds f32
  Copy("bitnet_bias", "bias_packed");
  Replace({{path + ".bias", {DType::kF32, {kSize}, Bytes(bias)}},
           {path + ".weight_scale", {DType::kF32, {1}, Bytes(large)}}});
  const auto status = Load().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + ".bias\" is not finite at element 1"));
}

TEST_F(HfBitNetImportTest, BothLinearClassesHoldTheSameCodes) {
  std::vector<std::string> codes;
  std::vector<float> scales;
  for (const char* name : {"bitlinear", "auto_packed"}) {
    Use(name);
    const auto model = Load();
    ASSERT_TRUE(model.ok()) << model.status();
    const auto artifact = Artifact::Open((*model)->directory());
    const TensorView view = *(*artifact)->Tensor("model.layers.1.mlp.down_proj.weight");
    codes.emplace_back(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
    scales.push_back((*(*artifact)->FloatTensor("model.layers.1.mlp.down_proj.weight_scale"))[0]);
    Clear();
  }
  EXPECT_EQ(codes[0], codes[1]);
  EXPECT_NEAR(scales[0], scales[1], 2e-7 * scales[1]);  // bitlinear stores the inverse of the scale: two more roundings
}

TEST_F(HfBitNetImportTest, MastersAreKeptAndNeverServed) {
  Use("auto_online");
  const auto model = Load();
  EXPECT_TRUE(absl::IsFailedPrecondition(model.status())) << model.status();
  EXPECT_EQ(base::Reason(model.status()), "RAW_MASTERS");
  const auto artifact = Artifact::Open(directory_.Path("model"));
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  EXPECT_EQ((*artifact)->info().format, Format::kF32);
  EXPECT_TRUE((*artifact)->info().bitnet.has_value());
}

// The check applies to the scale that will be stored: the inverse of weight_scale for BitLinear, and the product of
// weight_scale and the weights' magnitude if the weights are floats.
TEST_F(HfBitNetImportTest, RejectsScaleThatBecomesInfiniteOrZero) {
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  Use("bitlinear");
  const std::vector<float> denormal = {1e-39f};  // its inverse is infinite
  Replace({{name + "_scale", {DType::kF32, {1}, Bytes(denormal)}}});
  auto status = Load().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  Clear();

  const auto golden = OpenSafetensors(Golden("bitnet/auto_packed/model.safetensors"));
  ASSERT_TRUE(golden.ok()) << golden.status();
  const std::vector<std::int64_t> packed = golden->tensors.at(name).shape;
  const std::vector<std::int64_t> shape = {4 * packed[0], packed[1]};
  const auto elements = static_cast<std::size_t>(shape[0] * shape[1]);
  for (const auto& [value, scale] : {std::pair{INFINITY, 0.5f}, std::pair{1e38f, 1e2f}, std::pair{1e-30f, 1e-30f}}) {
    Use("auto_packed");
    std::vector<float> floats(elements, value);
    floats[1] = -value;
    floats[2] = 0.0f;
    const std::vector<float> scales = {scale};
    Replace({{name, {DType::kF32, shape, Bytes(floats)}}, {name + "_scale", {DType::kF32, {1}, Bytes(scales)}}});
    status = Load().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status << " " << value << " * " << scale;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    Clear();
  }
}

// The config promises ternary codes, so master weights are refused.
TEST_F(HfBitNetImportTest, RejectsRawMastersUnderAnOfflineConfig) {
  Use("auto_online");
  EditConfig([](Json& json) { json["quantization_config"]["quantization_mode"] = "offline"; });
  auto status = Load().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;  // there is no weight_scale
  EXPECT_THAT(std::string(status.message()), HasSubstr("weight_scale"));
  EditConfig([](Json& json) { json["quantization_config"]["linear_class"] = "bitlinear"; });
  status = Load().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("q_proj"));
}

TEST_F(HfBitNetImportTest, RejectsPackedWeightsUnderAnOnlineConfig) {
  Use("auto_packed");
  EditConfig([](Json& json) { json["quantization_config"]["quantization_mode"] = "online"; });
  const auto status = Load().status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("_proj.weight"));
}

}  // namespace
}  // namespace nibble::model
