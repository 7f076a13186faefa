// Imports a folder of tests/golden/model, makes its masters ternary, and digests the logits of the result.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/convert/convert.h"
#include "server/model/forward.h"
#include "server/model/import.h"
#include "server/model/loaded_model.h"
#include "server/model/record.h"
#include "tests/server/model/family_fixture.h"

namespace nibble::convert {

class TernaryTest : public model::FamilyFixture {
 protected:
  std::unique_ptr<model::Artifact> Import(const std::string& group, const std::string& name,
                                          kernels::DType dtype = kernels::DType::kF32) {
    Clear();
    Copy(group, name);
    const auto report = model::ImportModel(files_, Source(), directory_.Path("model"), dtype);
    EXPECT_TRUE(report.ok()) << report.status();
    return Open("model");
  }
  std::unique_ptr<model::Artifact> Open(const std::string& name) {
    auto artifact = model::Artifact::Open(directory_.Path(name));
    EXPECT_TRUE(artifact.ok()) << artifact.status();
    EXPECT_TRUE((*artifact)->VerifyBytes().ok());
    return *std::move(artifact);
  }
  absl::StatusOr<ConvertReport> ToTernary(const model::Artifact& source, const std::string& name,
                                          const kernels::Stream& stream = {}) {
    ConvertOptions options;
    options.to = model::Format::kTernary;
    return ConvertModel(files_, source, directory_.Path(name), options, stream);
  }
  // The digest of every row of logits for 70 fixed tokens, fed `chunk` at a time.
  std::vector<std::string> Digests(const std::string& name, std::int64_t chunk, const kernels::Stream& stream) {
    const auto loaded = model::LoadedModel::Load(directory_.Path(name), {}, stream);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < 70; ++i) tokens.push_back((i * 37 + 5) % 112);  // the golden models have 112 tokens
    std::vector<std::string> digests;
    const absl::Status status =
        model::ForEachLogits((*loaded)->config(), (*loaded)->weights(), tokens, chunk, stream,
                             [&](std::int64_t, const kernels::Matrix& logits) {
                               for (std::int64_t r = 0; r < logits.rows; ++r) {
                                 digests.push_back(model::RowDigest(logits.Row<float>(r), logits.cols));
                               }
                               return absl::OkStatus();
                             });
    EXPECT_TRUE(status.ok()) << status;
    return digests;
  }

  // The tensors of a trained model, in the model's order.
  static std::vector<TrainedTensor> Tensors(const std::vector<std::vector<float>>& values) {
    std::vector<TrainedTensor> tensors;
    for (const std::vector<float>& value : values) tensors.push_back({std::as_bytes(std::span(value))});
    return tensors;
  }

  base::FileSystem& files_ = base::RealFileSystem();
};

}  // namespace nibble::convert
