#include "server/rpc/operation_proto.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "server/rpc/begin_operation.h"
#include "server/rpc/status.h"
#include "tests/server/rpc/operations_fixture.h"

namespace nibble::rpc {
namespace {

// An unfinished operation as version 1 stored it.
longrunning::Operation Begun(const std::string& name) {
  v1::ModelOperationMetadata metadata;
  metadata.set_model("m");
  metadata.set_stage("read");
  metadata.set_done(1);
  metadata.set_total(2);
  metadata.mutable_create_time()->set_seconds(1'699'999'000);
  metadata.mutable_create_time()->set_nanos(123'456'789);
  longrunning::Operation operation;
  operation.set_name(name);
  operation.mutable_metadata()->PackFrom(metadata);
  return operation;
}

std::vector<absl::Status> Errors() {
  return {absl::CancelledError("cancelled"),
          absl::InternalError("\xFF at /var/lib/nibble/models/m: 0x00007f0012345678"),
          base::FieldError("optim.lr", "is 0, wanted a number above 0"),
          base::WithReason(absl::InvalidArgumentError("two things"), "FIELD_VIOLATION",
                           {{"field", "qlora.r"}, {"qlora.r", "is 0"}, {"optim.lr", "is -1"}}),
          base::WithReason(absl::InvalidArgumentError("line 3: no text; lines 5, 8-9: no label"), "DATASET_FORMAT"),
          base::WithReason(absl::NotFoundError("no model"), "MODEL", {{"name", "m"}}),
          base::WithReason(absl::FailedPreconditionError("no record"), "NO_RECORD", {{"name", "m"}}),
          base::WithReason(absl::ResourceExhaustedError("full"), "QUEUE_FULL",
                           {{"retry_ms", "70000"}, {"flag", "--max"}, {"max", "2"}, {"a", "1"}, {"b", "2"}}),
          base::WithReason(absl::DataLossError(std::string(3000, 'x')), "ARTIFACT_CORRUPT", {{"file", "weights"}})};
}

TEST(OperationProtoTest, UnfinishedOperationHasNoResult) {
  const longrunning::Operation operation =
      ToProto({.name = "operations/op-1",
               .metadata = {.model = "m",
                            .stage = "read",
                            .done = 1,
                            .total = 2,
                            .created = absl::FromUnixNanos(1'699'999'000'123'456'789)}});
  EXPECT_EQ(operation.SerializeAsString(), Begun("operations/op-1").SerializeAsString());
  EXPECT_EQ(operation.result_case(), longrunning::Operation::RESULT_NOT_SET);
}

TEST(OperationProtoTest, ResponseIsThePackedMessage) {
  v1::Model model;
  model.set_name("m");
  const longrunning::Operation operation =
      ToProto({.name = "operations/op-1", .done = true, .response = Packed(model)});
  EXPECT_TRUE(operation.done());
  google::protobuf::Any any;
  any.PackFrom(model);
  EXPECT_EQ(operation.response().SerializeAsString(), any.SerializeAsString());
  EXPECT_TRUE(ToProto({.done = true, .response = operations::OperationResponse()}).has_response());
}

TEST(OperationProtoTest, ErrorHasTheDetailsOfItsReason) {
  for (const absl::Status& error : Errors()) {
    const longrunning::Operation operation = ToProto({.name = "operations/op-1", .done = true, .error = error});
    EXPECT_TRUE(operation.done());
    EXPECT_EQ(operation.error().SerializeAsString(), ToRpcStatus(error).SerializeAsString()) << error;
    EXPECT_NE(InfoOf(operation.error()).reason(), "");
  }
}

TEST(OperationProtoTest, OperationOfVersion1GivesTheSameMessageAgain) {
  std::vector<longrunning::Operation> stored = {Begun("operations/op-1")};
  longrunning::Operation ended = Begun("operations/op-2");
  ended.set_done(true);
  v1::Model model;
  model.set_name("m");
  ended.mutable_response()->PackFrom(model);
  stored.push_back(ended);
  for (const absl::Status& error : Errors()) {
    *ended.mutable_error() = ToRpcStatus(error);
    stored.push_back(ended);
  }
  for (const longrunning::Operation& one : stored) {
    const auto parsed = ParseOperationV1(one.SerializeAsString());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->error.code(), static_cast<absl::StatusCode>(one.error().code()));
    EXPECT_EQ(ToProto(*parsed).SerializeAsString(), one.SerializeAsString()) << one.DebugString();
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseOperationV1("\xFF").status()));
}

// Each call makes the answer anew, and a restart reads the error from its file.
TEST_F(OperationsTest, AnswerIsTheSameInEveryCallAndAfterARestart) {
  for (const absl::Status& error : Errors()) {
    const auto operation = table_->Start(
        {.model = "m"},
        [&error](registry::OperationScope&) -> absl::StatusOr<operations::OperationResponse> { return error; });
    ASSERT_TRUE(operation.ok()) << operation.status();
    const std::string answer = Wait(operation->name).SerializeAsString();
    for (int i = 0; i < 10; ++i) EXPECT_EQ(Get(operation->name).SerializeAsString(), answer) << error;
    EXPECT_EQ(ToProto(OnDisk(operation->name)).SerializeAsString(), answer) << error;
  }
}

// Files in version 1 of their format, which an earlier nibbled wrote.
class OldFilesTest : public OperationsTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(directory_ / "old");
    OperationsTest::SetUp();
  }
  void Write(const longrunning::Operation& operation, const std::string& request_id) {
    const base::Json json = {{"request_id", request_id},
                             {"request_digest", "a"},
                             {"tenant", "red"},
                             {"principal", "ann"},
                             {"holds_files", false},
                             {"done_at_once", false},
                             {"ended_unix_s", operation.done() ? 1'699'999'990 : 0},
                             {"operation", absl::BytesToHexString(operation.SerializeAsString())}};
    ASSERT_TRUE(base::WriteFileAtomically(files_, PathOf(operation.name()), base::Dump(json)).ok());
  }
  std::string PathOf(const std::string& name) const {
    return (directory_ / "old") + name.substr(name.find('/')) + ".json";
  }
  std::unique_ptr<operations::OperationTable> OpenOld() {
    return Open("old", absl::InfiniteDuration(), ParseOperationV1);
  }
  absl::StatusOr<base::Json> JsonOf(const std::string& name) {
    const auto text = files_.Read(PathOf(name), 1 << 20);
    if (!text.ok()) return text.status();
    return base::ParseJson(*text);
  }
};

