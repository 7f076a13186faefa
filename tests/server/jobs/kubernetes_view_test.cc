#include "server/jobs/kubernetes_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nibble::jobs {
namespace {

using base::Json;
using Cause = TrainerEnd::Cause;
using Phase = ClusterView::Phase;
using ::testing::HasSubstr;

Json Parsed(const std::string& text) {
  const auto json = base::ParseJson(text);
  EXPECT_TRUE(json.ok()) << json.status() << ": " << text;
  return json.ok() ? *json : Json();
}
std::string Condition(const std::string& type, const std::string& reason, const std::string& message,
                      const std::string& status = "True") {
  return R"({"type":")" + type + R"(","status":")" + status + R"(","reason":")" + reason + R"(","message":")" +
         message + R"("})";
}
Json Job(const std::string& conditions = "", bool suspend = false) {
  return Parsed(R"({"kind":"Job","metadata":{"name":"j"},"spec":{"suspend":)" +
                std::string(suspend ? "true" : "false") + R"(},"status":{"conditions":[)" + conditions + "]}}");
}
// `state` is the state of the trainer's container: JSON without the outer braces, such as "running":{}.
Json Pod(const std::string& phase, const std::string& state, const std::string& conditions = "") {
  return Parsed(R"({"kind":"Pod","metadata":{"name":"j-0"},"status":{"phase":")" + phase + R"(","conditions":[)" +
                conditions +
                R"(],"containerStatuses":[{"name":"sidecar","state":{"running":{}}},{"name":"trainer","state":{)" +
                state + "}}]}}");
}
Json Ended(int code, const std::string& reason = "Error", const std::string& conditions = "") {
  return Pod("Failed", R"("terminated":{"exitCode":)" + std::to_string(code) + R"(,"reason":")" + reason + "\"}",
             conditions);
}
std::string Disrupted(const std::string& reason) { return Condition("DisruptionTarget", reason, "why"); }

ClusterView View(const Json& job, const Json& pod) { return ViewOf({.job = &job, .pods = {&pod}}); }
ClusterView View(const Json& job) { return ViewOf({.job = &job}); }

TEST(KubernetesViewTest, EndOfAPodGivesTheCause) {
  struct Case {
    Json pod;
    Cause cause;
    int value;
  };
  const std::vector<Case> cases = {
      {Ended(0, "Completed"), Cause::kExited, 0},
      {Ended(42), Cause::kExited, 42},
      {Ended(74), Cause::kExited, 74},
      {Ended(75), Cause::kExited, 75},
      {Ended(255), Cause::kExited, 255},
      {Ended(139), Cause::kSignaled, 11},
      {Ended(137), Cause::kSignaled, 9},
      {Ended(137, "OOMKilled"), Cause::kOutOfMemory, 0},
      {Ended(143, "Error", Disrupted("EvictionByEvictionAPI")), Cause::kEvicted, 0},
      {Ended(75, "Error", Disrupted("TerminationByKubelet")), Cause::kEvicted, 0},
      {Ended(137, "Error", Disrupted("PreemptionByScheduler")), Cause::kPreempted, 0},
      // The kubelet reported the end of the container, so its node answers.
      {Ended(137, "Error", Disrupted("DeletionByTaintManager")), Cause::kEvicted, 0},
      {Pod("Failed", R"("running":{})", Disrupted("DeletionByTaintManager")), Cause::kNodeLost, 0},
      {Pod("Failed", R"("running":{})", Disrupted("DeletionByPodGC")), Cause::kNodeLost, 0},
      // The OOM killer may end the trainer of a pod that is being evicted for its memory.
      {Ended(137, "OOMKilled", Disrupted("TerminationByKubelet")), Cause::kOutOfMemory, 0},
      {Parsed(R"({"status":{"phase":"Failed","reason":"Evicted","message":"low on memory"}})"), Cause::kEvicted, 0},
      {Parsed(R"({"status":{"phase":"Failed","reason":"UnexpectedAdmissionError"}})"), Cause::kUnknown, 0},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(base::Dump(one.pod));
    const ClusterView view = View(Job(), one.pod);
    EXPECT_EQ(view.phase, Phase::kEnded);
    EXPECT_TRUE(view.has_begun);
    EXPECT_EQ(view.end.cause, one.cause);
    EXPECT_EQ(view.end.value, one.value);
    // Somebody may have deleted the Job: the pod alone gives the same cause.
    EXPECT_EQ(ViewOf({.pods = {&one.pod}}).end.cause, one.cause);
  }
}

