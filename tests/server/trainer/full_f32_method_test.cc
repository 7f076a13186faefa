// A method that is registered from outside trains through the same loop as the built-in ones.
#include "tests/server/trainer/full_f32_method.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "server/model/safetensors.h"
#include "server/plan/plan_job.h"
#include "server/store/checkpoints.h"
#include "server/store/published_directory.h"
#include "server/trainer/attempt_run.h"
#include "server/trainer/torch_runtime.h"
#include "tests/server/model/small_models.h"
#include "tests/server/trainer/finite_differences.h"
#include "tests/server/trainer/full_f32_model.h"

namespace nibble::trainer {
namespace {

constexpr std::int64_t kSteps = 12;
constexpr std::int64_t kSaveEvery = 4;

class FullF32MethodTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static bool done = false;  // a program may run the suite more than once
    if (std::exchange(done, true)) return;
    static kernels::LaunchCounter launches;  // torch's operators are counted until the process ends
    InitTorch(/*threads=*/1, &launches);
    EXPECT_TRUE(absl::IsInvalidArgument(jobs::Validate(Spec()))) << "a name that no method has is refused";
    plan::RegisterMethod(FullF32Plan());
  }

  FullF32MethodTest() {
    stream_.library = library_.get();
    auto source = store::PendingDirectory::Create(base::RealFileSystem(), models_.Path("source"));
    EXPECT_TRUE(source.ok()) << source.status();
    std::filesystem::copy(models_.bf16(), source->path(), std::filesystem::copy_options::recursive);
    EXPECT_TRUE(source->Commit().ok());
    std::ofstream rows(models_.Path("rows.jsonl"));
    const char* texts[] = {"the light",        "the harbour",      "the keeper",
                           "walk the harbour", "the light keeper", "the walk"};
    for (int i = 0; i < 24; ++i) rows << "{\"text\": \"" << texts[i % 6] << "\"}\n";
  }

  static jobs::JobSpec Spec() {
    jobs::JobSpec spec;
    spec.method = kMethodFullF32;
    spec.base_model = "source";
    spec.train_dataset = "rows";
    spec.eval_fraction = 0.25;
    spec.data.max_seq_len = 32;
    spec.optim.lr = 1e-2;
    spec.run.max_steps = kSteps;
    spec.run.grad_accum = 2;
    spec.run.save_every = kSaveEvery;
    spec.run.keep_last = 10;
    return jobs::Resolve(spec, "job-1", "text", "cpu");
  }

  // The outcome of an attempt, and the losses in its journal.
  struct Run {
    jobs::Outcome outcome;
    std::string directory;
    std::map<std::int64_t, double> losses, eval_losses;  // by step
  };
  Run RunJob(const std::string& name, const std::string& resume = "") {
    Run run;
    run.directory = models_.Path(name);
    std::filesystem::create_directories(run.directory);
    jobs::AttemptOrder order;
    order.job_id = "job-1";
    order.attempt = 1;
    order.spec = Spec();
    order.base_model_directory = models_.Path("source");
    order.train_data_path = models_.Path("rows.jsonl");
    order.resume_checkpoint_directory = resume;
    order.output_directory = models_.Path(name + "-model");
    order.nibble_version = "test";
    base::FileSystem& files = base::RealFileSystem();
    auto journal = jobs::JournalWriter::Open(files, base::RealClock(), run.directory);
    EXPECT_TRUE(journal.ok()) << journal.status();
    Reporter reporter({});
    std::vector<RecipeRow> recipes(BuiltInRecipes().begin(), BuiltInRecipes().end());
    recipes.push_back({kMethodFullF32, MakeFullF32Recipe});
    const std::function<bool()> terminated = [] { return false; };
    const auto claim = jobs::AttemptClaim::Take(run.directory, "test");
    EXPECT_TRUE(claim.ok()) << claim.status();
    run.outcome = RunAttempt({run.directory, order, *claim, files, **journal, reporter, stream_, terminated, recipes});
    EXPECT_EQ(run.outcome.kind, jobs::Outcome::Kind::kOk) << run.outcome.code << " " << run.outcome.message;
    const auto lines = jobs::JournalReader(run.directory).ReadNew();
    EXPECT_TRUE(lines.ok()) << lines.status();
    for (const jobs::JournalLine& line : *lines) {
      if (line.type == "step") run.losses[line.body["step"].get<std::int64_t>()] = line.body["loss"].get<double>();
      if (line.type == "eval" && !line.body.contains("what")) {
        run.eval_losses[line.body["step"].get<std::int64_t>()] = line.body["eval_loss"].get<double>();
      }
    }
    return run;
  }

