// The Kubernetes runner against a fake API server. R29 and R30 are rows of docs/faults.md.
#include "server/jobs/kubernetes_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "server/jobs/attempt_claim.h"
#include "tests/support/fake_api_objects.h"
#include "tests/support/fake_api_server.h"
#include "tests/support/soon.h"
#include "tests/support/temp_directory.h"

namespace nibble::jobs {
namespace {

using base::Json;
using nibble::testing::ApiFault;
using nibble::testing::RequestKind;
using nibble::testing_support::Soon;
using ::testing::HasSubstr;
using Cause = TrainerEnd::Cause;
using TrainerPhase = TrainerState::Phase;

constexpr char kTemplates[] =
    R"({"cpu":{"spec":{"template":{"spec":{"containers":[{"name":"trainer","image":"t"}]}}}}})";
constexpr char kJob1[] = "nibble-job-a-1";

class KubernetesRunnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.access = server_.access();
    options_.jobs = {.server = "here", .queue = "", .templates = *ParseTrainerTemplates(kTemplates)};
    options_.min_pause = options_.max_pause = absl::Milliseconds(2);
    options_.quiet_start = absl::ZeroDuration();
    Open();
  }
  void Open() {
    auto runner = MakeKubernetesRunner(options_);
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
  }
  // The request for an attempt whose order is written.
  TrainerRequest Request(std::int64_t attempt = 1, const std::string& job = "job-a") {
    TrainerRequest request;
    request.directory = temp_ / (job + "-" + std::to_string(attempt));
    request.job_id = job;
    request.attempt = attempt;
    request.threads = 2;
    request.memory_bytes = 1000 << 20;
    std::filesystem::create_directories(request.directory);
    Write("attempt.json", "{}", request);
    return request;
  }
  static void Write(const std::string& name, const std::string& text, const TrainerRequest& request) {
    std::ofstream(request.directory + "/" + name) << text;
  }
  TrainerState Poll(const TrainerRequest& request) { return runner_->Poll(request.directory); }
  bool Reaches(const TrainerRequest& request, TrainerPhase phase) {
    return Soon([&] { return Poll(request).phase == phase; });
  }
  bool EndsWith(const TrainerRequest& request, Cause cause) {
    if (!Reaches(request, TrainerPhase::kEnded)) return false;
    EXPECT_EQ(static_cast<int>(Poll(request).end.cause), static_cast<int>(cause)) << Poll(request).end.detail;
    return Poll(request).end.cause == cause;
  }
  // The Job as the last POST sent it; null if there was none.
  Json Posted() const {
    Json body;
    for (const auto& request : server_.requests()) {
      if (request.kind == RequestKind::kCreate) body = request.body;
    }
    return body;
  }
  int NumPosts() const { return server_.CountOf(RequestKind::kCreate); }
  int NumDeletes() const { return server_.CountOf(RequestKind::kDelete); }
  nibble::testing::ApiServerRequest LastDelete() const {
    nibble::testing::ApiServerRequest last{};
    for (const auto& request : server_.requests()) {
      if (request.kind == RequestKind::kDelete) last = request;
    }
    return last;
  }
  std::string DeleteTarget() const { return LastDelete().target; }
  // `state` is the state of the trainer's container, as JSON. The phase "Terminating" stands for a running pod that is
  // being deleted.
  void PutPod(const TrainerRequest& request, const std::string& phase, const std::string& state,
              const std::string& conditions = "[]") {
    Json pod = nibble::testing::ApiObject(
        "Pod", TrainerJobName(request) + "-0",
        {{kServerLabel, "here"}, {kJobLabel, request.job_id}, {kAttemptLabel, std::to_string(request.attempt)}});
    pod["status"]["phase"] = phase;
    pod["status"]["conditions"] = *base::ParseJson(conditions);
    pod["status"]["containerStatuses"] = *base::ParseJson(R"([{"name":"trainer","state":)" + state + "}]");
    if (phase == "Terminating") {
      pod["status"]["phase"] = "Running";
      pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z";
    }
    server_.Put(pod);
  }
  void PutJob(const TrainerRequest& request, const std::string& server = "here") {
    server_.Put(nibble::testing::ApiObject(
        "Job", TrainerJobName(request),
        {{kServerLabel, server}, {kJobLabel, request.job_id}, {kAttemptLabel, std::to_string(request.attempt)}}));
  }
  void RunPod(const TrainerRequest& request) { PutPod(request, "Running", R"({"running":{}})"); }
  void EndPod(const TrainerRequest& request, int code, const std::string& conditions = "[]") {
    PutPod(request, code == 0 ? "Succeeded" : "Failed", R"({"terminated":{"exitCode":)" + std::to_string(code) + "}}",
           conditions);
  }
  // A trainer that runs.
  TrainerRequest Running() {
    const TrainerRequest request = Request();
    runner_->Start(request);
    EXPECT_TRUE(Soon([&] { return NumPosts() == 1; }));
    RunPod(request);
    EXPECT_TRUE(Reaches(request, TrainerPhase::kRunning));
    EXPECT_TRUE(Soon([&] { return !Poll(request).handle.empty(); }));
    return request;
  }

