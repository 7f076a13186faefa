#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "server/store/published_directory.h"
#include "server/trainer/recipe.h"
#include "server/trainer/torch_runtime.h"
#include "tests/server/model/small_models.h"

namespace nibble::trainer {
namespace {

class QLoraRecipeTest : public testing::Test {
 protected:
  QLoraRecipeTest() {
    stream_.library = library_.get();
    auto source = store::PendingDirectory::Create(base::RealFileSystem(), models_.Path("source"));
    EXPECT_TRUE(source.ok()) << source.status();
    std::filesystem::copy(models_.bf16(), source->path(), std::filesystem::copy_options::recursive);
    EXPECT_TRUE(source->Commit().ok());
    order_.spec.method = jobs::kMethodQLora;
    order_.spec.base_model = "source";
    order_.spec.data.max_seq_len = 32;
    order_.spec = jobs::Resolve(order_.spec, "job-1", "text", "cpu");
    order_.base_model_directory = models_.Path("source");
    order_.base_cache_directory = models_.Path("bases");
    order_.base_cache_bytes = std::int64_t{1} << 30;
  }

  // Makes the recipe of an attempt and cleans up after it, without training. Returns the weights_digest of its base.
  std::string Attempt() {
    logs_.clear();
    const std::string directory = models_.Path("attempt-" + std::to_string(++attempts_));
    std::filesystem::create_directories(directory);
    const auto recipe =
        MakeQLoraRecipe({.order = order_,
                         .directory = directory,
                         .files = base::RealFileSystem(),
                         .stream = stream_,
                         .log =
                             [this](const std::string& message) {
                               logs_ += message + "\n";
                               return absl::OkStatus();
                             },
                         .warn = [](const std::string&, const std::string&) { return absl::OkStatus(); },
                         .cancelled = {}});
    EXPECT_TRUE(recipe.ok()) << recipe.status();
    if (!recipe.ok()) return "";
    EXPECT_TRUE((*recipe)->Clean().ok());
    EXPECT_TRUE(std::filesystem::is_empty(directory)) << "no scratch files are left";
    return (*recipe)->base_digest();
  }
  bool Quantized() const { return logs_.find("quantized to nf4") != std::string::npos; }
  std::size_t Cached() const {
    std::size_t count = 0;
    if (!std::filesystem::exists(models_.Path("bases"))) return 0;
    for (const auto& entry : std::filesystem::directory_iterator(models_.Path("bases"))) count += entry.is_directory();
    return count;
  }

  model::SmallModels models_;
  const std::unique_ptr<kernels::DenseLibrary> library_ = MakeTorchLibrary();
  kernels::Stream stream_ = models_.stream();
  jobs::AttemptOrder order_;
  std::string logs_;
  int attempts_ = 0;
};

TEST_F(QLoraRecipeTest, SecondAttemptTakesTheBaseFromTheCache) {  // T11
  const std::string first = Attempt();
  EXPECT_TRUE(Quantized());
  const std::string second = Attempt();
  EXPECT_FALSE(Quantized()) << logs_;
  EXPECT_EQ(second, first);
  EXPECT_EQ(Cached(), 1u);
}

TEST_F(QLoraRecipeTest, DamagedBaseIsMadeAgain) {
  const std::string first = Attempt();
  for (const auto& entry : std::filesystem::directory_iterator(models_.Path("bases"))) {
    std::fstream(entry.path() / "model.safetensors", std::ios::in | std::ios::out).seekp(-1, std::ios::end).put('x');
  }
  EXPECT_EQ(Attempt(), first);
  EXPECT_TRUE(Quantized());
  Attempt();
  EXPECT_FALSE(Quantized());
}

TEST_F(QLoraRecipeTest, WithoutACacheEveryAttemptMakesItsOwnBase) {
  order_.base_cache_directory.clear();
  const std::string first = Attempt();
  EXPECT_EQ(Attempt(), first);
  EXPECT_TRUE(Quantized());
  EXPECT_EQ(Cached(), 0u);
}

TEST_F(QLoraRecipeTest, BaseBeyondTheLimitIsRemovedWithItsAttempt) {
  order_.base_cache_bytes = 1;
  Attempt();
  EXPECT_TRUE(Quantized());
  EXPECT_EQ(Cached(), 0u);
}

}  // namespace
}  // namespace nibble::trainer