TEST(KubernetesViewTest, DeletionOfThePodIsTheCauseUnlessThisServerStopsTheTrainer) {
  const auto deleted = [](Json pod) {
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z";
    return pod;
  };
  const Json job = Job(), killed = deleted(Ended(137)), unstarted = deleted(Parsed(R"({"status":{"phase":"Failed"}})"));
  for (const Json& pod : {killed, unstarted, deleted(Ended(143)), deleted(Ended(137, "ContainerStatusUnknown"))}) {
    EXPECT_EQ(View(job, pod).end.cause, Cause::kDeleted) << base::Dump(pod);
  }
  EXPECT_EQ(ViewOf({.job = &job, .pods = {&killed}, .stopping = true}).end.cause, Cause::kSignaled);
  EXPECT_EQ(ViewOf({.job = &job, .pods = {&unstarted}, .stopping = true}).end.cause, Cause::kUnknown);
  EXPECT_EQ(View(job, deleted(Ended(75))).end.value, 75) << "it has saved its state";
  EXPECT_EQ(View(job, deleted(Ended(139))).end.value, 11) << "a deletion causes no such signal";
  EXPECT_EQ(View(job, Ended(137, "ContainerStatusUnknown")).end.cause, Cause::kUnknown);
}

TEST(KubernetesViewTest, OnceThePodIsGoneTheJobGivesTheCause) {
  const auto failed = [](const std::string& message) {
    return View(Job(Condition("Failed", "PodFailurePolicy", message))).end;
  };
  const TrainerEnd segfault =
      failed("Container trainer for pod ns/j-0-abcde failed with exit code 139 matching FailJob rule at index 1");
  EXPECT_EQ(segfault.cause, Cause::kSignaled);
  EXPECT_EQ(segfault.value, 11);
  const TrainerEnd refused =
      failed("Container trainer for pod ns/j-0-abcde failed with exit code 42 matching FailJob rule at index 1");
  EXPECT_EQ(refused.cause, Cause::kExited);
  EXPECT_EQ(refused.value, 42);
  EXPECT_EQ(failed("Pod ns/j-0-abcde has condition DisruptionTarget matching FailJob rule at index 0").cause,
            Cause::kNodeLost)
      << "the trainer of a removed node may still write";
  const TrainerEnd other = View(Job(Condition("Failed", "DeadlineExceeded", "active longer than 9 s"))).end;
  EXPECT_EQ(other.cause, Cause::kUnknown);
  EXPECT_EQ(other.detail, "DeadlineExceeded: active longer than 9 s");
  const ClusterView complete = View(Job(Condition("Complete", "CompletionsReached", "done")));
  EXPECT_EQ(complete.phase, Phase::kEnded);
  EXPECT_EQ(complete.end.cause, Cause::kExited);
  EXPECT_EQ(complete.end.value, 0);
  EXPECT_EQ(View(Job(Condition("Failed", "PodFailurePolicy", "x", "False"))).phase, Phase::kPending);
}