  nibble::testing::TempDirectory temp_;
  nibble::testing::FakeApiServer server_;
  KubernetesRunnerOptions options_;
  std::unique_ptr<Runner> runner_;
};

TEST_F(KubernetesRunnerTest, AttemptIsOneJobThatIsRemovedOnceItsEndIsRecorded) {
  const TrainerRequest request = Running();
  EXPECT_THAT(Poll(request).handle, HasSubstr(std::string(kJob1) + "/"));
  EndPod(request, 42);
  ASSERT_TRUE(EndsWith(request, Cause::kExited));
  EXPECT_EQ(Poll(request).end.value, 42);
  EXPECT_EQ(NumDeletes(), 0) << "the end is not recorded yet";
  runner_->Forget(request.directory);
  ASSERT_TRUE(Soon([&] { return NumDeletes() == 1; }));
  EXPECT_THAT(DeleteTarget(), HasSubstr(kJob1));
  EXPECT_TRUE(Soon([&] { return Poll(request).end.cause == Cause::kUnknown; })) << "forgotten";
  EXPECT_EQ(NumPosts(), 1);
}

TEST_F(KubernetesRunnerTest, FailuresOfTheApiServerMakeNoSecondJob) {  // R29
  server_.Fail(3, RequestKind::kCreate, {.status = 500});
  server_.Fail(2, RequestKind::kCreate, {.status = 429, .retry_after_s = 0});
  server_.Fail(1, RequestKind::kCreate, {.kind = ApiFault::kHalfAnswer});
  const TrainerRequest request = Request();
  runner_->Start(request);
  EXPECT_TRUE(Soon([&] { return NumPosts() >= 7 && !Poll(request).handle.empty(); }));
  EXPECT_EQ(Poll(request).phase, TrainerPhase::kStarting);
  // While the server is away nothing changes, and no call waits.
  RunPod(request);
  ASSERT_TRUE(Reaches(request, TrainerPhase::kRunning));
  server_.SetAway(true);
  runner_->Start(Request(1, "job-b"));
  EXPECT_EQ(Poll(request).phase, TrainerPhase::kRunning);
  server_.SetAway(false);
  EXPECT_TRUE(Soon([&] { return !Poll(Request(1, "job-b")).handle.empty(); }));
  server_.Fail(2, RequestKind::kDelete, {.status = 500});
  EndPod(request, 0);
  ASSERT_TRUE(EndsWith(request, Cause::kExited));
  runner_->Forget(request.directory);
  EXPECT_TRUE(Soon([&] { return NumDeletes() == 3; }));
  EXPECT_EQ(NumPosts(), 3 + 2 + 1 + 1 + 1) << "six that failed, and one for each of the two Jobs";
}

