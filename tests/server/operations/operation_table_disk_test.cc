// The table of operations and its files.
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "server/operations/operation_table.h"
#include "tests/server/operations/operation_table_fixture.h"

namespace nibble::operations {
namespace {

TEST_F(OperationTableTest, C13EndIsVisibleOnlyWhenItIsOnTheDisk) {
  const std::string name = Start(gate_);
  gate_.AwaitBegun(1);
  stall_.Shut("rename");
  gate_.Open();
  stall_.AwaitWaiting(1);
  std::promise<void> notified;
  auto ended = notified.get_future();
  ASSERT_TRUE(table_->OnEnd(name, [&](const Operation&) { notified.set_value(); }).ok());
  EXPECT_FALSE(Get(name).done);
  EXPECT_FALSE(table_->List().front()->done);
  EXPECT_EQ(base::Reason(Delete(name)), "ILLEGAL_STATE");
  EXPECT_EQ(ended.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  stall_.Open();
  ended.get();
  EXPECT_TRUE(Get(name).response.has_value());
  EXPECT_EQ(OnDisk(name), Get(name));
}

TEST_F(OperationTableTest, DeleteThatFailedCanBeRepeated) {
  const std::string name = Start(gate_);
  gate_.Open();
  Wait(name);
  stall_.FailRemovals(true);
  EXPECT_TRUE(absl::IsInternal(Delete(name)));
  EXPECT_EQ(OnDisk(name), Get(name));
  stall_.FailRemovals(false);
  EXPECT_TRUE(Delete(name).ok());
  EXPECT_TRUE(absl::IsNotFound(Delete(name)));
  EXPECT_TRUE(absl::IsNotFound(Open("operations")->Get(name).status()));
}

// Operations begin, end and are cancelled concurrently. The file of an operation's beginning must be written before
// the file of its end.
TEST_F(OperationTableTest, C13DiskAndTableAgreeOnEveryOperation) {
  // Keeps one of the two workers for readers busy until later_ opens; no thread cancels it.
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
        EXPECT_TRUE(table_->Cancel(operation->name).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  later_.Open();
  const auto all = table_->List();
  EXPECT_GT(all.size(), 80u);
  std::map<std::string, Operation> wanted;
  for (const auto& one : all) wanted[one->name] = EndOf(*table_, one->name);
  std::map<std::string, Operation> found;
  for (const auto& one : Open("operations")->List()) found[one->name] = *one;
  EXPECT_EQ(found, wanted);
}

// docs/faults.md, C9.
TEST_F(OperationTableTest, C9RequestIdsBelongToOnePrincipalOfOneTenant) {
  gate_.Open();
  const auto start_of = [](const std::string& tenant, const std::string& name, const std::string& digest) {
    return OperationStart{.model = "m", .owner = {tenant, name}, .request_id = "one", .digest = digest};
  };
  const auto begin = [&](const OperationStart& start) {
    const auto operation = table_->Start(start, gate_.Body());
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.ok() ? operation->name : "";
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
    EXPECT_EQ((*found)->name, red);
    EXPECT_EQ((*table->Find(start_of("red", "ada", "a")))->name, ada);
    EXPECT_FALSE(table->Find(start_of("blue", "ada", "a"))->has_value());
    EXPECT_FALSE(table->Find(start_of("", "ci", "a"))->has_value());
    const absl::Status conflict = table->Find(start_of("blue", "ci", "a")).status();
    EXPECT_EQ(base::Reason(conflict), "IDEMPOTENCY_CONFLICT");
    EXPECT_EQ(base::ReasonMetadata(conflict)["name"], blue) << "not the operation of another owner";
  }
  EXPECT_EQ(begin(start_of("blue", "ci", "b")), blue);
}

// docs/faults.md, C9: an operation that names files would otherwise answer a repeated request with files that are gone.
TEST_F(OperationTableTest, C9FilesAndTheRequestIdOfTheirOperationAreForgottenTogether) {
  gate_.Open();
  const OperationStart start{.model = "m", .request_id = "one", .digest = "a"};
  std::weak_ptr<const int> files;
  const auto begin = [&](OperationTable& table, absl::Status result) {
    const auto operation =
        table.Start(start, [&, result](registry::OperationScope& scope) -> absl::StatusOr<OperationResponse> {
          const auto made = std::make_shared<const int>(1);
          files = made;
          scope.Hold(made, absl::Hours(1));
          if (!result.ok()) return result;
          return OperationResponse();
        });
    EXPECT_TRUE(operation.ok()) << operation.status();
    const auto ended = std::make_shared<std::promise<void>>();
    const auto handle = table.OnEnd(operation->name, [ended](const Operation&) { ended->set_value(); });
    EXPECT_TRUE(handle.ok()) << handle.status();
    ended->get_future().get();
    return operation->name;
  };
  const std::string first = begin(*table_, absl::OkStatus());
  clock_.Advance(absl::Minutes(59));
  table_->DropOld();
  EXPECT_FALSE(files.expired());
  EXPECT_EQ((*table_->Find(start))->name, first);
  clock_.Advance(absl::Minutes(2));
  table_->DropOld();
  EXPECT_TRUE(files.expired());
  EXPECT_FALSE(table_->Find(start)->has_value());
  EXPECT_TRUE(Get(first).response.has_value()) << "its result can still be read";
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
  // The start of a server empties uploads/, where the files are.
  const std::string fourth = begin(*table_, absl::OkStatus());
  const auto reopened = Open("operations");
  EXPECT_FALSE(reopened->Find(start)->has_value());
  EXPECT_TRUE(reopened->Get(fourth)->response.has_value());
  EXPECT_TRUE(Delete(fourth).ok());
  // A failed operation has nothing to keep; its id still answers.
  const std::string failed = begin(*table_, absl::InternalError("broken"));
  while (!files.expired()) std::this_thread::yield();  // dropped after its end is announced
  EXPECT_EQ((*table_->Find(start))->name, failed);
}

// docs/faults.md, C9: operations with files are removed last, and loads that were done at once have their own bound.
TEST_F(OperationTableTest, C9OldestOperationsWithoutFilesAreRemovedBeyondTheBound) {
  stall_.LeaveOutSyncs();
  const auto start_of = [](const std::string& owner) {
    return OperationStart{.model = "m", .owner = {.tenant = "", .name = owner}};
  };
  const auto run = [&](const std::string& owner, std::shared_ptr<const void> files = nullptr) {
    clock_.Advance(absl::Milliseconds(1));
    const auto operation =
        table_->Start(start_of(owner), [files](registry::OperationScope& scope) -> absl::StatusOr<OperationResponse> {
          if (files != nullptr) scope.Hold(files, absl::Hours(1));
          return OperationResponse();
        });
    EXPECT_TRUE(operation.ok()) << operation.status();
    EndOf(*table_, operation->name);
    return operation->name;
  };
  const auto there = [&](const std::string& name) { return table_->Get(name).ok(); };
  const std::string others = run("bob"), exported = run("ann", std::make_shared<const int>(1)), first = run("ann"),
                    second = run("ann");
  const auto at_once = [&] {
    clock_.Advance(absl::Seconds(1));
    return table_->Start(start_of("ann"), {}, OperationResponse())->name;
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
  EXPECT_TRUE(there(loaded_next) && there(exported) && there(second))
      << "loads that are done at once remove no other operation";
  EXPECT_EQ(Open("operations")->List().size(),
            OperationTable::kMaxEndedOfOwner + OperationTable::kMaxDoneAtOnceOfOwner + 1)
      << "their records are removed too";
  // A restart keeps the two kinds apart.
  const auto reopened = Open("operations");
  ASSERT_TRUE(reopened->Start(start_of("ann"), {}, OperationResponse()).ok());
  EXPECT_FALSE(reopened->Get(loaded_next).ok());
  EXPECT_TRUE(reopened->Get(second).ok());
  // After the hour, the operation holds no files and is the oldest.
  clock_.Advance(absl::Hours(2));
  run("ann");
  EXPECT_FALSE(there(exported));
  EXPECT_TRUE(there(second));
}

TEST_F(OperationTableTest, EndedOperationIsKeptForADay) {
  gate_.Open();
  const std::string name = Start(gate_);
  Wait(name);
  clock_.Advance(absl::Hours(23));
  const std::string next = Start(gate_);
  Wait(next);
  EXPECT_TRUE(Get(name).done);
  clock_.Advance(absl::Hours(2));
  const std::string last = Start(gate_);
  EXPECT_TRUE(absl::IsNotFound(table_->Get(name).status()));
  EXPECT_TRUE(table_->Get(next).ok());
  Wait(last);
  EXPECT_EQ(Open("operations")->List().size(), 2u);
}

// A newer nibbled, or a damaged disk, may have left files that cannot be read.
TEST_F(OperationTableTest, FilesThatCannotBeReadAreRemoved) {
  gate_.Open();
  const std::string name = Start(gate_);
  Wait(name);
  const std::string folder = directory_ / "operations";
  const auto text = files_.Read(base::JoinPath(folder, name.substr(name.find('/') + 1) + ".json"), 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  auto json = base::ParseJson(*text);
  ASSERT_TRUE(json.ok()) << json.status();
  (*json)["name"] = "operations/op-newer";
  (*json)["version"] = 3;
  const std::string newer = base::JoinPath(folder, "op-newer.json"), old = base::JoinPath(folder, "op-old.json"),
                    cut = base::JoinPath(folder, "op-cut.json"), other = base::JoinPath(folder, "other.txt");
  ASSERT_TRUE(base::WriteFileAtomically(files_, newer, base::Dump(*json)).ok());
  ASSERT_TRUE(base::WriteFileAtomically(files_, old, R"({"operation": "00"})").ok());
  ASSERT_TRUE(base::WriteFileAtomically(files_, cut, text->substr(0, text->size() / 2)).ok());
  ASSERT_TRUE(base::WriteFileAtomically(files_, other, "text").ok());
  const auto reopened = Open("operations");
  ASSERT_EQ(reopened->List().size(), 1u);
  EXPECT_EQ(*reopened->List().front(), Get(name));
  for (const std::string& path : {newer, old, cut, other}) EXPECT_FALSE(files_.Exists(path)) << path;
}

// The error keeps its reason, which rpc needs for its answer.
TEST_F(OperationTableTest, ErrorIsTheSameAfterARestart) {
  const absl::Status error =
      base::WithReason(absl::DataLossError("damaged \xFF"), "ARTIFACT_CORRUPT", {{"file", "weights"}});
  const auto operation = table_->Start(
      {.model = "m"}, [&](registry::OperationScope&) -> absl::StatusOr<OperationResponse> { return error; });
  ASSERT_TRUE(operation.ok()) << operation.status();
  EXPECT_EQ(Wait(operation->name).error, error);
  EXPECT_EQ(OnDisk(operation->name), Get(operation->name));
}

}  // namespace
}  // namespace nibble::operations
