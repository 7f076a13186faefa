// A dataset of ten text rows, and the tokenizer of a small model.
#pragma once
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "server/base/json.h"
#include "server/model/model_config.h"
#include "server/model/text_assets.h"
#include "server/registry/text_cache.h"
#include "server/store/dataset_store.h"
#include "tests/support/temp_directory.h"

namespace nibble::plan {

class PreviewFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string directory = NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16";
    auto assets = model::LoadTextAssets(directory);
    ASSERT_TRUE(assets.ok()) << assets.status();
    model_.assets = *std::move(assets);
    std::ifstream in(directory + "/config.json");
    auto config = model::ParseHfConfig(base::Json::parse(in));
    ASSERT_TRUE(config.ok()) << config.status();
    model_.config = *std::move(config);
    std::string rows;
    for (int i = 0; i < kRows; ++i) rows += kRow;
    WriteRows(rows, "text", kRows);
  }
  void WriteRows(const std::string& lines, const std::string& format, int rows = 1) {
    std::ofstream(directory_ / "data.jsonl") << lines;
    stored_.name = "rows";
    stored_.data_path = directory_ / "data.jsonl";
    stored_.sha256 = std::string(64, '0');
    stored_.meta = {{"format", format}, {"rows", rows}};
  }

  static constexpr char kRow[] = "{\"text\": \"the keeper of the light\"}\n";
  static constexpr int kRows = 10;
  const testing::TempDirectory directory_;
  registry::ModelText model_;
  store::StoredDataset stored_;
};

}  // namespace nibble::plan
