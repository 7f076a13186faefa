// Exports ternary models and BitNet masters as transformers reads them, and imports them again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/convert/convert.h"
#include "server/convert/export.h"
#include "server/model/float_convert.h"
#include "server/model/import.h"
#include "server/model/safetensors.h"
#include "server/model/stored_tensors.h"
#include "tests/server/convert/ternary_fixture.h"
#include "tests/support/random.h"

namespace nibble::convert {
namespace {

using kernels::DType;
using model::Artifact;
using model::Format;
using model::Golden;
using ::testing::HasSubstr;

// transformers has no norm before a linear that it does not convert.
TEST_F(TernaryTest, RefusesToExportNormsBeforeFloatLinears) {
  const auto source = Import("families", "llama");
  model::ModelConfig config = source->config();
  config.norms = model::NormPlacement::kLinear;
  std::vector<std::vector<float>> values;
  for (const auto& spec : model::RequiredTensors(config)) {
    values.emplace_back(static_cast<std::size_t>(*model::NumElements(spec.shape)), 1.0f);
  }
  ASSERT_TRUE(MakeTrainedModel(files_, config, {model::BitNetInfo{.float_linears = {model::LinearKind::kV}}},
                               Tensors(values), source->directory(), base::Json::object(), directory_.Path("masters"))
                  .ok());
  const auto status = ExportHf(files_, *Open("masters"), directory_.Path("export"));
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("modules_to_not_convert"));
}

TEST_F(TernaryTest, BothLinearClassesRoundTrip) {
  for (const char* name : {"auto_packed", "rms_norm"}) {
    const auto source = Import("bitnet", name);
    for (const auto bitnet_class : {HfBitNetClass::kAutoBitLinear, HfBitNetClass::kBitLinear}) {
      const std::string out = directory_.Path("export");
      ASSERT_TRUE(ExportHf(files_, *source, out, bitnet_class).ok());
      const auto again = model::ImportModel(files_, out, directory_.Path("again"), DType::kF32);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(again->info.format, Format::kTernary);
      // autobitlinear stores the scale itself; bitlinear stores its inverse, whose rounding may change the last bit.
      if (bitnet_class == HfBitNetClass::kAutoBitLinear) {
        EXPECT_EQ(again->info.weights_digest, source->info().weights_digest);
      } else {
        const auto artifact = Open("again");
        for (const auto& [tensor, view] : source->tensors()) {
          if (tensor.ends_with(model::kTernaryScaleSuffix)) {
            EXPECT_NEAR((*artifact->FloatTensor(tensor))[0], (*source->FloatTensor(tensor))[0],
                        2e-7 * (*source->FloatTensor(tensor))[0]);
          } else {
            EXPECT_TRUE(std::ranges::equal(artifact->Tensor(tensor)->bytes, view.bytes)) << tensor;
          }
        }
      }
      std::filesystem::remove_all(out);
      std::filesystem::remove_all(directory_.Path("again"));
    }
  }
}

// Compares with the bytes that transformers packed.
TEST_F(TernaryTest, ExportHoldsTransformersPackedBytes) {
  const auto source = Import("bitnet", "auto_packed");
  ASSERT_TRUE(ExportHf(files_, *source, directory_.Path("export"), HfBitNetClass::kAutoBitLinear).ok());
  const auto theirs = model::OpenSafetensors(Golden("bitnet/auto_packed/model.safetensors"));
  const auto ours = model::OpenSafetensors(directory_.Path("export/model.safetensors"));
  ASSERT_TRUE(theirs.ok() && ours.ok());
  int packed = 0;
  for (const auto& [name, tensor] : theirs->tensors) {
    ASSERT_TRUE(ours->tensors.contains(name)) << name;
    if (tensor.dtype != DType::kU8) continue;
    ++packed;
    EXPECT_TRUE(std::ranges::equal(tensor.bytes, ours->tensors.at(name).bytes)) << name;
  }
  EXPECT_EQ(packed, 7 * 2) << "seven linears in each of two layers";
  EXPECT_EQ(theirs->tensors.size(), ours->tensors.size());
}

// transformers 5 keeps the weights of an offline autobitlinear model in the types of the file and cannot mix float
// types, so this export stores all floats in f32, from which an import gets the same bf16 values. transformers casts
// the weights of a bitlinear model, so its export may mix types.
TEST_F(TernaryTest, ExportOfAutoBitLinearHasOneFloatType) {
  const auto source = Import("bitnet", "auto_packed", DType::kBF16);
  ASSERT_EQ(source->Tensor(model::kEmbeddingName)->dtype, DType::kBF16);
  for (const auto bitnet_class : {HfBitNetClass::kAutoBitLinear, HfBitNetClass::kBitLinear}) {
    const bool is_auto = bitnet_class == HfBitNetClass::kAutoBitLinear;
    const std::string out = directory_.Path("export");
    ASSERT_TRUE(ExportHf(files_, *source, out, bitnet_class).ok());
    const auto config = *base::ParseJson(model::ReadBytes(out + "/config.json"));
    for (const char* key : {"dtype", "torch_dtype"}) EXPECT_EQ(config[key], is_auto ? "float32" : "bfloat16");
    const auto file = model::OpenSafetensors(out + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    std::set<DType> types;
    for (const auto& [name, tensor] : file->tensors) types.insert(*tensor.dtype);
    EXPECT_EQ(types, is_auto ? (std::set{DType::kF32, DType::kU8}) : (std::set{DType::kF32, DType::kBF16, DType::kU8}));
    const auto& embedding = file->tensors.at(model::kEmbeddingName);
    const auto widened = model::ToFloats(embedding.bytes, *embedding.dtype, *model::NumElements(embedding.shape));
    EXPECT_EQ(*widened, *source->FloatTensor(model::kEmbeddingName));
    const auto again = model::ImportModel(files_, out, directory_.Path("again"), DType::kBF16);
    ASSERT_TRUE(again.ok()) << again.status();
    if (is_auto) {
      EXPECT_EQ(again->info.weights_digest, source->info().weights_digest);
    }
    EXPECT_EQ(again->info.bitnet->head_dtype, DType::kBF16);
    EXPECT_EQ(again->info.kv_dtype, DType::kBF16);
    std::filesystem::remove_all(out);
    std::filesystem::remove_all(directory_.Path("again"));
  }
}

// A llama with biases of gate, up and down. The caller gives the first biases of layer 0's gate, whose ternary scale is
// 0.25.
class BiasTest : public TernaryTest {
 protected:
  const std::string path_ = "model.layers.0.mlp.gate_proj";

  std::unique_ptr<Artifact> Ternary(const std::vector<float>& first) {
    const auto source = Import("families", "llama");
    std::vector<std::vector<float>> values;
    for (const auto& spec : model::RequiredTensors(source->config())) {
      values.push_back(*source->FloatTensor(spec.name));
      std::vector<float>& tensor = values.back();
      if (spec.name == path_ + ".bias") std::ranges::copy(first, tensor.begin());
      if (spec.name != path_ + ".weight") continue;
      for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = i % 2 == 0 ? -0.125f : 0.375f;
    }
    const std::vector<TrainedTensor> tensors = Tensors(values);
    EXPECT_TRUE(MakeTrainedModel(files_, source->config(),
                                 {model::BitNetInfo{.act_bits = 8, .head_dtype = DType::kBF16}, DType::kBF16}, tensors,
                                 source->directory(), base::Json::object(), directory_.Path("masters"))
                    .ok());
    EXPECT_TRUE(ToTernary(*Open("masters"), "ternary").ok());
    return Open("ternary");
  }
};

// In integrations/bitnet.py of transformers, AutoBitLinear computes (x w^T + bias) * weight_scale, and BitLinear
// computes (x w^T / weight_scale) + bias.
TEST_F(BiasTest, ExportedBiasFollowsItsLinearClass) {
  const std::vector<float> first = {3.0f, -0.5f, 0.1f};
  const auto ternary = Ternary(first);
  ASSERT_EQ((*ternary->FloatTensor(path_ + ".weight_scale"))[0], 0.25f);
  for (const auto bitnet_class : {HfBitNetClass::kAutoBitLinear, HfBitNetClass::kBitLinear}) {
    const bool is_auto = bitnet_class == HfBitNetClass::kAutoBitLinear;
    const std::string out = directory_.Path("export");
    ASSERT_TRUE(ExportHf(files_, *ternary, out, bitnet_class).ok());
    const auto file = model::OpenSafetensors(out + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    const auto floats = [&](const std::string& name) {
      const model::SafetensorsTensor& tensor = file->tensors.at(name);
      EXPECT_EQ(tensor.dtype, DType::kF32) << name;
      return *model::ToFloats(tensor.bytes, *tensor.dtype, *model::NumElements(tensor.shape));
    };
    EXPECT_EQ(floats(path_ + ".weight_scale")[0], is_auto ? 0.25f : 4.0f);
    const std::vector<float> bias = floats(path_ + ".bias");
    const std::vector<float> want = is_auto ? std::vector<float>{12.0f, -2.0f, 0.4f} : first;
    EXPECT_EQ(std::vector<float>(bias.begin(), bias.begin() + 3), want);
    ASSERT_TRUE(model::ImportModel(files_, out, directory_.Path("again"), DType::kBF16).ok());
    const auto again = Open("again");
    int biases = 0;
    for (const auto& [name, view] : ternary->tensors()) {
      if (!name.ends_with(".bias")) continue;
      ++biases;
      const std::vector<float> ours = *ternary->FloatTensor(name), back = *again->FloatTensor(name);
      ASSERT_EQ(back.size(), ours.size());
      // A quotient and a product, each rounded once; unless the scale is a power of two, they may change the last bit.
      const float tolerance = is_auto && !name.starts_with(path_) ? 0x1p-23f : 0.0f;
      for (std::size_t i = 0; i < ours.size(); ++i)
        EXPECT_NEAR(back[i], ours[i], std::fabs(ours[i]) * tolerance) << name << " " << i;
    }
    EXPECT_EQ(biases, 3 * 2) << "three biased linears in each of two layers";
    std::filesystem::remove_all(out);
    std::filesystem::remove_all(directory_.Path("again"));
  }
}

TEST_F(BiasTest, RejectsBiasThatAutoBitLinearCannotHold) {
  const auto ternary = Ternary({0.0f, 1e38f});
  const auto status = ExportHf(files_, *ternary, directory_.Path("export"), HfBitNetClass::kAutoBitLinear);
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_EQ(base::Reason(status), "UNSUPPORTED_MODEL");
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + ".bias: 1e+38 / 0.25"));
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("export")));
  EXPECT_TRUE(ExportHf(files_, *ternary, directory_.Path("export"), HfBitNetClass::kBitLinear).ok());
}

