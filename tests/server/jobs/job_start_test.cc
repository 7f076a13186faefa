// Jobs that start from a checkpoint of another job or from an adapter.
#include "server/jobs/job_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "server/base/error.h"
#include "tests/server/jobs/controller_fixture.h"

namespace nibble::jobs {
namespace {

using enum JobState;
using ::testing::HasSubstr;

constexpr char kSource[] = "job-1/20";

StoredJob Job(const JobSpec& spec) {
  StoredJob job;
  job.spec = Resolve(spec, "out", "text", "cpu");
  job.digests.data = job.digests.tokenizer = job.digests.base_model = "same";
  return job;
}

JobSpec SourceSpec(const char* method = kMethodQLora) {
  JobSpec spec;
  spec.method = method;
  spec.base_model = "base";
  spec.train_dataset = "train";
  spec.run.max_steps = 20;
  return spec;
}

JobSpec Resuming(JobSpec spec = SourceSpec()) {
  spec.resume_from = kSource;
  spec.run.max_steps = 40;
  return spec;
}

absl::StatusOr<JobStart> Start(const StoredJob& job, const StoredJob& source = Job(SourceSpec())) {
  store::CheckpointInfo checkpoint;
  checkpoint.step = 20;
  checkpoint.bytes = 123;
  checkpoint.directory = "somewhere";
  return MakeJobStart(job, source, checkpoint);
}

TEST(JobStartTest, SameSpecWithMoreStepsContinuesAtTheDataCursor) {
  JobSpec spec = Resuming();
  spec.optim.lr = 1.0;
  spec.run.seed = spec.qlora.seed = 8;  // the checkpoint has the values that these seeds would draw
  spec.run.save_every = 3;
  const auto start = Start(Job(spec));
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->checkpoint, kSource);
  EXPECT_EQ(start->step, 20);
  EXPECT_EQ(start->bytes, 123u);
  EXPECT_TRUE(start->same_rows);
  EXPECT_FALSE(start->weights_only);
}

TEST(JobStartTest, ResumeErrorNamesTheFieldAndBothValues) {
  struct Case {
    const char* field;
    const char* message;
    std::function<void(JobSpec&)> change;
  };
  const Case cases[] = {
      {"method", "is lora, wanted qlora", [](JobSpec& s) { s.method = kMethodLora; }},
      {"qlora.r", "is 8, wanted 16", [](JobSpec& s) { s.qlora.r = 8; }},
      {"qlora.alpha", "is 8.0, wanted 32.0", [](JobSpec& s) { s.qlora.alpha = 8; }},
      {"qlora.dropout", "is 0.5, wanted 0.0", [](JobSpec& s) { s.qlora.dropout = 0.5; }},
      {"qlora.target_modules", "is [\"q_proj\"], wanted [\"down_proj\",",
       [](JobSpec& s) { s.qlora.target_modules = {"q_proj"}; }},
      {"optim.optimizer", "is sgd, wanted adamw", [](JobSpec& s) { s.optim.optimizer = "sgd"; }},
      {"run.max_steps", "is 20, wanted more than 20", [](JobSpec& s) { s.run.max_steps = 20; }},
      {"run.epochs", "is 3, wanted run.max_steps",
       [](JobSpec& s) {
         s.run.max_steps.reset();
         s.run.epochs = 3;
         s.run.micro_batch = 7;
       }},
  };
  for (const Case& one : cases) {
    JobSpec spec = Resuming();
    one.change(spec);
    const absl::Status status = Start(Job(spec)).status();
    EXPECT_EQ(base::Reason(status), "FIELD_VIOLATION") << one.field;
    EXPECT_EQ(base::ReasonMetadata(status)["field"], one.field) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.message));
    EXPECT_THAT(std::string(status.message()), HasSubstr(kSource));
  }
}

TEST(JobStartTest, OtherWeightsOfTheBaseAreAMismatch) {
  StoredJob job = Job(Resuming());
  job.digests.base_model = "other";
  const absl::Status status = Start(job).status();
  EXPECT_EQ(base::Reason(status), "BASE_MISMATCH");
  EXPECT_EQ(base::ReasonMetadata(status)["got"], "other");
  EXPECT_EQ(base::ReasonMetadata(status)["wanted"], "same");
  job.digests.base_model = "";  // as in a job of an older server; the trainer compares the digests
  EXPECT_TRUE(Start(job).ok());
}