TEST_F(KubernetesRunnerTest, JobOfTheSameAttemptIsAdoptedAndThatOfAStrangerIsNot) {
  const TrainerRequest request = Request(), other = Request(1, "job-b");
  PutJob(request);
  runner_->Start(request);
  RunPod(request);
  EXPECT_TRUE(Reaches(request, TrainerPhase::kRunning));
  PutJob(other, "elsewhere");
  options_.start_timeout = absl::Milliseconds(50);
  Open();
  runner_->Start(other);
  ASSERT_TRUE(EndsWith(other, Cause::kNotStarted));
  EXPECT_THAT(std::string(Poll(other).end.failure.message()), HasSubstr("not this server's"));
  runner_->Forget(other.directory);
  EXPECT_TRUE(Soon([&] { return Poll(other).end.cause == Cause::kUnknown; }));
  EXPECT_EQ(NumDeletes(), 0) << "a stranger's Job stays";
}

TEST_F(KubernetesRunnerTest, NextServerAdoptsRunningTrainersAndRemovesOldJobs) {
  const TrainerRequest runs = Running(), over = Request(1, "job-b");
  PutJob(over);
  const std::string handle = Poll(runs).handle;
  runner_.reset();
  Open();
  const auto adopted = runner_->Adopt(runs, handle);
  ASSERT_TRUE(adopted.ok() && *adopted);
  EXPECT_TRUE(Reaches(runs, TrainerPhase::kRunning));
  EXPECT_EQ(Poll(runs).handle, handle);
  EXPECT_EQ(NumDeletes(), 0) << "other attempts may still be adopted";
  server_.Fail(1, RequestKind::kDelete, {.status = 500});
  runner_->Recovered();
  ASSERT_TRUE(Soon([&] { return NumDeletes() == 2; }));
  EXPECT_THAT(DeleteTarget(), HasSubstr("nibble-job-b-1"));
  EXPECT_EQ(NumPosts(), 1);
}

TEST_F(KubernetesRunnerTest, AdoptedAttemptIsCreatedOnlyIfItNeverBegan) {
  // The server was killed before the POST: the order exists, but neither a Job nor a file of a trainer.
  const TrainerRequest never = Request(1, "job-a");
  // The server was killed after the POST, and the Job was deleted while no server ran.
  const TrainerRequest claimed = Request(1, "job-b"), recorded = Request(1, "job-c"), finished = Request(1, "job-d");
  Write("claim", "pod-uid", claimed);
  Write("outcome.json", "{}", finished);
  // The server was killed before it wrote the order.
  const TrainerRequest unwritten = Request(1, "job-e");
  std::filesystem::remove(unwritten.directory + "/attempt.json");
  EXPECT_FALSE(*runner_->Adopt(unwritten, ""));
  EXPECT_TRUE(*runner_->Adopt(never, ""));
  EXPECT_TRUE(*runner_->Adopt(claimed, ""));
  EXPECT_TRUE(*runner_->Adopt(recorded, "nibble-job-c-1/uid"));
  EXPECT_TRUE(*runner_->Adopt(finished, ""));
  for (const TrainerRequest& request : {claimed, recorded, finished}) EXPECT_TRUE(EndsWith(request, Cause::kDeleted));
  ASSERT_TRUE(Soon([&] { return !Poll(never).handle.empty(); }));
  EXPECT_EQ(NumPosts(), 1);
  EXPECT_EQ(Posted()["metadata"]["name"], kJob1);
}

TEST_F(KubernetesRunnerTest, StopDeletesTheJobAndAKillLeavesThePodOneSecond) {
  const TrainerRequest request = Running();
  server_.Fail(1, RequestKind::kDelete, {.status = 200});  // foreground deletion: the Job stays as long as its pod
  runner_->Send(request.directory, Runner::Signal::kTerminate);
  ASSERT_TRUE(Soon([&] { return NumDeletes() == 1; }));
  EXPECT_THAT(DeleteTarget(), HasSubstr(std::string("/jobs/") + kJob1));
  PutPod(request, "Terminating", R"({"running":{}})");
  EXPECT_EQ(Poll(request).phase, TrainerPhase::kRunning) << "no attempt may begin while the pod is there";
  runner_->Send(request.directory, Runner::Signal::kKill);
  ASSERT_TRUE(Soon([&] { return NumDeletes() >= 2; }));
  EXPECT_THAT(DeleteTarget(), HasSubstr("/pods/"));
  EXPECT_EQ(LastDelete().body["gracePeriodSeconds"], 1);
  ASSERT_TRUE(server_.Remove("jobs", kJob1));
  EXPECT_TRUE(EndsWith(request, Cause::kUnknown));
  EXPECT_THAT(Poll(request).end.detail, HasSubstr("this server stopped it"));
}

