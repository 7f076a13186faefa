#include "server/jobs/job_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "tests/server/jobs/job_spec_fixture.h"

namespace nibble::jobs {
namespace {

using ::testing::HasSubstr;

TEST(JobSpecTest, DefaultsAreValid) { EXPECT_TRUE(Validate(Good()).ok()) << Validate(Good()); }

using BadFields = std::vector<std::pair<std::string, std::function<void(JobSpec&)>>>;

void ExpectEachIsNamed(const BadFields& cases) {
  for (const auto& [field, change] : cases) {
    JobSpec spec = Good();
    change(spec);
    const std::vector<FieldViolation> violations = FindViolations(spec);
    ASSERT_EQ(violations.size(), 1u) << field;
    EXPECT_EQ(violations[0].field, field);
    const absl::Status status = Validate(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(base::Reason(status), "FIELD_VIOLATION") << field;
    EXPECT_EQ(base::ReasonMetadata(status)["field"], field);
  }
}

TEST(JobSpecTest, EachBadFieldIsNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ExpectEachIsNamed({
      {"base_model", [](JobSpec& s) { s.base_model = ""; }},
      {"base_model", [](JobSpec& s) { s.base_model = "../etc"; }},
      {"train_dataset", [](JobSpec& s) { s.train_dataset = "a/b"; }},
      {"eval_dataset", [](JobSpec& s) { s.eval_dataset = ".."; }},
      {"eval_fraction", [](JobSpec& s) { s.eval_fraction = 0.0; }},
      {"eval_fraction", [](JobSpec& s) { s.eval_fraction = 0.51; }},
      {"eval_fraction", [nan](JobSpec& s) { s.eval_fraction = nan; }},
      {"eval_fraction",
       [](JobSpec& s) {
         s.eval_fraction = 0.1;
         s.eval_dataset = "e";
       }},
      {"output_model", [](JobSpec& s) { s.output_model = "-x"; }},
      {"device", [](JobSpec& s) { s.device = "gpu"; }},
      {"device", [](JobSpec& s) { s.device = "cuda:"; }},
      {"device", [](JobSpec& s) { s.device = "cuda:x"; }},
      {"method", [](JobSpec& s) { s.method = "magic"; }},
      {"display_name", [](JobSpec& s) { s.display_name = std::string(257, 'x'); }},
      {"labels",
       [](JobSpec& s) {
         for (int i = 0; i < 17; ++i) s.labels[std::to_string(i)] = "v";
       }},
      {"resume_from", [](JobSpec& s) { s.resume_from = "job-1"; }},
      {"resume_from", [](JobSpec& s) { s.resume_from = "job-1/"; }},
      {"resume_from", [](JobSpec& s) { s.resume_from = "../2"; }},
      {"resume_from", [](JobSpec& s) { s.resume_from = "job-1/2/3"; }},
      {"warm_start_from", [](JobSpec& s) { s.warm_start_from = "-adapter"; }},
      {"warm_start_from", [](JobSpec& s) { s.warm_start_from = "job-1/two"; }},
      {"warm_start_from",
       [](JobSpec& s) {
         s.resume_from = "job-1/2";
         s.warm_start_from = "adapter";
       }},
      {"data.format", [](JobSpec& s) { s.data.format = "parquet"; }},
      {"data.max_seq_len", [](JobSpec& s) { s.data.max_seq_len = 1; }},
      {"data.packing", [](JobSpec& s) { s.data.packing = "naive"; }},
      {"data.overlong", [](JobSpec& s) { s.data.overlong = "wrap"; }},
      {"data.overlong",
       [](JobSpec& s) {
         s.data.overlong = "split";
         s.data.format = "chat";
       }},
      {"data.shuffle_seed", [](JobSpec& s) { s.data.shuffle_seed = -1; }},
  });
}

TEST(JobSpecTest, EachBadFieldOfMethodOptimizerAndRunIsNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  ExpectEachIsNamed({
      {"qlora.r", [](JobSpec& s) { s.qlora.r = 0; }},
      {"qlora.r", [](JobSpec& s) { s.qlora.r = -8; }},
      {"qlora.alpha", [](JobSpec& s) { s.qlora.alpha = 0; }},
      {"qlora.alpha", [](JobSpec& s) { s.qlora.alpha = 1e308; }},
      {"qlora.dropout", [](JobSpec& s) { s.qlora.dropout = 1.0; }},
      {"qlora.target_modules", [](JobSpec& s) { s.qlora.target_modules = {}; }},
      {"qlora.target_modules", [](JobSpec& s) { s.qlora.target_modules = {"q_proj", "w1"}; }},
      {"qlora.target_modules", [](JobSpec& s) { s.qlora.target_modules = {"q_proj", "q_proj"}; }},
      {"qlora.compute_dtype", [](JobSpec& s) { s.qlora.compute_dtype = "fp16"; }},
      {"optim.lr", [nan](JobSpec& s) { s.optim.lr = nan; }},
      {"optim.lr", [](JobSpec& s) { s.optim.lr = -1e-4; }},
      {"optim.lr", [inf](JobSpec& s) { s.optim.lr = inf; }},
      {"optim.beta1", [](JobSpec& s) { s.optim.beta1 = 1.0; }},
      {"optim.beta2", [nan](JobSpec& s) { s.optim.beta2 = nan; }},
      {"optim.eps", [](JobSpec& s) { s.optim.eps = 0; }},
      {"optim.eps", [](JobSpec& s) { s.optim.eps = 1e-46; }},  // rounds to 0 in f32
      {"optim.weight_decay", [](JobSpec& s) { s.optim.weight_decay = -1; }},
      {"optim.max_grad_norm", [](JobSpec& s) { s.optim.max_grad_norm = -1; }},
      {"optim.schedule", [](JobSpec& s) { s.optim.schedule = "step"; }},
      {"optim.warmup_ratio",
       [](JobSpec& s) {
         s.optim.warmup_ratio = 0.1;
         s.optim.warmup_steps = 1;
       }},
      {"optim.warmup_ratio", [](JobSpec& s) { s.optim.warmup_ratio = 1.5; }},
      {"optim.warmup_steps", [](JobSpec& s) { s.optim.warmup_steps = -1; }},
      {"optim.min_lr_ratio", [](JobSpec& s) { s.optim.min_lr_ratio = 2; }},
      {"run.epochs",
       [](JobSpec& s) {
         s.run.epochs = 1;
         s.run.max_steps = 1;
       }},
      {"run.epochs", [](JobSpec& s) { s.run.epochs = 0; }},
      {"run.max_steps", [](JobSpec& s) { s.run.max_steps = 0; }},
      {"run.micro_batch", [](JobSpec& s) { s.run.micro_batch = 0; }},
      {"run.grad_accum", [](JobSpec& s) { s.run.grad_accum = 0; }},
      {"run.eval_every", [](JobSpec& s) { s.run.eval_every = 5; }},
      {"run.eval_every",
       [](JobSpec& s) {
         s.run.eval_every = -1;
         s.eval_dataset = "e";
       }},
      {"run.save_every", [](JobSpec& s) { s.run.save_every = -1; }},
      {"run.keep_last", [](JobSpec& s) { s.run.keep_last = 0; }},
      {"run.seed", [](JobSpec& s) { s.run.seed = -1; }},
      {"run.priority", [](JobSpec& s) { s.run.priority = 1001; }},
  });
}

TEST(JobSpecTest, AllViolationsAreReportedAtOnce) {
  JobSpec spec = Good();
  spec.qlora.r = 0;
  spec.optim.lr = -1;
  spec.run.eval_every = 3;
  const absl::Status status = Validate(spec);
  const auto metadata = base::ReasonMetadata(status);
  EXPECT_EQ(metadata.count("qlora.r"), 1u);
  EXPECT_EQ(metadata.count("optim.lr"), 1u);
  EXPECT_EQ(metadata.count("run.eval_every"), 1u);
  EXPECT_THAT(std::string(status.message()), HasSubstr("evaluation set"));
}

// lora has the checks of qlora.
TEST(JobSpecTest, EachBadFieldOfLoraIsNamed) {
  const auto field = [](LoraMethod method) {
    JobSpec spec = Good();
    spec.method = kMethodLora;
    spec.lora = std::move(method);
    return base::ReasonMetadata(Validate(spec))["field"];
  };
  EXPECT_EQ(field({}), "");
  EXPECT_EQ(field({.r = 4096, .alpha = 1e6, .dropout = 0.9, .use_rslora = true, .lora_plus_ratio = 1000}), "");
  EXPECT_EQ(field({.r = 0}), "lora.r");
  EXPECT_EQ(field({.r = 4097}), "lora.r");
  EXPECT_EQ(field({.alpha = 0}), "lora.alpha");
  EXPECT_EQ(field({.alpha = 2e6}), "lora.alpha");
  EXPECT_EQ(field({.dropout = 1.0}), "lora.dropout");
  EXPECT_EQ(field({.target_modules = {}}), "lora.target_modules");
  EXPECT_EQ(field({.target_modules = {"lm_head"}}), "lora.target_modules");
  EXPECT_EQ(field({.compute_dtype = "fp16"}), "lora.compute_dtype");
  EXPECT_EQ(field({.seed = -1}), "lora.seed");
  EXPECT_EQ(field({.lora_plus_ratio = 0.5}), "lora.lora_plus_ratio");
  EXPECT_EQ(field({.lora_plus_ratio = 1001}), "lora.lora_plus_ratio");
  EXPECT_EQ(field({.target_modules = {}, .target_pattern = ".*q_proj"}), "");
  EXPECT_EQ(field({.target_modules = {"q_proj"}, .target_pattern = ".*q_proj"}), "lora.target_pattern");
  EXPECT_EQ(field({.target_pattern = "(q_proj"}), "lora.target_pattern");
  EXPECT_EQ(field({.rank_pattern = {{"q_proj", 4096}}, .alpha_pattern = {{"q_proj", 1e6}}}), "");
  EXPECT_EQ(field({.rank_pattern = {{"q_proj", 0}}}), "lora.rank_pattern");
  EXPECT_EQ(field({.rank_pattern = {{"(?P<n>q)_proj", 4}}}), "lora.rank_pattern");
  EXPECT_EQ(field({.alpha_pattern = {{"q_proj", 0}}}), "lora.alpha_pattern");
  EXPECT_EQ(field({.alpha_pattern = {{"", 1}}}), "lora.alpha_pattern");
  EXPECT_EQ(field({.dropout = 0.1, .use_dora = true}), "lora.dropout");
  EXPECT_EQ(field({.modules_to_save = {"norm", "lm_head"}}), "");
  EXPECT_EQ(field({.modules_to_save = {"norm", "norm"}}), "lora.modules_to_save");
  EXPECT_EQ(field({.modules_to_save = {""}}), "lora.modules_to_save");
  EXPECT_EQ(field({.modules_to_save = {std::string(257, 'n')}}), "lora.modules_to_save");
  LoraMethod many;
  for (int i = 0; i < 65; ++i) many.modules_to_save.push_back("norm" + std::to_string(i));
  EXPECT_EQ(field(many), "lora.modules_to_save");
  many = {};
  for (int i = 0; i < 65; ++i) many.rank_pattern["q_proj" + std::to_string(i)] = 1;
  EXPECT_EQ(field(many), "lora.rank_pattern");
}

TEST(JobSpecTest, TargetPatternReplacesTheDefaultTargets) {
  JobSpec spec = Good();
  spec.qlora.target_pattern = ".*q_proj";
  const JobSpec resolved = Resolve(spec, "job-1", "text", "cpu");
  EXPECT_TRUE(resolved.qlora.target_modules.empty());
  EXPECT_TRUE(Validate(resolved).ok()) << Validate(resolved);
}

TEST(JobSpecTest, FutureMethodsAreUnimplemented) {
  for (const char* method : {"aqt"}) {
    JobSpec spec = Good();
    spec.method = method;
    const absl::Status status = Validate(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << method;
    EXPECT_EQ(base::ReasonMetadata(status)["field"], "method");
  }
}

TEST(JobSpecTest, HeldOutRowsAreAnEvaluationSet) {
  JobSpec spec = Good();
  const std::string unset = Digest(spec);
  spec.eval_fraction = 0.5;
  spec.run.eval_every = 5;
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  EXPECT_NE(Digest(spec), unset);
  EXPECT_EQ(ParseJobSpec(ToJson(spec))->eval_fraction, 0.5);
}

TEST(JobSpecTest, MergeAwareTrainingRejectsDropout) {
  JobSpec spec = Good();
  spec.qlora.merge_aware_int8 = true;
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  spec.qlora.dropout = 0.1;
  EXPECT_EQ(base::ReasonMetadata(Validate(spec))["qlora.dropout"],
            "is 0.1, wanted 0 with merge_aware_int8, which trains merged weights");
}

TEST(JobSpecTest, SpecSurvivesAJsonRoundTrip) {
  JobSpec spec = Good();
  spec.display_name = "n\xc3\xa4me";
  spec.output_model = "out";
  spec.eval_dataset = "eval";
  spec.device = "cuda:1";
  spec.data = {.format = "chat",
               .max_seq_len = 1024,
               .packing = "none",
               .overlong = "drop",
               .train_on_prompt = true,
               .shuffle_seed = 7,
               .add_special_tokens = false};
  const LoraMethod adapter = {.r = 8,
                              .alpha = 12.5,
                              .dropout = 0.05,
                              .target_modules = {"q_proj", "v_proj"},
                              .use_rslora = true,
                              .compute_dtype = "fp32",
                              .seed = 99,
                              .lora_plus_ratio = 4,
                              .rank_pattern = {{"q_proj", 4}},
                              .alpha_pattern = {{"v_proj", 2.5}},
                              .use_dora = true,
                              .modules_to_save = {"lm_head", "model.norm"}};
  spec.qlora = {adapter, /*double_quant=*/true, /*merge_aware_int8=*/true, /*nf4_block=*/128, /*scaler_block=*/64};
  spec.optim = {.optimizer = "lion",
                .lr = 1e-3,
                .beta1 = 0.8,
                .beta2 = 0.95,
                .eps = 1e-6,
                .weight_decay = 0.1,
                .max_grad_norm = 0.5,
                .schedule = "linear",
                .warmup_steps = 10,
                .warmup_ratio = std::nullopt,
                .min_lr_ratio = 0.1};
  spec.run = {.max_steps = 100,
              .epochs = std::nullopt,
              .micro_batch = 2,
              .grad_accum = 3,
              .activation_checkpointing = true,
              .eval_every = 10,
              .save_every = 20,
              .keep_last = 4,
              .seed = 5,
              .priority = -1,
              .allow_inexact_resume = false};
  spec.labels = {{"team", "x"}};
  const auto back = ParseJobSpec(ToJson(spec));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(base::Dump(ToJson(*back)), base::Dump(ToJson(spec)));
  EXPECT_EQ(back->optim.lr, 1e-3);
  EXPECT_EQ(back->run.max_steps, 100);
  EXPECT_EQ(back->qlora.target_modules.size(), 2u);
  JobSpec lora = spec;
  lora.method = kMethodLora;
  lora.lora = adapter;
  const auto lora_back = ParseJobSpec(ToJson(lora));
  ASSERT_TRUE(lora_back.ok()) << lora_back.status();
  EXPECT_EQ(base::Dump(ToJson(*lora_back)), base::Dump(ToJson(lora)));
  EXPECT_EQ(lora_back->lora.lora_plus_ratio, 4);
  EXPECT_FALSE(ToJson(lora).contains("qlora"));
  // optim and run have every field in the JSON, except the unset warmup_ratio and epochs.
  EXPECT_EQ(ToJson(spec)["optim"].size(), 10u);
  EXPECT_EQ(ToJson(spec)["run"].size(), 10u);
}

// Checkpoints contain the digest, so its definition must not change between versions.
TEST(JobSpecTest, DigestCoversTheMethodAndFieldsThatDifferFromDefaults) {
  JobSpec spec;
  spec.base_model = "base";
  EXPECT_EQ(Digest(spec), base::Sha256Hex(R"({"base_model":"base","method":"qlora"})"));
  spec.optim.lr = 0.5;
  spec.labels["team"] = "a";
  EXPECT_EQ(Digest(spec),
            base::Sha256Hex(R"({"base_model":"base","labels":{"team":"a"},"method":"qlora","optim":{"lr":0.5}})"));
  JobSpec bitnet = spec;
  bitnet.method = kMethodBitNetQat;
  EXPECT_NE(Digest(bitnet), Digest(spec));
  JobSpec limited = spec;
  limited.run.max_steps = 3;  // a field without a default
  EXPECT_NE(Digest(limited), Digest(spec));
}

// T9 (docs/faults.md)
TEST(JobSpecTest, AddSpecialTokensIsKeptAndDoesNotChangeTheDigestIfUnset) {
  JobSpec spec;
  EXPECT_FALSE(ToJson(spec)["data"].contains("add_special_tokens"));
  const std::string unset = Digest(spec);
  for (const bool add : {false, true}) {
    spec.data.add_special_tokens = add;
    const auto back = ParseJobSpec(ToJson(spec));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->data.add_special_tokens, add);
    EXPECT_NE(Digest(spec), unset);
  }
}

// A changed default would change the digest of old specs, so a job that runs across the upgrade would refuse its own
// checkpoints.
TEST(JobSpecTest, ReleasedDefaultsDoNotChange) {
  EXPECT_EQ(base::Dump(ToJson(JobSpec{})),
            R"({"display_name":"","method":"qlora","base_model":"","train_dataset":"","eval_dataset":"",)"
            R"("output_model":"","device":"auto","data":{"max_seq_len":512,"packing":"segmented",)"
            R"("train_on_prompt":false,"shuffle_seed":0},"qlora":{"r":16,"alpha":32.0,"dropout":0.0,)"
            R"("target_modules":["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"],)"
            R"("use_rslora":false,"compute_dtype":"bf16","seed":0,"lora_plus_ratio":1.0,"target_pattern":"",)"
            R"("rank_pattern":{},"alpha_pattern":{},"use_dora":false,"modules_to_save":[],"double_quant":true,)"
            R"("merge_aware_int8":false},)"
            R"("optim":{"optimizer":"adamw","lr":0.0002,)"
            R"("beta1":0.9,"beta2":0.999,"eps":1e-08,"weight_decay":0.0,"max_grad_norm":1.0,"schedule":"cosine",)"
            R"("min_lr_ratio":0.0},"run":{"micro_batch":4,"grad_accum":1,"activation_checkpointing":false,)"
            R"("eval_every":0,"save_every":50,"keep_last":2,"seed":0,"priority":0,"allow_inexact_resume":true},)"
            R"("labels":{},"resume_from":"","warm_start_from":""})");
  JobSpec bitnet;
  bitnet.method = kMethodBitNetQat;
  EXPECT_EQ(base::Dump(ToJson(bitnet)["bitnet_qat"]),
            R"({"preset":"native","act_scale":"per_token","act_bits":8,"ste":"identity","scale_grad":false,)"
            R"("init":"pretrained","compute_dtype":"bf16","master_dtype":"fp32",)"
            R"("modules_to_not_convert":["lm_head"]})");
  JobSpec full;
  full.method = kMethodFull;
  EXPECT_EQ(base::Dump(ToJson(full)["full"]), R"({"init":"pretrained","compute_dtype":"bf16","param_dtype":"fp32"})");
  full.full = {.compute_dtype = "fp32", .param_dtype = "bf16"};
  EXPECT_EQ(base::ReasonMetadata(Validate(full))["full.param_dtype"],
            "is BF16, wanted F32 with compute_dtype F32, or compute_dtype BF16");
  JobSpec lora;
  lora.method = kMethodLora;
  EXPECT_EQ(base::Dump(ToJson(lora)["lora"]),
            R"({"r":16,"alpha":32.0,"dropout":0.0,"target_modules":["q_proj","k_proj","v_proj","o_proj","gate_proj",)"
            R"("up_proj","down_proj"],"use_rslora":false,"compute_dtype":"bf16","seed":0,"lora_plus_ratio":1.0,)"
            R"("target_pattern":"","rank_pattern":{},"alpha_pattern":{},"use_dora":false,"modules_to_save":[]})");
  JobSpec mixed;
  mixed.method = kMethodInt8Mixed;
  EXPECT_EQ(
      base::Dump(ToJson(mixed)["int8_mixed"]),
      R"({"preset":"all","act_scale":"per_token","grad_scale":"per_token","stochastic_forward":false,)"
      R"("stochastic_gradients":false,"target_modules":["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj",)"
      R"("down_proj"],"init":"pretrained","compute_dtype":"bf16","master_dtype":"fp32"})");
  JobSpec quantized;
  quantized.method = kMethodInt8Qt;
  EXPECT_EQ(base::Dump(ToJson(quantized)["int8_qt"]),
            R"({"stochastic_rounding":true,"scale":"channel","act_outliers":0,"init":"pretrained",)"
            R"("compute_dtype":"bf16","compute":"int8"})");
}

TEST(JobSpecTest, FieldsOfFullAndInt8QtThatDoNotFitAreNamedWithTheirValues) {
  JobSpec full;
  full.method = kMethodFull;
  full.full = {.compute_dtype = "fp32", .param_dtype = "bf16"};
  EXPECT_EQ(base::ReasonMetadata(Validate(full))["full.param_dtype"],
            "is BF16, wanted F32 with compute_dtype F32, or compute_dtype BF16");
  JobSpec quantized;
  quantized.method = kMethodInt8Qt;
  quantized.int8_qt = {.scale = "row", .act_outliers = 17};
  const std::map<std::string, std::string> found = base::ReasonMetadata(Validate(quantized));
  EXPECT_EQ(found.at("int8_qt.scale"), "is \"row\", wanted one of channel, tensor");
  EXPECT_EQ(found.at("int8_qt.act_outliers"), "is 17, wanted 0 to 16");
  quantized.int8_qt = {.act_outliers = 1, .compute = "float"};
  EXPECT_EQ(base::ReasonMetadata(Validate(quantized)).at("int8_qt.act_outliers"), "is 1, wanted 0 with compute FLOAT");
  quantized.int8_qt = {.compute = "bf16"};
  EXPECT_EQ(base::ReasonMetadata(Validate(quantized)).at("int8_qt.compute"), "is \"bf16\", wanted one of int8, float");
}

TEST(JobSpecTest, PresetsOfInt8MixedGiveUnsetFieldsTheirValues) {
  const auto with = [](Int8MixedMethod method) {
    JobSpec spec = Good();
    spec.method = kMethodInt8Mixed;
    spec.int8_mixed = std::move(method);
    EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
    return Resolve(spec, "job", "text", "cpu").int8_mixed;
  };
  const auto products = [](const Int8MixedMethod& m) {
    return std::vector<bool>{*m.forward, *m.grad_input, *m.grad_weight, *m.exact_forward};
  };
  EXPECT_EQ(products(with({})), (std::vector<bool>{true, true, true, true}));
  EXPECT_EQ(with({}).act_outliers, 8);
  EXPECT_EQ(with({}).weight_scale, "channel");
  EXPECT_EQ(products(with({.preset = "a8w8-qat"})), (std::vector<bool>{true, false, false, true}));
  EXPECT_EQ(products(with({.preset = "switchback"})), (std::vector<bool>{true, true, false, false}));
  EXPECT_EQ(with({.preset = "switchback"}).weight_scale, "tensor");
  EXPECT_EQ(products(with({.preset = "torchao"})), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(with({.preset = "torchao"}).act_outliers, 0);
  // A field that is set overrides its preset; fields that would contradict it are then off by default.
  EXPECT_EQ(products(with({.preset = "a8w8-qat", .grad_input = true})), (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(products(with({.forward = false})), (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(with({.act_scale = "per_tensor"}).act_outliers, 0);
  EXPECT_EQ(with({.act_scale = "per_tensor"}).exact_forward, false);
  EXPECT_EQ(with({.target_modules = {"q_proj"}}).exact_forward, false);
}

TEST(JobSpecTest, Int8MixedRefusesFieldsThatContradict) {
  const auto field = [](Int8MixedMethod method) {
    JobSpec spec = Good();
    spec.method = kMethodInt8Mixed;
    spec.int8_mixed = std::move(method);
    return base::ReasonMetadata(Validate(spec))["field"];
  };
  EXPECT_EQ(field({}), "");
  EXPECT_EQ(field({.preset = "fast"}), "int8_mixed.preset");
  EXPECT_EQ(field({.act_outliers = 17}), "int8_mixed.act_outliers");
  EXPECT_EQ(field({.weight_scale = "row"}), "int8_mixed.weight_scale");
  EXPECT_EQ(field({.target_modules = {"lm_head"}}), "int8_mixed.target_modules");
  EXPECT_EQ(field({.target_modules = {}}), "int8_mixed.target_modules");
  EXPECT_EQ(field({.forward = false, .grad_input = false, .grad_weight = false}), "int8_mixed.forward");
  EXPECT_EQ(field({.forward = false, .act_outliers = 4}), "int8_mixed.act_outliers");
  EXPECT_EQ(field({.act_outliers = 4, .act_scale = "per_tensor"}), "int8_mixed.act_outliers");
  EXPECT_EQ(field({.forward = false, .stochastic_forward = true}), "int8_mixed.stochastic_forward");
  EXPECT_EQ(field({.forward = false, .act_scale = "per_tensor"}), "int8_mixed.act_scale");
  EXPECT_EQ(field({.forward = false, .grad_input = false, .weight_scale = "tensor"}), "int8_mixed.weight_scale");
  EXPECT_EQ(field({.preset = "a8w8-qat", .grad_scale = "per_tensor"}), "int8_mixed.grad_scale");
  EXPECT_EQ(field({.preset = "a8w8-qat", .stochastic_gradients = true}), "int8_mixed.stochastic_gradients");
  EXPECT_EQ(field({.exact_forward = true, .weight_scale = "tensor"}), "int8_mixed.exact_forward");
  EXPECT_EQ(field({.forward = false, .exact_forward = true}), "int8_mixed.exact_forward");
  EXPECT_EQ(field({.exact_forward = true, .stochastic_forward = true}), "int8_mixed.exact_forward");
  EXPECT_EQ(field({.exact_forward = true, .target_modules = {"q_proj"}}), "int8_mixed.exact_forward");
  EXPECT_EQ(field({.master_dtype = "fp16"}), "int8_mixed.master_dtype");
  for (const char* preset : {"all", "torchao"}) {
    EXPECT_EQ(field({.preset = preset, .master_dtype = "bf16"}), "");
    EXPECT_EQ(field({.preset = preset, .compute_dtype = "fp32", .master_dtype = "bf16"}), "int8_mixed.master_dtype");
  }
}

TEST(JobSpecTest, WrongTypesAndUnknownKeysAreNamedByPath) {
  const auto field = [](const std::string& text) { return base::ReasonMetadata(Parse(text).status())["field"]; };
  EXPECT_EQ(field(R"({"base_modell":"x"})"), "base_modell");
  EXPECT_EQ(field(R"({"optim":{"lr":"fast"}})"), "optim.lr");
  EXPECT_EQ(field(R"({"optim":{"learning_rate":1}})"), "optim.learning_rate");
  EXPECT_EQ(field(R"({"qlora":{"r":1.5}})"), "qlora.r");
  EXPECT_EQ(field(R"({"qlora":{"target_modules":"q_proj"}})"), "qlora.target_modules");
  EXPECT_EQ(field(R"({"run":[]})"), "run");
  EXPECT_EQ(field(R"({"run":{"max_steps":18446744073709551615}})"), "run.max_steps");
  EXPECT_EQ(field(R"({"labels":{"a":1}})"), "labels");
  EXPECT_EQ(field("[]"), "spec");
}

TEST(JobSpecTest, ResolveFillsUnsetFieldsAndKeepsSetOnes) {
  const JobSpec text = Resolve(Good(), "job-1", "text", "cpu");
  EXPECT_EQ(text.output_model, "job-1");
  EXPECT_EQ(text.device, "cpu");
  EXPECT_EQ(text.data.format, "text");
  EXPECT_EQ(text.data.overlong, "split");
  EXPECT_EQ(text.run.epochs, 1.0);
  EXPECT_EQ(text.optim.warmup_ratio, 0.03);
  EXPECT_EQ(Resolve(Good(), "job-1", "chat", "cpu").data.overlong, "truncate");
  JobSpec given = Good();
  given.run.max_steps = 5;
  given.optim.warmup_steps = 0;
  given.device = "cuda:0";
  given = Resolve(given, "job-1", "text", "cpu");
  EXPECT_FALSE(given.run.epochs.has_value());
  EXPECT_FALSE(given.optim.warmup_ratio.has_value());
  EXPECT_EQ(given.device, "cuda:0");
}

TEST(JobSpecTest, EpochsBecomeMicroBatchesAndSteps) {
  RunConfig run;
  run.micro_batch = 4;
  run.grad_accum = 4;
  EXPECT_EQ(NumMicroBatches(run, 10), 3) << "one epoch by default";  // of 4, 4 and 2 rows
  EXPECT_EQ(NumSteps(run, 10), 1);
  run.epochs = 2.5;
  EXPECT_EQ(NumMicroBatches(run, 10), 8);  // 2.5 * 3, rounded up
  EXPECT_EQ(NumSteps(run, 10), 2);
  run.epochs = 0.01;
  EXPECT_EQ(NumMicroBatches(run, 10), 1);
  EXPECT_EQ(NumSteps(run, 10), 1);
  run.epochs.reset();
  run.max_steps = 7;
  EXPECT_EQ(NumMicroBatches(run, 10), std::nullopt);
  EXPECT_EQ(NumSteps(run, 10), 7);
  // The last step has at least one micro-batch, and the steps hold all micro-batches.
  run.max_steps.reset();
  for (const double epochs : {0.1, 0.3, 1.0, 1.1, 2.7, 3.0}) {
    for (int rows = 1; rows < 60; rows += 7) {
      for (int accum = 1; accum <= 5; ++accum) {
        run.epochs = epochs;
        run.grad_accum = accum;
        EXPECT_LT((NumSteps(run, rows) - 1) * accum, *NumMicroBatches(run, rows));
        EXPECT_GE(NumSteps(run, rows) * accum, *NumMicroBatches(run, rows));
      }
    }
  }
}

}  // namespace
}  // namespace nibble::jobs
