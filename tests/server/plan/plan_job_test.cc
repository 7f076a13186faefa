#include "server/plan/plan_job.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>

#include "kernels/formats/ternary.h"
#include "server/base/error.h"
#include "server/data/token_writer.h"
#include "server/model/adapter.h"
#include "server/model/import.h"
#include "server/plan/memory_plan.h"
#include "tests/server/model/files.h"

namespace nibble::plan {
namespace {

using ::testing::HasSubstr;

std::map<std::string, std::int64_t> Pools(const JobPlan& plan) {
  std::map<std::string, std::int64_t> pools;
  for (const MemoryItem& item : plan.memory) pools[item.pool] += item.bytes;
  return pools;
}

class PlanJobTest : public ::testing::Test {
 protected:
  PlanJobTest() {
    std::filesystem::copy(model::Golden("families/llama"), directory_.Path("hf"));
    std::filesystem::copy(model::Golden("families/tokenizer.json"), directory_.Path("hf/tokenizer.json"));
    EXPECT_TRUE(model::ImportModel(base::RealFileSystem(), directory_.Path("hf"), directory_.Path("model"),
                                   kernels::DType::kF32)
                    .ok());
    const auto artifact = model::Artifact::Open(directory_.Path("model"));
    EXPECT_TRUE(artifact.ok()) << artifact.status();
    inputs_.config = (*artifact)->config();
    inputs_.text = *model::LoadTextAssets(directory_.Path("model"));
    inputs_.base_format = "f32";
    inputs_.train.format = "text";
    inputs_.devices = {"cpu"};
    inputs_.train.path = Data("train.jsonl", 10, 40);
    spec_.base_model = "model";
    spec_.train_dataset = "train";
    spec_.data.max_seq_len = 32;
    spec_ = jobs::Resolve(spec_, "job-1", "text", "cpu");
  }

  // Rows of `bytes` letters; returns the file.
  std::string Data(const std::string& name, int rows, int bytes) {
    std::string text;
    for (int i = 0; i < rows; ++i)
      text += "{\"text\": \"" + std::string(static_cast<std::size_t>(bytes), static_cast<char>('a' + i % 26)) + "\"}\n";
    model::WriteBytes(directory_.Path(name), text);
    return directory_.Path(name);
  }

  JobPlan Plan() {
    const auto plan = PlanJob(spec_, inputs_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : JobPlan();
  }
  static void ExpectEqual(const JobPlan& got, const JobPlan& want) {
    EXPECT_EQ(Pools(got), Pools(want));
    EXPECT_EQ(got.max_steps, want.max_steps);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.trained_tokens, want.trained_tokens);
    ASSERT_EQ(got.warnings.size(), want.warnings.size());
    for (std::size_t i = 0; i < want.warnings.size(); ++i) {
      EXPECT_EQ(got.warnings[i].message, want.warnings[i].message);
      EXPECT_EQ(got.warnings[i].rows, want.warnings[i].rows);
    }
  }
  static bool Warns(const JobPlan& plan, const std::string& reason) {
    for (const PlanWarning& warning : plan.warnings) {
      if (warning.reason == reason) return true;
    }
    return false;
  }

