// Adapters with copies of modules besides the linears (model/saved_modules.h): what serving, conversions and the export
// for PEFT take from them.
#include "server/model/saved_modules.h"

#include <gmock/gmock.h>

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

struct Base {
  const char* golden;
  bool tied;
};

class SavedModulesConvertTest : public ConvertTest, public testing::WithParamInterface<Base> {
 protected:
  // An adapter on the base with copies of the embedding, the final norm and, if it is not tied, the head.
  std::unique_ptr<Artifact> Saving(const Artifact& base, const std::string& name) {
    adapter_.modules_to_save = {"embed_tokens", "model.norm"};
    if (!GetParam().tied) adapter_.modules_to_save.push_back("lm_head");
    adapter_.ensure_weight_tying = GetParam().tied;
    return Lora(base, name);
  }
  std::vector<float> Copy(const Artifact& lora, const std::string& tensor) const {
    return *lora.FloatTensor(model::SavedName(tensor));
  }
  static std::vector<float> Rounded(std::vector<float> values, DType dtype) {
    if (dtype == DType::kF32) return values;
    for (float& value : values) value = kernels::ToFloat(kernels::ToBF16(value));
    return values;
  }
  const char* Head() const { return GetParam().tied ? model::kEmbeddingName : model::kHeadName; }
};

TEST_P(SavedModulesConvertTest, CopiesReplaceTheTensorsOfEveryConversion) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string type = kernels::Name(dtype);
    const auto base = Import(GetParam().golden, dtype, "base-" + type);
    ASSERT_EQ(base->config().tied_embeddings, GetParam().tied);
    const auto lora = Saving(*base, "lora-" + type);
    ASSERT_TRUE(Convert(*lora, "bf16-" + type, {.to = Format::kBF16}).ok());
    ASSERT_TRUE(Convert(*lora, "int8-" + type, {}).ok());
    const auto bf16 = Open("bf16-" + type), int8 = Open("int8-" + type);
    for (const char* name : {model::kEmbeddingName, model::kFinalNormName, Head()}) {
      EXPECT_EQ(*bf16->FloatTensor(name), Rounded(Copy(*lora, name), DType::kBF16)) << name;
      EXPECT_NE(*bf16->FloatTensor(name), Rounded(*base->FloatTensor(name), DType::kBF16)) << name;
    }
    EXPECT_EQ(*int8->FloatTensor(model::kFinalNormName), Copy(*lora, model::kFinalNormName)) << "norms are f32";
    EXPECT_EQ(*int8->FloatTensor(Head()), Rounded(Copy(*lora, Head()), DType::kBF16));
    const DType embedding = GetParam().tied ? DType::kBF16 : dtype;
    EXPECT_EQ(*int8->FloatTensor(model::kEmbeddingName), Rounded(Copy(*lora, model::kEmbeddingName), embedding));
  }
}

