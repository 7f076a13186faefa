#include "server/operations/operation_table.h"

#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/strings.h"
#include "tests/server/operations/operation_table_fixture.h"

namespace nibble::operations {
namespace {

TEST_F(OperationTableTest, C4OpenOperationsOfOnePrincipalAreBounded) {
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
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(start(base::kUnnamedCaller, "").ok()) << "without tokens there are no principals";
  gate_.Open();
  for (const auto& operation : table_->List()) Wait(operation->name);
  EXPECT_TRUE(start("ann", "").ok());
}

// Plans have two workers: the plans of one principal, however long they take, leave one worker to others.
TEST_F(OperationTableTest, C4OnePrincipalDoesNotTakeAllWorkersOfALane) {
  const auto start = [&](const std::string& name, OperationTable::Body body) {
    const auto operation = table_->Start(
        {.lane = OperationLane::kPlans, .model = "m", .owner = {.tenant = "", .name = name}}, std::move(body));
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.ok() ? operation->name : "";
  };
  const auto at_once = [](registry::OperationScope&) -> absl::StatusOr<OperationResponse> {
    return OperationResponse();
  };
  std::vector<std::string> held;
  for (int i = 0; i < 3; ++i) held.push_back(start("ann", gate_.Body()));
  EXPECT_TRUE(Wait(start("bob", at_once)).done);
  EXPECT_TRUE(Wait(start(base::kUnnamedCaller, at_once)).done);
  EXPECT_FALSE(Get(held.back()).done);
  gate_.Open();
  for (const std::string& name : held) EXPECT_TRUE(Wait(name).done);
}

// The deadline counts from the beginning of the work, not from the request. A cancelled operation ends as cancelled,
// however late.
TEST_F(OperationTableTest, OperationThatExceedsItsDeadlineIsEnded) {
  const auto table = Open("bounded", absl::Seconds(10));
  const auto start = [&](OperationTable::Body body) {
    const auto operation = table->Start({.model = "m"}, std::move(body));
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.ok() ? operation->name : "";
  };
  const std::string first = start(gate_.Body()), second = start(later_.Body());
  gate_.AwaitBegun(1);
  clock_.Advance(absl::Milliseconds(9'999));
  EXPECT_FALSE(table->Get(first)->done);
  clock_.Advance(absl::Milliseconds(1));
  const auto late = EndOf(*table, first);
  EXPECT_EQ(late.error, absl::DeadlineExceededError("the operation ran longer than 10s"));
  later_.AwaitBegun(1);
  ASSERT_TRUE(table->Cancel(second).ok());
  clock_.Advance(absl::Seconds(11));
  EXPECT_EQ(EndOf(*table, second).error.code(), absl::StatusCode::kCancelled);
  // An operation that finishes before it checks its deadline has succeeded.
  const std::string over = start([this](registry::OperationScope&) -> absl::StatusOr<OperationResponse> {
    clock_.Advance(absl::Seconds(11));
    return OperationResponse();
  });
  EXPECT_TRUE(EndOf(*table, over).response.has_value());
}

// docs/faults.md, C1: a page holds the table's own objects, not copies. OperationIndexTest shows that no call walks
// over all operations.
TEST_F(OperationTableTest, C1PageOfOneRowReadsAndCopiesNoOther) {
  for (int i = 0; i < 6; ++i) {
    const auth::RequestOwner owner{.tenant = i % 2 == 0 ? "red" : "blue", .name = "ci"};
    ASSERT_TRUE(table_->Start({.model = "m", .owner = owner}, {}, OperationResponse()).ok());
  }
  const auto all = table_->List();
  ASSERT_EQ(all.size(), 6u);
  const auto page = table_->List({}, all[1]->name, 2);
  ASSERT_EQ(page.size(), 2u);
  EXPECT_EQ(page[0], all[2]) << "the same object, not a copy";
  EXPECT_EQ(page[1], all[3]);
  std::vector<std::string> red;
  for (const auto& one : table_->List({.tenant = "red"})) red.push_back(one->name);
  EXPECT_EQ(red.size(), 3u);
  EXPECT_EQ(table_->List({.tenant = "red"}, red[0], 1).front()->name, red[1]);
  EXPECT_TRUE(table_->List({.tenant = "red"}, red[2]).empty());
  EXPECT_TRUE(table_->List({.tenant = "green"}).empty());
}

// The estimate is the mean time of ended operations, less the time of the running one.
TEST_F(OperationTableTest, FullQueueReportsWhenAPlaceIsFree) {
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

// The server shuts down normally, and no caller has cancelled the operations "running" and "queued".
TEST_F(OperationTableTest, C8OperationsInterruptedByTheEndOfTheServerAreAborted) {
  auto table = Open("ended");
  const auto start_of = [](const std::string& id) {
    return OperationStart{.model = "m", .request_id = id, .digest = "a"};
  };
  const auto begin = [&](const OperationStart& start, Gate& gate) {
    const auto operation = table->Start(start, gate.Body());
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.ok() ? operation->name : "";
  };
  const std::string running = begin(start_of("running"), gate_), queued = begin(start_of("queued"), gate_);
  // An operation that was cancelled and is in its last steps when the server ends.
  std::promise<void> begun, ending;
  const auto cancelled = table->Start({.lane = OperationLane::kReaders},
                                      [&](registry::OperationScope&) -> absl::StatusOr<OperationResponse> {
                                        begun.set_value();
                                        ending.get_future().wait();
                                        return absl::CancelledError("cancelled");
                                      });
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  begun.get_future().wait();
  gate_.AwaitBegun(1);
  ASSERT_TRUE(table->Cancel(cancelled->name).ok());
  std::vector<std::future<Operation>> ends;
  for (const std::string& name : {running, queued}) {
    const auto end = std::make_shared<std::promise<Operation>>();
    ends.push_back(end->get_future());
    ASSERT_TRUE(table->OnEnd(name, [end](const Operation& operation) { end->set_value(operation); }).ok());
  }
  auto gone = std::async(std::launch::async, [&] { table.reset(); });
  for (auto& one : ends) {
    const Operation operation = one.get();
    EXPECT_EQ(operation.error.code(), absl::StatusCode::kAborted) << operation.error;
    EXPECT_EQ(base::Reason(operation.error), "SERVER_RESTARTED");
  }
  ending.set_value();
  gone.get();
  const auto reopened = Open("ended");
  for (const std::string id : {"running", "queued"}) {
    const auto found = reopened->Find(start_of(id));
    ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
    EXPECT_EQ((*found)->name, id == "running" ? running : queued);
    EXPECT_EQ((*found)->error.code(), absl::StatusCode::kAborted) << (*found)->error;
    EXPECT_EQ(base::Reason((*found)->error), "SERVER_RESTARTED");
  }
  EXPECT_EQ(reopened->Get(cancelled->name)->error.code(), absl::StatusCode::kCancelled);
}

TEST_F(OperationTableTest, OperationWithoutWorkEndsAtOnceDespiteTheBound) {
  table_->set_max_of_owner(1);
  const auth::RequestOwner ann{.tenant = "", .name = "ann"};
  const OperationStart start{
      .lane = OperationLane::kLoads, .model = "m", .owner = ann, .request_id = "one", .digest = "a"};
  ASSERT_TRUE(table_->Start({.model = "m", .owner = ann}, gate_.Body()).ok());
  const OperationResponse made{.type = "example.com/Message", .bytes = "made"};
  const auto operation = table_->Start(start, {}, made);
  ASSERT_TRUE(operation.ok()) << operation.status();
  EXPECT_TRUE(operation->done);
  EXPECT_EQ(operation->response, made);
  EXPECT_EQ((*table_->Find(start))->name, operation->name);
  EXPECT_EQ(Open("operations")->Get(operation->name).value(), *operation);
}

// An operation that is cancelled in the queue makes room at once.
TEST_F(OperationTableTest, OperationCancelledInTheQueueGivesItsPlaceToTheNext) {
  const std::string running = Start(gate_);
  gate_.AwaitBegun(1);
  std::vector<std::string> queued;
  absl::StatusOr<Operation> last = Operation();
  while (true) {
    last = table_->Start({.model = "m"}, later_.Body());
    if (!last.ok()) break;
    queued.push_back(last->name);
  }
  EXPECT_EQ(base::Reason(last.status()), "QUEUE_FULL");
  EXPECT_TRUE(Cancel(queued[3]).ok());
  EXPECT_EQ(Wait(queued[3]).error.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(table_->Start({.model = "m"}, later_.Body()).ok());
  EXPECT_FALSE(table_->Start({.model = "m"}, later_.Body()).ok());
  gate_.Open();
  later_.Open();
  for (const std::string& name : queued) EXPECT_EQ(Wait(name).response.has_value(), name != queued[3]);
  Wait(running);
}

TEST_F(OperationTableTest, LanesDoNotWaitForEachOther) {
  const std::string conversion = Start(gate_);
  gate_.AwaitBegun(1);
  const std::string next = Start(gate_);
  Gate open;
  open.Open();
  for (const OperationLane lane : {OperationLane::kReaders, OperationLane::kPlans, OperationLane::kLoads}) {
    const auto operation = table_->Start({.lane = lane, .model = "m"}, open.Body());
    ASSERT_TRUE(operation.ok()) << operation.status();
    EXPECT_TRUE(Wait(operation->name).response.has_value());
  }
  EXPECT_FALSE(Get(conversion).done);
  EXPECT_FALSE(Get(next).done) << "of the same lane";
  gate_.Open();
}

TEST_F(OperationTableTest, S2OperationIsVisibleOnlyToItsTenant) {
  gate_.Open();
  const auto red = table_->Start({.model = "m", .owner = {.tenant = "red", .name = "ann"}}, gate_.Body());
  ASSERT_TRUE(red.ok()) << red.status();
  const std::string name = red->name;
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
        table_->OnEnd(name, [](const Operation&) {}, blue).status()}) {
    EXPECT_EQ(status.code(), absent.code());
    EXPECT_EQ(base::Reason(status), "OPERATION");
  }
  EXPECT_TRUE(table_->Delete(name, {.tenant = "red"}).ok());
}

TEST_F(OperationTableTest, S2CallerLimitedToItsOwnOperationsCancelsNoOther) {
  const auto begin = [&](const std::string& name) {
    return table_
        ->Start({.lane = OperationLane::kReaders, .model = "m", .owner = {.tenant = "", .name = name}}, gate_.Body())
        ->name;
  };
  const std::string own = begin("ann"), others = begin("bob");
  const OperationViewer ann{.only_own = auth::RequestOwner{.tenant = "", .name = "ann"}};
  const absl::Status refused = table_->Cancel(others, ann);
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "ROLE");
  EXPECT_TRUE(table_->Cancel(own, ann).ok());
  EXPECT_EQ(Wait(own).error.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(Get(others).done);
  gate_.Open();
}

// A body that cannot check the scope, such as that of a plan, is cancelled through its token.
TEST_F(OperationTableTest, TokenOfACancelledOrLateOperationIsCancelled) {
  const auto table = Open("bounded", absl::Seconds(10));
  for (const bool late : {false, true}) {
    const auto begun = std::make_shared<std::promise<void>>(), ended = std::make_shared<std::promise<void>>();
    const OperationTable::Body body = [begun](registry::OperationScope& scope) -> absl::StatusOr<OperationResponse> {
      const base::CancelToken cancel = scope.cancel();
      begun->set_value();
      while (!cancel.cancelled()) std::this_thread::yield();
      return absl::CancelledError("cancelled");
    };
    const auto operation = table->Start({.lane = OperationLane::kPlans}, body);
    ASSERT_TRUE(operation.ok()) << operation.status();
    ASSERT_TRUE(table->OnEnd(operation->name, [ended](const Operation&) { ended->set_value(); }).ok());
    begun->get_future().get();
    if (late) {
      clock_.Advance(absl::Seconds(11));
      table->DropOld();
    } else {
      EXPECT_TRUE(table->Cancel(operation->name).ok());
    }
    ended->get_future().get();
    EXPECT_EQ(table->Get(operation->name)->error.code(),
              late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kCancelled);
  }
}

}  // namespace
}  // namespace nibble::operations
