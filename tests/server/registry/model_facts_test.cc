#include "server/registry/model_facts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/model/file_names.h"
#include "tests/server/model/files.h"
#include "tests/server/model/small_models.h"

namespace nibble::registry {
namespace {

using model::Format;

class ModelFactsTest : public ::testing::Test {
 protected:
  static store::StoredModel Stored(const std::string& directory) {
    store::StoredModel stored;
    stored.name = "m";
    stored.directory = directory;
    stored.info = base::ParseJson(model::ReadBytes(directory + "/nibble.json")).value();
    return stored;
  }
  ModelFacts Facts(const std::string& directory) { return Facts(Stored(directory)); }
  ModelFacts Facts(const store::StoredModel& stored) {
    auto facts = FactsOf(stored);
    EXPECT_TRUE(facts.ok()) << facts.status();
    return facts.value_or(ModelFacts());
  }
  // The model with another provenance.
  store::StoredModel WithProvenance(const std::string& source, const std::string& provenance) {
    store::StoredModel stored = Stored(models_.bf16());
    model::ArtifactInfo info = model::ParseArtifactInfo(stored.info).value();
    info.source = source;
    info.provenance = base::ParseJson(provenance).value();
    stored.info = model::ToJson(info);
    return stored;
  }

  model::SmallModels models_;
};

TEST_F(ModelFactsTest, ImportedModelHasTheFactsOfItsFiles) {
  const ModelFacts facts = Facts(models_.bf16());
  EXPECT_EQ(facts.info.format, Format::kBF16);
  EXPECT_EQ(facts.config.architecture, "llama");
  EXPECT_GT(facts.parameters, 0);
  EXPECT_EQ(facts.base_model, "");
  EXPECT_EQ(facts.tokenizer_digest.size(), 64u);
  EXPECT_TRUE(facts.has_chat_template);
  EXPECT_FALSE(facts.trained_format.has_value());
  EXPECT_FALSE(facts.record_rows.has_value());
  EXPECT_FALSE(facts.conversion.has_value());
}

TEST_F(ModelFactsTest, HeadHasTheFormatOfItsTensor) {
  EXPECT_EQ(Facts(models_.bf16()).head_format, Format::kBF16);
  EXPECT_EQ(Facts(models_.f32()).head_format, Format::kF32);
  EXPECT_EQ(Facts(models_.int8()).head_format, Format::kInt8);
  EXPECT_EQ(Facts(models_.nf4()).head_format, Format::kBF16) << "only the weights tell";
  std::filesystem::remove(models_.nf4() + "/" + model::kWeightsFile);
  EXPECT_FALSE(Facts(models_.nf4()).head_format.has_value());
}

TEST_F(ModelFactsTest, SourceIsTheFirstKnownOrigin) {
  EXPECT_EQ(Facts(WithProvenance("import", R"({"imported_from": "/x", "source": "hub"})")).source, "hub");
  EXPECT_EQ(Facts(WithProvenance("import", R"({"imported_from": "/x"})")).source, "/x");
  EXPECT_EQ(Facts(WithProvenance("job", R"({"job_id": "job-1", "checkpoint": "job-1/3"})")).source, "job-1");
  EXPECT_EQ(Facts(WithProvenance("checkpoint", R"({"job_id": "job-1", "checkpoint": "job-1/3"})")).source, "job-1/3");
  EXPECT_EQ(Facts(WithProvenance("import", R"({"source": 3})")).source, "");
}

TEST_F(ModelFactsTest, TrainedFormatIsThatOfTheData) {
  const auto trained = [&](const std::string& data) {
    return Facts(WithProvenance("job", R"({"eval_data": )" + data + "}")).trained_format;
  };
  EXPECT_EQ(trained(R"({"trained_format": "chat"})"), data::RowFormat::kChat);
  EXPECT_FALSE(trained(R"({"trained_format": "tent"})").has_value());
  EXPECT_FALSE(trained("3").has_value());
}

TEST_F(ModelFactsTest, ChatTemplateMayBeInTheTokenizersConfig) {
  const std::string directory = models_.bf16();
  std::filesystem::remove(directory + "/" + model::kChatTemplateFile);
  model::WriteBytes(directory + "/" + model::kTokenizerConfigFile, "{}");
  EXPECT_FALSE(Facts(directory).has_chat_template);
  model::WriteBytes(directory + "/" + model::kTokenizerConfigFile, R"({"chat_template": "x"})");
  EXPECT_TRUE(Facts(directory).has_chat_template);
}

TEST_F(ModelFactsTest, ReportThatCannotBeParsedIsEmpty) {
  const std::string path = models_.bf16() + "/" + kConversionFile;
  ConversionReport report;
  report.source_digest = "d";
  model::WriteBytes(path, ToJson(report));
  EXPECT_EQ(Facts(models_.bf16()).conversion.value_or(ConversionReport()).source_digest, "d");
  model::WriteBytes(path, "{");
  const ModelFacts facts = Facts(models_.bf16());
  ASSERT_TRUE(facts.conversion.has_value());
  EXPECT_EQ(facts.conversion->source_digest, "");
}

TEST_F(ModelFactsTest, DamagedConfigIsAnError) {
  model::WriteBytes(models_.bf16() + "/config.json", "{");
  EXPECT_TRUE(absl::IsInvalidArgument(FactsOf(Stored(models_.bf16())).status()));
  std::filesystem::remove(models_.bf16() + "/config.json");
  EXPECT_TRUE(absl::IsNotFound(FactsOf(Stored(models_.bf16())).status()));
}

}  // namespace
}  // namespace nibble::registry
