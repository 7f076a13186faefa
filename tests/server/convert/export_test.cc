#include "server/convert/export.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "server/convert/convert.h"
#include "server/model/import.h"
#include "server/model/safetensors.h"
#include "tests/server/model/files.h"
#include "tests/support/random.h"

namespace nibble::convert {
namespace {

using kernels::DType;
using model::Artifact;

class ExportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(model::ImportModel(files_, model::Golden("hf_sharded_f32"), directory_.Path("f32"), DType::kF32).ok());
    f32_ = *Artifact::Open(directory_.Path("f32"));
    ConvertOptions options;
    options.to = model::Format::kNf4;
    ASSERT_TRUE(ConvertModel(files_, *f32_, directory_.Path("nf4"), options, kernels::Stream()).ok());
    model::AdapterConfig adapter;
    adapter.rank = 4;
    adapter.alpha = 6;
    adapter.targets = {model::LinearKind::kQ, model::LinearKind::kV, model::LinearKind::kUp};
    for (const auto& plan : model::AdapterTensors(f32_->config(), adapter)) {
      values_.push_back(support::NormalVector(values_.size() + 1, plan.shape[0] * plan.shape[1], 0.1f));
    }
    const auto nf4 = *Artifact::Open(directory_.Path("nf4"));
    ASSERT_TRUE(MakeLoraModel(files_, *nf4, adapter, values_, base::Json::object(), directory_.Path("lora")).ok());
    lora_ = *Artifact::Open(directory_.Path("lora"));
  }
  base::FileSystem& files_ = base::RealFileSystem();
  model::TempDirectory directory_;
  std::unique_ptr<Artifact> f32_, lora_;
  std::vector<std::vector<float>> values_;
};

TEST_F(ExportTest, ExportsAreWholeAndReimport) {
  ASSERT_TRUE(ExportHf(files_, *f32_, directory_.Path("hf")).ok());
  const auto report = model::ImportModel(files_, directory_.Path("hf"), directory_.Path("again"), DType::kF32);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->info.weights_digest, f32_->info().weights_digest);
  ASSERT_TRUE(ExportPeft(files_, *lora_, "some/base", directory_.Path("peft")).ok());
  const auto tensors = model::OpenSafetensors(directory_.Path("peft/adapter_model.safetensors"));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->tensors.size(), values_.size());
  const auto config = base::ParseJson(model::ReadBytes(directory_.Path("peft/adapter_config.json")));
  EXPECT_EQ((*config)["base_model_name_or_path"], "some/base");
  EXPECT_EQ((*config)["lora_alpha"], 6);
}

TEST_F(ExportTest, OfTheWrongFormatIsRefusedAndLeavesNothing) {
  EXPECT_TRUE(absl::IsInvalidArgument(ExportHf(files_, *lora_, directory_.Path("x"))));
  EXPECT_TRUE(absl::IsInvalidArgument(ExportPeft(files_, *f32_, "", directory_.Path("x"))));
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("x")));
  EXPECT_TRUE(absl::IsAlreadyExists(ExportHf(files_, *f32_, directory_.Path("f32"))));
}

TEST_F(ExportTest, RealTransformersAndPeftLoadThem) {
  const std::string python = NIBBLE_PYTHON;
  const std::string probe = python + " -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec(\"peft\") and u.find_spec(\"transformers\")))'";
  if (python.empty() || std::system(probe.c_str()) != 0) GTEST_SKIP() << "NIBBLE_PYTHON has no peft and transformers";
  ASSERT_TRUE(ExportHf(files_, *f32_, directory_.Path("hf")).ok());
  ASSERT_TRUE(ExportPeft(files_, *lora_, directory_.Path("hf"), directory_.Path("peft")).ok());
  const std::string command = python + " " NIBBLE_SOURCE_DIR "/tests/server/convert/load_export.py " + directory_.Path("hf") + " " +
                              directory_.Path("peft");
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace nibble::convert
