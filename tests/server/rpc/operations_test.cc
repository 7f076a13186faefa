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
#include "tests/server/rpc/operations_fixture.h"
#include "tests/support/temp_directory.h"

namespace nibble::rpc {
namespace {

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
    const auto operation = table_->Start(
        {.lane = OperationLane::kPlans, .model = "m", .owner = {.tenant = "", .name = name}}, std::move(body));
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.ok() ? operation->name() : "";
  };
  const auto at_once = [](registry::OperationScope&) -> absl::StatusOr<google::protobuf::Any> {
    return google::protobuf::Any();
  };
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
    const auto handle =
        table->OnEnd(name, [ended](const longrunning::Operation& operation) { ended->set_value(operation); });
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
  const std::string over = start([this](registry::OperationScope&) -> absl::StatusOr<google::protobuf::Any> {
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
  const auto start_of = [](const std::string& id) {
    return OperationStart{.model = "m", .request_id = id, .digest = "a"};
  };
  const auto begin = [&](const OperationStart& start, Gate& gate) {
    const auto operation = table->Start(start, gate.Body());
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.ok() ? operation->name() : "";
  };
  const std::string running = begin(start_of("running"), gate_), queued = begin(start_of("queued"), gate_);
  // An operation that was cancelled and is in its last steps when the server ends.
  std::promise<void> begun, ending;
  const auto cancelled = table->Start({.lane = OperationLane::kReaders},
                                      [&](registry::OperationScope&) -> absl::StatusOr<google::protobuf::Any> {
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

// docs/faults.md, C9: the labels of a job's spec are a map, whose entries come in another order in every copy of the
// request.
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

}  // namespace
}  // namespace nibble::rpc
