// A table of operations with a service, and disks that stall, for tests of operations.
#pragma once
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "nibble/v1/fine_tune_service.pb.h"
#include "server/base/error.h"
#include "server/base/hooked_files.h"
#include "server/rpc/begin_operation.h"
#include "server/rpc/operations.h"
#include "server/rpc/operations_service.h"
#include "tests/support/temp_directory.h"

namespace nibble::rpc {

namespace longrunning = google::longrunning;

// A body that runs until the gate opens or it is cancelled.
class Gate {
 public:
  OperationTable::Body Body() {
    return [this](registry::OperationScope& scope) -> absl::StatusOr<google::protobuf::Any> {
      scope.Progress("reading", 1, 2);
      base::MutexLock lock(mutex_);
      ++begun_;
      changed_.NotifyAll();
      while (!open_) {
        if (scope.cancelled()) return absl::CancelledError("cancelled");
        changed_.WaitFor(lock, std::chrono::milliseconds(1),
                         [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_; });
      }
      v1::Model model;
      model.set_name("m");
      google::protobuf::Any answer;
      answer.PackFrom(model);
      return answer;
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
  base::Mutex mutex_;
  base::Condition changed_;
  int begun_ ABSL_GUARDED_BY(mutex_) = 0;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

// A stalled disk: one kind of change of an operation's record waits until Open. Thread-safe.
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
};

class StallHook {
 public:
  explicit StallHook(Stall& stall) : stall_(stall) {}
  template <typename Work>
  auto Around(const char* kind, const std::string& path, Work work) -> decltype(work()) {
    stall_.Pass(kind, path);
    if constexpr (std::is_same_v<decltype(work()), absl::Status>) {
      if (stall_.no_syncs() && std::string_view(kind).starts_with("sync")) return absl::OkStatus();
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

inline google::rpc::ErrorInfo InfoOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const auto& detail : status.details()) detail.UnpackTo(&info);
  return info;
}
inline google::rpc::ErrorInfo InfoOf(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details())) << status.error_message();
  return InfoOf(details);
}

class OperationsTest : public ::testing::Test {
 protected:
  using Stub = longrunning::Operations::Stub;

  void SetUp() override {
    table_ = Open("operations");
    service_ = std::make_unique<OperationsService>(environment_, *table_);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = longrunning::Operations::NewStub(server_->InProcessChannel({}));
  }
  void TearDown() override {
    stub_.reset();
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  std::unique_ptr<OperationTable> Open(const std::string& name, absl::Duration deadline = absl::InfiniteDuration()) {
    auto table = OperationTable::Open(files_, clock_, directory_ / name, deadline);
    EXPECT_TRUE(table.ok()) << table.status();
    return *std::move(table);
  }
  std::string Start(Gate& gate) {
    const auto operation = table_->Start({.model = "m"}, gate.Body());
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.ok() ? operation->name() : "";
  }
  template <typename Request, typename Response>
  grpc::Status Ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    return ((*stub_).*method)(&context, request, response);
  }
  longrunning::Operation Get(const std::string& name) {
    longrunning::GetOperationRequest request;
    request.set_name(name);
    longrunning::Operation operation;
    const grpc::Status status = Ask(&Stub::GetOperation, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return operation;
  }
  longrunning::Operation Wait(const std::string& name) {
    longrunning::WaitOperationRequest request;
    request.set_name(name);
    longrunning::Operation operation;
    const grpc::Status status = Ask(&Stub::WaitOperation, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return operation;
  }
  grpc::Status Cancel(const std::string& name) {
    longrunning::CancelOperationRequest request;
    request.set_name(name);
    google::protobuf::Empty none;
    return Ask(&Stub::CancelOperation, request, &none);
  }
  grpc::Status Delete(const std::string& name) {
    longrunning::DeleteOperationRequest request;
    request.set_name(name);
    google::protobuf::Empty none;
    return Ask(&Stub::DeleteOperation, request, &none);
  }

  // Waits for the end of an operation of a table that has no service.
  static longrunning::Operation EndOf(OperationTable& table, const std::string& name) {
    const auto ended = std::make_shared<std::promise<longrunning::Operation>>();
    const auto handle =
        table.OnEnd(name, [ended](const longrunning::Operation& operation) { ended->set_value(operation); });
    EXPECT_TRUE(handle.ok()) << handle.status();
    return ended->get_future().get();
  }
  // An operation that has ended, as a restart finds it.
  longrunning::Operation OnDisk(const std::string& name) {
    std::filesystem::remove_all(directory_ / "copy");
    std::filesystem::copy(directory_ / "operations", directory_ / "copy");
    return Open("copy")->Get(name).value_or(longrunning::Operation());
  }

  const testing::TempDirectory directory_;
  Stall stall_;
  base::HookedFiles<StallHook> files_{base::RealFileSystem(), stall_};
  base::FakeClock clock_{absl::FromUnixSeconds(1'700'000'000)};
  std::atomic<bool> draining_{false};
  telemetry::Metrics metrics_{{}, {}};
  base::WorkerPool workers_{1, 8};
  CallEnvironment environment_{metrics_, workers_, base::RealClock(), draining_};
  Gate gate_, later_;
  std::unique_ptr<OperationTable> table_;
  std::unique_ptr<OperationsService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace nibble::rpc
