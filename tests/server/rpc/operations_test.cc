// Long-running work in google.longrunning: the answers of the service over the wire, and what only the table knows.
#include "server/rpc/operations.h"

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
#include "server/rpc/operations_service.h"
#include "tests/support/temp_directory.h"

namespace nibble::rpc {
namespace {

namespace longrunning = google::longrunning;

// A body that runs until the gate opens or it is cancelled.
class Gate {
 public:
  OperationTable::Body Body() {
    return [this](OperationScope& scope) -> absl::StatusOr<google::protobuf::Any> {
      scope.Progress("reading", 1, 2);
      base::MutexLock lock(mutex_);
      ++begun_;
      changed_.NotifyAll();
      while (!open_) {
        if (scope.cancelled()) return absl::CancelledError("cancelled");
        changed_.WaitFor(lock, std::chrono::milliseconds(1), [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_; });
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

google::rpc::ErrorInfo InfoOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const auto& detail : status.details()) detail.UnpackTo(&info);
  return info;
}
google::rpc::ErrorInfo InfoOf(const grpc::Status& status) {
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
  grpc::Status Ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*), const Request& request,
                   Response* response) {
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
    const auto handle = table.OnEnd(name, [ended](const longrunning::Operation& operation) { ended->set_value(operation); });
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
  WorkerPool workers_{1, 8};
  CallEnvironment environment_{metrics_, workers_, base::RealClock(), draining_};
  Gate gate_, later_;
  std::unique_ptr<OperationTable> table_;
  std::unique_ptr<OperationsService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(OperationsTest, RunningOperationReportsItsProgressAndThenItsResult) {
  const std::string name = Start(gate_);
  gate_.AwaitBegun(1);
  const auto running = Get(name);
  EXPECT_FALSE(running.done());
  v1::ModelOperationMetadata metadata;
  ASSERT_TRUE(running.metadata().UnpackTo(&metadata));
  EXPECT_EQ(metadata.model(), "m");
  EXPECT_EQ(metadata.stage(), "reading");
  EXPECT_EQ(metadata.done(), 1);
  EXPECT_EQ(metadata.total(), 2);
  gate_.Open();
  const auto done = Wait(name);
  EXPECT_TRUE(done.done());
  v1::Model model;
  ASSERT_TRUE(done.response().UnpackTo(&model));
  EXPECT_EQ(model.name(), "m");
  EXPECT_EQ(Get(name).SerializeAsString(), done.SerializeAsString());
  EXPECT_EQ(table_->num_waiting(), 0u);
}

TEST_F(OperationsTest, C4OpenOperationsOfOnePrincipalAreBounded) {
  table_->set_max_of_owner(2);
  const auto start = [&](const std::string& name, const std::string& tenant) {
    return table_->Start({.model = "m", .owner = {.tenant = tenant, .name = name}}, gate_.Body()).status();
  };
  EXPECT_TRUE(start("ann", "").ok());
  EXPECT_TRUE(start("ann", "").ok());
  const absl::Status refused = start("ann", "");
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "QUEUE_FULL");
  EXPECT_EQ(base::ReasonMetadata(refused)["flag"], "--max_operations_per_principal");
  EXPECT_EQ(base::ReasonMetadata(refused)["max"], "2");
  EXPECT_TRUE(start("ann", "red").ok()) << "another principal";
  EXPECT_TRUE(start("bob", "").ok());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(start(auth::kNobody, "").ok()) << "without tokens there are no principals";
  gate_.Open();
  for (const auto& operation : table_->List()) Wait(operation->name());
  EXPECT_TRUE(start("ann", "").ok());
}

// Plans have two workers: the plans of one principal, however long they take, leave one worker to others.
TEST_F(OperationsTest, C4OnePrincipalDoesNotTakeAllWorkersOfALane) {
  const auto start = [&](const std::string& name, OperationTable::Body body) {
    const auto operation = table_->Start({.lane = OperationLane::kPlans, .model = "m", .owner = {.tenant = "", .name = name}}, std::move(body));
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.ok() ? operation->name() : "";
  };
  const auto at_once = [](OperationScope&) -> absl::StatusOr<google::protobuf::Any> { return google::protobuf::Any(); };
  std::vector<std::string> held;
  for (int i = 0; i < 3; ++i) held.push_back(start("ann", gate_.Body()));
  EXPECT_TRUE(Wait(start("bob", at_once)).done());
  EXPECT_TRUE(Wait(start(auth::kNobody, at_once)).done());
  EXPECT_FALSE(Get(held.back()).done());
  gate_.Open();
  for (const std::string& name : held) EXPECT_TRUE(Wait(name).done());
}

TEST_F(OperationsTest, WaitAnswersAtItsTimeoutAndBeforeItsDeadline) {
  longrunning::WaitOperationRequest request;
  request.set_name(Start(gate_));
  longrunning::Operation operation;
  // The answer is sent 0.2 s before the deadline. A machine that stalls for so long makes one answer late, but not all.
  grpc::Status in_time(grpc::StatusCode::DEADLINE_EXCEEDED, "");
  for (int i = 0; i < 20 && !in_time.ok(); ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
    in_time = stub_->WaitOperation(&context, request, &operation);
  }
  ASSERT_TRUE(in_time.ok()) << in_time.error_message();
  EXPECT_FALSE(operation.done());
  request.mutable_timeout()->set_nanos(10'000'000);
  const grpc::Status status = Ask(&Stub::WaitOperation, request, &operation);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(operation.name(), request.name());
  EXPECT_FALSE(operation.done());
  while (table_->num_waiting() > 0) std::this_thread::yield();
  request.set_name("operations/none");
  EXPECT_EQ(InfoOf(Ask(&Stub::WaitOperation, request, &operation)).reason(), "OPERATION");
}

// An operation may run for hours: a wait whose client has gone must not be kept for so long.
TEST_F(OperationsTest, AWaitWhoseClientHasGoneIsForgotten) {
  longrunning::WaitOperationRequest request;
  request.set_name(Start(gate_));
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    longrunning::Operation operation;
    auto waiting = std::async(std::launch::async, [&] { return stub_->WaitOperation(&context, request, &operation); });
    // Half of them are cancelled while they are being registered.
    while (i % 2 == 0 && table_->num_waiting() == 0) std::this_thread::yield();
    context.TryCancel();
    EXPECT_EQ(waiting.get().error_code(), grpc::StatusCode::CANCELLED);
    while (table_->num_waiting() > 0 || environment_.live_calls.count() > 0) std::this_thread::yield();
  }
  EXPECT_FALSE(Get(request.name()).done());
  gate_.Open();
  EXPECT_TRUE(Wait(request.name()).done());
}

TEST_F(OperationsTest, CancelledOperationHasCodeOneWhetherItRanOrNot) {
  const std::string running = Start(gate_), waiting = Start(later_);
  gate_.AwaitBegun(1);
  EXPECT_TRUE(Cancel(waiting).ok());
  EXPECT_EQ(Wait(waiting).error().code(), 1);
  EXPECT_FALSE(Get(running).done()) << "the cancelled one did not wait for its turn";
  EXPECT_TRUE(Cancel(running).ok());
  for (const std::string& name : {running, waiting}) {
    const auto done = Wait(name);
    EXPECT_TRUE(done.done());
    EXPECT_EQ(done.error().code(), 1);
    EXPECT_EQ(InfoOf(done.error()).reason(), "CANCELLED");
    EXPECT_TRUE(Cancel(name).ok()) << "it has ended: nothing to do";
    EXPECT_EQ(Get(name).SerializeAsString(), done.SerializeAsString());
  }
  EXPECT_EQ(InfoOf(Cancel("operations/none")).reason(), "OPERATION");
}

// The deadline counts from the beginning of the work, not from the request. A cancelled operation ends as cancelled,
// however late.
TEST_F(OperationsTest, OperationThatExceedsItsDeadlineIsEnded) {
  const auto table = Open("bounded", absl::Seconds(10));
  const auto start = [&](OperationTable::Body body) {
    const auto operation = table->Start({.model = "m"}, std::move(body));
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.ok() ? operation->name() : "";
  };
  const auto end = [&](const std::string& name) {
    const auto ended = std::make_shared<std::promise<longrunning::Operation>>();
    const auto handle = table->OnEnd(name, [ended](const longrunning::Operation& operation) { ended->set_value(operation); });
    EXPECT_TRUE(handle.ok()) << handle.status();
    return ended->get_future().get();
  };
  const std::string first = start(gate_.Body()), second = start(later_.Body());
  gate_.AwaitBegun(1);
  clock_.Advance(absl::Milliseconds(9'999));
  EXPECT_FALSE(table->Get(first)->done());
  clock_.Advance(absl::Milliseconds(1));
  const auto late = end(first);
  EXPECT_EQ(late.error().code(), static_cast<int>(grpc::StatusCode::DEADLINE_EXCEEDED));
  EXPECT_EQ(late.error().message(), "the operation ran longer than 10s");
  EXPECT_EQ(InfoOf(late.error()).reason(), "DEADLINE_EXCEEDED");
  later_.AwaitBegun(1);
  ASSERT_TRUE(table->Cancel(second).ok());
  clock_.Advance(absl::Seconds(11));
  EXPECT_EQ(end(second).error().code(), static_cast<int>(grpc::StatusCode::CANCELLED));
  // An operation that finishes without a check has succeeded.
  const std::string over = start([this](OperationScope&) -> absl::StatusOr<google::protobuf::Any> {
    clock_.Advance(absl::Seconds(11));
    return google::protobuf::Any();
  });
  EXPECT_TRUE(end(over).has_response());
}

TEST_F(OperationsTest, OnlyEndedOperationsAreDeleted) {
  const std::string name = Start(gate_);
  const grpc::Status refused = Delete(name);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(InfoOf(refused).reason(), "ILLEGAL_STATE");
  gate_.Open();
  Wait(name);
  EXPECT_TRUE(Delete(name).ok());
  const grpc::Status gone = Delete(name);
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(InfoOf(gone).reason(), "OPERATION");
  EXPECT_TRUE(Open("operations")->List().empty()) << "nor after a restart";
}

TEST_F(OperationsTest, ListsByPagesInOrderOfName) {
  gate_.Open();
  std::vector<std::string> names;
  for (int i = 0; i < 5; ++i) names.push_back(Start(gate_));
  std::sort(names.begin(), names.end());
  std::vector<std::string> listed;
  longrunning::ListOperationsRequest request;
  request.set_page_size(2);
  do {
    longrunning::ListOperationsResponse page;
    const grpc::Status status = Ask(&Stub::ListOperations, request, &page);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_LE(page.operations_size(), 2);
    for (const auto& one : page.operations()) listed.push_back(one.name());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty() && listed.size() < 10);
  EXPECT_EQ(listed, names);
  longrunning::ListOperationsResponse page;
  request.set_page_token("x");
  EXPECT_EQ(InfoOf(Ask(&Stub::ListOperations, request, &page)).reason(), "PAGE_TOKEN");
  request.clear_page_token();
  request.set_filter("done:true");
  EXPECT_EQ(InfoOf(Ask(&Stub::ListOperations, request, &page)).metadata().at("name"), "ListOperationsRequest.filter");
  // The name of the list: there is only one.
  request.clear_filter();
  request.set_page_size(100);
  request.set_name("operations");
  const grpc::Status named = Ask(&Stub::ListOperations, request, &page);
  ASSERT_TRUE(named.ok()) << named.error_message();
  EXPECT_EQ(page.operations_size(), 5);
  for (const std::string& other : {std::string("models/m"), names.front()}) {
    request.set_name(other);
    const grpc::Status refused = Ask(&Stub::ListOperations, request, &page);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNIMPLEMENTED) << other;
    EXPECT_EQ(InfoOf(refused).metadata().at("name"), "ListOperationsRequest.name");
  }
}

// docs/faults.md, C1: no walk over all operations finds a page or a request id.
TEST_F(OperationsTest, C1PageOfOneRowReadsAndCopiesNoOther) {
  for (int i = 0; i < 6; ++i) {
    const auth::RequestOwner owner{.tenant = i % 2 == 0 ? "red" : "blue", .name = "ci"};
    ASSERT_TRUE(table_->Start({.model = "m", .owner = owner}, {}, google::protobuf::Any()).ok());
  }
  const auto all = table_->List();
  ASSERT_EQ(all.size(), 6u);
  const auto page = table_->List({}, all[1]->name(), 2);
  ASSERT_EQ(page.size(), 2u);
  EXPECT_EQ(page[0], all[2]) << "the same object, not a copy";
  EXPECT_EQ(page[1], all[3]);
  std::vector<std::string> red;
  for (const auto& one : table_->List({.tenant = "red"})) red.push_back(one->name());
  EXPECT_EQ(red.size(), 3u);
  EXPECT_EQ(table_->List({.tenant = "red"}, red[0], 1).front()->name(), red[1]);
  EXPECT_TRUE(table_->List({.tenant = "red"}, red[2]).empty());
  EXPECT_TRUE(table_->List({.tenant = "green"}).empty());
}

// The estimate is the mean time of ended operations, less the time of the running one.
TEST_F(OperationsTest, FullQueueReportsWhenAPlaceIsFree) {
  const auto refused = [&] {
    absl::Status status;
    for (int i = 0; i < 100 && status.ok(); ++i) status = table_->Start({.model = "m"}, later_.Body()).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(base::Reason(status), "QUEUE_FULL");
    return base::ReasonMetadata(status)["retry_ms"];
  };
  const std::string first = Start(gate_);
  gate_.AwaitBegun(1);
  clock_.Advance(absl::Seconds(100));
  gate_.Open();
  Wait(first);
  Start(later_);
  later_.AwaitBegun(1);
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(refused(), "70000");
  clock_.Advance(absl::Seconds(300));
  EXPECT_EQ(refused(), "1000") << "it already takes longer than the mean";
}

TEST_F(OperationsTest, OperationInterruptedByARestartIsAborted) {
  const std::string name = Start(gate_);
  gate_.AwaitBegun(1);
  std::filesystem::copy(directory_ / "operations", directory_ / "as_killed");
  const auto after = Open("as_killed")->Get(name);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_TRUE(after->done());
  EXPECT_EQ(after->error().code(), static_cast<int>(grpc::StatusCode::ABORTED));
  EXPECT_EQ(InfoOf(after->error()).reason(), "SERVER_RESTARTED");
}

// The server ends in order, and no cancel was requested.
TEST_F(OperationsTest, C8OperationsInterruptedByTheEndOfTheServerAreAborted) {
  auto table = Open("ended");
  const auto start_of = [](const std::string& id) { return OperationStart{.model = "m", .request_id = id, .digest = "a"}; };
  const auto begin = [&](const OperationStart& start, Gate& gate) {
    const auto operation = table->Start(start, gate.Body());
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.ok() ? operation->name() : "";
  };
  const std::string running = begin(start_of("running"), gate_), queued = begin(start_of("queued"), gate_);
  // An operation that was cancelled and is in its last steps when the server ends.
  std::promise<void> begun, ending;
  const auto cancelled = table->Start({.lane = OperationLane::kReaders}, [&](OperationScope&) -> absl::StatusOr<google::protobuf::Any> {
    begun.set_value();
    ending.get_future().wait();
    return absl::CancelledError("cancelled");
  });
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  begun.get_future().wait();
  gate_.AwaitBegun(1);
  ASSERT_TRUE(table->Cancel(cancelled->name()).ok());
  std::vector<std::future<longrunning::Operation>> ends;
  for (const std::string& name : {running, queued}) {
    const auto end = std::make_shared<std::promise<longrunning::Operation>>();
    ends.push_back(end->get_future());
    ASSERT_TRUE(table->OnEnd(name, [end](const longrunning::Operation& operation) { end->set_value(operation); }).ok());
  }
  auto gone = std::async(std::launch::async, [&] { table.reset(); });
  for (auto& one : ends) {
    const longrunning::Operation operation = one.get();
    EXPECT_EQ(operation.error().code(), static_cast<int>(grpc::StatusCode::ABORTED)) << operation.error().message();
    EXPECT_EQ(InfoOf(operation.error()).reason(), "SERVER_RESTARTED");
  }
  ending.set_value();
  gone.get();
  const auto reopened = Open("ended");
  for (const std::string id : {"running", "queued"}) {
    const auto found = reopened->Find(start_of(id));
    ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
    EXPECT_EQ((*found)->name(), id == "running" ? running : queued);
    EXPECT_EQ((*found)->error().code(), static_cast<int>(grpc::StatusCode::ABORTED)) << (*found)->error().message();
    EXPECT_EQ(InfoOf((*found)->error()).reason(), "SERVER_RESTARTED");
  }
  EXPECT_EQ(reopened->Get(cancelled->name())->error().code(), static_cast<int>(grpc::StatusCode::CANCELLED));
}

// docs/faults.md, C9: the labels of a job's spec are a map, whose entries come in another order in every copy of the request.
TEST(DigestOfTest, C9EqualRequestsHaveEqualDigestsWhateverTheOrderOfTheirLabels) {
  v1::PlanJobRequest request;
  request.set_request_id("one");
  request.mutable_spec()->set_base_model("m");
  for (int i = 0; i < 16; ++i) (*request.mutable_spec()->mutable_labels())[base::StrCat("label-", i)] = "x";
  const std::string bytes = request.SerializeAsString(), digest = DigestOf(request);
  for (int i = 0; i < 20; ++i) {
    v1::PlanJobRequest again;
    ASSERT_TRUE(again.ParseFromString(bytes));
    again.set_request_id(base::StrCat("id-", i));
    EXPECT_EQ(DigestOf(again), digest) << i;
  }
  (*request.mutable_spec()->mutable_labels())["label-7"] = "y";
  EXPECT_NE(DigestOf(request), digest);
}

// docs/faults.md, C13: a stalled disk holds up calls that change something, not calls that only read.
TEST_F(OperationsTest, C13StalledDiskHoldsUpNoCallThatOnlyReads) {
  const std::string running = Start(gate_), queued = Start(later_);
  gate_.AwaitBegun(1);
  stall_.Shut("sync");
  const OperationStart start{.lane = OperationLane::kPlans, .model = "m", .request_id = "one", .digest = "a"};
  const auto begin = [&] { return table_->Start(start, later_.Body()); };
  auto first = std::async(std::launch::async, begin), second = std::async(std::launch::async, begin);
  stall_.AwaitWaiting(1);
  EXPECT_FALSE(Get(running).done());
  longrunning::ListOperationsResponse page;
  const grpc::Status listed = Ask(&Stub::ListOperations, longrunning::ListOperationsRequest(), &page);
  EXPECT_TRUE(listed.ok()) << listed.error_message();
  EXPECT_EQ(page.operations_size(), 2) << "the third is not on the disk yet, and must not be seen";
  EXPECT_TRUE(Cancel(queued).ok());
  longrunning::WaitOperationRequest wait;
  wait.set_name(queued);
  wait.mutable_timeout()->set_nanos(50'000'000);
  longrunning::Operation operation;
  const grpc::Status waited = Ask(&Stub::WaitOperation, wait, &operation);
  EXPECT_TRUE(waited.ok()) << waited.error_message();
  EXPECT_FALSE(operation.done()) << "its end is not on the disk";
  EXPECT_EQ(first.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << "its beginning is not on the disk";
  EXPECT_EQ(second.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << "the same operation";
  stall_.Open();
  const auto one = first.get(), same = second.get();
  ASSERT_TRUE(one.ok() && same.ok()) << one.status() << same.status();
  EXPECT_EQ(one->name(), same->name());
  EXPECT_EQ(Wait(queued).error().code(), 1);
  EXPECT_EQ(OnDisk(one->name()).name(), one->name());
  later_.Open();
  gate_.Open();
}

TEST_F(OperationsTest, C13EndIsVisibleOnlyWhenItIsOnTheDisk) {
  const std::string name = Start(gate_);
  gate_.AwaitBegun(1);
  stall_.Shut("rename");
  gate_.Open();
  stall_.AwaitWaiting(1);
  std::promise<void> notified;
  auto ended = notified.get_future();
  ASSERT_TRUE(table_->OnEnd(name, [&](const longrunning::Operation&) { notified.set_value(); }).ok());
  EXPECT_FALSE(Get(name).done());
  EXPECT_FALSE(table_->List().front()->done());
  EXPECT_EQ(InfoOf(Delete(name)).reason(), "ILLEGAL_STATE");
  EXPECT_EQ(ended.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  stall_.Open();
  ended.get();
  EXPECT_TRUE(Get(name).has_response());
  EXPECT_EQ(OnDisk(name).SerializeAsString(), Get(name).SerializeAsString());
}

TEST_F(OperationsTest, C13FilesAreRemovedWithoutHoldingUpOthers) {
  gate_.Open();
  const std::string old = Start(gate_);
  Wait(old);
  clock_.Advance(absl::Hours(25));
  stall_.Shut("remove");
  auto sweep = std::async(std::launch::async, [&] { table_->DropOld(); });
  stall_.AwaitWaiting(1);
  EXPECT_TRUE(absl::IsNotFound(table_->Get(old).status())) << "forgotten, though its file is still there";
  longrunning::ListOperationsResponse page;
  const grpc::Status listed = Ask(&Stub::ListOperations, longrunning::ListOperationsRequest(), &page);
  EXPECT_TRUE(listed.ok()) << listed.error_message();
  EXPECT_EQ(page.operations_size(), 0);
  const auto next = table_->Start({.model = "m"}, gate_.Body());
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(Wait(next->name()).has_response());
  stall_.Open();
  sweep.get();
  EXPECT_EQ(Open("operations")->List().size(), 1u);
}

// Operations are begun, cancelled and ended concurrently: the two records of an operation are written one after the
// other.
TEST_F(OperationsTest, C13DiskAndTableAgreeOnEveryOperation) {
  table_->Start({.lane = OperationLane::kReaders}, later_.Body()).status().IgnoreError();
  gate_.Open();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const auto lane = i % 2 == 0 ? OperationLane::kModels : OperationLane::kReaders;
        Gate& gate = lane == OperationLane::kModels ? gate_ : later_;
        const auto operation = table_->Start({.lane = lane, .model = base::StrCat(t, "-", i)}, gate.Body());
        if (!operation.ok() || i % 3 == 0) continue;
        EXPECT_TRUE(table_->Cancel(operation->name()).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  later_.Open();
  const auto all = table_->List();
  EXPECT_GT(all.size(), 80u);
  std::map<std::string, std::string> wanted;
  for (const auto& one : all) wanted[one->name()] = EndOf(*table_, one->name()).SerializeAsString();
  std::map<std::string, std::string> found;
  for (const auto& one : Open("operations")->List()) found[one->name()] = one->SerializeAsString();
  EXPECT_EQ(found, wanted);
}

// docs/faults.md, C9.
TEST_F(OperationsTest, C9RequestIdsBelongToOnePrincipalOfOneTenant) {
  gate_.Open();
  const auto start_of = [](const std::string& tenant, const std::string& name, const std::string& digest) {
    return OperationStart{.model = "m", .owner = {tenant, name}, .request_id = "one", .digest = digest};
  };
  const auto begin = [&](const OperationStart& start) {
    const auto operation = table_->Start(start, gate_.Body());
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.ok() ? operation->name() : "";
  };
  const std::string red = begin(start_of("red", "ci", "a")), blue = begin(start_of("blue", "ci", "b")),
                    ada = begin(start_of("red", "ada", "a"));
  EXPECT_NE(red, blue);
  EXPECT_NE(red, ada);
  for (const std::string& name : {red, blue, ada}) Wait(name);
  // The same after a restart.
  const auto reopened = Open("operations");
  for (OperationTable* table : {table_.get(), reopened.get()}) {
    const auto found = table->Find(start_of("red", "ci", "a"));
    ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
    EXPECT_EQ((*found)->name(), red);
    EXPECT_EQ((*table->Find(start_of("red", "ada", "a")))->name(), ada);
    EXPECT_FALSE(table->Find(start_of("blue", "ada", "a"))->has_value());
    EXPECT_FALSE(table->Find(start_of("", "ci", "a"))->has_value());
    const absl::Status conflict = table->Find(start_of("blue", "ci", "a")).status();
    EXPECT_EQ(base::Reason(conflict), "IDEMPOTENCY_CONFLICT");
    EXPECT_EQ(base::ReasonMetadata(conflict)["name"], blue) << "not the operation of another owner";
  }
  EXPECT_EQ(begin(start_of("blue", "ci", "b")), blue);
}

// docs/faults.md, C9: an operation that names files would otherwise answer a repeated request with files that are gone.
TEST_F(OperationsTest, C9FilesAndTheRequestIdOfTheirOperationAreForgottenTogether) {
  gate_.Open();
  const OperationStart start{.model = "m", .request_id = "one", .digest = "a"};
  std::weak_ptr<const int> files;
  const auto begin = [&](OperationTable& table, absl::Status result) {
    const auto operation = table.Start(start, [&, result](OperationScope& scope) -> absl::StatusOr<google::protobuf::Any> {
      const auto made = std::make_shared<const int>(1);
      files = made;
      scope.Hold(made, absl::Hours(1));
      if (!result.ok()) return result;
      return google::protobuf::Any();
    });
    EXPECT_TRUE(operation.ok()) << operation.status();
    const auto ended = std::make_shared<std::promise<void>>();
    const auto handle = table.OnEnd(operation->name(), [ended](const longrunning::Operation&) { ended->set_value(); });
    EXPECT_TRUE(handle.ok()) << handle.status();
    ended->get_future().get();
    return operation->name();
  };
  const std::string first = begin(*table_, absl::OkStatus());
  clock_.Advance(absl::Minutes(59));
  table_->DropOld();
  EXPECT_FALSE(files.expired());
  EXPECT_EQ((*table_->Find(start))->name(), first);
  clock_.Advance(absl::Minutes(2));
  table_->DropOld();
  EXPECT_TRUE(files.expired());
  EXPECT_FALSE(table_->Find(start)->has_value());
  EXPECT_TRUE(Get(first).has_response()) << "its result can still be read";
  // Without a call to DropOld: the id does not outlive the files.
  const std::string second = begin(*table_, absl::OkStatus());
  EXPECT_NE(second, first);
  clock_.Advance(absl::Hours(2));
  EXPECT_FALSE(table_->Find(start)->has_value());
  EXPECT_TRUE(files.expired());
  // The files are deleted with their operation.
  const std::string third = begin(*table_, absl::OkStatus());
  EXPECT_TRUE(Delete(third).ok());
  EXPECT_TRUE(files.expired());
  EXPECT_FALSE(table_->Find(start)->has_value());
  // A start empties uploads/, where the files are.
  const std::string fourth = begin(*table_, absl::OkStatus());
  const auto reopened = Open("operations");
  EXPECT_FALSE(reopened->Find(start)->has_value());
  EXPECT_TRUE(reopened->Get(fourth)->has_response());
  EXPECT_TRUE(Delete(fourth).ok());
  // A failed operation has nothing to keep; its id still answers.
  const std::string failed = begin(*table_, absl::InternalError("broken"));
  while (!files.expired()) std::this_thread::yield();  // dropped after its end is announced
  EXPECT_EQ((*table_->Find(start))->name(), failed);
}

TEST_F(OperationsTest, OperationWithoutWorkEndsAtOnceDespiteTheBound) {
  table_->set_max_of_owner(1);
  const auth::RequestOwner ann{.tenant = "", .name = "ann"};
  const OperationStart start{.lane = OperationLane::kLoads, .model = "m", .owner = ann, .request_id = "one", .digest = "a"};
  ASSERT_TRUE(table_->Start({.model = "m", .owner = ann}, gate_.Body()).ok());
  v1::Model model;
  model.set_name("m");
  google::protobuf::Any made;
  made.PackFrom(model);
  const auto operation = table_->Start(start, {}, made);
  ASSERT_TRUE(operation.ok()) << operation.status();
  EXPECT_TRUE(operation->done());
  EXPECT_EQ(operation->response().SerializeAsString(), made.SerializeAsString());
  EXPECT_EQ((*table_->Find(start))->name(), operation->name());
  EXPECT_EQ(Open("operations")->Get(operation->name())->SerializeAsString(), operation->SerializeAsString());
}

// An operation that is cancelled in the queue makes room at once.
TEST_F(OperationsTest, OperationCancelledInTheQueueGivesItsPlaceToTheNext) {
  const std::string running = Start(gate_);
  gate_.AwaitBegun(1);
  std::vector<std::string> queued;
  absl::StatusOr<longrunning::Operation> last = longrunning::Operation();
  while (true) {
    last = table_->Start({.model = "m"}, later_.Body());
    if (!last.ok()) break;
    queued.push_back(last->name());
  }
  EXPECT_EQ(base::Reason(last.status()), "QUEUE_FULL");
  EXPECT_TRUE(Cancel(queued[3]).ok());
  EXPECT_EQ(Wait(queued[3]).error().code(), 1);
  EXPECT_TRUE(table_->Start({.model = "m"}, later_.Body()).ok());
  EXPECT_FALSE(table_->Start({.model = "m"}, later_.Body()).ok());
  gate_.Open();
  later_.Open();
  for (const std::string& name : queued) EXPECT_EQ(Wait(name).has_error(), name == queued[3]);
  Wait(running);
}

TEST_F(OperationsTest, LanesDoNotWaitForEachOther) {
  const std::string conversion = Start(gate_);
  gate_.AwaitBegun(1);
  const std::string next = Start(gate_);
  Gate open;
  open.Open();
  for (const OperationLane lane : {OperationLane::kReaders, OperationLane::kPlans, OperationLane::kLoads}) {
    const auto operation = table_->Start({.lane = lane, .model = "m"}, open.Body());
    ASSERT_TRUE(operation.ok()) << operation.status();
    EXPECT_TRUE(Wait(operation->name()).has_response());
  }
  EXPECT_FALSE(Get(conversion).done());
  EXPECT_FALSE(Get(next).done()) << "of the same lane";
  gate_.Open();
}

TEST_F(OperationsTest, S2OperationIsVisibleOnlyToItsTenant) {
  gate_.Open();
  const auto red = table_->Start({.model = "m", .owner = {.tenant = "red", .name = "ann"}}, gate_.Body());
  ASSERT_TRUE(red.ok()) << red.status();
  const std::string name = red->name();
  Wait(name);
  for (const std::string tenant : {"", "red"}) {
    EXPECT_TRUE(table_->Get(name, {.tenant = tenant}).ok()) << tenant;
    EXPECT_EQ(table_->List({.tenant = tenant}).size(), 1u) << tenant;
  }
  const OperationViewer blue{.tenant = "blue"};
  EXPECT_TRUE(table_->List(blue).empty());
  const absl::Status absent = table_->Get("operations/op-none", blue).status();
  for (const absl::Status& status : {table_->Get(name, blue).status(), table_->Cancel(name, blue), table_->Delete(name, blue),
                                     table_->OnEnd(name, [](const longrunning::Operation&) {}, blue).status()}) {
    EXPECT_EQ(status.code(), absent.code());
    EXPECT_EQ(base::Reason(status), "OPERATION");
  }
  EXPECT_TRUE(table_->Delete(name, {.tenant = "red"}).ok());
}

TEST_F(OperationsTest, S2CallerLimitedToItsOwnOperationsCancelsNoOther) {
  const auto begin = [&](const std::string& name) {
    return table_->Start({.lane = OperationLane::kReaders, .model = "m", .owner = {.tenant = "", .name = name}}, gate_.Body())->name();
  };
  const std::string own = begin("ann"), others = begin("bob");
  const OperationViewer ann{.only_own = auth::RequestOwner{.tenant = "", .name = "ann"}};
  const absl::Status refused = table_->Cancel(others, ann);
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "ROLE");
  EXPECT_TRUE(table_->Cancel(own, ann).ok());
  EXPECT_EQ(Wait(own).error().code(), static_cast<int>(grpc::StatusCode::CANCELLED));
  EXPECT_FALSE(Get(others).done());
  gate_.Open();
}

// docs/faults.md, C9: operations with files are removed last, and loads that were done at once have their own bound.
TEST_F(OperationsTest, C9OldestOperationsWithoutFilesAreRemovedBeyondTheBound) {
  stall_.LeaveOutSyncs();
  const auto start_of = [](const std::string& owner) { return OperationStart{.model = "m", .owner = {.tenant = "", .name = owner}}; };
  const auto run = [&](const std::string& owner, std::shared_ptr<const void> files = nullptr) {
    clock_.Advance(absl::Milliseconds(1));
    const auto operation = table_->Start(start_of(owner), [files](OperationScope& scope) -> absl::StatusOr<google::protobuf::Any> {
      if (files != nullptr) scope.Hold(files, absl::Hours(1));
      return google::protobuf::Any();
    });
    EXPECT_TRUE(operation.ok()) << operation.status();
    EndOf(*table_, operation->name());
    return operation->name();
  };
  const auto there = [&](const std::string& name) { return table_->Get(name).ok(); };
  const std::string others = run("bob"), exported = run("ann", std::make_shared<const int>(1)), first = run("ann"), second = run("ann");
  const auto at_once = [&] {
    clock_.Advance(absl::Seconds(1));
    return table_->Start(start_of("ann"), {}, google::protobuf::Any())->name();
  };
  const std::string loaded = at_once();
  for (std::size_t i = 3; i < OperationTable::kMaxEndedOfOwner; ++i) run("ann");
  EXPECT_TRUE(there(first));
  const std::string next = run("ann");
  EXPECT_FALSE(there(first));
  EXPECT_TRUE(there(exported)) << "the oldest of all, but its files were promised for an hour";
  EXPECT_TRUE(there(second) && there(next) && there(others) && there(loaded));
  const std::string loaded_next = at_once();
  for (std::size_t i = 2; i < OperationTable::kMaxDoneAtOnceOfOwner; ++i) at_once();
  EXPECT_TRUE(there(loaded));
  at_once();
  EXPECT_FALSE(there(loaded));
  EXPECT_TRUE(there(loaded_next) && there(exported) && there(second)) << "they remove nothing else";
  EXPECT_EQ(Open("operations")->List().size(), OperationTable::kMaxEndedOfOwner + OperationTable::kMaxDoneAtOnceOfOwner + 1)
      << "their records are removed too";
  // A restart keeps the two kinds apart.
  const auto reopened = Open("operations");
  ASSERT_TRUE(reopened->Start(start_of("ann"), {}, google::protobuf::Any()).ok());
  EXPECT_FALSE(reopened->Get(loaded_next).ok());
  EXPECT_TRUE(reopened->Get(second).ok());
  // After the hour, the operation holds no files and is the oldest.
  clock_.Advance(absl::Hours(2));
  run("ann");
  EXPECT_FALSE(there(exported));
  EXPECT_TRUE(there(second));
}

// A body that cannot check the scope, such as that of a plan, is cancelled through its token.
TEST_F(OperationsTest, TokenOfACancelledOrLateOperationIsCancelled) {
  const auto table = Open("bounded", absl::Seconds(10));
  for (const bool late : {false, true}) {
    const auto begun = std::make_shared<std::promise<void>>(), ended = std::make_shared<std::promise<void>>();
    const OperationTable::Body body = [begun](OperationScope& scope) -> absl::StatusOr<google::protobuf::Any> {
      const base::CancelToken cancel = scope.cancel();
      begun->set_value();
      while (!cancel.cancelled()) std::this_thread::yield();
      return absl::CancelledError("cancelled");
    };
    const auto operation = table->Start({.lane = OperationLane::kPlans}, body);
    ASSERT_TRUE(operation.ok()) << operation.status();
    ASSERT_TRUE(table->OnEnd(operation->name(), [ended](const longrunning::Operation&) { ended->set_value(); }).ok());
    begun->get_future().get();
    if (late) {
      clock_.Advance(absl::Seconds(11));
      table->DropOld();
    } else {
      EXPECT_TRUE(table->Cancel(operation->name()).ok());
    }
    ended->get_future().get();
    EXPECT_EQ(table->Get(operation->name())->error().code(),
              static_cast<int>(late ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::CANCELLED));
  }
}

TEST_F(OperationsTest, EndedOperationIsKeptForADay) {
  gate_.Open();
  const std::string name = Start(gate_);
  Wait(name);
  clock_.Advance(absl::Hours(23));
  const std::string next = Start(gate_);
  Wait(next);
  EXPECT_TRUE(Get(name).done());
  clock_.Advance(absl::Hours(2));
  const std::string last = Start(gate_);
  EXPECT_TRUE(absl::IsNotFound(table_->Get(name).status()));
  EXPECT_TRUE(table_->Get(next).ok());
  Wait(last);
  EXPECT_EQ(Open("operations")->List().size(), 2u);
}

}  // namespace
}  // namespace nibble::rpc