TEST_F(TernaryTest, RefusalNamesWhatTransformersCannotRepresent) {
  const auto source = Import("families", "qwen3");
  model::ModelConfig config = source->config();
  config.norms = model::NormPlacement::kBlockAndSub;
  std::vector<std::vector<float>> values;
  for (const auto& spec : model::RequiredTensors(config)) {
    values.push_back(support::NormalVector(values.size() + 1, *model::NumElements(spec.shape), 0.1f));
  }
  const std::vector<TrainedTensor> tensors = Tensors(values);
  for (const int bits : {8, 4}) {
    const std::string name = "masters" + std::to_string(bits);
    ASSERT_TRUE(MakeTrainedModel(files_, config, {model::BitNetInfo{.act_bits = bits}, DType::kBF16}, tensors,
                                 source->directory(), base::Json::object(), directory_.Path(name))
                    .ok());
    const auto status = ExportHf(files_, *Open(name), directory_.Path("export"));
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bits == 8 ? "qwen3" : "these have 4"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("export")));
}

// transformers' LlamaRMSNorm in f32, except for the order of its sum.
std::vector<float> LlamaRmsNorm(std::vector<float> x, const std::vector<float>& weight, double eps) {
  double sum = 0;
  for (const float v : x) sum += double{v} * double{v};
  const float variance = static_cast<float>(sum / static_cast<double>(x.size()));
  const float factor = 1.0f / std::sqrt(variance + static_cast<float>(eps));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = weight[i] * (x[i] * factor);
  return x;
}