  static std::string WeightsDigest(const std::string& directory) {
    const auto artifact = model::Artifact::Open(directory);
    EXPECT_TRUE(artifact.ok()) << artifact.status();
    return artifact.ok() ? (*artifact)->info().weights_digest : "";
  }

  model::SmallModels models_;
  const std::unique_ptr<kernels::DenseLibrary> library_ = MakeTorchLibrary();
  kernels::Stream stream_ = models_.stream();
};

TEST_F(FullF32MethodTest, RegisteredMethodIsCheckedAndPlanned) {
  const jobs::JobSpec spec = Spec();
  EXPECT_TRUE(jobs::Validate(spec).ok()) << jobs::Validate(spec);
  EXPECT_EQ(jobs::ToJson(spec)["method"], kMethodFullF32);
  const auto artifact = model::Artifact::Open(models_.bf16());
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  plan::JobInputs inputs;
  inputs.config = (*artifact)->config();
  inputs.text = *model::LoadTextAssets(models_.bf16());
  inputs.base_format = "bf16";
  inputs.devices = {"cpu"};
  inputs.train = {.path = models_.Path("rows.jsonl"), .format = "text"};
  const auto plan = plan::PlanJob(spec, inputs);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::int64_t elements = 0;
  for (const auto& [name, tensor] : (*artifact)->tensors()) elements += *model::NumElements(tensor.shape);
  EXPECT_EQ(plan->trained_parameters, elements);
  EXPECT_GT(plan->memory_bytes(), 0);
  inputs.base_format = "nf4";
  EXPECT_TRUE(absl::IsInvalidArgument(plan::PlanJob(spec, inputs).status()));
}

TEST_F(FullF32MethodTest, GradientsMatchFiniteDifferences) {
  const auto artifact = model::Artifact::Open(models_.bf16());
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  const auto made = MakeFullF32Model((*artifact)->config(), {.init_seed = 3, .max_positions = 32}, stream_);
  ASSERT_TRUE(made.ok()) << made.status();
  ExpectFiniteDifferences(**made, TwoSegments((*artifact)->config().vocab_size));
}

TEST_F(FullF32MethodTest, LossFallsInTrainingAndEvaluation) {
  const Run run = RunJob("attempt");
  ASSERT_EQ(run.losses.size(), static_cast<std::size_t>(kSteps));
  EXPECT_LT(run.losses.at(kSteps), 0.8 * run.losses.at(1));
  ASSERT_EQ(run.eval_losses.size(), 2u) << "before and after training";
  EXPECT_LT(run.eval_losses.at(kSteps), 0.8 * run.eval_losses.at(0));
}

TEST_F(FullF32MethodTest, ResumedRunRepeatsEveryLossAndWeight) {
  const Run whole = RunJob("whole");
  const auto saved = store::ListCheckpoints(base::RealFileSystem(), whole.directory, 1);
  ASSERT_TRUE(saved.ok()) << saved.status();
  const auto first =
      std::find_if(saved->begin(), saved->end(), [](const store::CheckpointInfo& c) { return c.step == kSaveEvery; });
  ASSERT_NE(first, saved->end());
  const Run resumed = RunJob("resumed", first->directory);
  ASSERT_EQ(resumed.losses.size(), static_cast<std::size_t>(kSteps - kSaveEvery));
  for (const auto& [step, loss] : resumed.losses) EXPECT_EQ(loss, whole.losses.at(step)) << "step " << step;
  EXPECT_EQ(resumed.eval_losses.at(kSteps), whole.eval_losses.at(kSteps));
  EXPECT_EQ(WeightsDigest(models_.Path("resumed-model")), WeightsDigest(models_.Path("whole-model")));
}

TEST_F(FullF32MethodTest, LastCheckpointBecomesTheModelOfTheJob) {
  const Run run = RunJob("attempt");
  const auto saved = store::ListCheckpoints(base::RealFileSystem(), run.directory, 1);
  ASSERT_TRUE(saved.ok()) << saved.status();
  const auto last =
      std::find_if(saved->begin(), saved->end(), [](const store::CheckpointInfo& c) { return c.step == kSteps; });
  ASSERT_NE(last, saved->end());
  const auto base = model::Artifact::Open(models_.Path("source"));
  ASSERT_TRUE(base.ok()) << base.status();
  const jobs::JobSpec spec = Spec();
  const std::string scratch = models_.Path("scratch"), target = models_.Path("published");
  const base::Json provenance = base::Json::object();
  const auto made = plan::PlanOf(spec).MakeCheckpointModel(
      base::RealFileSystem(), {spec, last->directory, {**base, provenance, scratch, target}}, stream_);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->weights_digest, WeightsDigest(models_.Path("attempt-model")));
}

}  // namespace
}  // namespace nibble::trainer
