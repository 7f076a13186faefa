#include "client/cli/message_json.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "server/base/error.h"
#include "tests/client/fake_server.h"

namespace nibble::client {
namespace {

using cli::FromJson;
using cli::ToJson;

constexpr char kSpec[] =
    R"(base_model: "b" qlora { r: 8 dropout: 0.5 target_modules: "q_proj" target_modules: "v_proj" }
  device { kind: DEVICE_KIND_CUDA ordinal: 0 } train_dataset: "d"
  data { format: DATASET_FORMAT_CHAT field_map { key: "a" value: "b" } }
  optim { lr: 2e-4 schedule: LR_SCHEDULE_WSD warmup_ratio: 0.25 }
  run { max_steps: 9223372036854775807 seed: -1 max_duration { seconds: 90 nanos: 500000000 }
        activation_checkpointing: false }
  labels { key: "k" value: "v" })";

TEST(MessageJsonTest, PrintsIntegersAsNumbersAndShortEnumNames) {
  const v1::JobSpec spec = Proto<v1::JobSpec>(kSpec);
  EXPECT_EQ(base::Dump(ToJson(spec.run())),
            R"({"max_steps":9223372036854775807,"activation_checkpointing":false,"seed":-1,"max_duration":"90.500s"})");
  EXPECT_EQ(base::Dump(ToJson(spec.device())), R"({"kind":"cuda","ordinal":0})");
  EXPECT_EQ(base::Dump(ToJson(v1::Residents())), R"({"models":[],"weights_bytes":0,"kv_bytes":0})");
}

TEST(MessageJsonTest, RoundTrips) {
  const v1::JobSpec spec = Proto<v1::JobSpec>(kSpec);
  const auto json = base::ParseJson(base::Dump(ToJson(spec)));
  ASSERT_TRUE(json.ok());
  v1::JobSpec back;
  const absl::Status status = FromJson(*json, back);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(spec, back)) << back.DebugString();
}

TEST(MessageJsonTest, DurationThatRoundsToWholeSecondsHasNoNanoseconds) {
  for (const double sign : {1.0, -1.0}) {
    v1::RunConfig run;
    ASSERT_TRUE(FromJson({{"max_duration", sign * 5.9999999999}}, run).ok());
    EXPECT_EQ(run.max_duration().seconds(), sign * 6);
    EXPECT_EQ(run.max_duration().nanos(), 0);
  }
}

TEST(MessageJsonTest, AcceptsEverySpellingOfAnEnum) {
  for (const char* text : {"cosine", "COSINE", "LR_SCHEDULE_COSINE"}) {
    v1::OptimConfig optim;
    ASSERT_TRUE(FromJson({{"schedule", text}}, optim).ok()) << text;
    EXPECT_EQ(optim.schedule(), v1::LR_SCHEDULE_COSINE);
  }
}

TEST(MessageJsonTest, RejectsBadValuesAndNamesTheField) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {R"({"nothing": 1})", "nothing"},
      {R"({"run": {"micro_batch": "4"}})", "run.micro_batch"},
      {R"({"run": {"micro_batch": 2147483648}})", "run.micro_batch"},
      {R"({"run": {"max_steps": 18446744073709551615}})", "run.max_steps"},
      {R"({"run": {"max_steps": 1.5}})", "run.max_steps"},
      {R"({"run": {"max_steps": 1, "epochs": 1}})", "run.epochs"},
      {R"({"run": {"deterministic": 1}})", "run.deterministic"},
      {R"({"run": {"max_duration": "soon"}})", "run.max_duration"},
      {R"({"run": []})", "run"},
      {R"({"qlora": {"target_modules": "q_proj"}})", "qlora.target_modules"},
      {R"({"qlora": {"target_modules": [1]}})", "qlora.target_modules"},
      {R"({"qlora": {}, "lora": {}})", "lora"},
      {R"({"optim": {"lr": "1e-4"}})", "optim.lr"},
      {R"({"optim": {"schedule": "zigzag"}})", "optim.schedule"},
      {R"({"labels": {"a": 1}})", "labels.a"},
      {R"([])", "spec"}};
  for (const auto& [text, field] : bad) {
    v1::JobSpec spec;
    const auto json = base::ParseJson(text);
    ASSERT_TRUE(json.ok()) << text;
    const absl::Status status = FromJson(*json, spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(base::ReasonMetadata(status)["field"], field) << status;
  }
}

TEST(MessageJsonTest, AcceptsAWholeNumberWrittenAsAFloat) {
  v1::RunConfig run;
  ASSERT_TRUE(FromJson(*base::ParseJson(R"({"max_steps": 1e3})"), run).ok());
  EXPECT_EQ(run.max_steps(), 1000);
}

}  // namespace
}  // namespace nibble::client