TEST(JobStartTest, OtherRowsOrAnotherOrderMakeTheCursorInvalid) {
  const std::function<void(StoredJob&)> changes[] = {
      [](StoredJob& job) { job.digests.data = "other"; },
      [](StoredJob& job) { job.digests.tokenizer = "other"; },
      [](StoredJob& job) { job.spec.data.shuffle_seed = 9; },
      [](StoredJob& job) { job.spec.data.packing = "none"; },
      [](StoredJob& job) { job.spec.data.max_seq_len = 100; },
      [](StoredJob& job) { job.spec.eval_fraction = 0.1; },
      [](StoredJob& job) { job.spec.data.train_on_prompt = true; },
  };
  for (const auto& change : changes) {
    StoredJob job = Job(Resuming());
    change(job);
    const auto start = Start(job);
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_FALSE(start->same_rows);
  }
  StoredJob job = Job(Resuming());
  job.spec.run.micro_batch = 2;  // the cursor counts examples
  EXPECT_TRUE(Start(job)->same_rows);
}

TEST(JobStartTest, LossesAreComparedOnlyOnTheSameEvaluationRows) {
  JobSpec spec = SourceSpec();
  spec.eval_dataset = "eval";
  StoredJob source = Job(spec);
  source.digests.eval_data = "rows";
  StoredJob job = Job(Resuming(spec));
  job.digests.eval_data = "rows";
  EXPECT_TRUE(Start(job, source)->same_eval);
  job.digests.eval_data = "others";
  EXPECT_FALSE(Start(job, source)->same_eval);
  EXPECT_FALSE(Start(Job(Resuming()), source)->same_eval) << "the job evaluates nothing";
}

TEST(JobStartTest, WarmStartNeedsTheSameTensorsButNotTheSameRun) {
  const auto warm = [](JobSpec spec) {
    spec.warm_start_from = kSource;
    return spec;
  };
  JobSpec spec = warm(SourceSpec());
  spec.optim.optimizer = "lion";
  spec.run.max_steps = 3;
  spec.qlora.dropout = 0.5;
  spec.qlora.target_modules = {"down_proj", "up_proj", "gate_proj", "o_proj", "v_proj", "k_proj", "q_proj"};
  const auto start = Start(Job(spec));
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_TRUE(start->weights_only);
  spec.qlora.use_rslora = true;
  EXPECT_EQ(base::ReasonMetadata(Start(Job(spec)).status())["field"], "qlora.use_rslora");

  JobSpec full = warm(SourceSpec(kMethodFull));
  full.full.init = "random";
  EXPECT_TRUE(Start(Job(full), Job(SourceSpec(kMethodFull))).ok());
  full.full.param_dtype = "bf16";
  EXPECT_EQ(base::ReasonMetadata(Start(Job(full), Job(SourceSpec(kMethodFull))).status())["field"], "full.param_dtype");
  JobSpec bitnet = warm(SourceSpec(kMethodBitNetQat));
  bitnet.bitnet_qat.warmup_lambda = LambdaSchedule{.steps = 2};
  EXPECT_TRUE(Start(Job(bitnet), Job(SourceSpec(kMethodBitNetQat))).ok());
  bitnet.bitnet_qat.preset = "bitnet-tips";
  EXPECT_EQ(base::ReasonMetadata(Start(Job(bitnet), Job(SourceSpec(kMethodBitNetQat))).status())["field"],
            "bitnet_qat.preset");
  JobSpec mixed = warm(SourceSpec(kMethodInt8Mixed));
  mixed.int8_mixed.preset = "switchback";
  EXPECT_TRUE(Start(Job(mixed), Job(SourceSpec(kMethodInt8Mixed))).ok());
  mixed.int8_mixed.master_dtype = "bf16";
  EXPECT_EQ(base::ReasonMetadata(Start(Job(mixed), Job(SourceSpec(kMethodInt8Mixed))).status())["field"],
            "int8_mixed.master_dtype");
  JobSpec qt = warm(SourceSpec(kMethodInt8Qt));
  qt.int8_qt.stochastic_rounding = false;
  EXPECT_TRUE(Start(Job(qt), Job(SourceSpec(kMethodInt8Qt))).ok());
  qt.int8_qt.scale = "tensor";
  EXPECT_EQ(base::ReasonMetadata(Start(Job(qt), Job(SourceSpec(kMethodInt8Qt))).status())["field"], "int8_qt.scale");
}

