// Imports a folder of tests/golden/model, runs it, and compares with the logprobs that transformers computed.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/base/json.h"
#include "server/model/forward.h"
#include "server/model/import.h"
#include "server/model/loaded_model.h"
#include "tests/server/model/files.h"
#include "tests/support/plain_library.h"

namespace nibble::model {

class FamilyFixture : public ::testing::Test {
 protected:
  FamilyFixture() { stream_.library = &library_; }

  std::string Source() const { return directory_.Path("hf"); }

  // Copies golden/<group>/<name> with the group's tokenizer.
  void Copy(const std::string& group, const std::string& name) {
    std::filesystem::copy(Golden(group + "/" + name), Source());
    std::filesystem::copy(Golden(group + "/tokenizer.json"), Source() + "/tokenizer.json");
  }
  void Clear() {
    std::filesystem::remove_all(Source());
    std::filesystem::remove_all(directory_.Path("model"));
  }
  void EditConfig(const std::function<void(base::Json&)>& edit) {
    base::Json json = *base::ParseJson(ReadBytes(Source() + "/config.json"));
    edit(json);
    std::filesystem::remove(Source() + "/config.json");
    WriteBytes(Source() + "/config.json", base::Dump(json));
  }

  absl::StatusOr<std::shared_ptr<const LoadedModel>> Load() {
    const auto report = ImportModel(base::RealFileSystem(), Source(), directory_.Path("model"), kernels::DType::kF32);
    if (!report.ok()) return report.status();
    return LoadedModel::Load(directory_.Path("model"), {}, stream_);
  }

  // The logprob of each token, except the first, given the tokens before it.
  absl::StatusOr<std::vector<double>> Logprobs(const LoadedModel& model, const std::vector<std::int32_t>& tokens,
                                               std::int64_t chunk) {
    std::vector<double> out;
    const absl::Status status = ForEachLogits(
        model.config(), model.weights(), tokens, chunk, stream_,
        [&](std::int64_t first, const kernels::Matrix& logits) {
          for (std::int64_t r = 0; r < logits.rows && first + r + 1 < static_cast<std::int64_t>(tokens.size()); ++r) {
            const float* row = logits.Row<float>(r);
            double sum = 0;
            for (std::int64_t v = 0; v < logits.cols; ++v) sum += std::exp(static_cast<double>(row[v]));
            out.push_back(static_cast<double>(row[tokens[static_cast<std::size_t>(first + r + 1)]]) - std::log(sum));
          }
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    return out;
  }

  void ExpectLogprobsOfTransformers(const LoadedModel& model, const std::string& group, const std::string& name) {
    const base::Json golden = (*base::ParseJson(ReadBytes(Golden(group + "/logprobs.json"))))[name];
    const auto tokens = golden["token_ids"].get<std::vector<std::int32_t>>();
    ASSERT_EQ(tokens.size(), 256u);
    const auto got = Logprobs(model, tokens, /*chunk=*/100);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ(got->size(), golden["logprobs"].size());
    for (std::size_t i = 0; i < got->size(); ++i) {
      ASSERT_NEAR((*got)[i], golden["logprobs"][i].get<double>(), 1e-3) << name << ", token " << i + 1;
    }
  }

  support::PlainLibrary library_;
  kernels::Stream stream_;
  TempDirectory directory_;
};

}  // namespace nibble::model