  model::TempDirectory directory_;
  JobInputs inputs_;
  jobs::JobSpec spec_;
};

TEST_F(PlanJobTest, RefusesModelThatCouldNotBeServed) {
  const auto plan = [&](std::int64_t ffn_size) {
    inputs_.config.ffn_size = ffn_size;
    return PlanJob(spec_, inputs_).status();
  };
  EXPECT_TRUE(plan(kernels::kInt8MaxCols).ok());
  const absl::Status status = plan(kernels::kInt8MaxCols + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(base::Reason(status), "FIELD_VIOLATION");
  const std::string want = "base_model: model.layers.0.mlp.down_proj.weight has 132105 input features, wanted at most";
  EXPECT_NE(std::string(status.message()).find(want), std::string::npos) << status;
  spec_.method = jobs::kMethodBitNetQat;
  EXPECT_TRUE(plan(kernels::kInt8MaxCols + 1).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(plan(kernels::kTernaryMaxCols + 1)));
  spec_.bitnet_qat.act_bits = 16;
  EXPECT_TRUE(plan(kernels::kTernaryMaxColsWide).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(plan(kernels::kTernaryMaxColsWide + 1)));
}

TEST_F(PlanJobTest, StepsAndTokensOfOneEpochMatchTheData) {
  const auto data = CheckJob(spec_, inputs_);
  ASSERT_TRUE(data.ok()) << data.status();
  const JobPlan plan = Plan();
  EXPECT_EQ(plan.tokens, data->train.num_tokens);
  EXPECT_EQ(plan.trained_tokens, data->train.num_trained);
  EXPECT_GT(plan.max_steps, 0);
  spec_.run.grad_accum = 2;
  EXPECT_EQ(Plan().max_steps, (plan.max_steps + 1) / 2);
  spec_.run.epochs = 3;
  spec_.run.grad_accum = 1;
  EXPECT_EQ(Plan().max_steps, 3 * plan.max_steps);
  EXPECT_EQ(Plan().tokens, 3 * plan.tokens);
  spec_.run.epochs.reset();
  spec_.run.max_steps = 7;
  EXPECT_EQ(Plan().max_steps, 7);
  EXPECT_NEAR(static_cast<double>(Plan().tokens),
              7.0 * static_cast<double>(plan.tokens) / static_cast<double>(plan.max_steps), 1.0);
}

TEST_F(PlanJobTest, RefusesRampAsLongAsTheEpochs) {
  spec_.method = jobs::kMethodBitNetQat;
  spec_.run.max_steps.reset();
  spec_.run.epochs = 3;
  const std::int64_t steps = Plan().max_steps;
  ASSERT_GT(steps, 1);
  spec_.bitnet_qat.warmup_lambda = jobs::LambdaSchedule{.steps = steps - 1};
  EXPECT_TRUE(PlanJob(spec_, inputs_).ok());
  spec_.bitnet_qat.warmup_lambda->steps = steps;
  const absl::Status status = PlanJob(spec_, inputs_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(base::ReasonMetadata(status)["field"], "bitnet_qat.warmup_lambda.steps");
}

TEST_F(PlanJobTest, TrainedParametersAreThoseOfTheAdapterOrTheModel) {
  model::AdapterConfig adapter;
  adapter.rank = spec_.qlora.r;
  for (int k = 0; k < model::kNumLinearKinds; ++k) adapter.targets.push_back(static_cast<model::LinearKind>(k));
  std::int64_t want = 0;
  for (const auto& tensor : model::AdapterTensors(inputs_.config, adapter)) want += tensor.shape[0] * tensor.shape[1];
  EXPECT_EQ(Plan().trained_parameters, want);
  spec_.method = jobs::kMethodBitNetQat;
  spec_.bitnet_qat.preset = "bitnet-tips";
  std::int64_t all = 0;
  for (const auto& tensor : model::RequiredTensors(TrainedConfig(spec_, inputs_.config))) {
    std::int64_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements *= size;
    all += elements;
  }
  EXPECT_EQ(Plan().trained_parameters, all);
  EXPECT_EQ(Pools(Plan())["optimizer"], 8 * all);
}

TEST_F(PlanJobTest, PatternsOfRanksCountInParametersAndMemory) {
  const auto before = Plan();
  spec_.qlora.rank_pattern = {{".*", 2 * spec_.qlora.r}};
  const auto after = Plan();
  EXPECT_EQ(after.trained_parameters, 2 * before.trained_parameters);
  EXPECT_EQ(Pools(after).at("adapter"), 2 * Pools(before).at("adapter"));
  EXPECT_GT(Pools(after).at("activation"), Pools(before).at("activation"));
  spec_.qlora.rank_pattern = {};
  spec_.qlora.target_pattern = ".*[.]0[.].*_proj";
  EXPECT_EQ(Plan().trained_parameters, before.trained_parameters / inputs_.config.num_layers);
}

TEST_F(PlanJobTest, DoraCountsItsMagnitudesAndTheOutputsThatItKeeps) {
  const auto before = Plan();
  spec_.qlora.use_dora = true;
  std::int64_t outputs = 0;
  for (int k = 0; k < model::kNumLinearKinds; ++k) {
    outputs += model::OutFeatures(inputs_.config, static_cast<model::LinearKind>(k));
  }
  const auto after = Plan();
  EXPECT_EQ(after.trained_parameters, before.trained_parameters + outputs * inputs_.config.num_layers);
  EXPECT_GT(Pools(after).at("activation"), Pools(before).at("activation"));
}

// Values, gradients and the form that the evaluation reads count as "adapter". An embedding or a head also needs
// workspace for the form that backward products read.
TEST_F(PlanJobTest, SavedModulesCountInParametersAndMemory) {
  inputs_.config.tied_embeddings = false;
  const auto before = Plan();
  const std::int64_t hidden = inputs_.config.hidden_size, head = hidden * inputs_.config.vocab_size;
  const auto grown = [&](std::vector<std::string> modules) {
    spec_.qlora.modules_to_save = std::move(modules);
    const auto after = Plan();
    const auto more = [&](const char* pool) { return Pools(after).at(pool) - Pools(before).at(pool); };
    const std::int64_t parameters = after.trained_parameters - before.trained_parameters;
    EXPECT_EQ(more("adapter"), 12 * parameters);
    EXPECT_EQ(more("optimizer"), 8 * parameters);
    EXPECT_EQ(more("activation"), 0);
    const std::int64_t copies = parameters / head;
    const auto read = static_cast<double>(copies * 4 * head);
    EXPECT_NEAR(static_cast<double>(more("workspace")), read, 0.1 * read) << "with the margin of a plan";
    return parameters;
  };
  EXPECT_EQ(grown({"model.norm"}), hidden);
  EXPECT_EQ(grown({"norm"}), hidden * (1 + 2 * inputs_.config.num_layers));
  EXPECT_EQ(grown({"lm_head", "embed_tokens"}), 2 * head);
}

TEST_F(PlanJobTest, RefusesModulesToSaveThatDoNotFitTheBase) {
  const auto refusal = [&](const char* module) {
    spec_.qlora.modules_to_save = {"model.norm", module};
    const absl::Status status = PlanJob(spec_, inputs_).status();
    EXPECT_EQ(base::Reason(status), "FIELD_VIOLATION") << status;
    EXPECT_EQ(base::ReasonMetadata(status)["field"], "qlora.modules_to_save");
    return std::string(status.message());
  };
  inputs_.config.tied_embeddings = false;
  EXPECT_THAT(refusal("q_proj"), HasSubstr("wanted only embed_tokens, lm_head and norms"));
  EXPECT_THAT(refusal("classifier"), HasSubstr("matches no module"));
  inputs_.config.tied_embeddings = true;
  EXPECT_THAT(refusal("lm_head"), HasSubstr("wanted embed_tokens, which trains both"));
  inputs_.base_int8_head = true;
  EXPECT_THAT(refusal("embed_tokens"), HasSubstr("wanted a base with a float head"));
}

TEST_F(PlanJobTest, RefusesPatternsThatDoNotFitTheBase) {
  const auto refusal = [&](auto change) {
    jobs::JobSpec spec = spec_;
    change(spec.qlora);
    const absl::Status status = PlanJob(spec, inputs_).status();
    EXPECT_EQ(base::Reason(status), "FIELD_VIOLATION") << status;
    return base::ReasonMetadata(status)["field"] + ": " + std::string(status.message());
  };
  using jobs::QLoraMethod;
  EXPECT_THAT(refusal([](QLoraMethod& q) { q.target_pattern = "q_proj"; }), HasSubstr("qlora.target_pattern"));
  EXPECT_THAT(refusal([](QLoraMethod& q) { q.target_pattern = "q_proj"; }), HasSubstr("matches no linear"));
  EXPECT_THAT(refusal([](QLoraMethod& q) { q.target_pattern = ".*(q_proj|lm_head)"; }), HasSubstr("\"lm_head\""));
  EXPECT_THAT(refusal([](QLoraMethod& q) { q.target_pattern = ".*layers[.]0.*"; }), HasSubstr("\"model.layers.0\""));
  EXPECT_THAT(refusal([](QLoraMethod& q) { q.rank_pattern = {{"layers.99.*", 4}}; }), HasSubstr("qlora.rank_pattern"));
  EXPECT_THAT(refusal([](QLoraMethod& q) {
                q.target_modules = {"q_proj"};
                q.alpha_pattern = {{"k_proj", 4}};
              }),
              HasSubstr("qlora.alpha_pattern"));
  const std::string both = refusal([](QLoraMethod& q) { q.rank_pattern = {{"q_proj", 4}, {".*0.*q_proj", 8}}; });
  EXPECT_THAT(both, HasSubstr("both match model.layers.0.self_attn.q_proj"));
}

TEST_F(PlanJobTest, MemoryFollowsBatchSizeCheckpointingAndRank) {
  const auto before = Pools(Plan());
  spec_.run.micro_batch *= 2;
  spec_.data.packing = "none";
  inputs_.train.path = Data("long.jsonl", 200, 31);
  const auto wide = Pools(Plan());
  EXPECT_EQ(wide.at("weights"), before.at("weights"));
  EXPECT_GT(wide.at("activation"), before.at("activation"));
  spec_.run.activation_checkpointing = true;
  EXPECT_LT(Pools(Plan()).at("activation"), wide.at("activation"));
  spec_.qlora.r *= 2;
  EXPECT_EQ(Pools(Plan()).at("optimizer"), 2 * before.at("optimizer"));
  EXPECT_EQ(Pools(Plan()).at("adapter"), 2 * before.at("adapter"));
}

// docs/faults.md, T11. Eight of 400 rows are long. They are in different micro-batches in the first epoch, but may be
// in one in a later epoch.
TEST_F(PlanJobTest, PlansForAMicroBatchOfTheLongestRows) {
  spec_.run.micro_batch = 8;
  const std::string few = Data("few.jsonl", 8, 31);
  const std::string many = Data("many.jsonl", 392, 2);
  const auto read = [](const std::string& path) { return *base::RealFileSystem().Read(path, 1 << 20); };
  model::WriteBytes(directory_.Path("mixed.jsonl"), read(few) + read(many));
  for (const char* packing : {"none", "segmented"}) {
    SCOPED_TRACE(packing);
    spec_.data.packing = packing;
    inputs_.train.path = directory_.Path("mixed.jsonl");
    const JobPlan mixed = Plan();
    inputs_.train.path = few;
    EXPECT_EQ(Pools(mixed).at("activation"), Pools(Plan()).at("activation"));
  }
}

// Each of these numbers is permitted, but together they make more than 2^63 tokens, which must not overflow.
TEST_F(PlanJobTest, TokenCountsAreCappedAtTheLargestInt64) {
  inputs_.config.max_positions = 4096;
  inputs_.train.path = Data("many.jsonl", 400, 4000);  // one token per letter
  spec_.data.max_seq_len = 4096;
  spec_.run.epochs.reset();
  spec_.run.max_steps = 100'000'000;
  spec_.run.micro_batch = 65'536;
  ASSERT_TRUE(jobs::Validate(spec_).ok()) << jobs::Validate(spec_);
  const JobPlan fewer = Plan();
  ASSERT_GT(fewer.tokens, 100'000'000 * std::int64_t{1'500'000});
  EXPECT_EQ(fewer.tokens % 100'000'000, 0) << "each step takes all rows";
  spec_.run.grad_accum = 65'536;
  ASSERT_TRUE(jobs::Validate(spec_).ok()) << jobs::Validate(spec_);
  const JobPlan most = Plan();
  EXPECT_EQ(most.max_steps, 100'000'000);
  EXPECT_EQ(most.tokens, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(most.trained_tokens, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(most.memory_bytes(), fewer.memory_bytes());
  EXPECT_TRUE(Warns(most, "MANY_EPOCHS"));
}

// The largest model that a config.json may describe and the largest batch that a spec may ask for.
TEST(MemoryPlanTest, ItemsAreCappedAtMoreThanAnyMachineHas) {
  model::ModelConfig config;
  config.architecture = "llama";
  config.hidden_size = 1 << 17;
  config.num_layers = 1 << 12;
  config.num_heads = config.num_kv_heads = 1 << 12;
  config.head_dim = 1 << 10;
  config.ffn_size = 1 << 20;
  config.vocab_size = 1 << 22;
  const std::int64_t tokens = std::int64_t{65'536} << 20;
  const BatchShape batch = {.tokens = tokens, .dataset_tokens = tokens, .examples = 65'536};
  const std::int64_t most = std::int64_t{1} << 50;
  for (const char* method : {jobs::kMethodQLora, jobs::kMethodBitNetQat}) {
    for (const bool checkpointing : {false, true}) {
      SCOPED_TRACE(method);
      jobs::JobSpec spec;
      spec.method = method;
      spec.qlora.r = 4096;
      spec.qlora.compute_dtype = spec.bitnet_qat.compute_dtype = "fp32";
      spec.run.activation_checkpointing = checkpointing;
      JobPlan plan;
      plan.memory = PlanMemory(spec, config, /*base_bytes=*/4, batch);
      for (const MemoryItem& item : plan.memory) {
        EXPECT_GT(item.bytes, 0) << item.pool;
        EXPECT_LE(item.bytes, most) << item.pool;
      }
      EXPECT_EQ(Pools(plan).at("activation"), most);
      EXPECT_GT(plan.memory_bytes(), most);
    }
  }
}

TEST_F(PlanJobTest, WarnsOfFewStepsAndOfManyPasses) {
  spec_.run.micro_batch = 1;
  spec_.run.max_steps.reset();
  spec_.run.epochs = 1;
  const JobPlan pass = Plan();
  ASSERT_LT(pass.max_steps, 20);
  EXPECT_EQ(pass.epochs, 1);
  EXPECT_TRUE(Warns(pass, "FEW_STEPS"));
  spec_.run.epochs.reset();
  spec_.run.max_steps = pass.max_steps;
  EXPECT_FALSE(Warns(Plan(), "FEW_STEPS")) << "the user chose the number of steps";
  EXPECT_FALSE(Warns(Plan(), "MANY_EPOCHS"));
  spec_.run.max_steps = 15 * pass.max_steps;
  const JobPlan many = Plan();
  EXPECT_EQ(many.epochs, 15);
  EXPECT_TRUE(Warns(many, "MANY_EPOCHS"));
  EXPECT_FALSE(Warns(many, "FEW_STEPS"));
}

TEST_F(PlanJobTest, HeldOutRowsAreEvaluatedAndNotTrained) {
  const JobPlan all = Plan();
  spec_.eval_fraction = 0.3;
  const JobPlan plan = Plan();
  EXPECT_FALSE(Warns(plan, "NO_EVALUATION"));
  EXPECT_LT(plan.tokens, all.tokens * 8 / 10);
  EXPECT_GT(plan.tokens, all.tokens * 6 / 10);
  inputs_.train.path = Data("one.jsonl", 1, 20);
  const absl::Status refused = PlanJob(spec_, inputs_).status();
  EXPECT_EQ(base::Reason(refused), "NO_TRAINABLE_TOKENS");
  EXPECT_EQ(refused.message(), "eval_fraction: the dataset has 1 row to train on, wanted at least 2");
}

TEST_F(PlanJobTest, WarnsOfProbableMistakes) {
  EXPECT_TRUE(Warns(Plan(), "NO_EVALUATION"));
  EXPECT_FALSE(Warns(Plan(), "MANY_EPOCHS"));
  spec_.run.epochs.reset();
  spec_.run.max_steps = 500;
  spec_.run.save_every = 0;
  EXPECT_TRUE(Warns(Plan(), "MANY_EPOCHS"));
  EXPECT_TRUE(Warns(Plan(), "NO_CHECKPOINTS"));
  inputs_.train.format = "prompt_completion";
  spec_.data.format = "prompt_completion";
  spec_.data.overlong = "truncate";
  model::WriteBytes(directory_.Path("pairs.jsonl"),
                    "{\"prompt\": \"ab\", \"completion\": \"" + std::string(90, 'c') + "\"}\n");
  inputs_.train.path = directory_.Path("pairs.jsonl");
  EXPECT_TRUE(Warns(Plan(), "ROWS_TRUNCATED"));
  EXPECT_EQ(Plan().warnings.front().rows, std::vector<std::int64_t>{1});
  spec_.method = jobs::kMethodBitNetQat;
  spec_.bitnet_qat.act_scale = "per_tensor";
  EXPECT_TRUE(Warns(Plan(), "PER_TENSOR_ACTIVATIONS"));
}

// T1 (docs/faults.md): rows of the evaluation set must not be truncated, dropped or merged without a warning.
TEST_F(PlanJobTest, WarnsOfRowsOfTheEvaluationSetAndNamesIt) {
  model::WriteBytes(directory_.Path("pairs.jsonl"), R"({"prompt": "walk ", "completion": "the"})"
                                                    "\n");
  model::WriteBytes(directory_.Path("eval.jsonl"), R"({"prompt": "walk ", "completion": "the"})"
                                                   "\n"
                                                   R"({"prompt": "walk t", "completion": "he"})"
                                                   "\n"
                                                   R"({"prompt": "a", "completion": ")" +
                                                       std::string(60, 'x') + "\"}\n");
  inputs_.train.path = directory_.Path("pairs.jsonl");
  inputs_.train.format = "prompt_completion";
  inputs_.eval.path = directory_.Path("eval.jsonl");
  inputs_.eval.format = "prompt_completion";
  spec_.data.format = "prompt_completion";
  spec_.data.overlong = "truncate";
  spec_.eval_dataset = "questions";
  const auto find = [&](const JobPlan& plan, const std::string& reason) {
    const auto found = std::find_if(plan.warnings.begin(), plan.warnings.end(),
                                    [&](const PlanWarning& w) { return w.reason == reason; });
    return found != plan.warnings.end() ? *found : PlanWarning();
  };
  JobPlan plan = Plan();
  EXPECT_EQ(find(plan, "PROMPT_BOUNDARY_MERGED").rows, std::vector<std::int64_t>{2});
  EXPECT_EQ(find(plan, "ROWS_TRUNCATED").rows, std::vector<std::int64_t>{3});
  for (const char* reason : {"PROMPT_BOUNDARY_MERGED", "ROWS_TRUNCATED"}) {
    EXPECT_TRUE(find(plan, reason).message.starts_with("eval_dataset \"questions\": 1 of 3 rows "))
        << find(plan, reason).message;
  }
  spec_.data.overlong = "drop";
  plan = Plan();
  EXPECT_EQ(find(plan, "ROWS_DROPPED").rows, std::vector<std::int64_t>{3});
  // Each set gets its own warning.
  inputs_.train.path = directory_.Path("eval.jsonl");
  plan = Plan();
  EXPECT_EQ(std::count_if(plan.warnings.begin(), plan.warnings.end(),
                          [](const PlanWarning& w) { return w.reason == "ROWS_DROPPED"; }),
            2);
  EXPECT_TRUE(find(plan, "ROWS_DROPPED").message.starts_with("1 of 3 rows "))
      << "the warning of the training set is first";
}

// T7 (docs/faults.md): the second plan of the same data uses the token files, so it needs no tokenizer.
TEST_F(PlanJobTest, PlanFromTokenFilesEqualsThatFromTheText) {
  model::WriteBytes(directory_.Path("eval.jsonl"),
                    model::ReadBytes(Data("a.jsonl", 5, 60)) + model::ReadBytes(Data("b.jsonl", 4, 15)));
  inputs_.eval.path = directory_.Path("eval.jsonl");
  spec_.eval_dataset = "eval";
  spec_.run.micro_batch = 3;
  model::WriteBytes(directory_.Path("more.jsonl"),
                    model::ReadBytes(Data("c.jsonl", 30, 90)) + model::ReadBytes(Data("d.jsonl", 30, 20)));
  inputs_.train.path = directory_.Path("more.jsonl");
  for (const char* packing : {"none", "segmented"}) {
    for (const char* overlong : {"truncate", "drop", "split"}) {
      SCOPED_TRACE(std::string(packing) + " " + overlong);
      spec_.data.packing = packing;
      spec_.data.overlong = overlong;
      inputs_.load = nullptr;
      const JobPlan want = Plan();
      inputs_.train.sha256 = "train";
      inputs_.eval.sha256 = "eval";
      inputs_.train.tokens_directory = directory_.Path("tokens/train");
      inputs_.eval.tokens_directory = directory_.Path("tokens/eval");
      inputs_.load = [&](const data::TokenSource& source, const base::Cancelled& cancelled) {
        return data::LoadTokens(base::RealFileSystem(), source, {.threads = 3, .cancelled = cancelled});
      };
      const auto text = inputs_.text;
      for (const bool has_files : {false, true}) {
        if (has_files) inputs_.text.tokenizer = nullptr;
        ExpectEqual(Plan(), want);
      }
      inputs_.text = text;
    }
  }
}

// T7 (docs/faults.md): if the disk has no room for token files, a plan uses only the lengths of the examples.
TEST_F(PlanJobTest, PlanFromLengthsEqualsThatFromTheText) {
  inputs_.eval.path = Data("eval.jsonl", 7, 60);
  spec_.eval_dataset = "eval";
  spec_.data.overlong = "truncate";
  for (const char* packing : {"none", "segmented"}) {
    spec_.data.packing = packing;
    inputs_.load = nullptr;
    const JobPlan want = Plan();
    inputs_.train.tokens_directory = directory_.Path("tokens/train");
    inputs_.eval.tokens_directory = directory_.Path("tokens/eval");
    inputs_.load = [&](const data::TokenSource& source, const base::Cancelled& cancelled) {
      auto loaded = data::LoadTokens(base::RealFileSystem(), source,
                                     {.threads = 2,
                                      .min_free_bytes = std::numeric_limits<std::uint64_t>::max(),
                                      .cancelled = cancelled,
                                      .without_file = data::WithoutFile::kLengthsAlone});
      EXPECT_TRUE(loaded.ok() && !loaded->examples.has_tokens());
      return loaded;
    };
    ExpectEqual(Plan(), want);
  }
}

TEST_F(PlanJobTest, RefusesBasesAndDevicesThatTheJobCannotUse) {
  inputs_.base_format = "int8";
  EXPECT_EQ(PlanJob(spec_, inputs_).status().code(), absl::StatusCode::kInvalidArgument);
  inputs_.base_format = "nf4";
  EXPECT_TRUE(PlanJob(spec_, inputs_).ok());
  spec_.method = jobs::kMethodBitNetQat;  // all weights are trained, so they must be floats
  const auto refused = PlanJob(spec_, inputs_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(refused.status().message()).find("base_model"), std::string::npos);
  inputs_.base_format = "bf16";
  inputs_.base_is_masters = true;
  EXPECT_TRUE(PlanJob(spec_, inputs_).ok());
  spec_.method = jobs::kMethodQLora;  // masters cannot be served, so nf4 must not be made from them
  const auto masters = PlanJob(spec_, inputs_);
  EXPECT_EQ(masters.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(masters.status().message()).find("base_model: has the master weights"), std::string::npos)
      << masters.status();
  inputs_.base_is_masters = false;
  spec_.method = jobs::kMethodLora;
  EXPECT_TRUE(PlanJob(spec_, inputs_).ok());
  inputs_.base_format = "nf4";
  const auto nf4 = PlanJob(spec_, inputs_);
  EXPECT_EQ(nf4.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(nf4.status().message()).find("wanted a model in f32, bf16 or int8, or method qlora"),
            std::string::npos)
      << nf4.status();
  inputs_.base_format = "int8";
  EXPECT_TRUE(PlanJob(spec_, inputs_).ok());
  inputs_.base_format = "ternary";
  EXPECT_EQ(PlanJob(spec_, inputs_).status().code(), absl::StatusCode::kInvalidArgument);
  inputs_.base_format = "f32";
  inputs_.base_is_masters = true;
  EXPECT_EQ(PlanJob(spec_, inputs_).status().code(), absl::StatusCode::kInvalidArgument);
  spec_.method = jobs::kMethodBitNetQat;
  spec_.device = "cuda:0";
  EXPECT_EQ(PlanJob(spec_, inputs_).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::plan
