#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/base/json.h"
#include "server/base/sha256.h"
#include "server/convert/convert.h"
#include "server/model/artifact.h"
#include "server/model/import.h"
#include "server/model/safetensors.h"
#include "server/model/stored_tensors.h"
#include "tests/server/model/files.h"
#include "tests/support/random.h"

namespace nibble::convert {

// Adds B A * scaling of a lora model's adapter, in double, to the weight [N, K] of the linear at `path`. A linear
// without an adapter is left unchanged.
inline void AddAdapter(const model::Artifact& lora, const std::string& path, std::vector<double>& weight) {
  const auto adapter = lora.adapter()->On(path);
  if (!adapter.has_value()) return;
  const std::string module = "base_model.model." + path;
  const auto a = *lora.FloatTensor(module + ".lora_A.weight");
  const auto b = *lora.FloatTensor(module + ".lora_B.weight");
  const auto rank = static_cast<std::size_t>(adapter->rank);
  const std::size_t cols = a.size() / rank;
  for (std::size_t at = 0; at < weight.size(); ++at) {
    double delta = 0;
    for (std::size_t i = 0; i < rank; ++i) {
      delta += static_cast<double>(b[at / cols * rank + i]) * static_cast<double>(a[i * cols + at % cols]);
    }
    weight[at] += delta * adapter->scaling;
  }
}

// The error message of reading an edited nibble.json. Its checksum fits the edited contents.
template <typename Edit>
std::string ErrorOfEdited(const model::ArtifactInfo& info, const Edit& edit) {
  base::Json json = model::ToJson(info);
  edit(json);
  json.erase("checksum");
  json["checksum"] = base::Sha256Hex(base::Dump(json));
  return std::string(model::ParseArtifactInfo(json).status().message());
}

class ConvertTest : public ::testing::Test {
 protected:
  std::unique_ptr<model::Artifact> Import(const std::string& golden, kernels::DType dtype, const std::string& name) {
    const auto report = model::ImportModel(files_, model::Golden(golden), directory_.Path(name), dtype);
    EXPECT_TRUE(report.ok()) << report.status();
    return Open(name);
  }
  std::unique_ptr<model::Artifact> Open(const std::string& name) {
    auto artifact = model::Artifact::Open(directory_.Path(name));
    EXPECT_TRUE(artifact.ok()) << artifact.status();
    EXPECT_TRUE((*artifact)->VerifyBytes().ok());
    return *std::move(artifact);
  }
  absl::StatusOr<ConvertReport> Convert(const model::Artifact& source, const std::string& name,
                                        const ConvertOptions& options) {
    return ConvertModel(files_, source, directory_.Path(name), options, kernels::Stream());
  }
  // Random values, as in a trained adapter.
  std::vector<std::vector<float>> AdapterValues(const model::ModelConfig& config, const model::AdapterConfig& adapter) {
    std::vector<std::vector<float>> values;
    for (const auto& plan : model::AdapterTensors(config, adapter)) {
      const std::int64_t count = model::NumElements(plan.shape).value_or(0);
      values.push_back(support::NormalVector(values.size() + 1, count, 0.05f));
    }
    return values;
  }
  std::unique_ptr<model::Artifact> Lora(const model::Artifact& base, const std::string& name) {
    adapter_.rank = 3;
    adapter_.alpha = 12;
    adapter_.targets = {model::LinearKind::kQ, model::LinearKind::kDown};
    const auto info = MakeLoraModel(files_, base, adapter_, AdapterValues(base.config(), adapter_),
                                    {{"job_id", "job-1"}}, directory_.Path(name));
    EXPECT_TRUE(info.ok()) << info.status();
    return Open(name);
  }

  base::FileSystem& files_ = base::RealFileSystem();
  model::TempDirectory directory_;
  model::AdapterConfig adapter_;
};

}  // namespace nibble::convert