TEST_F(KubernetesRunnerTest, StopBeforeTheJobExistsCreatesNone) {
  server_.SetAway(true);
  const TrainerRequest request = Request();
  runner_->Start(request);
  runner_->Send(request.directory, Runner::Signal::kTerminate);
  server_.SetAway(false);
  EXPECT_TRUE(EndsWith(request, Cause::kUnknown));
  EXPECT_EQ(NumPosts(), 0);
}

TEST_F(KubernetesRunnerTest, DisruptionsHaveTheirCauses) {  // R30
  const TrainerRequest evicted = Running();
  EndPod(evicted, 143, R"([{"type":"DisruptionTarget","status":"True","reason":"EvictionByEvictionAPI"}])");
  EXPECT_TRUE(EndsWith(evicted, Cause::kEvicted));
  const TrainerRequest deleted = Request(1, "job-b");
  runner_->Start(deleted);
  ASSERT_TRUE(Soon([&] { return !Poll(deleted).handle.empty(); }));
  EXPECT_TRUE(server_.Remove("jobs", TrainerJobName(deleted)));
  EXPECT_TRUE(EndsWith(deleted, Cause::kDeleted));
}

TEST_F(KubernetesRunnerTest, PodThatOutlivesItsJobIsDeletedWithItsOwnGrace) {  // R30
  const TrainerRequest request = Running();
  server_.Fail(1, RequestKind::kDelete, {.status = 500});
  ASSERT_TRUE(server_.Remove("jobs", kJob1));
  ASSERT_TRUE(Soon([&] { return NumDeletes() == 1; }));
  EXPECT_EQ(Poll(request).phase, TrainerPhase::kRunning) << "no attempt may begin while the pod is there";
  EXPECT_TRUE(EndsWith(request, Cause::kDeleted));
  EXPECT_EQ(NumDeletes(), 2);
  EXPECT_THAT(DeleteTarget(), HasSubstr(std::string("/pods/") + kJob1 + "-0"));
  EXPECT_FALSE(LastDelete().body.contains("gracePeriodSeconds"));
}

TEST_F(KubernetesRunnerTest, OrphanThatSavedItsStateEndsAsDeleted) {
  const TrainerRequest request = Running();
  server_.Fail(1, RequestKind::kDelete, {.status = 200});  // the pod has its grace period
  ASSERT_TRUE(server_.Remove("jobs", kJob1));
  ASSERT_TRUE(Soon([&] { return NumDeletes() == 1; }));
  EXPECT_EQ(Poll(request).phase, TrainerPhase::kRunning);
  EndPod(request, 75);
  ASSERT_TRUE(EndsWith(request, Cause::kDeleted));
  EXPECT_EQ(Poll(request).end.detail, "its Job was deleted");
  EXPECT_EQ(NumDeletes(), 1);
}

TEST_F(KubernetesRunnerTest, OrphanFoundByTheNextServerGetsNoSecondJob) {
  const TrainerRequest request = Running();
  const std::string handle = Poll(request).handle;
  runner_.reset();
  ASSERT_TRUE(server_.Remove("jobs", kJob1));
  Open();
  EXPECT_TRUE(*runner_->Adopt(request, handle));
  EXPECT_TRUE(EndsWith(request, Cause::kDeleted));
  EXPECT_EQ(NumPosts(), 1);
  EXPECT_EQ(NumDeletes(), 1);
}

