// The fields of method bitnet_qat.
#include <gtest/gtest.h>

#include <string>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "server/jobs/job_spec.h"
#include "tests/server/jobs/job_spec_fixture.h"

namespace nibble::jobs {
namespace {

// A ramp of 0 steps has the digest of an unset ramp. Fields that LambdaSchedule may get later do not change a digest.
TEST(JobSpecTest, DigestOfARampCoversOnlyWhatDiffersFromItsDefaults) {
  JobSpec spec = Good();
  spec.method = kMethodBitNetQat;
  const std::string without = Digest(spec);
  spec.bitnet_qat.warmup_lambda.emplace();
  EXPECT_EQ(Digest(spec), without);
  spec.bitnet_qat.warmup_lambda->steps = 3;
  EXPECT_NE(Digest(spec), without);
}

TEST(JobSpecTest, EachBadBitNetFieldIsNamed) {
  const auto bad_field = [](const std::string& json) {
    JobSpec spec = Good();
    spec.method = kMethodBitNetQat;
    const auto parsed = Parse(json);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    spec.bitnet_qat = parsed->bitnet_qat;
    return base::ReasonMetadata(Validate(spec))["field"];
  };
  EXPECT_EQ(
      bad_field(
          R"({"bitnet_qat":{"preset":"bitnet-2b4t","act_bits":16,"ste":"clipped","scale_grad":true,"init":"random"}})"),
      "");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"preset":"tips"}})"), "bitnet_qat.preset");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"act_scale":"per_row"}})"), "bitnet_qat.act_scale");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"act_bits":5}})"), "bitnet_qat.act_bits");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"ste":"none"}})"), "bitnet_qat.ste");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"scale_grad":true}})"), "bitnet_qat.scale_grad");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"init":"zeros"}})"), "bitnet_qat.init");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"compute_dtype":"fp16"}})"), "bitnet_qat.compute_dtype");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"master_dtype":"bf16"}})"), "");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"preset":"hf"}})"), "");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"modules_to_not_convert":["o_proj","lm_head"]}})"), "");
  for (const char* modules : {R"(["head"])", R"(["o_proj","o_proj"])", "[]",
                              R"(["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"])"}) {
    EXPECT_EQ(bad_field(base::StrCat(R"({"bitnet_qat":{"modules_to_not_convert":)", modules, "}}")),
              "bitnet_qat.modules_to_not_convert")
        << modules;
  }
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"master_dtype":"fp16"}})"), "bitnet_qat.master_dtype");
  EXPECT_EQ(Parse(R"({"bitnet_qat":{"bits":1}})").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"warmup_lambda":{}}})"), "");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"warmup_lambda":{"from":0.5,"steps":3}}})"), "");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"warmup_lambda":{"from":1.5,"steps":3}}})"), "bitnet_qat.warmup_lambda.from");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"warmup_lambda":{"from":-0.5,"steps":3}}})"), "bitnet_qat.warmup_lambda.from");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"warmup_lambda":{"to":0.5,"steps":3}}})"), "bitnet_qat.warmup_lambda.to");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"warmup_lambda":{"steps":-1}}})"), "bitnet_qat.warmup_lambda.steps");
  EXPECT_EQ(bad_field(R"({"bitnet_qat":{"warmup_lambda":{"from":0.5}}})"), "bitnet_qat.warmup_lambda.steps");
  EXPECT_EQ(base::ReasonMetadata(Parse(R"({"bitnet_qat":{"warmup_lambda":{"until":1}}})").status())["field"],
            "bitnet_qat.warmup_lambda.until");
  EXPECT_EQ(base::ReasonMetadata(Parse(R"({"bitnet_qat":{"warmup_lambda":3}})").status())["field"],
            "bitnet_qat.warmup_lambda");
}

// The last step of a run has the arithmetic of the served model.
TEST(JobSpecTest, RampAsLongAsTheRunIsRejected) {
  JobSpec spec = Good();
  spec.method = kMethodBitNetQat;
  spec.bitnet_qat.warmup_lambda = LambdaSchedule{.steps = 10};
  EXPECT_TRUE(Validate(spec).ok()) << "the number of steps is unknown";
  spec.run.max_steps = 11;
  EXPECT_TRUE(Validate(spec).ok());
  spec.run.max_steps = 10;
  EXPECT_EQ(
      base::ReasonMetadata(Validate(spec))["bitnet_qat.warmup_lambda.steps"],
      "is 10, and the run has 10 steps: wanted fewer, so that the run ends with quantized steps, or a longer run");
  spec.run.max_steps.reset();
  EXPECT_TRUE(CheckSteps(spec, 11).ok());
  EXPECT_EQ(base::ReasonMetadata(CheckSteps(spec, 10))["field"], "bitnet_qat.warmup_lambda.steps");
  spec.method = kMethodFull;
  EXPECT_TRUE(CheckSteps(spec, 1).ok()) << "another method";
}

TEST(JobSpecTest, UnsetRampIsAbsentFromTheJson) {
  JobSpec spec = Good();
  spec.method = kMethodBitNetQat;
  EXPECT_FALSE(ToJson(spec)["bitnet_qat"].contains("warmup_lambda"));
  spec.bitnet_qat.warmup_lambda = LambdaSchedule{.steps = 5};
  EXPECT_EQ(base::Dump(ToJson(spec)["bitnet_qat"]["warmup_lambda"]), R"({"from":0.0,"to":1.0,"steps":5})");
}

TEST(JobSpecTest, BitNetSpecSurvivesAJsonRoundTrip) {
  JobSpec spec = Good();
  spec.method = kMethodBitNetQat;
  spec.bitnet_qat = {.preset = "bitnet-tips",
                     .act_scale = "per_tensor",
                     .act_bits = 4,
                     .ste = "round_only",
                     .scale_grad = true,
                     .init = "random",
                     .compute_dtype = "fp32",
                     .master_dtype = "bf16",
                     .warmup_lambda = LambdaSchedule{.from = 0.25, .to = 1.0, .steps = 7},
                     .modules_to_not_convert = {"o_proj", "down_proj"}};
  const auto back = ParseJobSpec(ToJson(spec));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(base::Dump(ToJson(*back)), base::Dump(ToJson(spec)));
  EXPECT_EQ(back->bitnet_qat.warmup_lambda->steps, 7);
  EXPECT_EQ(ToJson(spec).count("qlora"), 0u);
}

}  // namespace
}  // namespace nibble::jobs