class JobStartControllerTest : public ControllerFixture {
 protected:
  // A job that has saved step 2 and has ended.
  std::string Source() {
    const std::string id = Submit(Spec("source"));
    controller_->Tick();
    Ready(Trainer(id));
    Step(Trainer(id), 1);
    Step(Trainer(id), 2);
    Checkpoint(Trainer(id), 2);
    Finish(Trainer(id));
    machine_.Exit(Trainer(id), 0);
    controller_->Tick();
    EXPECT_EQ(State(id), kSucceeded);
    return id;
  }
  static JobSpec Continuing(const std::string& source, const std::string& output = "out") {
    JobSpec spec = Spec(output);
    spec.resume_from = source + "/2";
    return spec;
  }
  std::size_t NumJobDirectories() { return base::RealFileSystem().List(state_->paths.jobs())->size(); }
};

TEST_F(JobStartControllerTest, JobKeepsItsOwnCopyOfTheCheckpointUntilItEnds) {
  const std::string source = Source();
  const std::string id = Submit(Continuing(source));
  ASSERT_TRUE(controller_->Delete(source).ok());
  controller_->Tick();
  FakeMachine::Trainer& first = Trainer(id);
  const std::string copy = state_->paths.start(id);
  EXPECT_EQ(first.order.start.kind, StartOrder::Kind::kResume);
  EXPECT_EQ(first.order.start.name, source + "/2");
  EXPECT_EQ(first.order.start.directory, copy);
  EXPECT_TRUE(first.order.start.same_rows);
  EXPECT_EQ(first.order.resume_checkpoint_directory, "");
  EXPECT_EQ(*base::RealFileSystem().Read(copy + "/adapter.bin", 100), "step 2");
  EXPECT_TRUE(store::Verify(base::RealFileSystem(), copy).ok());
  EXPECT_TRUE(controller_->Checkpoints(id)->empty()) << "the copy is not a checkpoint of the new job";

  machine_.Kill(first);  // before its own first checkpoint
  controller_->Tick();
  clock_.Advance(absl::Seconds(10));
  controller_->Tick();
  FakeMachine::Trainer& second = Trainer(id);
  ASSERT_EQ(second.order.attempt, 2);
  EXPECT_EQ(second.order.start.directory, copy);
  Ready(second, 2);
  Step(second, 3);
  Checkpoint(second, 3);
  machine_.Kill(second);
  controller_->Tick();
  clock_.Advance(absl::Seconds(20));
  controller_->Tick();
  FakeMachine::Trainer& third = Trainer(id);
  ASSERT_EQ(third.order.attempt, 3);
  EXPECT_EQ(third.order.resume_step, 3) << "its own checkpoint";
  EXPECT_EQ(third.order.start.kind, StartOrder::Kind::kBase);

  Ready(third, 3);
  Step(third, 4);
  Finish(third);
  machine_.Exit(third, 0);
  controller_->Tick();
  EXPECT_EQ(State(id), kSucceeded);
  EXPECT_FALSE(std::filesystem::exists(copy));
  EXPECT_FALSE(std::filesystem::exists(state_->paths.start_file(id)));
}

TEST_F(JobStartControllerTest, CancelledJobDoesNotClaimTheCheckpointOfAnotherJob) {
  const std::string id = Submit(Continuing(Source()));
  controller_->Tick();
  Write(Trainer(id), "state", R"({"state":"RUNNING","max_steps":4,"step":2,"saved_step":0})");
  Step(Trainer(id), 3);
  controller_->Tick();
  EXPECT_EQ(controller_->Get(id)->progress["step"], 3);
  ASSERT_TRUE(controller_->Cancel(id).ok());
  machine_.Exit(Trainer(id), 0);
  controller_->Tick();
  EXPECT_THAT(controller_->Get(id)->error->message, HasSubstr("the job has no checkpoint that could be published"));
}

TEST_F(JobStartControllerTest, CopyIsFoundAfterARestart) {
  const std::string id = Submit(Continuing(Source()));
  KillAndReopen();
  controller_->Tick();
  EXPECT_EQ(Trainer(id).order.start.directory, state_->paths.start(id));
}

TEST_F(JobStartControllerTest, UnknownCheckpointsAndThoseOfOtherTenantsLookAbsent) {
  JobSpec unknown = Spec("out");
  unknown.resume_from = "job-nothing/2";
  EXPECT_EQ(base::Reason(controller_->Submit(unknown, "").status()), "CHECKPOINT");

  const auto source = controller_->Submit(Spec("source"), "", {.owner = "anna", .tenant = "north"});
  ASSERT_TRUE(source.ok()) << source.status();
  AwaitPlan(source->id);
  controller_->Tick();
  Ready(Trainer(source->id));
  Checkpoint(Trainer(source->id), 2);
  const JobSpec spec = Continuing(source->id);
  const auto refused = controller_->Submit(spec, "", {.owner = "bert", .tenant = "south"});
  EXPECT_EQ(refused.status(), NoCheckpoint(spec.resume_from));
  EXPECT_EQ(base::Reason(controller_->FindStart(spec, "south").status()), "CHECKPOINT");
  EXPECT_TRUE(controller_->FindStart(spec, "").ok());
  EXPECT_TRUE(controller_->Submit(spec, "", {.owner = "carl", .tenant = "north"}).ok());
}