TEST(KubernetesViewTest, PodThatHasNotBegunSaysWhyItWaits) {
  const Json unscheduled =
      Parsed(R"({"status":{"phase":"Pending","conditions":[)" +
             Condition("PodScheduled", "Unschedulable", "0/3 nodes are available", "False") + "]}}");
  const ClusterView pending = View(Job(), unscheduled);
  EXPECT_EQ(pending.phase, Phase::kPending);
  EXPECT_FALSE(pending.has_begun);
  EXPECT_EQ(pending.message, "Unschedulable: 0/3 nodes are available");
  const ClusterView creating = View(Job(), Pod("Pending", R"("waiting":{"reason":"ContainerCreating"})"));
  EXPECT_EQ(creating.phase, Phase::kPending);
  EXPECT_EQ(creating.message, "ContainerCreating");
  for (const char* reason : {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"}) {
    const ClusterView broken = View(
        Job(), Pod("Pending", R"("waiting":{"reason":")" + std::string(reason) + R"(","message":"no such image"})"));
    EXPECT_EQ(broken.phase, Phase::kBroken) << reason;
    EXPECT_EQ(broken.message, std::string(reason) + ": no such image");
  }
  const Json job = Job();
  const ClusterView refused = ViewOf({.job = &job, .refusals = {"forbidden: old", "forbidden: violates restricted"}});
  EXPECT_EQ(refused.phase, Phase::kBroken);
  EXPECT_EQ(refused.message, "forbidden: violates restricted");
  const ClusterView quota = ViewOf({.job = &job, .refusals = {"pods \"j-0\" is forbidden: exceeded quota: team"}});
  EXPECT_EQ(quota.phase, Phase::kPending) << "it waits until others free their quota";
  EXPECT_THAT(quota.message, HasSubstr("exceeded quota"));
  EXPECT_EQ(View(job).phase, Phase::kPending) << "the Job controller has not created the pod yet";
  EXPECT_EQ(ViewOf({}).phase, Phase::kAbsent);
}

TEST(KubernetesViewTest, PodWhoseVolumesAreNotMountedSaysWhyByItsEvents) {
  const std::string scheduled = Condition("PodScheduled", "", "");
  Json pod = Pod("Pending", R"("waiting":{"reason":"ContainerCreating"})", scheduled);
  pod["metadata"]["uid"] = "pod-uid";
  const Json job = Job();
  const ClusterView silent = View(job, pod);
  EXPECT_EQ(silent.phase, Phase::kPending);
  EXPECT_EQ(silent.events_of, "pod-uid");
  EXPECT_EQ(silent.message, "the node prepares the volumes and the network of the pod");
  const ClusterView warned = ViewOf({.job = &job, .pods = {&pod}, .pod_warning = "FailedMount: no such disk"});
  EXPECT_EQ(warned.message, "the node prepares the volumes and the network of the pod: FailedMount: no such disk");
  pod["status"]["conditions"].push_back(Parsed(Condition("PodReadyToStartContainers", "", "")));
  EXPECT_EQ(ViewOf({.job = &job, .pods = {&pod}, .pod_warning = "FailedMount: old"}).message, "ContainerCreating");
  EXPECT_EQ(View(job, pod).events_of, "");
  Json lacking = job;
  lacking["metadata"]["uid"] = "job-uid";
  EXPECT_EQ(View(lacking).events_of, "job-uid") << "why it has no pod";
}

TEST(KubernetesViewTest, InitContainerThatHoldsUpThePodIsNamed) {
  const auto with = [](const std::string& statuses) {
    Json pod = Pod("Pending", R"("waiting":{"reason":"PodInitializing"})", Condition("PodScheduled", "", ""));
    pod["status"]["initContainerStatuses"] = Parsed("[" + statuses + "]");
    return pod;
  };
  const std::string done = R"({"name":"done","state":{"terminated":{"exitCode":0}}})",
                    runs = R"({"name":"copy","state":{"running":{}}})",
                    next = R"({"name":"next","state":{"waiting":{"reason":"PodInitializing"}}})",
                    pulls =
                        R"({"name":"pull","state":{"waiting":{"reason":"ErrImagePull","message":"no such image"}}})";
  EXPECT_EQ(View(Job(), with(done + "," + runs + "," + next)).message, "the init container copy runs");
  EXPECT_EQ(View(Job(), with(runs)).phase, Phase::kPending);
  const ClusterView broken = View(Job(), with(runs + "," + pulls + "," + next));
  EXPECT_EQ(broken.phase, Phase::kBroken);
  EXPECT_EQ(broken.message, "the init container pull waits: ErrImagePull: no such image");
  EXPECT_THAT(View(Job(), with(next)).message, HasSubstr("volumes")) << "none has had its turn";
  Json failed = with(R"({"name":"copy","state":{"terminated":{"exitCode":3}}})");
  failed["status"]["phase"] = "Failed";
  const TrainerEnd end = View(Job(), failed).end;
  EXPECT_EQ(end.cause, Cause::kNotStarted);
  EXPECT_EQ(end.failure.message(), "the init container copy ended with exit code 3");
}

TEST(KubernetesViewTest, EventsAreReadByTheirTimes) {
  const Json events = Parsed(R"({"items":[
      {"type":"Warning","reason":"FailedMount","message":"new","lastTimestamp":"2026-01-01T00:00:03Z"},
      {"type":"Warning","reason":"FailedAttachVolume","message":"old","lastTimestamp":"2026-01-01T00:00:01Z"},
      {"type":"Normal","reason":"Pulled","message":"fine","lastTimestamp":"2026-01-01T00:00:09Z"},
      {"type":"Warning","reason":"FailedScheduling","message":"past","lastTimestamp":null,
       "eventTime":"2026-01-01T00:00:08.000001Z"},
      {"type":"Warning","reason":"FailedCreate","message":"second","lastTimestamp":"2026-01-01T00:00:02Z"},
      {"type":"Warning","reason":"FailedCreate","message":"first",
       "metadata":{"creationTimestamp":"2026-01-01T00:00:01Z"}},
      7, {"reason":7}]})");
  EXPECT_EQ(WarningIn(events), "FailedMount: new");
  EXPECT_THAT(RefusalsIn(events), ::testing::ElementsAre("first", "second"));
  for (const char* text : {"null", "7", "{}", R"({"items":7})"}) {
    EXPECT_EQ(WarningIn(Parsed(text)), "") << text;
    EXPECT_TRUE(RefusalsIn(Parsed(text)).empty()) << text;
  }
}

