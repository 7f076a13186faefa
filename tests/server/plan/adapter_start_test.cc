#include "server/plan/adapter_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/base/error.h"

namespace nibble::plan {
namespace {

using ::testing::HasSubstr;

model::AdapterConfig Adapter() {
  return {.rank = 4,
          .alpha = 8,
          .targets = {model::LinearKind::kQ, model::LinearKind::kV},
          .base_model_name_or_path = {},
          .base_digest = {}};
}

jobs::JobSpec WarmSpec(const char* method) {
  jobs::JobSpec spec;
  spec.method = method;
  spec.warm_start_from = "adapter";
  for (jobs::LoraMethod* lora : {static_cast<jobs::LoraMethod*>(&spec.qlora), &spec.lora}) {
    lora->r = 4;
    lora->alpha = 8;
    lora->target_modules = {"v_proj", "q_proj"};  // in any order
  }
  return spec;
}

TEST(AdapterStartTest, AdapterWithTheSameTensorsAndScaleFits) {
  for (const char* method : {jobs::kMethodQLora, jobs::kMethodLora}) {
    jobs::JobSpec spec = WarmSpec(method);
    spec.qlora.dropout = spec.lora.dropout = 0.5;
    EXPECT_TRUE(CheckAdapterFits(spec, Adapter()).ok()) << CheckAdapterFits(spec, Adapter());
  }
}

void ExpectRefused(const jobs::JobSpec& spec, const std::string& field, const std::string& message) {
  const absl::Status status = CheckAdapterFits(spec, Adapter());
  EXPECT_EQ(base::Reason(status), "FIELD_VIOLATION") << status;
  EXPECT_EQ(base::ReasonMetadata(status)["field"], field);
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(AdapterStartTest, DifferencesAreNamedWithBothValues) {
  jobs::JobSpec spec = WarmSpec(jobs::kMethodQLora);
  spec.qlora.r = 16;
  ExpectRefused(spec, "qlora.r", "is 16, wanted 4, as in the adapter adapter");
  spec = WarmSpec(jobs::kMethodLora);
  spec.lora.target_modules = {"q_proj"};
  ExpectRefused(spec, "lora.target_modules", "is q_proj, wanted q_proj, v_proj");
  spec = WarmSpec(jobs::kMethodQLora);
  spec.qlora.alpha = 32;
  ExpectRefused(spec, "qlora.alpha", "is 32, wanted 8");
  spec = WarmSpec(jobs::kMethodQLora);
  spec.qlora.use_rslora = true;
  ExpectRefused(spec, "qlora.use_rslora", "is true, wanted false");
  spec = WarmSpec(jobs::kMethodQLora);
  spec.qlora.use_dora = true;
  ExpectRefused(spec, "qlora.use_dora", "is true, wanted false");
  spec = WarmSpec(jobs::kMethodLora);
  spec.lora.target_modules = {};
  spec.lora.target_pattern = ".*q_proj";
  ExpectRefused(spec, "lora.target_pattern", "is .*q_proj, wanted not set");
  spec = WarmSpec(jobs::kMethodQLora);
  spec.qlora.rank_pattern = {{"q_proj", 2}, {"v_proj", 8}};
  ExpectRefused(spec, "qlora.rank_pattern", "is q_proj: 2, v_proj: 8, wanted not set");
  spec = WarmSpec(jobs::kMethodQLora);
  spec.qlora.alpha_pattern = {{"q_proj", 2.5}};
  ExpectRefused(spec, "qlora.alpha_pattern", "is q_proj: 2.5, wanted not set");
  spec = WarmSpec(jobs::kMethodLora);
  spec.lora.modules_to_save = {"norm", "lm_head"};
  ExpectRefused(spec, "lora.modules_to_save", "is lm_head, norm, wanted not set");
  ExpectRefused(WarmSpec(jobs::kMethodFull), "warm_start_from", "method full trains no adapter");
}

}  // namespace
}  // namespace nibble::plan