TEST_F(JobStartControllerTest, RefusedJobLeavesNothing) {
  const std::string source = Source();
  JobSpec spec = Continuing(source, "source");  // the name of a model
  EXPECT_EQ(base::Reason(controller_->Submit(spec, "").status()), "NAME_TAKEN");
  controller_->Tick();
  EXPECT_EQ(NumJobDirectories(), 1u);
  spec = Continuing(source);
  spec.qlora.r = 3;
  EXPECT_EQ(base::ReasonMetadata(controller_->Submit(spec, "").status())["field"], "qlora.r");
  EXPECT_EQ(NumJobDirectories(), 1u);
}

TEST_F(JobStartControllerTest, DamagedCheckpointFailsThePlan) {
  const std::string source = Source();
  const std::string file = controller_->FindCheckpoint(source + "/2")->directory + "/adapter.bin";
  WriteFile(file, "step 3");
  const std::string id = Submit(Continuing(source));
  const auto job = controller_->Get(id);
  EXPECT_EQ(job->state, kFailed);
  ASSERT_TRUE(job->error.has_value());
  EXPECT_EQ(job->error->code, "DATA_LOSS");
  EXPECT_EQ(job->error->reason, "CHECKPOINT_CORRUPT");
  EXPECT_EQ(job->error->metadata.at("checkpoint"), source + "/2");
  EXPECT_EQ(observer_.damaged, 1);
}

TEST_F(JobStartControllerTest, AdapterOfAWarmStartCannotBeDeletedMeanwhile) {
  AddModel("adapter");
  JobSpec spec = Spec("out");
  spec.warm_start_from = "nothing";
  EXPECT_EQ(base::Reason(controller_->Submit(spec, "").status()), "MODEL");
  spec.warm_start_from = "adapter";
  const std::string id = Submit(spec);
  EXPECT_EQ(base::Reason(state_->models->Delete("adapter")), "MODEL_IN_USE");
  controller_->Tick();
  EXPECT_EQ(Trainer(id).order.start.kind, StartOrder::Kind::kAdapter);
  EXPECT_EQ(Trainer(id).order.start.directory, state_->paths.model("adapter"));
  ASSERT_TRUE(controller_->Cancel(id).ok());
  machine_.Exit(Trainer(id), 0);
  controller_->Tick();
  EXPECT_TRUE(state_->models->Delete("adapter").ok());
}

class JobStartPlanTest : public JobStartControllerTest {
 protected:
  void SetUp() override {
    options_.plan_memory = [this](const JobSpec&, const base::CancelToken&) -> absl::StatusOr<PlannedMemory> {
      return PlannedMemory{.bytes = 1, .pools = "", .disk_bytes = 1000, .max_steps = max_steps_};
    };
    JobStartControllerTest::SetUp();
  }
  void TearDown() override { Kill(); }
  std::int64_t max_steps_ = 4;
};

TEST_F(JobStartPlanTest, DiskOfTheJobIncludesTheCopy) {
  const std::string source = Source();
  EXPECT_EQ(controller_->Get(source)->disk_bytes, 1000);
  const std::string id = Submit(Continuing(source));
  const auto checkpoint = controller_->FindCheckpoint(source + "/2");
  EXPECT_EQ(controller_->Get(id)->disk_bytes, 1000 + static_cast<std::int64_t>(checkpoint->bytes));
}

TEST_F(JobStartPlanTest, EpochsWithNoStepAfterTheCheckpointFailThePlan) {
  JobSpec spec = Continuing(Source());
  spec.run.max_steps.reset();
  spec.run.epochs = 1;
  max_steps_ = 2;
  const auto job = controller_->Get(Submit(spec));
  ASSERT_EQ(job->state, kFailed);
  EXPECT_EQ(job->error->metadata.at("field"), "run.epochs");
  EXPECT_THAT(job->error->message, HasSubstr("gives 2 steps, wanted more than 2"));
}

}  // namespace
}  // namespace nibble::jobs