// The bitnet-tips preset has a norm before every linear and none before the blocks.
class LinearNormsTest : public TernaryTest {
 protected:
  std::unique_ptr<Artifact> Masters(const std::string& name, double eps, double linear_eps,
                                    std::int64_t fewer_rows = 0) {
    const auto source = Import("families", "llama");
    model::ModelConfig config = source->config();
    config.ffn_size -= fewer_rows;
    config.norms = model::NormPlacement::kLinear;
    config.rms_norm_eps = eps;
    config.linear_norm_eps = linear_eps;
    std::vector<std::vector<float>> values;
    for (const auto& spec : model::RequiredTensors(config)) {
      values.push_back(support::NormalVector(values.size() + 1, *model::NumElements(spec.shape), 0.1f));
    }
    const std::vector<TrainedTensor> tensors = Tensors(values);
    EXPECT_TRUE(MakeTrainedModel(files_, config,
                                 {model::BitNetInfo{.act_bits = 8, .head_dtype = DType::kBF16}, DType::kBF16}, tensors,
                                 source->directory(), base::Json::object(), directory_.Path(name))
                    .ok());
    return Open(name);
  }
  std::vector<float> Exported(const model::SafetensorsFiles& file, const std::string& name) {
    const model::SafetensorsTensor& tensor = file.tensors.at(name);
    return *model::ToFloats(tensor.bytes, *tensor.dtype, *model::NumElements(tensor.shape));
  }
};

