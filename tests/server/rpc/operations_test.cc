// Long-running work as callers of the service google.longrunning.Operations see it.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "nibble/v1/fine_tune_service.pb.h"
#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/rpc/begin_operation.h"
#include "server/rpc/operations_service.h"
#include "tests/server/rpc/operations_fixture.h"

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
  ASSERT_TRUE(done.metadata().UnpackTo(&metadata));
  EXPECT_EQ(metadata.done(), 2) << "the body reported 1 of 2; a successful end reports the rest";
  EXPECT_EQ(metadata.total(), 2);
  EXPECT_EQ(Get(name).SerializeAsString(), done.SerializeAsString());
  EXPECT_EQ(table_->num_waiting(), 0u);
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
    // Every second wait is cancelled at once, perhaps while it is being registered.
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
  EXPECT_TRUE(Open("operations")->List().empty()) << "a restart does not bring it back";
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
  // There is only one list, and its name is "operations".
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

TEST_F(OperationsTest, OperationInterruptedByARestartIsAborted) {
  const std::string name = Start(gate_);
  gate_.AwaitBegun(1);
  std::filesystem::copy(directory_ / "operations", directory_ / "as_killed");
  const auto found = Open("as_killed")->Get(name);
  ASSERT_TRUE(found.ok()) << found.status();
  const longrunning::Operation after = ToProto(*found);
  EXPECT_TRUE(after.done());
  EXPECT_EQ(after.error().code(), static_cast<int>(grpc::StatusCode::ABORTED));
  EXPECT_EQ(InfoOf(after.error()).reason(), "SERVER_RESTARTED");
}

// docs/faults.md, C13: while the disk stalls, no operation begins or ends for callers, but Get, List, Cancel and Wait
// answer.
TEST_F(OperationsTest, C13StalledDiskHoldsUpNoCallThatOnlyReads) {
  const std::string running = Start(gate_), queued = Start(later_);
  gate_.AwaitBegun(1);
  stall_.Shut("sync");
  const operations::OperationStart start{
      .lane = operations::OperationLane::kPlans, .model = "m", .request_id = "one", .digest = "a"};
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
  EXPECT_EQ(one->name, same->name);
  EXPECT_EQ(Wait(queued).error().code(), 1);
  EXPECT_EQ(OnDisk(one->name).name, one->name);
  later_.Open();
  gate_.Open();
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
  EXPECT_TRUE(Wait(next->name).has_response());
  stall_.Open();
  sweep.get();
  EXPECT_EQ(Open("operations")->List().size(), 1u);
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
