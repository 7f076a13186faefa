#include "server/convert/adapter_model.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "server/base/error.h"
#include "tests/server/convert/export_fixture.h"

namespace nibble::convert {
namespace {

using ::testing::HasSubstr;

// The adapter of export_fixture.h, exported as PEFT files and made into a model again.
class AdapterModelTest : public ExportTest {
 protected:
  void SetUp() override {
    ExportTest::SetUp();
    ASSERT_TRUE(ExportPeft(files_, *lora_, directory_.Path("peft")).ok());
    auto read = model::ReadPeftAdapter(files_, directory_.Path("peft"), f32_->config());
    ASSERT_TRUE(read.ok()) << read.status();
    adapter_ = *std::move(read);
  }
  absl::StatusOr<model::ArtifactInfo> Make(const std::string& name, const std::string& target) {
    const auto artifact = model::Artifact::Open(directory_.Path(name));
    EXPECT_TRUE(artifact.ok()) << artifact.status();
    return MakeAdapterModel(files_, **artifact, adapter_, {{"base_model", name}}, directory_.Path("scratch"),
                            directory_.Path(target), kernels::Stream(), "import");
  }
  model::PeftAdapter adapter_;
};

TEST_F(AdapterModelTest, ExportedAdapterOnItsBaseGivesTheSameModel) {
  EXPECT_EQ(adapter_.config.base_digest, lora_->info().base_digest);
  EXPECT_EQ(adapter_.values, values_);
  // Converted to nf4, the f32 model has exactly the weights that the adapter was made on.
  for (const char* base : {"nf4", "f32"}) {
    const std::string target = std::string("again-") + base;
    const auto made = Make(base, target);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->format, model::Format::kLora);
    EXPECT_EQ(made->source, "import");
    EXPECT_EQ(made->weights_digest, lora_->info().weights_digest) << base;
    EXPECT_EQ(made->base_digest, lora_->info().base_digest) << base;
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("scratch")));
    const auto opened = model::Artifact::Open(directory_.Path(target));
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ((*opened)->adapter()->base_digest, "") << "only nibble.json has the digest of the base";
    const auto int8 = ConvertModel(files_, **opened, directory_.Path("int8-" + target), {}, kernels::Stream());
    EXPECT_TRUE(int8.ok()) << int8.status();
  }
}

TEST_F(AdapterModelTest, RejectsAdapterOfOtherWeightsAndLeavesNothing) {
  const std::string trained_on = adapter_.config.base_digest = std::string(64, '0');
  for (const char* base : {"nf4", "f32"}) {
    const absl::Status status = Make(base, "other").status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(base::Reason(status), "BASE_MISMATCH");
    EXPECT_EQ(base::ReasonMetadata(status)["wanted"], trained_on);
    EXPECT_EQ(base::ReasonMetadata(status)["got"], lora_->info().base_digest);
    const std::string message(status.message());
    EXPECT_THAT(message, HasSubstr(std::string("base \"") + base + "\", stored as " + base + ", has the digest "));
    EXPECT_THAT(message, HasSubstr("nibble models get NAME"));
    // The message has the digest that `models get` prints of this base, and for a float base also the digest of its nf4
    // form.
    EXPECT_THAT(message, HasSubstr(model::Artifact::Open(directory_.Path(base)).value()->info().weights_digest));
    EXPECT_EQ(message.find("quantized to nf4") != std::string::npos, std::string(base) == "f32") << message;
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("other")));
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("scratch")));
  }
  adapter_.config.base_digest.clear();  // PEFT's own adapters have no digest
  EXPECT_TRUE(Make("nf4", "other").ok());
}

TEST_F(AdapterModelTest, TernaryAndLoraModelsCarryNoAdapter) {
  ASSERT_TRUE(
      ConvertModel(files_, *f32_, directory_.Path("ternary"), {.to = model::Format::kTernary}, kernels::Stream()).ok());
  for (const char* base : {"ternary", "lora"}) {
    const absl::Status status = Make(base, "x").status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(base::Reason(status), "ADAPTER_BASE");
    EXPECT_THAT(std::string(status.message()), HasSubstr(base));
    EXPECT_THAT(std::string(status.message()), HasSubstr("wanted nf4"));
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("x")));
  }
  model::ArtifactInfo masters;
  masters.bitnet.emplace();
  EXPECT_EQ(base::Reason(CheckAdapterBase(masters)), "ADAPTER_BASE");
}

}  // namespace
}  // namespace nibble::convert