TEST(KubernetesViewTest, PodAfterThatOfTheTrainerIsASecondOne) {
  const auto pod = [](Json made, const std::string& uid) {
    made["metadata"]["uid"] = uid;
    return made;
  };
  Json job = Job();
  job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team";
  const Json first = pod(Pod("Running", R"("running":{})"), "one"), second = pod(first, "two");
  const auto view = [&](std::vector<const Json*> pods, const std::string& trainer = "one") {
    return ViewOf({.job = &job, .pods = std::move(pods), .has_begun = true, .trainer_uid = trainer});
  };
  EXPECT_EQ(view({&first}).running_uid, "one");
  EXPECT_FALSE(view({&first}).is_second);
  EXPECT_TRUE(view({&second}).is_second);
  EXPECT_FALSE(view({&second}, "").is_second);
  for (const auto& pods : {std::vector{&first, &second}, std::vector{&second, &first}}) {
    EXPECT_FALSE(view(pods).is_second) << "the trainer lives";
  }
  const Json claimed = pod(Ended(73), "two"), killed = pod(Ended(143), "two"), trainers = pod(Ended(42), "one");
  for (const Json* ended : {&claimed, &killed}) {
    const TrainerEnd end = view({ended}).end;
    EXPECT_EQ(end.cause, Cause::kPreempted);
    EXPECT_THAT(end.detail, HasSubstr("Kueue admitted the Job again after the trainer's pod had ended"));
    EXPECT_EQ(view({ended, &trainers}).end.value, 42) << "the trainer's own end";
  }
  EXPECT_EQ(view({&claimed}, "").end.value, 73);
  job["status"]["conditions"].push_back(Parsed(
      Condition("Failed", "PodFailurePolicy", "Container trainer for pod ns/p failed with exit code 73 matching")));
  EXPECT_EQ(view({}).end.cause, Cause::kPreempted) << "the second pod is gone too";
  EXPECT_THAT(ViewOf({.pods = {&claimed}, .trainer_uid = "one"}).end.detail, HasSubstr("the Job was started again"));
}

