// The small golden model as artifacts in a temporary directory: bf16 and f32 are imported, the others are converted
// from bf16.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kernels/isa.h"
#include "kernels/launch_counter.h"
#include "kernels/thread_pool.h"
#include "server/base/files.h"
#include "server/convert/convert.h"
#include "server/model/import.h"
#include "server/model/loaded_model.h"
#include "server/model/text_assets.h"
#include "tests/server/model/files.h"

namespace nibble::model {

class SmallModels {
 public:
  SmallModels() { Import("bf16", kernels::DType::kBF16); }
  std::string bf16() const { return directory_.Path("bf16"); }
  std::string f32() { return std::filesystem::exists(Path("f32")) ? Path("f32") : Import("f32", kernels::DType::kF32); }
  std::string int8() { return Converted("int8", Format::kInt8); }
  std::string weight_only() { return Converted("weight_only", Format::kInt8, /*weight_only=*/true); }
  std::string ternary() { return Converted("ternary", Format::kTernary); }
  std::string nf4() { return Converted("nf4", Format::kNf4); }
  std::string Path(const std::string& name) const { return directory_.Path(name); }

  const kernels::Stream& stream() const { return stream_; }
  kernels::LaunchCounter& launches() { return launches_; }

  std::shared_ptr<const LoadedModel> Load(const std::string& path) {
    auto loaded = LoadedModel::Load(path, {}, stream_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded) : nullptr;
  }
  std::shared_ptr<const text::Tokenizer> tokenizer() {
    const auto assets = LoadTextAssets(bf16());
    EXPECT_TRUE(assets.ok()) << assets.status();
    return assets->tokenizer;
  }

 private:
  std::string Import(const std::string& name, kernels::DType dtype) {
    const auto report = ImportModel(base::RealFileSystem(), Golden("hf_tied_bf16"), Path(name), dtype);
    EXPECT_TRUE(report.ok()) << report.status();
    return Path(name);
  }
  std::string Converted(const std::string& name, Format to, bool weight_only = false) {
    const std::string path = directory_.Path(name);
    if (std::filesystem::exists(path)) return path;
    const auto source = Artifact::Open(bf16());
    EXPECT_TRUE(source.ok()) << source.status();
    const auto report =
        convert::ConvertModel(base::RealFileSystem(), **source, path, {.to = to, .weight_only = weight_only}, stream_);
    EXPECT_TRUE(report.ok()) << report.status();
    return path;
  }

  TempDirectory directory_;
  kernels::ThreadPool pool_{2};
  kernels::LaunchCounter launches_;
  const kernels::Stream stream_ = {.isa = kernels::DetectIsa(), .pool = &pool_, .launches = &launches_};
};

}  // namespace nibble::model
