#include "server/serve/model_manager.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "server/base/error.h"
#include "tests/server/model/small_models.h"

namespace nibble::serve {
namespace {

class ModelManagerTest : public testing::Test {
 protected:
  EngineOptions Options() {
    EngineOptions options;
    options.kv_tokens = 256;
    return options;
  }

  model::SmallModels models_;
  base::FakeClock clock_{absl::UnixEpoch()};
  std::atomic<int> located_ = 0, loads_ = 0, unloads_ = 0;
  absl::Status damage_;
  std::function<void()> while_locating_ = [] {};
  std::weak_ptr<const int> last_pin_;
  std::shared_ptr<base::MemoryBudget> machine_;  // shared by models and trainers
  std::unique_ptr<ModelManager> Make(std::int64_t memory_bytes) {
    const auto locate = [this](const std::string& name,
                               const ModelManager::Cancelled& cancelled) -> absl::StatusOr<ModelManager::Artifact> {
      ++located_;
      while_locating_();
      if (!damage_.ok()) return damage_;
      if (name != "small" && name != "twin") return absl::NotFoundError(name);
      const auto pin = std::make_shared<const int>(1);
      last_pin_ = pin;
      if (cancelled && cancelled()) return absl::CancelledError("stopped");
      return ModelManager::Artifact{models_.int8(), pin};
    };
    const auto observe = [this](const Resident&, bool loaded, absl::Duration) { ++(loaded ? loads_ : unloads_); };
    return std::make_unique<ModelManager>(locate, Options(), base::MemoryBudget::Make(memory_bytes, machine_),
                                          models_.stream(), clock_, observe);
  }
  const std::unique_ptr<ModelManager> made_ = Make(0);
  ModelManager& manager_ = *made_;
};

// Locate reads every byte of the artifact. A request for a model in memory must not wait for that, and must not fail if
// the bytes on the disk are damaged.
TEST_F(ModelManagerTest, LoadedModelIsNotLocatedAgain) {
  const auto first = manager_.Acquire("small");
  ASSERT_TRUE(first.ok()) << first.status();
  damage_ = absl::DataLossError("a bit has changed");
  for (int i = 0; i < 5; ++i) {
    const auto again = manager_.Acquire("small");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *first);
  }
  EXPECT_EQ(located_, 1);
  ASSERT_TRUE(manager_.Unload("small").ok());
  EXPECT_EQ(manager_.Acquire("small").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(manager_.IsLoaded("small"));
  damage_ = absl::OkStatus();
  EXPECT_TRUE(manager_.Acquire("small").ok());
  EXPECT_EQ(located_, 3);
  EXPECT_EQ(loads_, 2);
  EXPECT_EQ(unloads_, 1);
}

TEST_F(ModelManagerTest, UnknownNameIsLocatedEachTime) {
  for (int i = 0; i < 2; ++i) EXPECT_EQ(manager_.Acquire("none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(located_, 2);
  EXPECT_TRUE(manager_.residents().empty());
  EXPECT_EQ(manager_.Unload("none").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ModelManagerTest, CancelledLoadLeavesNothingAndTheNextLoadSucceeds) {
  EXPECT_EQ(manager_.Acquire("small", [] { return true; }).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(manager_.Find("small"), nullptr);
  EXPECT_TRUE(last_pin_.expired());
  const auto loaded = manager_.Acquire("small", [] { return false; });
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(manager_.Find("small"), *loaded);
  EXPECT_EQ(manager_.Find("none"), nullptr);
  const auto there = manager_.Acquire("small", [] { return true; });
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ(*there, *loaded) << "a model in memory needs no load that could be cancelled";
}

TEST_F(ModelManagerTest, FindDoesNotWaitForALoad) {
  bool found = true;
  while_locating_ = [&] { found = manager_.Find("small") != nullptr || manager_.IsLoaded("small"); };
  ASSERT_TRUE(manager_.Acquire("small").ok());
  EXPECT_FALSE(found);
  EXPECT_TRUE(manager_.IsLoaded("small"));
}

TEST_F(ModelManagerTest, ArtifactIsPinnedUntilTheModelIsUnloaded) {
  std::shared_ptr<const Resident> held;
  {
    const auto resident = manager_.Acquire("small");
    ASSERT_TRUE(resident.ok()) << resident.status();
    held = *resident;
  }
  EXPECT_FALSE(last_pin_.expired());
  ASSERT_TRUE(manager_.Unload("small").ok());
  EXPECT_TRUE(last_pin_.expired()) << "a running request has the files mapped and needs no pin";
}

TEST_F(ModelManagerTest, CallersThatWaitForALoadShareItsFailure) {
  std::atomic<int> coming = 0;
  damage_ = absl::DataLossError("a bit has changed");
  // The first load fails when all callers have arrived; a later caller starts its own load.
  while_locating_ = [&] {
    while (coming < 6) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      ++coming;
      EXPECT_EQ(manager_.Acquire("small").status().code(), absl::StatusCode::kDataLoss);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(located_, 6);
}

TEST_F(ModelManagerTest, ConcurrentCallersShareOneLoad) {
  std::vector<std::thread> threads;
  std::vector<absl::StatusOr<std::shared_ptr<const Resident>>> got(6);
  for (auto& one : got) threads.emplace_back([&] { one = manager_.Acquire("small"); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& one : got) {
    ASSERT_TRUE(one.ok()) << one.status();
    EXPECT_EQ(*one, *got.front());
  }
  EXPECT_EQ(located_, 1);
  EXPECT_EQ(loads_, 1);
}

// Loading a model must not kill the server: a model that does not fit beside the others is refused before it is read.
TEST_F(ModelManagerTest, ModelsInMemoryFitTheLimitTogether) {
  const absl::Status refused = Make(1)->Acquire("small").status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "OUT_OF_DEVICE_MEMORY");
  EXPECT_NE(refused.message().find("--serve_memory_bytes"), absl::string_view::npos) << refused;
  EXPECT_EQ(base::ReasonMetadata(refused)["have"], "1");
  const std::int64_t need = std::stoll(base::ReasonMetadata(refused)["need"]);
  {
    const auto resident = manager_.Acquire("small");
    ASSERT_TRUE(resident.ok()) << resident.status();
    const Engine& engine = *(*resident)->engine;
    const std::int64_t page = model::KvPool::PageBytes(engine.model().config(), engine.model().info().kv_dtype);
    const std::int64_t weights = need - engine.load().total_pages * page;
    const auto file =
        static_cast<std::int64_t>(std::filesystem::file_size(models_.Path("int8") + "/model.safetensors"));
    EXPECT_GT(weights, file / 2);
    EXPECT_LE(weights, file);
  }

  const auto manager = Make(2 * need - 1);
  auto held = manager->Acquire("small");
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(base::Reason(manager->Acquire("twin").status()), "OUT_OF_DEVICE_MEMORY");
  EXPECT_TRUE(manager->Acquire("small").ok()) << "a model in memory stays";
  ASSERT_TRUE(manager->Unload("small").ok());
  EXPECT_FALSE(manager->Acquire("twin").ok()) << "a request still runs on the unloaded model";
  held = absl::NotFoundError("ended");
  EXPECT_TRUE(manager->Acquire("twin").ok());
  EXPECT_TRUE(Make(2 * need)->Acquire("small").ok());
}

// Models and trainers share the machine's memory.
TEST_F(ModelManagerTest, ModelsAndTrainersFitTheMachineTogether) {
  const std::int64_t need = std::stoll(base::ReasonMetadata(Make(1)->Acquire("small").status())["need"]);
  machine_ = base::MemoryBudget::Make(3 * need);
  const auto manager = Make(0);
  auto trainer = machine_->TryTake(2 * need + 1);
  const absl::Status refused = manager->Acquire("small").status();
  EXPECT_EQ(base::Reason(refused), "OUT_OF_DEVICE_MEMORY") << refused;
  EXPECT_EQ(base::ReasonMetadata(refused)["have"], std::to_string(need - 1));
  EXPECT_EQ(base::ReasonMetadata(refused)["plan"].substr(0, 8), "weights ");
  trainer.reset();
  EXPECT_TRUE(manager->Acquire("small").ok());
  EXPECT_EQ(machine_->left(), 2 * need);
}

// After concurrent loads and unloads, the models in memory are those loaded and not unloaded.
TEST_F(ModelManagerTest, ConcurrentLoadsAndUnloadsAddUp) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 8; ++round) {
        if (i % 2 == 0) {
          EXPECT_TRUE(manager_.Acquire("small").ok());
        } else {
          static_cast<void>(manager_.Unload("small"));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(loads_ - unloads_, static_cast<int>(manager_.residents().size()));
}

}  // namespace
}  // namespace nibble::serve