TEST(KubernetesViewTest, PodThatRunsOrIsBeingDeletedIsNotAtItsEnd) {
  const Json failed = Job(Condition("Failed", "BackoffLimitExceeded", "x"));
  const ClusterView running = View(failed, Pod("Running", R"("running":{"startedAt":"2026-01-01T00:00:00Z"})"));
  EXPECT_EQ(running.phase, Phase::kRunning) << "no attempt may begin beside a pod that runs, whatever the Job says";
  EXPECT_TRUE(running.has_begun);
  Json leaving = Pod("Running", R"("running":{})", Disrupted("EvictionByEvictionAPI"));
  leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z";
  const ClusterView evicted = View(Job(), leaving);
  EXPECT_EQ(evicted.phase, Phase::kTerminating);
  EXPECT_FALSE(evicted.node_lost);
  EXPECT_EQ(evicted.message, "EvictionByEvictionAPI: why");
  Json lost = Pod("Running", R"("running":{})", Disrupted("DeletionByTaintManager"));
  lost["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z";
  EXPECT_TRUE(View(Job(), lost).node_lost);
  Json deleted = Job();
  deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z";
  EXPECT_EQ(View(deleted).phase, Phase::kTerminating);
  // An ended pod of the same Job does not hide one that lives.
  const Json ended = Ended(1), lives = Pod("Running", R"("running":{})");
  for (const auto& pods : {std::vector{&ended, &lives}, std::vector{&lives, &ended}}) {
    const Json job = Job();
    EXPECT_EQ(ViewOf({.job = &job, .pods = pods}).phase, Phase::kRunning);
  }
}

TEST(KubernetesViewTest, PodThatFoundTheAttemptClaimedDoesNotHideTheTrainersEnd) {
  const Json job = Job(), trainer = Ended(42), second = Ended(73);
  for (const auto& pods : {std::vector{&trainer, &second}, std::vector{&second, &trainer}}) {
    EXPECT_EQ(ViewOf({.job = &job, .pods = pods}).end.value, 42);
  }
  EXPECT_EQ(ViewOf({.job = &job, .pods = {&second}}).end.value, 73);
}

TEST(KubernetesViewTest, SuspendedJobWaitsUntilItsPodHasRunAndIsPreemptedAfterwards) {
  const Json suspended = Job(Condition("Suspended", "JobSuspended", "Job suspended"), /*suspend=*/true);
  const ClusterView waits = View(suspended);
  EXPECT_EQ(waits.phase, Phase::kSuspended);
  EXPECT_EQ(waits.message, "JobSuspended: Job suspended");
  const ClusterView preempted = ViewOf({.job = &suspended, .has_begun = true});
  EXPECT_EQ(preempted.phase, Phase::kEnded);
  EXPECT_EQ(preempted.end.cause, Cause::kPreempted);
  EXPECT_EQ(View(suspended, Ended(75)).end.cause, Cause::kPreempted);
  EXPECT_EQ(View(suspended, Pod("Running", R"("running":{})")).phase, Phase::kRunning) << "it still writes";
}

TEST(KubernetesViewTest, MalformedObjectsAreReadAsEmpty) {
  for (const char* text : {"null", "[]", "7", "{}", R"({"status":7})", R"({"status":{"conditions":7}})",
                           R"({"status":{"conditions":[7,null,{"type":7}],"containerStatuses":{}}})",
                           R"({"status":{"containerStatuses":[7,{"name":7},{"name":"trainer"}]},"metadata":7})"}) {
    SCOPED_TRACE(text);
    const Json object = Parsed(text), job = Job();
    EXPECT_EQ(View(object).phase, Phase::kPending);
    EXPECT_EQ(View(job, object).phase, Phase::kPending);
  }
  EXPECT_THAT(View(Job(Condition("Failed", "r", "failed with exit code"))).end.detail, HasSubstr("failed with"));
  EXPECT_EQ(View(Job(Condition("Failed", "r", "a failed with exit code x"))).end.cause, Cause::kUnknown);
}

}  // namespace
}  // namespace nibble::jobs
