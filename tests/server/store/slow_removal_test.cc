// Removing a large model or dataset takes seconds on a slow disk. Other callers can use the store meanwhile.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "server/base/hooked_files.h"
#include "server/base/sha256.h"
#include "server/store/state_directory.h"
#include "tests/support/temp_directory.h"

namespace nibble::store {
namespace {

// Holds every removal below a path until `go` is ready.
class HeldRemovals {
 public:
  HeldRemovals(std::string below, std::promise<void>& begun, std::shared_future<void> go)
      : below_(std::move(below)), begun_(begun), go_(std::move(go)) {}
  template <typename Work>
  auto Around(const char* operation, const std::string& path, Work work) -> decltype(work()) {
    if (operation == std::string("remove") && path.starts_with(below_)) {
      begun_.set_value();
      go_.wait();
    }
    return work();
  }
  template <typename Write>
  absl::Status Append(const std::string&, std::string_view bytes, Write write) {
    return write(bytes);
  }

 private:
  const std::string below_;
  std::promise<void>& begun_;
  const std::shared_future<void> go_;
};

class SlowRemovalTest : public ::testing::Test {
 protected:
  // Adds a model "m" and a dataset "d", then opens the directory with a disk that holds removals in `folder`.
  void Open(const std::string& folder) {
    {
      auto state = StateDirectory::Open(base::RealFileSystem(), temp_ / "state", limits_);
      ASSERT_TRUE(state.ok()) << state.status();
      auto model = (*state)->models->Begin("m");
      ASSERT_TRUE(model.ok());
      std::ofstream((*model)->directory() + "/nibble.json") << R"({"format":"f32"})";
      ASSERT_TRUE((*model)->Commit().ok());
      auto dataset = (*state)->datasets->Begin("d");
      ASSERT_TRUE(dataset.ok());
      ASSERT_TRUE((*dataset)->Append("{}\n").ok());
      ASSERT_TRUE(
          (*dataset)->Finish(base::Sha256Hex("{}\n"), [](const std::string&) { return base::Json::object(); }).ok());
    }
    files_ = std::make_unique<base::HookedFiles<HeldRemovals>>(base::RealFileSystem(), temp_ / ("state/" + folder),
                                                               begun_, go_.get_future().share());
    auto state = StateDirectory::Open(*files_, temp_ / "state", limits_);
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
  }
  // Runs `remove`, and `use` while the removal waits for the disk.
  void Remove(const std::function<absl::Status()>& remove, const std::function<absl::Status()>& use) {
    auto removed = std::async(std::launch::async, remove);
    begun_.get_future().wait();
    auto used = std::async(std::launch::async, use);
    const bool at_once = used.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    go_.set_value();
    EXPECT_TRUE(at_once) << "the store waits for the disk";
    EXPECT_TRUE(absl::IsNotFound(used.get()));
    EXPECT_TRUE(removed.get().ok());
  }

  testing::TempDirectory temp_;
  UploadLimits limits_ = {.min_free_bytes = 0};
  std::promise<void> begun_, go_;
  std::unique_ptr<base::FileSystem> files_;
  std::unique_ptr<StateDirectory> state_;
};

TEST_F(SlowRemovalTest, ModelsAreUsedWhileOneIsRemoved) {
  Open("models/");
  Remove([&] { return state_->models->Delete("m"); }, [&] { return state_->models->Get("m").status(); });
}

TEST_F(SlowRemovalTest, DatasetsAreUsedWhileOneIsRemoved) {
  Open("datasets/");
  Remove([&] { return state_->datasets->Delete("d"); }, [&] { return state_->datasets->Get("d").status(); });
}

}  // namespace
}  // namespace nibble::store
