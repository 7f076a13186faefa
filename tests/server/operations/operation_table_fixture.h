// A table of operations on a disk that may stall, for tests of operations.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "server/base/clock.h"
#include "server/base/hooked_files.h"
#include "server/base/mutex.h"
#include "server/operations/operation_table.h"
#include "tests/support/temp_directory.h"

namespace nibble::operations {

inline OperationResponse MadeResponse() { return {.type = "example.com/Message", .bytes = "made"}; }

// A body that runs until the gate opens or it is cancelled.
class Gate {
 public:
  explicit Gate(OperationResponse response = MadeResponse()) : response_(std::move(response)) {}
  OperationTable::Body Body() {
    return [this](registry::OperationScope& scope) -> absl::StatusOr<OperationResponse> {
      scope.Progress("reading", 1, 2);
      base::MutexLock lock(mutex_);
      ++begun_;
      changed_.NotifyAll();
      while (!open_) {
        if (scope.cancelled()) return absl::CancelledError("cancelled");
        changed_.WaitFor(lock, std::chrono::milliseconds(1),
                         [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_; });
      }
      return response_;
    };
  }
  void AwaitBegun(int number) {
    base::MutexLock lock(mutex_);
    changed_.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return begun_ >= number; });
  }
  void Open() {
    base::MutexLock lock(mutex_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  const OperationResponse response_;
  base::Mutex mutex_;
  base::Condition changed_;
  int begun_ ABSL_GUARDED_BY(mutex_) = 0;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

// A stalled disk: one kind of change of an operation's file waits until Open. Removals may fail instead. Thread-safe.
class Stall {
 public:
  void Shut(const std::string& kind) {
    base::MutexLock lock(mutex_);
    shut_ = kind;
  }
  void Open() {
    base::MutexLock lock(mutex_);
    shut_.clear();
    changed_.NotifyAll();
  }
  void AwaitWaiting(int number) {
    base::MutexLock lock(mutex_);
    changed_.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_ >= number; });
  }
  // For a test of thousands of records.
  void LeaveOutSyncs() { no_syncs_ = true; }
  bool no_syncs() const { return no_syncs_; }
  void FailRemovals(bool fail) { fails_removals_ = fail; }
  bool fails_removals() const { return fails_removals_; }
  void Pass(const std::string& kind, const std::string& path) {
    base::MutexLock lock(mutex_);
    if (shut_ != kind || path.find("/op-") == std::string::npos) return;
    ++waiting_;
    changed_.NotifyAll();
    changed_.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return shut_ != kind; });
    --waiting_;
  }

 private:
  base::Mutex mutex_;
  base::Condition changed_;
  std::string shut_ ABSL_GUARDED_BY(mutex_);
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> no_syncs_{false};
  std::atomic<bool> fails_removals_{false};
};

class StallHook {
 public:
  explicit StallHook(Stall& stall) : stall_(stall) {}
  template <typename Work>
  auto Around(const char* kind, const std::string& path, Work work) -> decltype(work()) {
    stall_.Pass(kind, path);
    if constexpr (std::is_same_v<decltype(work()), absl::Status>) {
      if (stall_.no_syncs() && std::string_view(kind).starts_with("sync")) return absl::OkStatus();
      if (stall_.fails_removals() && std::string_view(kind).starts_with("remove")) {
        return absl::InternalError("the disk fails");
      }
    }
    return work();
  }
  template <typename Write>
  absl::Status Append(const std::string&, std::string_view bytes, Write write) {
    return write(bytes);
  }

 private:
  Stall& stall_;
};

class OperationTableTest : public ::testing::Test {
 protected:
  // `response` is that of the operations that gate_ and later_ run.
  explicit OperationTableTest(const OperationResponse& response = MadeResponse()) : gate_(response), later_(response) {}

  void SetUp() override { table_ = Open("operations"); }
  std::unique_ptr<OperationTable> Open(const std::string& name, absl::Duration deadline = absl::InfiniteDuration(),
                                       const OperationParser& parse_v1 = {}) {
    auto table = OperationTable::Open(files_, clock_, directory_ / name, deadline, {}, parse_v1);
    EXPECT_TRUE(table.ok()) << table.status();
    return *std::move(table);
  }
  std::string Start(Gate& gate) {
    const auto operation = table_->Start({.model = "m"}, gate.Body());
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.ok() ? operation->name : "";
  }
  Operation Get(const std::string& name) {
    const auto operation = table_->Get(name);
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.value_or(Operation());
  }
  Operation Wait(const std::string& name) { return EndOf(*table_, name); }
  absl::Status Cancel(const std::string& name) { return table_->Cancel(name); }
  absl::Status Delete(const std::string& name) { return table_->Delete(name); }

  // Waits for the end of an operation.
  static Operation EndOf(OperationTable& table, const std::string& name) {
    const auto ended = std::make_shared<std::promise<Operation>>();
    const auto handle = table.OnEnd(name, [ended](const Operation& operation) { ended->set_value(operation); });
    EXPECT_TRUE(handle.ok()) << handle.status();
    return ended->get_future().get();
  }
  // An operation that has ended, as a restart finds it.
  Operation OnDisk(const std::string& name) {
    std::filesystem::remove_all(directory_ / "copy");
    std::filesystem::copy(directory_ / "operations", directory_ / "copy");
    return Open("copy")->Get(name).value_or(Operation());
  }

  const testing::TempDirectory directory_;
  Stall stall_;
  base::HookedFiles<StallHook> files_{base::RealFileSystem(), stall_};
  base::FakeClock clock_{absl::FromUnixSeconds(1'700'000'000)};
  Gate gate_, later_;
  std::unique_ptr<OperationTable> table_;
};

}  // namespace nibble::operations
