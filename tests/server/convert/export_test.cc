#include "server/convert/export.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "server/base/error.h"
#include "server/model/safetensors.h"
#include "server/model/stored_tensors.h"
#include "tests/server/convert/export_fixture.h"

namespace nibble::convert {
namespace {

using kernels::DType;
using ::testing::HasSubstr;

TEST_F(ExportTest, ExportsAreCompleteAndReimport) {
  ASSERT_TRUE(ExportHf(files_, *f32_, directory_.Path("hf")).ok());
  const auto report = model::ImportModel(files_, directory_.Path("hf"), directory_.Path("again"), DType::kF32);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->info.weights_digest, f32_->info().weights_digest);
  ASSERT_TRUE(ExportPeft(files_, *lora_, directory_.Path("peft")).ok());
  const auto tensors = model::OpenSafetensors(directory_.Path("peft/adapter_model.safetensors"));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->tensors.size(), values_.size());
  const auto config = base::ParseJson(model::ReadBytes(directory_.Path("peft/adapter_config.json")));
  EXPECT_EQ((*config)["base_model_name_or_path"], directory_.Path("hf"));
  EXPECT_FALSE(config->contains("nibble_base_digest")) << "PEFT warns of unknown keys";
  EXPECT_EQ(tensors->metadata.at("nibble_base_digest"), lora_->info().base_digest);
  EXPECT_EQ((*config)["lora_alpha"], 6);
}

TEST_F(ExportTest, RejectsWrongFormatAndLeavesNothing) {
  EXPECT_TRUE(absl::IsInvalidArgument(ExportHf(files_, *lora_, directory_.Path("x"))));
  EXPECT_TRUE(absl::IsInvalidArgument(ExportPeft(files_, *f32_, directory_.Path("x"))));
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("x")));
  EXPECT_TRUE(absl::IsAlreadyExists(ExportHf(files_, *f32_, directory_.Path("f32"))));
}

// transformers' phi3 has fused weights, on which PEFT cannot place an adapter of separate ones. The merged model has
// the form of transformers.
TEST_F(ExportTest, AdapterOfPhi3IsRefusedByNameButItsMergedModelIsExported) {
  std::filesystem::copy(model::Golden("families/phi3"), directory_.Path("source"));
  std::filesystem::copy(model::Golden("families/tokenizer.json"), directory_.Path("source"));
  ASSERT_TRUE(model::ImportModel(files_, directory_.Path("source"), directory_.Path("phi3"), DType::kF32).ok());
  const auto base = *model::Artifact::Open(directory_.Path("phi3"));
  model::AdapterConfig adapter;
  adapter.rank = 2;
  adapter.alpha = 2;
  adapter.targets = {model::LinearKind::kQ};
  std::vector<std::vector<float>> values;
  for (const auto& plan : model::AdapterTensors(base->config(), adapter)) {
    values.push_back(support::NormalVector(values.size() + 1, plan.shape[0] * plan.shape[1], 0.1f));
  }
  ASSERT_TRUE(MakeLoraModel(files_, *base, adapter, values, base::Json::object(), directory_.Path("adapted")).ok());
  const auto adapted = *model::Artifact::Open(directory_.Path("adapted"));
  const absl::Status refused = ExportPeft(files_, *adapted, directory_.Path("peft"));
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "UNSUPPORTED_MODEL");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("format \"peft\": transformers' phi3 has fused weights"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("convert the model to bf16 and export it as hf"));
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("peft")));
  ASSERT_TRUE(
      ConvertModel(files_, *adapted, directory_.Path("bf16"), {.to = model::Format::kBF16}, kernels::Stream()).ok());
  EXPECT_TRUE(ExportHf(files_, **model::Artifact::Open(directory_.Path("bf16")), directory_.Path("hf")).ok());
}

std::uint64_t TensorBytes(const model::SafetensorsFiles& file) {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : file.tensors) bytes += tensor.bytes.size();
  return bytes;
}