TEST_F(OldFilesTest, EndedOperationsAreAnsweredAsBefore) {
  std::vector<longrunning::Operation> stored;
  for (const absl::Status& error : Errors()) {
    longrunning::Operation ended = Begun(base::StrCat("operations/op-", stored.size()));
    ended.set_done(true);
    *ended.mutable_error() = ToRpcStatus(error);
    stored.push_back(ended);
  }
  longrunning::Operation made = Begun("operations/op-made");
  made.set_done(true);
  made.mutable_response()->PackFrom(ModelM());
  stored.push_back(made);
  for (const auto& one : stored) Write(one, "id-" + one.name());
  for (int start = 0; start < 2; ++start) {
    const auto table = OpenOld();
    EXPECT_EQ(table->List().size(), stored.size());
    for (const auto& one : stored) {
      const auto found = table->Get(one.name(), {.tenant = "red"});
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(ToProto(*found).SerializeAsString(), one.SerializeAsString()) << one.DebugString();
      const auto same =
          table->Find({.owner = {.tenant = "red", .name = "ann"}, .request_id = "id-" + one.name(), .digest = "a"});
      ASSERT_TRUE(same.ok() && same->has_value()) << same.status();
      EXPECT_EQ((*same)->name, one.name());
    }
  }
}

TEST_F(OldFilesTest, UnfinishedOperationIsAbortedAndStoredInTheNewVersion) {
  Write(Begun("operations/op-1"), "one");
  const auto found = OpenOld()->Get("operations/op-1");
  ASSERT_TRUE(found.ok()) << found.status();
  const longrunning::Operation answer = ToProto(*found);
  EXPECT_EQ(answer.error().code(), static_cast<int>(grpc::StatusCode::ABORTED));
  EXPECT_EQ(InfoOf(answer.error()).reason(), "SERVER_RESTARTED");
  EXPECT_EQ(answer.metadata().SerializeAsString(), Begun("").metadata().SerializeAsString());
  const auto json = JsonOf("operations/op-1");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(base::GetInt(*json, "version", "op-1.json").value_or(0), 2);
  EXPECT_EQ(ToProto(OpenOld()->Get("operations/op-1").value()).SerializeAsString(), answer.SerializeAsString());
}

TEST_F(OldFilesTest, UnreadableOperationIsRemoved) {
  longrunning::Operation unnamed = Begun("");
  ASSERT_TRUE(base::WriteFileAtomically(
                  files_, PathOf("operations/op-1"),
                  base::Dump({{"operation", absl::BytesToHexString(unnamed.SerializeAsString())}, {"tenant", ""}}))
                  .ok());
  ASSERT_TRUE(base::WriteFileAtomically(files_, PathOf("operations/op-2"), R"({"operation": "ff"})").ok());
  EXPECT_TRUE(OpenOld()->List().empty());
  EXPECT_FALSE(files_.Exists(PathOf("operations/op-1")));
  EXPECT_FALSE(files_.Exists(PathOf("operations/op-2")));
}

}  // namespace
}  // namespace nibble::rpc
