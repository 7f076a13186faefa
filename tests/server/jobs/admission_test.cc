// Admission: whether jobs are accepted, and when they may start. R24, S2 and the like are rows of docs/faults.md.
#include <gtest/gtest.h>

#include <thread>

#include "server/base/error.h"
#include "tests/server/jobs/controller_fixture.h"
#include "tests/server/jobs/faulty_database.h"

namespace nibble::jobs {
namespace {

using enum JobState;

class AdmissionTest : public ControllerFixture {};

TEST_F(AdmissionTest, RefusedSubmissionsLeaveNoTrace) {
  const auto reason = [&](const JobSpec& spec) { return base::Reason(controller_->Submit(spec, "r").status()); };
  JobSpec spec = Spec("out");
  spec.base_model = "no-such-model";
  EXPECT_EQ(reason(spec), "MODEL");
  spec = Spec("out");
  spec.eval_dataset = "no-such-dataset";
  EXPECT_EQ(reason(spec), "DATASET");
  spec = Spec("out");
  spec.qlora.r = 0;
  EXPECT_EQ(reason(spec), "FIELD_VIOLATION");
  spec = Spec("base");
  EXPECT_EQ(reason(spec), "NAME_TAKEN");
  spec = Spec("out");
  spec.data.overlong = "split";
  spec.data.format = "chat";
  EXPECT_EQ(reason(spec), "FIELD_VIOLATION");
  EXPECT_TRUE(controller_->List({}, 10)->jobs.empty());
  EXPECT_TRUE(controller_->Submit(Spec("out"), "r").ok()) << "the refusals took neither the request_id nor the name";
  EXPECT_EQ(reason(Spec("out")), "") << "the same request again";
  EXPECT_EQ(base::Reason(controller_->Submit(Spec("out"), "r2").status()), "NAME_TAKEN");
  EXPECT_EQ(reason(Spec("other")), "IDEMPOTENCY_CONFLICT");
}

TEST_F(AdmissionTest, CheckWithoutRowsGetsTheResolvedSpec) {
  Kill();
  options_.check_without_rows = [](const JobSpec& spec) {
    EXPECT_EQ(spec.device, "cpu");
    return base::FieldError("data.max_seq_len", "longer than the model");
  };
  Open();
  EXPECT_EQ(base::Reason(controller_->Submit(Spec(), "").status()), "FIELD_VIOLATION");
}

TEST_F(AdmissionTest, FiftyParallelSubmissionsOfOneRequestMakeOneJob) {  // R24
  std::vector<std::thread> threads;
  std::vector<std::string> ids(50);
  for (int i = 0; i < 50; ++i) {
    threads.emplace_back([&, i] {
      const auto job = controller_->Submit(Spec("out"), "request-1");
      if (job.ok()) ids[static_cast<std::size_t>(i)] = job->id;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(controller_->List({}, 100)->jobs.size(), 1u);
  for (const std::string& id : ids) EXPECT_EQ(id, ids[0]);
  KillAndReopen();
  EXPECT_EQ(controller_->Submit(Spec("out"), "request-1")->id, ids[0]);
  EXPECT_EQ(controller_->List({}, 100)->jobs.size(), 1u);
}

TEST_F(AdmissionTest, PrincipalsTakeTurnsAlsoAfterARestart) {
  const auto submit = [&](const std::string& owner, const std::string& tenant) {
    const auto job = controller_->Submit(Spec(), "", {.owner = owner, .tenant = tenant});
    EXPECT_TRUE(job.ok()) << job.status();
    if (job.ok()) AwaitPlan(job->id);
    return job.ok() ? job->id : "";
  };
  const auto position = [&](const std::string& id) {
    return controller_->Get(id)->progress["queue_position"].get<int>();
  };
  const std::string ann1 = submit("ann", ""), ann2 = submit("ann", ""), ann3 = submit("ann", ""),
                    bob1 = submit("bob", "");
  EXPECT_EQ(position(bob1), 1) << "only ann's first job is before bob's";
  controller_->Tick();
  EXPECT_EQ(State(ann1), kPreparing);
  EXPECT_EQ(position(bob1), 0) << "ann has had a turn";
  KillAndReopen();
  EXPECT_EQ(position(bob1), 0) << "turns are remembered";
  EXPECT_EQ(position(ann2), 1);
  const std::string bob2 = submit("bob", "");
  EXPECT_EQ(position(bob2), 2) << "bob has had no turn, so bob's second job is before ann's third";
  EXPECT_EQ(position(ann3), 3);
}

TEST_F(AdmissionTest, LowPriorityJobRisesAsItWaits) {
  const auto submit = [&](std::int64_t priority) {
    JobSpec spec = Spec();
    spec.run.priority = priority;
    return Submit(spec);
  };
  const auto position = [&](const std::string& id) {
    return controller_->Get(id)->progress["queue_position"].get<int>();
  };
  const std::string low = submit(0);
  clock_.Advance(absl::Hours(2) - absl::Seconds(1));
  const std::string urgent = submit(2);
  EXPECT_EQ(position(low), 1);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(position(low), 0)
      << "two hours of waiting are two steps of priority, and among equals the first submitted wins";
  KillAndReopen();
  EXPECT_EQ(position(low), 0) << "the wait counts across a restart";
  Kill();
  options_.ageing = absl::ZeroDuration();
  Open();
  EXPECT_EQ(position(low), 1);
  EXPECT_EQ(position(urgent), 0);
}

TEST_F(AdmissionTest, FullQueueRefusesJobs) {
  Kill();
  options_.max_queued = 2;
  Open();
  Submit();
  Submit();
  EXPECT_EQ(base::Reason(controller_->Submit(Spec(), "").status()), "QUEUE_FULL");
}

// retry_ms is the shortest ETA that a trainer reported, minus the time since that report. It is a minute if no trainer
// has reported, and at least a second.
TEST_F(AdmissionTest, RefusalSaysWhenTheNextJobEnds) {
  Kill();
  options_.max_queued = 2;
  options_.max_open_per_owner = 1;
  Open();
  const auto refused = [&](const std::string& owner, const std::string& reason) {
    const absl::Status status = controller_->Submit(Spec(), "", {.owner = owner}).status();
    EXPECT_EQ(base::Reason(status), reason) << status;
    return base::ReasonMetadata(status)["retry_ms"];
  };
  const auto ann = controller_->Submit(Spec(), "", {.owner = "ann"});
  ASSERT_TRUE(ann.ok()) << ann.status();
  controller_->Tick();
  EXPECT_EQ(refused("ann", "TENANT_QUOTA"), "60000") << "a minute, because the trainer has reported no ETA yet";
  Ready(Trainer(ann->id));
  // Step 1 of 4: three steps of 40 s remain.
  Write(Trainer(ann->id), "step", R"({"step":1,"loss":2.0,"tokens":64,"step_ms":40000})");
  controller_->Tick();
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(refused("ann", "TENANT_QUOTA"), "110000");
  ASSERT_TRUE(controller_->Submit(Spec(), "", {.owner = "bob"}).ok());
  EXPECT_EQ(refused("bob", "TENANT_QUOTA"), "60000") << "a minute, because none of bob's jobs runs";
  Submit();
  EXPECT_EQ(refused("", "QUEUE_FULL"), "110000") << "the end of any owner's job counts";
  clock_.Advance(absl::Seconds(300));
  EXPECT_EQ(refused("", "QUEUE_FULL"), "1000") << "at least a second, when a job takes longer than its ETA";
}

TEST_F(AdmissionTest, QuotaAndRequestIdsArePerOwner) {
  Kill();
  options_.max_open_per_owner = 2;
  Open();
  const auto submit = [&](const std::string& owner, const std::string& request) {
    return controller_->Submit(Spec(), request, {.owner = owner, .tenant = "team"});
  };
  const std::string a = submit("ann", "r1")->id;
  EXPECT_EQ(submit("ann", "r1")->id, a);
  const auto bob = submit("bob", "r1");
  ASSERT_TRUE(bob.ok()) << bob.status();
  EXPECT_NE(bob->id, a) << "another owner's request id";
  EXPECT_EQ(bob->owner, "bob");
  EXPECT_EQ(bob->tenant, "team");
  ASSERT_TRUE(submit("ann", "r2").ok());
  EXPECT_EQ(base::Reason(submit("ann", "r3").status()), "TENANT_QUOTA");
  EXPECT_TRUE(submit("ann", "r2").ok()) << "a repeated request makes no new job";
  ASSERT_TRUE(controller_->Cancel(a).ok());
  EXPECT_TRUE(submit("ann", "r3").ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(submit("", "").ok()) << "no quota without an owner";
}

TEST_F(AdmissionTest, OneNameInTwoTenantsIsTwoOwners) {  // S2
  Kill();
  options_.max_open_per_owner = 1;
  Open();
  const auto submit = [&](const std::string& tenant, const std::string& owner, const std::string& request,
                          const std::string& body) {
    return controller_->Submit(Spec(), request, {.body_digest = body, .owner = owner, .tenant = tenant});
  };
  const auto red = submit("red", "ci", "r1", "body");
  ASSERT_TRUE(red.ok()) << red.status();
  const auto blue = submit("blue", "ci", "r1", "body");
  ASSERT_TRUE(blue.ok()) << blue.status() << ": quota and request ids are per tenant";
  EXPECT_NE(blue->id, red->id);
  EXPECT_EQ(blue->tenant, "blue");
  EXPECT_EQ(submit("red", "ci", "r1", "body")->id, red->id);
  EXPECT_EQ(submit("blue", "ci", "r1", "body")->id, blue->id);
  EXPECT_EQ(base::Reason(submit("red", "ci", "r1", "another").status()), "IDEMPOTENCY_CONFLICT");
  EXPECT_EQ(base::Reason(submit("red", "ci", "r2", "body").status()), "TENANT_QUOTA");
  // A request id that looks like another owner's key does not match that key.
  for (const auto& [owner, request] : {std::pair("red", "ci\nr1"), std::pair("x", "\nred\nci\nr1")}) {
    const auto other = submit("", owner, request, "another");
    EXPECT_TRUE(other.ok()) << other.status();
  }
  // The stored keys (RequestKey in controller.cc): since version 4 of the schema they begin with the tenant, if there
  // is one; earlier keys began with the owner.
  EXPECT_EQ((*database_->FindRequest("\nred\nci\nr1", "body"))->id, red->id);
  EXPECT_TRUE(database_->FindRequest("red\nci\nr1", "another")->has_value());
}

TEST_F(AdmissionTest, RequestIdIsKeptForADayEvenWhenItsJobIsDeleted) {
  const auto submit = [&](const std::string& output) { return controller_->Submit(Spec(output), "request"); };
  const std::string id = submit("out")->id;
  clock_.Advance(absl::Hours(24) - absl::Seconds(1));
  EXPECT_EQ(submit("out")->id, id);
  EXPECT_EQ(base::Reason(submit("other").status()), "IDEMPOTENCY_CONFLICT");
  ASSERT_TRUE(controller_->Cancel(id).ok());
  ASSERT_TRUE(controller_->Delete(id).ok());
  EXPECT_EQ(base::Reason(submit("out").status()), "JOB") << "a repeated request makes no second job";
  clock_.Advance(absl::Seconds(2));
  const auto again = submit("other");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NE(again->id, id);
}

TEST_F(AdmissionTest, JobsAreAdmittedByTheirPlannedMemory) {
  Kill();
  options_.queue = {.max_running = 4, .memory_bytes = 1000};
  options_.plan_memory = [](const JobSpec& spec, const base::CancelToken&) -> absl::StatusOr<PlannedMemory> {
    return PlannedMemory{spec.qlora.r * 100, "adapter " + std::to_string(spec.qlora.r * 100)};
  };
  Open();
  const auto submit = [&](std::int64_t r) {
    JobSpec spec = Spec();
    spec.qlora.r = r;
    return Submit(spec);
  };
  const auto too_large = controller_->Get(submit(11));
  EXPECT_EQ(too_large->state, kFailed);
  ASSERT_TRUE(too_large->error.has_value());
  EXPECT_EQ(too_large->error->reason, "OUT_OF_DEVICE_MEMORY");
  EXPECT_EQ(too_large->error->metadata.at("need"), "1100");
  EXPECT_EQ(too_large->error->metadata.at("have"), "1000");
  EXPECT_EQ(too_large->error->metadata.at("plan"), "adapter 1100");
  const std::string a = submit(6), b = submit(5), c = submit(1);
  controller_->Tick();
  EXPECT_EQ(State(a), kPreparing);
  EXPECT_EQ(State(b), kQueued);
  EXPECT_EQ(State(c), kQueued) << "c must not overtake b, which waits for memory";
  KillAndReopen();
  controller_->Tick();
  EXPECT_EQ(State(b), kQueued) << "the adopted trainer's memory still counts";
  Fail(Trainer(a), "NAN_LOSS", kExitBadInput);
  machine_.Exit(Trainer(a), kExitBadInput);
  controller_->Tick();
  EXPECT_EQ(State(b), kPreparing);
  EXPECT_EQ(State(c), kPreparing);
}

// Trainers and loaded models share the machine's memory.
TEST_F(AdmissionTest, JobWarnsWhileItWaitsForMemoryOfLoadedModels) {
  Kill();
  options_.queue = {.max_running = 4, .memory_bytes = 1000};
  options_.memory = base::MemoryBudget::Make(1000);
  options_.plan_memory = [](const JobSpec&, const base::CancelToken&) -> absl::StatusOr<PlannedMemory> {
    return PlannedMemory{600, ""};
  };
  Open();
  auto model = options_.memory->TryTake(500);
  const std::string job = controller_->Submit(Spec(), "")->id;
  for (int i = 0; i < 3; ++i) controller_->Tick();
  EXPECT_EQ(State(job), kQueued);
  std::vector<std::string> warnings;
  for (const Event& event : Events(job)) {
    if (event.type == "warning") warnings.push_back(base::Dump(event.body));
  }
  ASSERT_EQ(warnings.size(), 1u) << "the job warns once";
  EXPECT_NE(warnings[0].find("WAITING_FOR_MEMORY"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("needs 600 bytes of memory, loaded models leave 500"), std::string::npos) << warnings[0];

  model.reset();
  controller_->Tick();
  EXPECT_EQ(State(job), kPreparing);
  EXPECT_EQ(options_.memory->left(), 400);
  EXPECT_EQ(options_.memory->TryTake(401), nullptr) << "a model cannot take the trainer's memory";
  Kill();
  EXPECT_EQ(options_.memory->left(), 1000);
  model = options_.memory->TryTake(900);
  Open();
  EXPECT_EQ(options_.memory->left(), 0) << "the adopted trainer holds its 600 bytes, although only 100 were left";
  Fail(Trainer(job), "NAN_LOSS", kExitBadInput);
  machine_.Exit(Trainer(job), kExitBadInput);
  controller_->Tick();
  EXPECT_EQ(options_.memory->left(), 100);
}

TEST_F(AdmissionTest, JobThatLeavesTheQueueBeforeTheWarningDoesNotGetIt) {
  Kill();
  options_.queue = {.max_running = 4, .memory_bytes = 1000};
  options_.memory = base::MemoryBudget::Make(1000);
  options_.plan_memory = [](const JobSpec&, const base::CancelToken&) -> absl::StatusOr<PlannedMemory> {
    return PlannedMemory{600, ""};
  };
  Open();
  auto& database = OpenOn<MeddledDatabase>();
  const auto model = options_.memory->TryTake(500);
  const std::string job = Submit();
  // The scheduler has read the job as QUEUED when the database calls `meddle`, just before it appends the warning.
  database.meddle = [&] { EXPECT_TRUE(controller_->Cancel(job).ok()); };
  controller_->Tick();
  EXPECT_FALSE(database.meddle) << "the scheduler was about to warn";
  EXPECT_EQ(Story(job), "state:PLANNING state:QUEUED state:CANCELLED") << "no event follows the final state";

  // A job that returns to the queue waits again, and gets a warning again.
  const std::string other = Submit();
  database.meddle = [&] { EXPECT_TRUE(controller_->Pause(other).ok()); };
  controller_->Tick();
  EXPECT_EQ(Story(other), "state:PLANNING state:QUEUED state:PAUSED");
  ASSERT_TRUE(controller_->Resume(other).ok());
  for (int i = 0; i < 2; ++i) controller_->Tick();
  EXPECT_EQ(Story(other), "state:PLANNING state:QUEUED state:PAUSED state:QUEUED warning");
}

TEST_F(AdmissionTest, LowDiskRefusesNewJobsButNotReadsAndCancels) {  // R9
  const std::string id = Submit();
  Kill();
  min_free_bytes_ = std::uint64_t{1} << 60;
  Open();
  const auto refused = controller_->Submit(Spec(), "").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(base::Reason(refused), "DISK_FULL");
  EXPECT_EQ(State(id), kQueued);
  EXPECT_TRUE(controller_->Cancel(id).ok());
  EXPECT_TRUE(controller_->Delete(id).ok());
}

TEST_F(AdmissionTest, JobThatWritesMoreThanIsFreeIsRefused) {  // T10
  Kill();
  std::int64_t bytes = 1;
  options_.plan_memory = [&](const JobSpec&, const base::CancelToken&) -> absl::StatusOr<PlannedMemory> {
    return PlannedMemory{100, "", bytes};
  };
  Open();
  EXPECT_EQ(State(Submit(Spec("fits"))), kQueued);
  bytes = std::int64_t{1} << 60;
  const auto refused = controller_->Get(Submit(Spec("large")));
  EXPECT_EQ(refused->state, kFailed);
  ASSERT_TRUE(refused->error.has_value());
  EXPECT_EQ(refused->error->code, "RESOURCE_EXHAUSTED");
  EXPECT_EQ(refused->error->reason, "DISK_FULL");
  EXPECT_EQ(refused->error->metadata.at("need"), std::to_string(bytes));
  EXPECT_GT(std::stoll(refused->error->metadata.at("have")), 0);
  EXPECT_TRUE(refused->error->message.starts_with("the job writes up to 1048576.0 TiB, ")) << refused->error->message;
  controller_->Tick();  // FAILED is visible a moment before the name is free again
  EXPECT_TRUE(state_->models->CheckFree("large").ok());
}

TEST_F(AdmissionTest, NextRoundRefillsTheDiskReserve) {  // R8
  ASSERT_TRUE(state_->reserve->Release());
  ASSERT_LT(state_->reserve->bytes(), store::kReserveBytes);
  controller_->Tick();
  EXPECT_EQ(state_->reserve->bytes(), store::kReserveBytes);
}

}  // namespace
}  // namespace nibble::jobs