TEST_F(KubernetesRunnerTest, PodOfAJobThatTheWatchDoesNotShowYetIsNotDeleted) {
  const TrainerRequest request = Request();
  RunPod(request);
  server_.Fail(1, RequestKind::kGet, {.kind = ApiFault::kGarbage});
  EXPECT_TRUE(*runner_->Adopt(request, ""));
  ASSERT_TRUE(Soon([&] { return server_.CountOf(RequestKind::kGet) == 1; }));
  PutJob(request);
  EXPECT_TRUE(Soon([&] { return !Poll(request).handle.empty(); }));
  EXPECT_EQ(Poll(request).phase, TrainerPhase::kRunning);
  EXPECT_EQ(NumDeletes() + NumPosts(), 0);
}

TEST_F(KubernetesRunnerTest, JobThatKueueAdmittedAgainWhileNoServerRanIsPreempted) {  // R30
  for (const bool ended : {false, true}) {
    SCOPED_TRACE(ended);
    const TrainerRequest request = Request(1, ended ? "job-a" : "job-b");
    Write("claim", "uid-of-the-first-pod", request);
    PutJob(request);
    if (ended) EndPod(request, 73);
    if (!ended) {
      RunPod(request);
      server_.Fail(1, RequestKind::kDelete, {.status = 200});  // foreground deletion: the Job stays as long as its pod
    }
    Open();
    EXPECT_TRUE(*runner_->Adopt(request, ""));
    if (!ended) {
      ASSERT_TRUE(Soon([&] { return NumDeletes() == 1; }));
      EXPECT_THAT(DeleteTarget(), HasSubstr("/jobs/"));
      EXPECT_EQ(Poll(request).phase, TrainerPhase::kRunning) << "its pod is still there";
      EXPECT_TRUE(server_.Remove("pods", TrainerJobName(request) + "-0"));
      EXPECT_TRUE(server_.Remove("jobs", TrainerJobName(request)));
    }
    ASSERT_TRUE(EndsWith(request, Cause::kPreempted));
    EXPECT_THAT(Poll(request).end.detail, HasSubstr("again after the trainer's pod had ended"));
  }
}

TEST_F(KubernetesRunnerTest, PodThatWaitsForAVolumeShowsItsEvents) {
  const TrainerRequest request = Request();
  runner_->Start(request);
  ASSERT_TRUE(Soon([&] { return NumPosts() == 1; }));
  Json event = nibble::testing::ApiObject("Event", "e");
  event.update({{"type", "Warning"}, {"reason", "FailedMount"}, {"message", "no such disk"}});
  Json pod = nibble::testing::ApiObject("Pod", "p",
                                        {{kServerLabel, "here"}, {kJobLabel, request.job_id}, {kAttemptLabel, "1"}});
  pod["metadata"]["uid"] = "uid-of-the-pod";
  pod["status"] = *base::ParseJson(R"({"phase":"Pending","conditions":[{"type":"PodScheduled","status":"True"}]})");
  event["involvedObject"]["uid"] = "uid-of-the-pod";
  server_.Put(event);
  server_.Put(pod);
  EXPECT_TRUE(Soon([&] { return Poll(request).waiting_for.ends_with(": FailedMount: no such disk"); }))
      << Poll(request).waiting_for;
  EXPECT_EQ(Poll(request).phase, TrainerPhase::kStarting);
}

TEST_F(KubernetesRunnerTest, LostNodeEndsTheAttemptOnlyAfterTheTimeout) {  // R30
  options_.lost_node_timeout = absl::Milliseconds(300);
  Open();
  const TrainerRequest request = Running();
  const auto began = std::chrono::steady_clock::now();
  PutPod(request, "Terminating", R"({"running":{}})",
         R"([{"type":"DisruptionTarget","status":"True","reason":"DeletionByTaintManager"}])");
  EXPECT_TRUE(EndsWith(request, Cause::kNodeLost));
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(300));
}