TEST_F(ExportTest, ModelAboveTheLimitBecomesShardsThatReimport) {
  constexpr std::uint64_t kLimit = 12'000;
  ASSERT_TRUE(ExportHf(files_, *f32_, directory_.Path("hf"), HfBitNetClass::kBitLinear, kLimit).ok());
  const auto index = base::ParseJson(model::ReadBytes(directory_.Path("hf/model.safetensors.index.json")));
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("hf/model.safetensors")));
  std::set<std::string> shards;
  for (const auto& [tensor, file] : (*index)["weight_map"].items()) shards.insert(file.get<std::string>());
  ASSERT_GT(shards.size(), 2u);
  std::uint64_t total = 0;
  std::size_t tensors = 0;
  std::size_t number = 0;
  for (const std::string& shard : shards) {  // by number
    const std::string digits = std::to_string(++number), all = std::to_string(shards.size());
    EXPECT_EQ(shard, "model-" + std::string(5 - digits.size(), '0') + digits + "-of-" +
                         std::string(5 - all.size(), '0') + all + ".safetensors");
    const auto file = model::OpenSafetensors(directory_.Path("hf/" + shard));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(TensorBytes(*file) <= kLimit || file->tensors.size() == 1) << shard;
    total += TensorBytes(*file);
    tensors += file->tensors.size();
  }
  EXPECT_EQ((*index)["metadata"]["total_size"], total);
  EXPECT_EQ(tensors, f32_->tensors().size());
  const auto report = model::ImportModel(files_, directory_.Path("hf"), directory_.Path("again"), DType::kF32);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->info.weights_digest, f32_->info().weights_digest);
}

