#include "client/cli/job_spec.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "server/base/error.h"
#include "tests/client/fake_server.h"

namespace nibble::client {
namespace {

using cli::BuildSpec;
using cli::JobFlags;
using google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

JobFlags Least() {
  JobFlags flags;
  flags.method.emplace("qlora");
  flags.fields["base_model"] = "smol";
  flags.fields["train_dataset"] = "d";
  return flags;
}

void ExpectSpec(const JobFlags& flags, const std::string& want) {
  const auto spec = BuildSpec(flags);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(MessageDifferencer::Equals(*spec, Proto<v1::JobSpec>(want))) << spec->DebugString();
}

std::string FieldOf(const JobFlags& flags) {
  const auto spec = BuildSpec(flags);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << spec.status();
  return base::ReasonMetadata(spec.status())["field"];
}

TEST(JobSpecTest, SendsOnlyTheGivenOptions) { ExpectSpec(Least(), "base_model: 'smol' qlora { } train_dataset: 'd'"); }

TEST(JobSpecTest, FlagsSetTheirFields) {
  JobFlags flags = Least();
  flags.fields["eval_dataset"] = "e";
  flags.fields["publish.output_model"] = "tuned";
  flags.fields["run.max_steps"] = "20";
  flags.fields["run.micro_batch"] = "4";
  flags.fields["run.grad_accum"] = "2";
  flags.fields["data.max_seq_len"] = "256";
  flags.fields["optim.lr"] = "1e-4";
  flags.rank = 8;
  flags.alpha = 16;
  flags.fields["run.seed"] = "0";
  flags.fields["run.save_every"] = "5";
  flags.fields["run.eval_every"] = "10";
  flags.device.emplace("cuda:1");
  ExpectSpec(flags, R"(base_model: "smol" qlora { r: 8 alpha: 16 } train_dataset: "d" eval_dataset: "e"
    device { kind: DEVICE_KIND_CUDA ordinal: 1 } data { max_seq_len: 256 } optim { lr: 1e-4 }
    publish { output_model: "tuned" }
    run { max_steps: 20 micro_batch: 4 grad_accum: 2 seed: 0 save_every: 5 eval_every: 10 })");
}

TEST(JobSpecTest, LengthPackingAndWarmupHaveOptions) {
  JobFlags flags = Least();
  flags.fields["run.epochs"] = "2.5";
  flags.fields["data.packing"] = "none";
  flags.warmup.emplace("100");
  ExpectSpec(flags, R"(base_model: "smol" qlora { } train_dataset: "d" data { packing: PACKING_MODE_NONE }
    optim { warmup_steps: 100 } run { epochs: 2.5 })");
  flags.fields["data.packing"] = "segmented";
  for (const char* share : {"0.25", "25%"}) {
    flags.warmup.emplace(share);
    ExpectSpec(flags, R"(base_model: "smol" qlora { } train_dataset: "d" data { packing: PACKING_MODE_SEGMENTED }
      optim { warmup_ratio: 0.25 } run { epochs: 2.5 })");
  }
  for (const char* bad : {"", "%", "fast", "100 steps"}) {
    flags.warmup.emplace(bad);
    EXPECT_EQ(FieldOf(flags), "warmup") << bad;
  }
}

TEST(JobSpecTest, ShareOfHeldOutRowsReplacesTheEvaluationDatasetOfTheFile) {
  JobFlags flags = Least();
  flags.spec_file = WriteFile("spec.json", R"({"eval_dataset": "e"})");
  for (const char* share : {"0.25", "25%"}) {
    flags.fields["eval_fraction"] = share;
    ExpectSpec(flags, R"(base_model: "smol" qlora { } train_dataset: "d" eval_fraction: 0.25)");
  }
}

TEST(JobSpecTest, EveryOptionSetsAFieldOfTheMessage) {
  for (const cli::SpecOption& option : cli::SpecOptions()) {
    const google::protobuf::Descriptor* message = v1::JobSpec::descriptor();
    const google::protobuf::FieldDescriptor* field = nullptr;
    for (const absl::string_view part : absl::StrSplit(option.path, '.')) {
      ASSERT_NE(message, nullptr) << option.name << ": " << option.path;
      field = message->FindFieldByName(std::string(part));
      ASSERT_NE(field, nullptr) << option.name << ": " << option.path;
      message = field->message_type();
    }
    EXPECT_EQ(message, nullptr) << option.name << " sets a message";
  }
}

TEST(JobSpecTest, TextsOfOptionsAreChecked) {
  const auto check = [](const std::string& name, const std::string& text) {
    for (const cli::SpecOption& option : cli::SpecOptions()) {
      if (option.name == name) return cli::CheckSpecOption(option, text);
    }
    ADD_FAILURE() << "no option " << name;
    return std::string();
  };
  EXPECT_EQ(check("--micro-batch", "4"), "");
  EXPECT_EQ(check("--seed", "9000000000"), "");
  EXPECT_EQ(check("--lr", "1e-4"), "");
  EXPECT_EQ(check("--packing", "none"), "");
  EXPECT_EQ(check("--micro-batch", "9000000000"), "got 9000000000, wanted a whole number of at most 32 bits");
  EXPECT_EQ(check("--max-steps", "1.5"), "got 1.5, wanted a whole number of at most 64 bits");
  EXPECT_EQ(check("--eval-split", "half"), "got half, wanted a number, such as 0.1 or 10%");
  EXPECT_EQ(check("--packing", "naive"), "got naive, wanted one of none, segmented");
}

TEST(JobSpecTest, RankAndAlphaApplyOnlyToMethodsThatTrainAnAdapter) {
  JobFlags flags = Least();
  flags.rank = 8;
  flags.alpha = 16;
  flags.method.emplace("lora");
  ExpectSpec(flags, R"(base_model: "smol" lora { r: 8 alpha: 16 } train_dataset: "d")");
  flags.method.emplace("full");
  EXPECT_EQ(FieldOf(flags), "rank");
}

TEST(JobSpecTest, FlagsOverrideTheFile) {
  JobFlags flags;
  flags.spec_file = WriteFile("spec.json", R"({
    "base_model": "other", "train_dataset": "d", "eval_fraction": 0.1, "qlora": {"r": 4, "target_modules": ["q_proj"]},
    "optim": {"lr": 1, "schedule": "cosine", "warmup_steps": 3}, "run": {"epochs": 2, "max_duration": "90s"},
    "labels": {"team": "a"}})");
  flags.method.emplace("qlora");
  flags.fields["base_model"] = "smol";
  flags.fields["eval_dataset"] = "e";
  flags.fields["optim.lr"] = "0.5";
  flags.fields["run.max_steps"] = "7";
  ExpectSpec(flags, R"(base_model: "smol" train_dataset: "d" eval_dataset: "e" qlora { r: 4 target_modules: "q_proj" }
    optim { lr: 0.5 schedule: LR_SCHEDULE_COSINE warmup_steps: 3 } run { max_steps: 7 max_duration { seconds: 90 } }
    labels { key: "team" value: "a" })");
}

TEST(JobSpecTest, MethodOfTheFlagMustBeThatOfTheFile) {
  JobFlags flags = Least();
  flags.spec_file = WriteFile("spec.json", R"({"lora": {"r": 7}})");
  EXPECT_EQ(FieldOf(flags), "method");
  EXPECT_THAT(std::string(BuildSpec(flags).status().message()),
              HasSubstr("got qlora from --method and lora from " + *flags.spec_file + ", wanted the same method"));
  flags.method.emplace("lora");
  ExpectSpec(flags, R"(base_model: "smol" lora { r: 7 } train_dataset: "d")");
  flags.spec_file = WriteFile("spec.json", R"({"full": null, "run": {"max_steps": 7}})");
  ExpectSpec(flags, R"(base_model: "smol" lora { } train_dataset: "d" run { max_steps: 7 })");
}

TEST(JobSpecTest, ErrorsNameTheField) {
  JobFlags flags = Least();
  flags.method.reset();
  EXPECT_EQ(FieldOf(flags), "method");
  flags = Least();
  flags.fields.erase("base_model");
  EXPECT_EQ(FieldOf(flags), "base_model");
  flags = Least();
  flags.fields.erase("train_dataset");
  EXPECT_EQ(FieldOf(flags), "train_dataset");
  flags = Least();
  flags.method.emplace("bitnet_qat");
  flags.rank = 8;
  EXPECT_EQ(FieldOf(flags), "rank");
  for (const char* device : {"gpu", "cuda:", "cuda:-1", "cuda:x", "", "CPU"}) {
    flags = Least();
    flags.device.emplace(device);
    EXPECT_EQ(FieldOf(flags), "device") << device;
  }
  flags = Least();
  flags.spec_file = WriteFile("spec.json", R"({"run": {"micro_batches": 3}})");
  EXPECT_EQ(FieldOf(flags), "run.micro_batches");
  flags.spec_file = WriteFile("spec.json", "{");
  EXPECT_EQ(FieldOf(flags), "spec");
  EXPECT_THAT(std::string(BuildSpec(flags).status().message()),
              HasSubstr(*flags.spec_file + ", line 1, column 2: malformed JSON"));
}

}  // namespace
}  // namespace nibble::client