TEST_F(KubernetesRunnerTest, PodThatStaysAfterAKillIsOnALostNode) {
  options_.lost_node_timeout = absl::Milliseconds(100);
  Open();
  const TrainerRequest request = Running();
  PutPod(request, "Terminating", R"({"running":{}})");
  server_.Fail(1, RequestKind::kDelete, {.status = 200});  // foreground deletion: the Job stays as long as its pod
  runner_->Send(request.directory, Runner::Signal::kTerminate);
  ASSERT_TRUE(Soon([&] { return NumDeletes() == 1; }));
  EXPECT_EQ(Poll(request).phase, TrainerPhase::kRunning);
  server_.Fail(100'000, RequestKind::kDelete, {.status = 500});  // the pod stays
  runner_->Send(request.directory, Runner::Signal::kKill);
  EXPECT_TRUE(EndsWith(request, Cause::kNodeLost));
}

TEST_F(KubernetesRunnerTest, TrainerWhoseStopWasDelayedHasItsWholeGrace) {  // R29
  const TrainerRequest request = Running();
  server_.Fail(100'000, RequestKind::kDelete, {.status = 500});
  const auto stopped = std::chrono::steady_clock::now();
  runner_->Send(request.directory, Runner::Signal::kTerminate);
  ASSERT_TRUE(Soon([&] { return NumDeletes() >= 100; }));
  const auto grace = std::chrono::steady_clock::now() - stopped;  // the time that the caller left for the stop
  runner_->Send(request.directory, Runner::Signal::kKill);
  EXPECT_THAT(DeleteTarget(), HasSubstr("/jobs/"));
  const auto deleted = std::chrono::steady_clock::now();
  server_.ClearFaults();
  ASSERT_TRUE(Soon([&] { return DeleteTarget().find("/pods/") != std::string::npos; }));
  EXPECT_GE(std::chrono::steady_clock::now() - deleted, grace);
}

TEST_F(KubernetesRunnerTest, KillOfAnAttemptWithoutAPodDoesNotHideAStrangersJob) {
  const TrainerRequest request = Request();
  PutJob(request, "elsewhere");
  server_.Fail(3, RequestKind::kGet, {.status = 500});
  runner_->Start(request);
  ASSERT_TRUE(Soon([&] { return NumPosts() == 1; }));
  runner_->Send(request.directory, Runner::Signal::kTerminate);
  runner_->Send(request.directory, Runner::Signal::kKill);
  EXPECT_TRUE(EndsWith(request, Cause::kNotStarted));
  EXPECT_EQ(NumDeletes(), 0);
}

TEST_F(KubernetesRunnerTest, TrainerThatBeginsAsItsStartFailsIsNotGivenUp) {
  options_.start_timeout = absl::Milliseconds(100);
  Open();
  const TrainerRequest request = Request();
  runner_->Start(request);
  PutPod(request, "Pending", R"({"waiting":{"reason":"ImagePullBackOff"}})");
  Write("claim", "pod-uid", request);  // the image was pulled after all, and the watch does not show it yet
  EXPECT_TRUE(Soon([&] { return NumPosts() == 1 && !Poll(request).waiting_for.empty(); }));
  // The runner has seen the broken pod. Now its start fails, but the trainer has the claim.
  const auto until = std::chrono::steady_clock::now() + 3 * std::chrono::milliseconds(100);  // three timeouts
  ASSERT_TRUE(Soon([&] { return std::chrono::steady_clock::now() > until; }));
  EXPECT_EQ(Poll(request).phase, TrainerPhase::kStarting);
  RunPod(request);
  EXPECT_TRUE(Reaches(request, TrainerPhase::kRunning));
}

TEST_F(KubernetesRunnerTest, FailedStartTakesTheClaimAndEndsAlsoForTheNextServer) {
  options_.start_timeout = absl::Milliseconds(50);
  Open();
  const TrainerRequest request = Request();
  for (int i = 0; i < 2; ++i) {
    if (i == 0) runner_->Start(request);
    if (i == 1) {
      Open();
      EXPECT_TRUE(*runner_->Adopt(request, ""));
    }
    PutPod(request, "Pending", R"({"waiting":{"reason":"ErrImagePull"}})");
    ASSERT_TRUE(EndsWith(request, Cause::kNotStarted));
    EXPECT_EQ(ClaimHolder(request.directory), "nibbled");
  }
}

TEST_F(KubernetesRunnerTest, HandleOfAProcessIsRefused) {
  const absl::Status adopted = runner_->Adopt(Request(), "123/456").status();
  EXPECT_EQ(adopted.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(adopted.message()), HasSubstr("--runner"));
}

TEST_F(KubernetesRunnerTest, ImageThatCannotBePulledFailsTheStartAfterTheTimeout) {
  options_.start_timeout = absl::Milliseconds(200);
  Open();
  const TrainerRequest request = Request();
  runner_->Start(request);
  PutPod(request, "Pending", R"({"waiting":{"reason":"ImagePullBackOff","message":"no such image"}})");
  ASSERT_TRUE(Soon([&] { return Poll(request).waiting_for == "ImagePullBackOff: no such image"; }));
  EXPECT_EQ(Poll(request).phase, TrainerPhase::kStarting);
  ASSERT_TRUE(EndsWith(request, Cause::kNotStarted));
  EXPECT_EQ(Poll(request).end.failure.message(), "ImagePullBackOff: no such image");
}

TEST_F(KubernetesRunnerTest, JobThatIsRefusedFailsTheStartAfterTheTimeout) {
  options_.start_timeout = absl::Milliseconds(200);
  Open();
  server_.Fail(100'000, RequestKind::kCreate, {.status = 403});
  const TrainerRequest request = Request();
  runner_->Start(request);
  ASSERT_TRUE(EndsWith(request, Cause::kNotStarted));
  EXPECT_THAT(std::string(Poll(request).end.failure.message()), HasSubstr("403"));
}

TEST_F(KubernetesRunnerTest, QueuedJobWaitsAndIsPreemptedOnceItsPodHasRun) {
  options_.jobs.queue = "team";
  Open();
  const TrainerRequest request = Request();
  runner_->Start(request);
  ASSERT_TRUE(Soon([&] { return Poll(request).waiting_for == "the Job is suspended: it waits in the queue team"; }));
  const auto set_suspend = [&](bool suspend) {
    Json job = Posted();
    job["metadata"]["namespace"] = "ml";
    job["spec"]["suspend"] = suspend;
    server_.Put(job);
  };
  set_suspend(false);
  RunPod(request);
  ASSERT_TRUE(Reaches(request, TrainerPhase::kRunning));
  set_suspend(true);
  PutPod(request, "Terminating", R"({"running":{}})");
  EXPECT_EQ(Poll(request).phase, TrainerPhase::kRunning);
  EXPECT_TRUE(server_.Remove("pods", TrainerJobName(request) + "-0"));
  EXPECT_TRUE(EndsWith(request, Cause::kPreempted));
}

TEST(KubernetesJobTest, JobIsTheTemplateWithTheFieldsThatNibbledSets) {
  const auto templates = ParseTrainerTemplates(
      R"({"cuda":{"metadata":{"labels":{"team":"x"}},"spec":{"ttlSecondsAfterFinished":60,"template":{"spec":{
        "nodeSelector":{"gpu":"h200"},"restartPolicy":"OnFailure","containers":[{"name":"sidecar"},
        {"name":"trainer","image":"t",
        "env":[{"name":"GOMP_SPINCOUNT","value":"9"}],"args":["--old"],
        "resources":{"limits":{"nvidia.com/gpu":1,"memory":"1Gi"}}}]}}}}})");
  ASSERT_TRUE(templates.ok()) << templates.status();
  const TrainerJobs jobs = {.server = "here", .queue = "team", .templates = *templates};
  const TrainerRequest request = {.directory = "/state/jobs/job-a/attempts/2",
                                  .job_id = "job-a",
                                  .attempt = 2,
                                  .device = "cuda",
                                  .threads = 8,
                                  .memory_bytes = (std::int64_t{10} << 30) + 1};
  const auto job = MakeTrainerJob(jobs, request);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ((*job)["metadata"]["name"], "nibble-job-a-2");
  const Json& labels = (*job)["metadata"]["labels"];
  EXPECT_EQ(base::DumpSorted(labels),
            R"({"kueue.x-k8s.io/queue-name":"team","nibble.dev/attempt":"2","nibble.dev/job":"job-a",)"
            R"("nibble.dev/server":"here","team":"x"})");
  const Json& spec = (*job)["spec"];
  EXPECT_EQ(spec["suspend"], true);
  EXPECT_EQ(spec["backoffLimit"], 0);
  EXPECT_EQ(spec["completionMode"], "Indexed");
  EXPECT_EQ(spec["ttlSecondsAfterFinished"], 60);
  EXPECT_EQ(spec["podFailurePolicy"]["rules"].size(), 2u);
  EXPECT_FALSE((*job)["metadata"].contains("ownerReferences")) << "trainers outlive the server";
  const Json& pod = spec["template"];
  EXPECT_EQ(pod["metadata"]["labels"][kAttemptLabel], "2");
  EXPECT_EQ(pod["spec"]["restartPolicy"], "Never");
  EXPECT_EQ(pod["spec"]["terminationGracePeriodSeconds"], 70);
  EXPECT_EQ(pod["spec"]["nodeSelector"]["gpu"], "h200");
  const Json& container = pod["spec"]["containers"][1];
  EXPECT_EQ(base::Dump(container["args"]), R"(["--job_dir=/state/jobs/job-a/attempts/2"])");
  EXPECT_EQ(container["env"].size(), 2u);
  EXPECT_EQ(container["env"][0]["value"], "1000");
  EXPECT_EQ(container["env"][1]["valueFrom"]["fieldRef"]["fieldPath"], "metadata.uid");
  EXPECT_EQ(base::DumpSorted(container["resources"]),
            R"({"limits":{"memory":"11265Mi","nvidia.com/gpu":1},"requests":{"cpu":"8","memory":"11265Mi"}})");
  EXPECT_THAT(std::string(MakeTrainerJob(jobs, {.directory = "/a", .device = "cpu"}).status().message()),
              HasSubstr("no template"));
}

