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
#include "tests/server/rpc/operations_fixture.h"
#include "tests/support/temp_directory.h"

namespace nibble::rpc {
namespace {

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
    const auto operation =
        table.Start(start, [&, result](registry::OperationScope& scope) -> absl::StatusOr<google::protobuf::Any> {
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
  const OperationStart start{
      .lane = OperationLane::kLoads, .model = "m", .owner = ann, .request_id = "one", .digest = "a"};
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
  for (const absl::Status& status :
       {table_->Get(name, blue).status(), table_->Cancel(name, blue), table_->Delete(name, blue),
        table_->OnEnd(name, [](const longrunning::Operation&) {}, blue).status()}) {
    EXPECT_EQ(status.code(), absent.code());
    EXPECT_EQ(base::Reason(status), "OPERATION");
  }
  EXPECT_TRUE(table_->Delete(name, {.tenant = "red"}).ok());
}

TEST_F(OperationsTest, S2CallerLimitedToItsOwnOperationsCancelsNoOther) {
  const auto begin = [&](const std::string& name) {
    return table_
        ->Start({.lane = OperationLane::kReaders, .model = "m", .owner = {.tenant = "", .name = name}}, gate_.Body())
        ->name();
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
  const auto start_of = [](const std::string& owner) {
    return OperationStart{.model = "m", .owner = {.tenant = "", .name = owner}};
  };
  const auto run = [&](const std::string& owner, std::shared_ptr<const void> files = nullptr) {
    clock_.Advance(absl::Milliseconds(1));
    const auto operation = table_->Start(
        start_of(owner), [files](registry::OperationScope& scope) -> absl::StatusOr<google::protobuf::Any> {
          if (files != nullptr) scope.Hold(files, absl::Hours(1));
          return google::protobuf::Any();
        });
    EXPECT_TRUE(operation.ok()) << operation.status();
    EndOf(*table_, operation->name());
    return operation->name();
  };
  const auto there = [&](const std::string& name) { return table_->Get(name).ok(); };
  const std::string others = run("bob"), exported = run("ann", std::make_shared<const int>(1)), first = run("ann"),
                    second = run("ann");
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
  EXPECT_EQ(Open("operations")->List().size(),
            OperationTable::kMaxEndedOfOwner + OperationTable::kMaxDoneAtOnceOfOwner + 1)
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
    const OperationTable::Body body =
        [begun](registry::OperationScope& scope) -> absl::StatusOr<google::protobuf::Any> {
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