TEST_F(ExportTest, ModelAtTheLimitIsOneFileAndOneByteAboveItIsTwo) {
  std::uint64_t total = 0;
  for (const auto& [name, view] : f32_->tensors()) total += view.bytes.size();
  ASSERT_TRUE(ExportHf(files_, *f32_, directory_.Path("one"), HfBitNetClass::kBitLinear, total).ok());
  EXPECT_TRUE(std::filesystem::exists(directory_.Path("one/model.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("one/model.safetensors.index.json")));
  ASSERT_TRUE(ExportHf(files_, *f32_, directory_.Path("two"), HfBitNetClass::kBitLinear, total - 1).ok());
  EXPECT_TRUE(std::filesystem::exists(directory_.Path("two/model-00002-of-00002.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("two/model-00003-of-00003.safetensors")));
}

// Expects every scale of an export in shards to be in the file of its weight.
void ExpectScalesBesideWeights(const std::string& directory) {
  const auto index = base::ParseJson(model::ReadBytes(directory + "/model.safetensors.index.json"));
  ASSERT_TRUE(index.ok()) << index.status();
  const base::Json& map = (*index)["weight_map"];
  int scales = 0;
  for (const auto& [tensor, file] : map.items()) {
    if (!tensor.ends_with("_scale")) continue;
    EXPECT_EQ(map[tensor.substr(0, tensor.size() - 6)], file) << tensor;
    ++scales;
  }
  EXPECT_GT(scales, 0);
}

// A ternary weight and its scale are in one shard, however small the limit.
TEST_F(ExportTest, ScaleIsInTheShardOfItsWeight) {
  ASSERT_TRUE(
      ConvertModel(files_, *f32_, directory_.Path("ternary"), {.to = model::Format::kTernary}, kernels::Stream()).ok());
  const auto ternary = *model::Artifact::Open(directory_.Path("ternary"));
  ASSERT_TRUE(ExportHf(files_, *ternary, directory_.Path("hf"), HfBitNetClass::kAutoBitLinear, 1).ok());
  ExpectScalesBesideWeights(directory_.Path("hf"));
  const auto report = model::ImportModel(files_, directory_.Path("hf"), directory_.Path("again"), DType::kBF16);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto again = *model::Artifact::Open(directory_.Path("again"));
  int biases = 0;
  for (const auto& [name, view] : ternary->tensors()) {
    if (!name.ends_with(".bias")) {
      EXPECT_TRUE(std::ranges::equal(again->Tensor(name)->bytes, view.bytes)) << name;
      continue;
    }
    ++biases;  // export divides by a scale, import multiplies by it: equal within one unit in the last place
    const std::vector<float> got = *again->FloatTensor(name), want = *ternary->FloatTensor(name);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], std::fabs(want[i]) * 0x1p-23f) << name << " " << i;
  }
  EXPECT_GT(biases, 0);
}

class CompressedTensorsTest : public ExportTest {
 protected:
  std::unique_ptr<model::Artifact> Int8(const std::string& name, int act_outliers, bool int8_head) {
    ConvertOptions options;
    options.act_outliers = act_outliers;
    options.int8_head = int8_head;
    EXPECT_TRUE(ConvertModel(files_, *f32_, directory_.Path(name), options, kernels::Stream()).ok());
    return *model::Artifact::Open(directory_.Path(name));
  }
};

TEST_F(CompressedTensorsTest, LayoutMatchesIntQuantized) {
  const auto int8 = Int8("int8", /*act_outliers=*/0, /*int8_head=*/false);
  ASSERT_TRUE(ExportCompressedTensors(files_, *int8, directory_.Path("ct")).ok());
  const auto config = base::ParseJson(model::ReadBytes(directory_.Path("ct/config.json")));
  ASSERT_TRUE(config.ok()) << config.status();
  // As compressed-tensors 0.20 saves such a model, except for keys that only its calibration reads.
  const auto wanted = base::ParseJson(R"({
    "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed",
    "config_groups": {"group_0": {
      "targets": ["Linear"],
      "weights": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel", "group_size": null,
                  "dynamic": false},
      "input_activations": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "token", "group_size": null,
                            "dynamic": true},
      "output_activations": null}},
    "ignore": ["lm_head"], "kv_cache_scheme": null})");
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  EXPECT_EQ(base::DumpSorted((*config)["quantization_config"]), base::DumpSorted(*wanted));
  EXPECT_EQ((*config)["dtype"], "float32") << "the type of the embedding";
  const auto file = model::OpenSafetensors(directory_.Path("ct/model.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors.size(), int8->tensors().size());
  int linears = 0;
  for (const model::TensorSpec& spec : model::RequiredTensors(int8->config())) {
    const auto stored = int8->Tensor(spec.name);
    ASSERT_TRUE(stored.ok()) << stored.status();
    const model::SafetensorsTensor& weight = file->tensors.at(spec.name);
    EXPECT_EQ(weight.shape, spec.shape) << spec.name;
    EXPECT_TRUE(std::equal(weight.bytes.begin(), weight.bytes.end(), stored->bytes.begin(), stored->bytes.end()))
        << spec.name;
    if (spec.role != model::TensorRole::kLinear) {
      EXPECT_EQ(weight.dtype, stored->dtype) << spec.name;
      EXPECT_FALSE(file->tensors.contains(spec.name + "_scale"));
      continue;
    }
    ++linears;
    EXPECT_EQ(weight.dtype_name, "I8");
    const model::SafetensorsTensor& scale = file->tensors.at(spec.name + "_scale");  // PATH.weight_scale
    EXPECT_EQ(scale.dtype_name, "F32");
    EXPECT_EQ(scale.shape, (std::vector<std::int64_t>{spec.shape[0], 1}));
    const auto ours = int8->Tensor(spec.name + model::kInt8ScaleSuffix);
    ASSERT_TRUE(ours.ok()) << ours.status();
    EXPECT_TRUE(std::equal(scale.bytes.begin(), scale.bytes.end(), ours->bytes.begin(), ours->bytes.end()))
        << spec.name;
  }
  EXPECT_EQ(linears, 14);
  EXPECT_TRUE(std::filesystem::exists(directory_.Path("ct/tokenizer.json")));
}

TEST_F(CompressedTensorsTest, ShardsKeepScalesBesideTheirCodes) {
  const auto int8 = Int8("int8", /*act_outliers=*/0, /*int8_head=*/false);
  ASSERT_TRUE(ExportCompressedTensors(files_, *int8, directory_.Path("ct"), 4096).ok());
  const auto whole = model::OpenSafetensorsModel(files_, directory_.Path("ct"));
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_GT(whole->files.size(), 1u);
  EXPECT_EQ(whole->tensors.size(), int8->tensors().size());
  ExpectScalesBesideWeights(directory_.Path("ct"));
}

TEST_F(CompressedTensorsTest, RejectsUnrepresentableModelsByName) {
  const auto refused = [&](const model::Artifact& source, const char* names) {
    const absl::Status status = ExportCompressedTensors(files_, source, directory_.Path("x"));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(base::ReasonMetadata(status)["field"], "format");
    EXPECT_THAT(std::string(status.message()), HasSubstr(names));
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("x")));
  };
  refused(*f32_, "f32");
  refused(*lora_, "lora");
  refused(*Int8("outliers", /*act_outliers=*/8, /*int8_head=*/false), "outliers");
  refused(*Int8("head", /*act_outliers=*/0, /*int8_head=*/true), "head");
  ASSERT_TRUE(
      ConvertModel(files_, *f32_, directory_.Path("rows"), {.weight_only = true, .int8_head = false}, kernels::Stream())
          .ok());
  refused(**model::Artifact::Open(directory_.Path("rows")), "activations");
}

}  // namespace
}  // namespace nibble::convert
