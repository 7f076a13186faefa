#include "server/convert/export.h"

#include <filesystem>

#include "server/model/safetensors.h"
#include "tests/server/convert/export_fixture.h"

namespace nibble::convert {
namespace {

using kernels::DType;

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

}  // namespace
}  // namespace nibble::convert
