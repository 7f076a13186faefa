// A tiny f32 model, and a lora model with a random adapter on its nf4 form.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "server/convert/convert.h"
#include "server/convert/export.h"
#include "server/model/import.h"
#include "tests/server/model/files.h"
#include "tests/support/random.h"

namespace nibble::convert {

class ExportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(
        model::ImportModel(files_, model::Golden("hf_sharded_f32"), directory_.Path("f32"), kernels::DType::kF32).ok());
    f32_ = *model::Artifact::Open(directory_.Path("f32"));
    ConvertOptions options;
    options.to = model::Format::kNf4;
    ASSERT_TRUE(ConvertModel(files_, *f32_, directory_.Path("nf4"), options, kernels::Stream()).ok());
    model::AdapterConfig adapter;
    adapter.rank = 4;
    adapter.alpha = 6;
    adapter.base_model_name_or_path = directory_.Path("hf");
    adapter.targets = {model::LinearKind::kQ, model::LinearKind::kV, model::LinearKind::kUp};
    for (const auto& plan : model::AdapterTensors(f32_->config(), adapter)) {
      values_.push_back(support::NormalVector(values_.size() + 1, plan.shape[0] * plan.shape[1], 0.1f));
    }
    const auto nf4 = *model::Artifact::Open(directory_.Path("nf4"));
    ASSERT_TRUE(MakeLoraModel(files_, *nf4, adapter, values_, base::Json::object(), directory_.Path("lora")).ok());
    lora_ = *model::Artifact::Open(directory_.Path("lora"));
  }
  base::FileSystem& files_ = base::RealFileSystem();
  model::TempDirectory directory_;
  std::unique_ptr<model::Artifact> f32_, lora_;
  std::vector<std::vector<float>> values_;
};

}  // namespace nibble::convert
