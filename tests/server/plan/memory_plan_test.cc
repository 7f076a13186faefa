// Compares the plan's formulas with what the code allocates (ServedFormTest), and with sums by hand (MemoryPlanTest).
#include "server/plan/memory_plan.h"

#include <gtest/gtest.h>

#include <numeric>

#include "server/model/forward.h"
#include "server/plan/method_plan.h"
#include "server/plan/model_sizes.h"
#include "tests/server/model/small_models.h"

namespace nibble::plan {
namespace {

jobs::JobSpec Spec(const char* method) {
  jobs::JobSpec spec;
  spec.method = method;
  spec.data.max_seq_len = 64;
  return jobs::Resolve(spec, "job-1", "text", "cpu");
}

// The served form of a job's model: int8 with a float head, or ternary.
std::shared_ptr<const model::LoadedModel> Served(model::SmallModels& models, const jobs::JobSpec& spec) {
  std::string path = models.ternary();
  if (spec.method != jobs::kMethodBitNetQat) {
    path = models.Path("served");
    const auto source = model::Artifact::Open(spec.method == jobs::kMethodQLora ? models.nf4() : models.bf16());
    EXPECT_TRUE(source.ok()) << source.status();
    EXPECT_TRUE(
        convert::ConvertModel(base::RealFileSystem(), **source, path, {.int8_head = false}, models.stream()).ok());
  }
  auto loaded = model::LoadedModel::Load(path, {.max_positions = spec.data.max_seq_len}, models.stream());
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *std::move(loaded);
}

class ServedFormTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ServedFormTest, PlannedBytesMatchTheLoadedModel) {
  model::SmallModels models;
  const jobs::JobSpec spec = Spec(GetParam());
  const auto served = Served(models, spec);
  const auto got = static_cast<double>(served->resident_bytes());
  EXPECT_NEAR(static_cast<double>(ServedModelBytes(spec, served->config(), /*base_bytes=*/2)), got, 0.01 * got);
}

TEST_P(ServedFormTest, PlannedPassBytesMatchTheArena) {
  model::SmallModels models;
  const jobs::JobSpec spec = Spec(GetParam());
  const auto served = Served(models, spec);
  constexpr std::int64_t kRows = 40;
  const std::vector<std::int32_t> tokens(kRows, 1), sequence(kRows, 0), table = {0, 1};
  std::vector<std::int32_t> position(kRows);
  std::iota(position.begin(), position.end(), 0);
  const auto pool = model::KvPool::Create(served->config(), served->weights().kv_dtype, 2);
  ASSERT_TRUE(pool.ok()) << pool.status();
  const model::StepRows rows = {.tokens = tokens,
                                .kv = {.num_rows = kRows,
                                       .sequence = sequence.data(),
                                       .position = position.data(),
                                       .page_tables = table.data(),
                                       .num_sequences = 1,
                                       .pages_per_sequence = 2},
                                .logit_rows = position};
  model::Arena arena;
  ASSERT_TRUE(model::RunStep(served->config(), served->weights(), (*pool)->view(), rows, arena, models.stream()).ok());
  ASSERT_EQ(arena.mark().block, 0u) << "the mark counts only the last block";
  const auto got = static_cast<double>(arena.mark().used);
  EXPECT_NEAR(static_cast<double>(ServedPassBytes(spec, served->config(), kRows)), got, 0.05 * got);
}

INSTANTIATE_TEST_SUITE_P(Methods, ServedFormTest,
                         ::testing::Values(jobs::kMethodQLora, jobs::kMethodBitNetQat, jobs::kMethodFull,
                                           jobs::kMethodInt8Mixed, jobs::kMethodInt8Qt, jobs::kMethodLora),
                         [](const auto& info) { return std::string(info.param); });

model::ModelConfig Qwen3Of600M() {
  model::ModelConfig config;
  config.architecture = "qwen3";
  config.hidden_size = 1024;
  config.num_layers = 28;
  config.num_heads = 16;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.ffn_size = 3072;
  config.vocab_size = 151'936;
  config.max_positions = 40'960;
  config.qk_norm = true;
  config.tied_embeddings = true;
  return config;
}

std::int64_t Total(const std::vector<MemoryItem>& items) {
  std::int64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.bytes;
  return sum;
}

// A float linear counts as rows in bf16 panels instead of codes.
TEST(MemoryPlanTest, CountsLinearsThatStayFloat) {
  const model::ModelConfig config = Qwen3Of600M();
  jobs::JobSpec spec = Spec(jobs::kMethodBitNetQat);
  const BatchShape batch = {.tokens = 64, .examples = 10};
  const std::int64_t served = ServedModelBytes(spec, config, 4), plain = PlanMemory(spec, config, 4, batch)[0].bytes;
  spec.bitnet_qat.modules_to_not_convert = {"o_proj"};
  const std::int64_t elements = config.num_layers * config.hidden_size * config.q_size();
  const std::int64_t scales = config.num_layers * config.hidden_size * 4;
  EXPECT_EQ(ServedModelBytes(spec, config, 4) - served, elements * 2 - elements / 4 - scales);
  // In training, the linear also has a copy rounded to bf16, beside its f32 master.
  EXPECT_EQ(PlanMemory(spec, config, 4, batch)[0].bytes - plain, elements * 4 - elements / 4);
}

TEST(MemoryPlanTest, CountsTheServedFormLoadedAtTheEnd) {
  const model::ModelConfig config = Qwen3Of600M();
  const jobs::JobSpec spec = Spec(jobs::kMethodQLora);
  BatchShape batch = {.tokens = 64, .examples = 10};
  batch.evaluation = {.rows = 256, .pages = 8};
  const std::vector<MemoryItem> items = PlanMemory(spec, config, /*base_bytes=*/2, batch);
  const std::int64_t served = ServedModelBytes(spec, config, 2);
  EXPECT_GT(served, std::int64_t{1000} << 20) << "440 M int8 weights, the embedding and the head in bf16";
  EXPECT_GT(Total(items), served + ServedPassBytes(spec, config, 256));
  EXPECT_LT(Total(items), served + (std::int64_t{700} << 20)) << "the base is freed first, so it does not count";
  EXPECT_STREQ(items.back().pool, "publishing");
}

TEST(MemoryPlanTest, CountsEvaluationsDuringTheRun) {
  const model::ModelConfig config = Qwen3Of600M();
  const jobs::JobSpec spec = Spec(jobs::kMethodBitNetQat);
  BatchShape batch = {.tokens = 64, .examples = 10};
  const std::vector<MemoryItem> without = PlanMemory(spec, config, /*base_bytes=*/4, batch);
  batch.evaluation = {.rows = 512, .pages = 1024};
  const std::vector<MemoryItem> with = PlanMemory(spec, config, /*base_bytes=*/4, batch);
  const std::int64_t evaluation =
      ServedPassBytes(spec, config, 512) + 1024 * model::KvPool::PageBytes(config, kernels::DType::kBF16);
  const auto activation = [](const std::vector<MemoryItem>& items) {
    return std::find_if(items.begin(), items.end(),
                        [](const MemoryItem& item) { return std::string(item.pool) == "activation"; })
        ->bytes;
  };
  EXPECT_LT(activation(without), evaluation);
  EXPECT_GE(activation(with), evaluation);
}

// An f32 base, and so the model that `full` trains on it, has K and V in f32.
TEST(MemoryPlanTest, FullEvaluatesWithTheCacheOfItsBase) {
  const model::ModelConfig config = Qwen3Of600M();
  const jobs::JobSpec spec = Spec(jobs::kMethodFull);
  BatchShape batch = {.tokens = 64, .examples = 10};
  batch.evaluation = {.rows = 512, .pages = 4096};
  const auto activation = [&](std::int64_t base_bytes) {
    for (const MemoryItem& item : PlanMemory(spec, config, base_bytes, batch)) {
      if (std::string(item.pool) == "activation") return item.bytes;
    }
    return std::int64_t{0};
  };
  EXPECT_GE(activation(4) - activation(2), 4096 * model::KvPool::PageBytes(config, kernels::DType::kBF16));
}

TEST(MemoryPlanTest, NormsOfHeadsCountInEveryMethod) {
  for (const char* method : {jobs::kMethodQLora, jobs::kMethodBitNetQat, jobs::kMethodFull, jobs::kMethodInt8Mixed,
                             jobs::kMethodInt8Qt, jobs::kMethodLora}) {
    model::ModelConfig config = Qwen3Of600M();
    const jobs::JobSpec spec = Spec(method);
    const std::int64_t with = PlanOf(spec).TokenBytes(spec, config, 2);
    config.qk_norm = false;
    // In f32: the inputs of the norms, which are q and k, and a number for each of their 16 and 8 heads.
    EXPECT_EQ(with - PlanOf(spec).TokenBytes(spec, config, 2), 4 * (2048 + 1024 + 16 + 8)) << method;
  }
}

// With compute FLOAT, rows are bf16 values instead of codes, in training and in passes of the served model.
TEST(MemoryPlanTest, Int8QtOnFloatRowsCountsRowsInBF16) {
  const model::ModelConfig config = Qwen3Of600M();
  jobs::JobSpec spec = Spec(jobs::kMethodInt8Qt);
  const std::int64_t coded = ServedPassBytes(spec, config, 1);
  EXPECT_FALSE(PlanOf(spec).ServedForm(spec).weight_only);
  EXPECT_EQ(PlanOf(spec).TokenBytes(spec, config, 2), CodedTokenBytes(config, 2));
  spec.int8_qt.compute = "float";
  EXPECT_TRUE(PlanOf(spec).ServedForm(spec).weight_only);
  EXPECT_EQ(PlanOf(spec).TokenBytes(spec, config, 2), FloatTokenBytes(config, 2));
  EXPECT_EQ(ServedPassBytes(spec, config, 1) - coded, 2 * 1024 + 2048 + 3072);
}

// The base counts in its own type; an f32 base also has a copy that is rounded for bf16 products. The adapter counts as
// in qlora.
TEST(MemoryPlanTest, LoraCountsItsBaseInTheTypeOfTheBase) {
  const model::ModelConfig config = Qwen3Of600M();
  jobs::JobSpec spec = Spec(jobs::kMethodLora);
  const std::int64_t embedding = config.vocab_size * config.hidden_size;
  const ModelSizes sizes(config);
  const auto weights = [&](std::int64_t base_bytes) {
    return PlanOf(spec).Training(spec, config, base_bytes, /*tokens=*/64).weights;
  };
  EXPECT_EQ(weights(2), (sizes.linears + embedding) * 2);
  EXPECT_EQ(weights(4), (sizes.linears + embedding) * 4 + (sizes.linears + embedding) * 2);
  spec.lora.compute_dtype = "fp32";
  EXPECT_EQ(weights(4), (sizes.linears + embedding) * 4);
  EXPECT_EQ(weights(2), (sizes.linears + embedding) * 2 + embedding * 4) << "the head is widened";
  const jobs::JobSpec qlora = Spec(jobs::kMethodQLora);
  EXPECT_EQ(TrainedParameters(spec, config), TrainedParameters(qlora, config));
  EXPECT_EQ(PlanOf(spec).EvaluationKvDtype(4), kernels::DType::kF32);
  EXPECT_EQ(PlanOf(spec).EvaluationKvDtype(2), kernels::DType::kBF16);
  // qlora also writes the base in nf4.
  EXPECT_LT(PlanOf(spec).WeightFileBytes(spec, config, 2), PlanOf(qlora).WeightFileBytes(qlora, config, 2));
}

// The base counts as codes, once in training and again in the served model, which shares the base's file. The graph
// keeps no rows of codes, except those of the result of attention with compute fp32.
TEST(MemoryPlanTest, LoraOnAnInt8BaseCountsCodes) {
  const model::ModelConfig config = Qwen3Of600M();
  jobs::JobSpec spec = Spec(jobs::kMethodLora);
  const ModelSizes sizes(config);
  const std::int64_t trained = TrainedParameters(spec, config);
  const TrainingBytes bytes = PlanOf(spec).Training(spec, config, /*base_bytes=*/1, /*tokens=*/64);
  EXPECT_EQ(bytes.weights, sizes.linears + sizes.embedding * 6);
  EXPECT_GT(PlanOf(spec).TokenBytes(spec, config, 1), CodedGraphBytes(config, 2, 2));
  EXPECT_LT(PlanOf(spec).TokenBytes(spec, config, 1), CodedTokenBytes(config, 2));
  EXPECT_EQ(PlanOf(spec).Publishing(spec, config, 1, bytes.weights).kept, bytes.weights + trained * 8);
  EXPECT_EQ(PlanOf(spec).WeightFileBytes(spec, config, 1), static_cast<double>(trained * 4));
  spec.lora.compute_dtype = "fp32";
  EXPECT_GT(PlanOf(spec).TokenBytes(spec, config, 1), CodedGraphBytes(config, 4, 4) + config.q_size());
  EXPECT_LT(PlanOf(spec).TokenBytes(spec, config, 1), CodedTokenBytes(config, 4));
}

TEST(MemoryPlanTest, MastersInBf16TakeHalfTheMemory) {
  const model::ModelConfig config = Qwen3Of600M();
  jobs::JobSpec spec = Spec(jobs::kMethodBitNetQat);
  const std::int64_t parameters = TrainedParameters(spec, config);
  const TrainingBytes f32 = PlanOf(spec).Training(spec, config, /*base_bytes=*/2, /*tokens=*/64);
  const double file = PlanOf(spec).WeightFileBytes(spec, config, 2);
  spec.bitnet_qat.master_dtype = "bf16";
  const TrainingBytes bf16 = PlanOf(spec).Training(spec, config, 2, 64);
  const std::int64_t rounded = config.vocab_size * config.hidden_size * 2;  // embedding and head, which are tied
  EXPECT_EQ(f32.weights - bf16.weights, parameters * 4 + rounded) << "values and gradients, and no rounded copy";
  EXPECT_NEAR(file - PlanOf(spec).WeightFileBytes(spec, config, 2), static_cast<double>(parameters) * 2,
              static_cast<double>(parameters) * 0.01);
  const PublishingBytes publishing = PlanOf(spec).Publishing(spec, config, 2, bf16.weights);
  EXPECT_EQ(publishing.stored_element, 2);
  EXPECT_EQ(publishing.kept, bf16.weights - parameters * 2) << "without the gradients";
}

TEST(MemoryPlanTest, MastersOfInt8MixedInBf16NeedNoRoundedCopies) {
  const model::ModelConfig config = Qwen3Of600M();
  const std::int64_t table = config.vocab_size * config.hidden_size;  // embedding and head, which are tied
  for (const std::string preset : {"all", "switchback", "a8w8-qat"}) {
    SCOPED_TRACE(preset);
    jobs::JobSpec spec = Spec(jobs::kMethodInt8Mixed);
    spec.int8_mixed = {.preset = preset};
    const std::int64_t parameters = TrainedParameters(spec, config);
    const TrainingBytes f32 = PlanOf(spec).Training(spec, config, /*base_bytes=*/2, /*tokens=*/64);
    const PublishingBytes f32_publishing = PlanOf(spec).Publishing(spec, config, 2, f32.weights);
    spec.int8_mixed.master_dtype = "bf16";
    const TrainingBytes bf16 = PlanOf(spec).Training(spec, config, 2, 64);
    // Only a8w8-qat reads linears in bf16: it computes the gradient of the input in floats.
    const std::int64_t linears = preset == "a8w8-qat" ? ModelSizes(config).linears * 2 : 0;
    EXPECT_EQ(f32.weights - bf16.weights, parameters * 4 + table * 2 + linears);
    EXPECT_GE(bf16.workspace - f32.workspace, TableGradientBytes(ModelSizes(config), 2));
    const PublishingBytes publishing = PlanOf(spec).Publishing(spec, config, 2, bf16.weights);
    EXPECT_EQ(f32_publishing.stored_element - publishing.stored_element, 2);
    const bool exact = preset != "switchback";
    EXPECT_EQ(publishing.kept, exact ? bf16.weights - parameters * 2 : parameters * 2) << "without the gradients";
  }
}

// The embedding and the head add their gradients directly to those of f32 parameters. For bf16 parameters, both
// gradients and their sum exist temporarily in f32.
TEST(MemoryPlanTest, OnlyBf16ParametersNeedTemporaryGradients) {
  const model::ModelConfig config = Qwen3Of600M();
  const std::int64_t table = config.vocab_size * config.hidden_size;
  EXPECT_EQ(TableGradientBytes(ModelSizes(config), 4), 0);
  EXPECT_EQ(TableGradientBytes(ModelSizes(config), 2), 12 * table);
  const auto workspace = [&](const jobs::JobSpec& spec) {
    return PlanOf(spec).Training(spec, config, /*base_bytes=*/2, /*tokens=*/64).workspace;
  };
  jobs::JobSpec spec = Spec(jobs::kMethodFull);
  const std::int64_t f32 = workspace(spec);
  EXPECT_LT(f32, 4 * table);
  spec.full.param_dtype = "bf16";
  EXPECT_EQ(workspace(spec) - f32, 12 * table + ModelSizes(config).largest * 6);
  // A head that is served in bf16 is widened for backward products in f32.
  for (const char* method : {jobs::kMethodBitNetQat, jobs::kMethodInt8Qt, jobs::kMethodInt8Mixed})
    EXPECT_GT(workspace(Spec(method)), 4 * table) << method;
}

// In a ramp, linears keep rows in f32 where they keep codes of one byte otherwise.
TEST(MemoryPlanTest, RampOfBitNetKeepsFloatRows) {
  const model::ModelConfig config = Qwen3Of600M();
  jobs::JobSpec spec = Spec(jobs::kMethodBitNetQat);
  const std::int64_t codes = PlanOf(spec).TokenBytes(spec, config, 2);
  const std::int64_t workspace = PlanOf(spec).Training(spec, config, 2, 64).workspace;
  spec.bitnet_qat.warmup_lambda = jobs::LambdaSchedule{.steps = 5};
  EXPECT_EQ(PlanOf(spec).TokenBytes(spec, config, 2) - codes, 3 * (2 * 1024 + 2048 + 3072));
  EXPECT_GT(PlanOf(spec).Training(spec, config, 2, 64).workspace, workspace + 4 * 1024 * 3072) << "a linear in f32";
  spec.bitnet_qat.warmup_lambda->steps = 0;
  EXPECT_EQ(PlanOf(spec).TokenBytes(spec, config, 2), codes) << "no ramp";
}

TEST(MemoryPlanTest, MomentsHaveTheSizeOfTheOptimizer) {
  jobs::JobSpec spec = Spec(jobs::kMethodFull);
  constexpr std::int64_t kParameters = 1 << 20;
  const std::pair<const char*, std::int64_t> wanted[] = {{"adamw", kParameters * 8},
                                                         {"adamw_8bit", kParameters * 2 + kParameters / 256 * 8},
                                                         {"sgd", kParameters * 4},
                                                         {"lion", kParameters * 4}};
  for (const auto& [name, bytes] : wanted) {
    spec.optim.optimizer = name;
    EXPECT_EQ(MomentBytes(spec, kParameters), bytes) << name;
  }
}

TEST(MemoryPlanTest, PlanHasNoPublishingItemIfTrainingNeedsMore) {
  const model::ModelConfig config = Qwen3Of600M();
  const jobs::JobSpec spec = Spec(jobs::kMethodQLora);
  const BatchShape batch = {.tokens = 65'536, .examples = 64};
  for (const MemoryItem& item : PlanMemory(spec, config, /*base_bytes=*/2, batch))
    EXPECT_STRNE(item.pool, "publishing");
}

// A job that has saved its last step publishes without the optimizer's moments.
TEST(MemoryPlanTest, PublishingKeepsMomentsIfNothingIsSaved) {
  const model::ModelConfig config = Qwen3Of600M();
  jobs::JobSpec spec = Spec(jobs::kMethodQLora);
  const BatchShape batch = {.tokens = 64, .examples = 10, .evaluation = {.rows = 256, .pages = 8}};
  ASSERT_GT(spec.run.save_every, 0);
  const std::int64_t saved = Total(PlanMemory(spec, config, /*base_bytes=*/2, batch));
  spec.run.save_every = 0;
  EXPECT_EQ(Total(PlanMemory(spec, config, 2, batch)), saved + TrainedParameters(spec, config) * 8);
}

}  // namespace
}  // namespace nibble::plan