// Rows range from far below eps to far above it. If the block norms that the export adds were all ones, the first row
// would come out about 700 times too large.
TEST_F(LinearNormsTest, BlockNormsForTransformersChangeNoRow) {
  constexpr double kEps = 1e-6;
  const auto masters = Masters("masters", kEps, kEps);
  ASSERT_TRUE(ToTernary(*masters, "ternary").ok());
  const auto ternary = Open("ternary");
  for (const auto bitnet_class : {HfBitNetClass::kBitLinear, HfBitNetClass::kAutoBitLinear}) {
    const std::string out = directory_.Path("export");
    ASSERT_TRUE(ExportHf(files_, *ternary, out, bitnet_class).ok());
    const auto config = *base::ParseJson(model::ReadBytes(out + "/config.json"));
    EXPECT_EQ(config["rms_norm_eps"], kEps);
    EXPECT_EQ(config["quantization_config"]["rms_norm_eps"], kEps);
    const auto file = model::OpenSafetensors(out + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    double worst = 0;
    for (int kind = 0; kind < model::kNumLinearKinds; ++kind) {
      const auto linear = static_cast<model::LinearKind>(kind);
      const std::string name = model::NormName(1, model::NormBefore(linear));
      const std::vector<float> trained = *ternary->FloatTensor(name);
      if (linear == model::LinearKind::kO ||
          linear == model::LinearKind::kDown) {  // transformers has no other norm there
        EXPECT_EQ(Exported(*file, name), trained) << name;
        continue;
      }
      const bool attends =
          linear == model::LinearKind::kQ || linear == model::LinearKind::kK || linear == model::LinearKind::kV;
      const std::vector<float> block =
          Exported(*file, model::NormName(1, attends ? model::Norm::kInput : model::Norm::kPostAttention));
      for (const float deviation : {1e-6f, 1e-3f, 0.02f, 1.0f, 1e3f}) {
        const std::vector<float> x = support::NormalVector(77, static_cast<std::int64_t>(trained.size()), deviation);
        const std::vector<float> got = LlamaRmsNorm(LlamaRmsNorm(x, block, kEps), Exported(*file, name), kEps);
        double mean = 0;
        for (const float v : x) mean += double{v} * double{v} / static_cast<double>(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double want = double{trained[i]} * double{x[i]} / std::sqrt(mean + kEps);
          worst = std::max(worst, std::fabs(static_cast<double>(got[i]) / want - 1.0));
        }
      }
    }
    EXPECT_LE(worst, 1e-6);
    const auto again = model::ImportModel(files_, out, directory_.Path("again"), DType::kBF16);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(Open("again")->config().norms, model::NormPlacement::kBlockAndLinear);
    std::filesystem::remove_all(out);
    std::filesystem::remove_all(directory_.Path("again"));
  }
}

TEST_F(LinearNormsTest, ExportedMastersGetBlockNormsOfOnes) {
  const auto masters = Masters("masters", 1e-6, 1e-6);
  ASSERT_TRUE(ExportHf(files_, *masters, directory_.Path("export")).ok());
  const auto file = model::OpenSafetensors(directory_.Path("export/model.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  for (const float w : Exported(*file, model::NormName(0, model::Norm::kInput))) EXPECT_EQ(w, 1.0f);
  const std::string before_q = model::NormName(0, model::Norm::kBeforeQ);
  EXPECT_EQ(Exported(*file, before_q), *masters->FloatTensor(before_q));
}

TEST_F(LinearNormsTest, RejectsEpsThatTransformersCannotRepresent) {
  const auto masters = Masters("masters", 1e-6, 1e-3);
  ASSERT_TRUE(ToTernary(*masters, "ternary").ok());
  const auto status = ExportHf(files_, *Open("ternary"), directory_.Path("export"));
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another eps"));
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("export")));
}

// transformers packs four rows to a byte.
TEST_F(LinearNormsTest, RejectsRowsThatTransformersCannotPack) {
  ASSERT_TRUE(ToTernary(*Masters("masters", 1e-6, 1e-6, /*fewer_rows=*/2), "ternary").ok());
  const auto status = ExportHf(files_, *Open("ternary"), directory_.Path("export"));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(base::Reason(status), "FIELD_VIOLATION");
  EXPECT_THAT(std::string(status.message()), HasSubstr("format: model.layers.0.mlp."));
  EXPECT_THAT(std::string(status.message()), HasSubstr("multiples of 4"));
}

}  // namespace
}  // namespace nibble::convert