TEST(KubernetesJobTest, TemplatesThatCannotBecomeAJobAreRefused) {
  const auto refusal = [](const char* text) { return std::string(ParseTrainerTemplates(text).status().message()); };
  EXPECT_THAT(refusal("{"), HasSubstr("JSON"));
  for (const char* text : {"[]", "{}", "7", R"({"tpu":{}})"}) EXPECT_THAT(refusal(text), HasSubstr("wanted an object"));
  for (const char* text :
       {R"({"cpu":{}})", R"({"cpu":7})", R"({"cpu":{"spec":{"template":{"spec":{"containers":7}}}}})",
        R"({"cpu":{"spec":{"template":{"spec":{"containers":[7,{"name":"x"}]}}}}})"}) {
    EXPECT_THAT(refusal(text), HasSubstr("cpu: ")) << text;
  }
  const auto with = [](const std::string& metadata, const std::string& resources) {
    return R"({"cpu":{"metadata":)" + metadata +
           R"(,"spec":{"template":{"spec":{"containers":[{"name":"trainer","resources":)" + resources + "}]}}}}}";
  };
  EXPECT_EQ(refusal(with("{}", "{}").c_str()), "");
  EXPECT_THAT(refusal(with("7", "{}").c_str()), HasSubstr("cpu: metadata is not an object"));
  EXPECT_THAT(refusal(with(R"({"labels":"x"})", "{}").c_str()), HasSubstr("metadata.labels is not an object"));
  EXPECT_THAT(refusal(with("{}", "[]").c_str()), HasSubstr("resources is not an object"));
  EXPECT_THAT(refusal(with("{}", R"({"limits":1})").c_str()), HasSubstr("resources.limits is not an object"));
}

}  // namespace
}  // namespace nibble::jobs