// A norm is served in f32, a matrix in the type of the base's tensor. An exact model's head is packed in panels;
// tests/e2e/test_saved_modules.py verifies its values.
TEST_P(SavedModulesConvertTest, ServesTheCopiesInTheTypesOfTheBase) {
  const auto f32 = Import(GetParam().golden, DType::kF32, "f32"),
             bf16 = Import(GetParam().golden, DType::kBF16, "bf16");
  ASSERT_TRUE(Convert(*bf16, "nf4", {.to = Format::kNf4}).ok());
  ASSERT_TRUE(Convert(*bf16, "int8", {.int8_head = false}).ok());
  for (const std::string name : {"f32", "bf16", "nf4", "int8"}) {
    SCOPED_TRACE(name);
    const auto lora = Saving(*Open(name), name + "-lora");
    const auto loaded = model::LoadedModel::Load(directory_.Path(name + "-lora"), {.max_positions = 16}, {});
    const auto of_base = model::LoadedModel::Load(directory_.Path(name), {.max_positions = 16}, {});
    ASSERT_TRUE(loaded.ok() && of_base.ok()) << loaded.status();
    const model::DecoderWeights &weights = (*loaded)->weights(), &base = (*of_base)->weights();
    const std::vector<float> norm = Copy(*lora, model::kFinalNormName);
    EXPECT_EQ(std::vector<float>(weights.final_norm, weights.final_norm + norm.size()), norm);
    const std::vector<float> rows = Copy(*lora, model::kEmbeddingName);
    ASSERT_EQ(weights.embedding.dtype, base.embedding.dtype);
    const auto expect_copy = [](const kernels::ConstMatrix& got, const std::vector<float>& copy) {
      for (std::size_t i = 0; i < copy.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i) / got.cols, col = static_cast<std::int64_t>(i) % got.cols;
        const float value =
            got.dtype == DType::kF32 ? got.Row<float>(row)[col] : kernels::ToFloat(got.Row<kernels::BF16>(row)[col]);
        ASSERT_EQ(value, Rounded({copy[i]}, got.dtype)[0]) << i;
      }
    };
    expect_copy(weights.embedding, rows);
    ASSERT_EQ(weights.head.kind, base.head.kind);
    if (weights.head.kind == model::LinearWeight::Kind::kLibrary) {
      expect_copy(weights.head.library, Copy(*lora, Head()));
    }
    EXPECT_EQ(weights.head.library.dtype, base.head.library.dtype);
    EXPECT_EQ(weights.head.dense.dtype, base.head.dense.dtype);
    EXPECT_GT((*loaded)->resident_bytes(), (*of_base)->resident_bytes());
  }
}

TEST_P(SavedModulesConvertTest, ExportForPeftComesBackAsTheSameModel) {
  const auto base = Import(GetParam().golden, DType::kBF16, "base");
  const auto lora = Saving(*base, "lora");
  ASSERT_TRUE(ExportPeft(files_, *lora, directory_.Path("peft")).ok());
  const auto stored = model::OpenSafetensors(directory_.Path("peft/adapter_model.safetensors"));
  ASSERT_TRUE(stored.ok()) << stored.status();
  // PEFT stores a tied copy under both names.
  EXPECT_TRUE(stored->tensors.contains("base_model.model.lm_head.weight"));
  auto adapter = model::ReadPeftAdapter(files_, directory_.Path("peft"), base->config());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->config.modules_to_save, adapter_.modules_to_save);
  const auto again = MakeAdapterModel(files_, *base, *std::move(adapter), base::Json::object(),
                                      directory_.Path("scratch"), directory_.Path("again"), {}, "import");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->weights_digest, lora->info().weights_digest);
}

INSTANTIATE_TEST_SUITE_P(Bases, SavedModulesConvertTest,
                         testing::Values(Base{"hf_sharded_f32", false}, Base{"hf_tied_bf16", true}),
                         [](const auto& info) { return std::string(info.param.tied ? "tied" : "untied"); });

using SavedModulesRefusalTest = ConvertTest;

TEST_F(SavedModulesRefusalTest, Int8HeadHasNoCopy) {
  const auto source = Import("hf_tied_bf16", DType::kBF16, "source");
  ASSERT_TRUE(Convert(*source, "int8", {}).ok());
  const auto base = Open("int8");
  adapter_.targets = {model::LinearKind::kQ};
  adapter_.modules_to_save = {"embed_tokens"};
  const auto refused = MakeLoraModel(files_, *base, adapter_, AdapterValues(base->config(), adapter_),
                                     base::Json::object(), directory_.Path("lora"));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_EQ(base::Reason(refused.status()), "ADAPTER_BASE");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("modules_to_save has \"embed_tokens\""));
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("lora")));
}

// PEFT would train the embedding of a tied model apart from its head.
TEST_F(SavedModulesRefusalTest, TiedEmbeddingIsImportedOnlyWithItsHead) {
  const auto base = Import("hf_tied_bf16", DType::kBF16, "base");
  adapter_.modules_to_save = {"embed_tokens"};
  const auto lora = Lora(*base, "lora");
  ASSERT_TRUE(ExportPeft(files_, *lora, directory_.Path("peft")).ok());
  const auto refused = model::ReadPeftAdapter(files_, directory_.Path("peft"), base->config()).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "UNSUPPORTED_ADAPTER");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("\"ensure_weight_tying\" true"));
}

}  // namespace
}  // namespace nibble::convert
