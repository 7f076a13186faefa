#include "server/operations/stored_operation.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/error.h"
#include "server/base/json.h"

namespace nibble::operations {
namespace {

StoredOperation Record(Operation operation) {
  StoredOperation stored;
  stored.operation = std::make_shared<const Operation>(std::move(operation));
  stored.owner = {.tenant = "red", .name = "ann"};
  stored.request_id = "one";
  stored.request_digest = "a1b2";
  stored.ended = absl::FromUnixSeconds(1'700'000'009);
  stored.holds_files = true;
  return stored;
}

Operation Ended() {
  return {.name = "operations/op-1",
          .metadata = {.model = "m",
                       .kind = "import",
                       .stage = "write",
                       .done = 3,
                       .total = 4,
                       .created = absl::FromUnixNanos(12'345)},
          .done = true};
}

void ExpectRoundTrip(const StoredOperation& stored) {
  const auto parsed = ParseStoredOperation(Serialized(stored), "op-1.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed->operation, *stored.operation) << Serialized(stored);
  EXPECT_EQ(parsed->owner, stored.owner);
  EXPECT_EQ(parsed->request_id, stored.request_id);
  EXPECT_EQ(parsed->request_digest, stored.request_digest);
  EXPECT_EQ(parsed->ended, stored.operation->done ? stored.ended : absl::UnixEpoch());
  EXPECT_EQ(parsed->holds_files, stored.holds_files);
  EXPECT_EQ(parsed->done_at_once, stored.done_at_once);
}

base::Json JsonOf(const StoredOperation& stored) {
  const auto json = base::ParseJson(Serialized(stored));
  EXPECT_TRUE(json.ok()) << json.status();
  return json.value_or(base::Json::object());
}

TEST(StoredOperationTest, UnfinishedOperationIsReadBack) {
  Operation operation = Ended();
  operation.done = false;
  ExpectRoundTrip(Record(operation));
  operation.metadata = {};
  StoredOperation stored = Record(operation);
  stored.owner = {};
  stored.request_id.clear();
  stored.holds_files = false;
  ExpectRoundTrip(stored);
}

TEST(StoredOperationTest, FileOfAnEarlierServerHasNoKind) {
  base::Json json = JsonOf(Record(Ended()));
  json.erase("kind");
  json["error"] = base::Json::object({{"code", 10}, {"message", "why"}, {"payloads", base::Json::object()}});
  const auto parsed = ParseStoredOperation(base::Dump(json), "op-1.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->operation->metadata.kind, "");
  EXPECT_EQ(parsed->operation->metadata.model, "m");
}

TEST(StoredOperationTest, ResponseOfAnyBytesIsReadBack) {
  Operation operation = Ended();
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  for (const std::string& bytes : {std::string(), std::string(1, '\0'), all}) {
    operation.response = OperationResponse{.type = "type.googleapis.com/nibble.v1.Model", .bytes = bytes};
    StoredOperation stored = Record(operation);
    stored.done_at_once = true;
    ExpectRoundTrip(stored);
  }
  operation.response = OperationResponse();
  ExpectRoundTrip(Record(operation));
}

TEST(StoredOperationTest, ErrorIsReadBackWithItsPayloads) {
  Operation operation = Ended();
  for (int code = 1; code <= 16; ++code) {
    operation.error = absl::Status(static_cast<absl::StatusCode>(code), "why");
    ExpectRoundTrip(Record(operation));
  }
  operation.error = base::WithReason(absl::ResourceExhaustedError("full: \"a\"\n"), "DISK_FULL",
                                     {{"needed", "12"}, {"available", "3"}});
  operation.error.SetPayload("type.googleapis.com/nibble.v1.Usage", absl::Cord(std::string("\0\xFF\x80", 3)));
  ExpectRoundTrip(Record(operation));
  const auto parsed = ParseStoredOperation(Serialized(Record(operation)), "op-1.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(base::Reason(parsed->operation->error), "DISK_FULL");
  EXPECT_EQ(base::ReasonMetadata(parsed->operation->error)["needed"], "12");
  // Equal errors give equal files, whatever the order of their payloads.
  Operation one = Ended(), other = Ended();
  one.error = other.error = absl::InternalError("why");
  for (const char* type : {"a", "b", "c"}) one.error.SetPayload(type, absl::Cord(type));
  for (const char* type : {"c", "a", "b"}) other.error.SetPayload(type, absl::Cord(type));
  EXPECT_EQ(Serialized(Record(one)), Serialized(Record(other)));
}

// File names and texts of other libraries may hold any bytes. JSON holds text only.
TEST(StoredOperationTest, MessageThatIsNotUtf8IsReadBackByteForByte) {
  Operation operation = Ended();
  for (const std::string message : {"\xFF", "cut \xE2\x82", "a\xC3(b", "\xF0\x9F\x98\x80 is valid"}) {
    operation.error = absl::InternalError(message);
    const StoredOperation stored = Record(operation);
    EXPECT_EQ(JsonOf(stored)["error"].contains("message_bytes"), !message.ends_with("valid")) << message;
    ExpectRoundTrip(stored);
  }
}

TEST(StoredOperationTest, MessageIsCutSoThatTheFileCanBeReadAgain) {
  Operation operation = Ended();
  operation.error = absl::InternalError(std::string(5u << 20, 'x'));
  const std::string text = Serialized(Record(operation));
  EXPECT_LT(text.size(), 100'000u);
  const auto parsed = ParseStoredOperation(text, "op-1.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->operation->error.message(), std::string(64u << 10, 'x'));
}

TEST(StoredOperationTest, FileHoldsVersionAndReadableFields) {
  Operation operation = Ended();
  operation.response = OperationResponse{.type = "example.com/Message", .bytes = "\x01\xAB"};
  EXPECT_EQ(Serialized(Record(operation)),
            R"({"version":2,"name":"operations/op-1","model":"m","kind":"import","stage":"write",)"
            R"("done":3,"total":4,"created_ns":12345,"finished":true,)"
            R"("response":{"type":"example.com/Message","bytes":"01ab"},)"
            R"("request_id":"one","request_digest":"a1b2","tenant":"red","principal":"ann","holds_files":true,)"
            R"("done_at_once":false,"ended_unix_s":1700000009})");
}

TEST(StoredOperationTest, FileOfVersion1IsReadByTheParser) {
  const std::string file = R"({"request_id":"one","request_digest":"a1b2","tenant":"red","principal":"ann",)"
                           R"("holds_files":true,"done_at_once":false,"ended_unix_s":1700000009,"operation":"00ff"})";
  const auto parsed = ParseStoredOperation(file, "op-1.json", [](std::string_view bytes) {
    EXPECT_EQ(bytes, std::string_view("\0\xFF", 2));
    return Ended();
  });
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed->operation, Ended());
  EXPECT_EQ(parsed->owner, (auth::RequestOwner{.tenant = "red", .name = "ann"}));
  EXPECT_EQ(parsed->request_id, "one");
  EXPECT_EQ(parsed->request_digest, "a1b2");
  EXPECT_EQ(parsed->ended, absl::FromUnixSeconds(1'700'000'009));
  EXPECT_TRUE(parsed->holds_files);
  EXPECT_TRUE(absl::IsInvalidArgument(ParseStoredOperation(file, "op-1.json").status())) << "there is no parser";
  const auto refused = ParseStoredOperation(
      file, "op-1.json", [](std::string_view) -> absl::StatusOr<Operation> { return absl::InternalError("bad"); });
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  const auto unnamed = ParseStoredOperation(file, "op-1.json", [](std::string_view) { return Operation(); });
  EXPECT_TRUE(absl::IsInvalidArgument(unnamed.status())) << unnamed.status();
}

TEST(StoredOperationTest, RejectsMalformedFile) {
  Operation succeeded = Ended(), failed = Ended();
  succeeded.response = OperationResponse{.type = "example.com/Message", .bytes = "made"};
  failed.error = base::WithReason(absl::AbortedError("cut"), "SERVER_RESTARTED");
  const auto expect_refused = [](const base::Json& json) {
    const auto parsed = ParseStoredOperation(base::Dump(json), "op-1.json", [](std::string_view) { return Ended(); });
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << json << parsed.status();
  };
  for (const Operation& operation : {succeeded, failed}) {
    const base::Json whole = JsonOf(Record(operation));
    for (const char* key : {"name", "model", "stage", "done", "total", "created_ns", "finished"}) {
      base::Json json = whole;
      json.erase(key);
      expect_refused(json);
      json[key] = base::Json::array();
      expect_refused(json);
    }
    for (const base::Json& version : {base::Json(0), base::Json(3), base::Json("2")}) {
      base::Json json = whole;
      json["version"] = version;
      expect_refused(json);
    }
    base::Json json = whole;
    json["name"] = "";
    expect_refused(json);
    json = whole;
    json.erase(operation.response.has_value() ? "response" : "error");
    expect_refused(json);
    json = whole;
    json[operation.response.has_value() ? "response" : "error"] = "text";
    expect_refused(json);
    // A file of neither version: version 2 has the key "version", version 1 the key "operation".
    json = whole;
    json.erase("version");
    expect_refused(json);
  }
  base::Json json = JsonOf(Record(succeeded));
  for (const char* bytes : {"0", "0g", "0x00"}) {
    json["response"]["bytes"] = bytes;
    expect_refused(json);
  }
  const base::Json whole = JsonOf(Record(failed));
  for (const int code : {0, -1, 17}) {
    json = whole;
    json["error"]["code"] = code;
    expect_refused(json);
  }
  json = whole;
  json["error"]["payloads"]["nibble/error_info"] = 5;
  expect_refused(json);
  json["error"].erase("payloads");
  expect_refused(json);
  EXPECT_FALSE(ParseStoredOperation("[]", "op-1.json").ok());
  EXPECT_FALSE(ParseStoredOperation("{", "op-1.json").ok());
}

// A wrong value in a field of the request must not make the operation unreadable.
TEST(StoredOperationTest, WrongFieldOfTheRequestGetsItsDefault) {
  base::Json json = JsonOf(Record([] {
    Operation operation = Ended();
    operation.done = false;
    return operation;
  }()));
  for (const char* key : {"request_id", "request_digest", "tenant", "principal", "holds_files", "done_at_once"}) {
    json[key] = base::Json::array();
  }
  const auto parsed = ParseStoredOperation(base::Dump(json), "op-1.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->operation->name, "operations/op-1");
  EXPECT_EQ(parsed->owner, auth::RequestOwner());
  EXPECT_EQ(parsed->request_id, "");
  EXPECT_FALSE(parsed->holds_files);
}

}  // namespace
}  // namespace nibble::operations
