#include "server/jobs/job_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "server/base/error.h"
#include "server/jobs/policy.h"
#include "server/jobs/verdict.h"

namespace nibble::jobs {
namespace {

using enum JobState;

// A second copy of the table in job_state.cc (docs/life_of_a_job.md).
const std::map<JobState, std::set<JobState>>& Table() {
  static const std::map<JobState, std::set<JobState>> table = {
      {kPlanning, {kQueued, kFailed, kCancelled}},
      {kQueued, {kPreparing, kPaused, kFailed, kCancelled}},
      {kPreparing, {kRunning, kQueued, kFailed, kCancelling}},
      {kRunning, {kSucceeded, kFailed, kQueued, kPausing, kCancelling}},
      {kPausing, {kPaused, kSucceeded, kFailed, kQueued, kCancelling}},
      {kPaused, {kQueued, kCancelled}},
      {kCancelling, {kCancelled}},
      {kSucceeded, {}},
      {kFailed, {}},
      {kCancelled, {}},
  };
  return table;
}

TEST(JobStateTest, EdgesAreExactlyThoseOfTheTable) {
  for (int from = 0; from < kNumJobStates; ++from) {
    for (int to = 0; to < kNumJobStates; ++to) {
      const JobState a = static_cast<JobState>(from), b = static_cast<JobState>(to);
      EXPECT_EQ(IsEdge(a, b), Table().at(a).contains(b)) << Name(a) << " -> " << Name(b);
    }
  }
}

TEST(JobStateTest, TriggersCoverExactlyTheEdges) {
  std::map<JobState, std::set<JobState>> reached;
  for (int from = 0; from < kNumJobStates; ++from) {
    const JobState state = static_cast<JobState>(from);
    for (int trigger = 0; trigger < kNumJobTriggers; ++trigger) {
      const auto next = Next(state, static_cast<JobTrigger>(trigger));
      if (next.ok()) {
        reached[state].insert(*next);
        EXPECT_TRUE(IsEdge(state, *next));
      } else {
        EXPECT_EQ(next.status().code(), absl::StatusCode::kFailedPrecondition);
        EXPECT_EQ(base::Reason(next.status()), "ILLEGAL_STATE");
      }
    }
    EXPECT_EQ(reached[state], Table().at(state)) << Name(state);
  }
}

TEST(JobStateTest, RefusalOfAnEarlyPauseSaysWhenToRetry) {
  EXPECT_THAT(std::string(Next(kPlanning, JobTrigger::kPause).status().message()),
              ::testing::EndsWith("cannot be paused; retry when it is QUEUED"));
  EXPECT_THAT(std::string(Next(kPreparing, JobTrigger::kPause).status().message()),
              ::testing::EndsWith("cannot be paused; retry when it is RUNNING"));
  EXPECT_THAT(std::string(Next(kSucceeded, JobTrigger::kPause).status().message()),
              ::testing::EndsWith("cannot be paused"));
}

TEST(JobStateTest, RefusalOfAUserActionIsASentence) {
  EXPECT_EQ(Next(kSucceeded, JobTrigger::kCancel).status().message(), "a job that is SUCCEEDED cannot be cancelled");
  EXPECT_EQ(Next(kRunning, JobTrigger::kResume).status().message(), "a job that is RUNNING cannot be resumed");
}

TEST(JobStateTest, FinalStatesHaveNoOutgoingEdges) {
  for (const auto& [state, next] : Table()) EXPECT_EQ(IsFinal(state), next.empty()) << Name(state);
}

TEST(JobStateTest, NamesParseBackToStates) {
  for (int i = 0; i < kNumJobStates; ++i) {
    const JobState state = static_cast<JobState>(i);
    EXPECT_EQ(*ParseJobState(Name(state)), state);
  }
  EXPECT_FALSE(ParseJobState("DONE").ok());
}

// Calls are PickNext(queue, running, limits, now); the first fields of a QueuedJob are {id, priority, submitted,
// not_before, memory_bytes}.
TEST(PolicyTest, HigherPriorityStartsFirstThenOrderOfSubmission) {
  const std::vector<QueuedJob> queue = {{"b", 0, 2, {}}, {"a", 0, 1, {}}, {"urgent", 5, 3, {}}};
  EXPECT_EQ(PickNext(queue, {}, {1}, absl::ZeroDuration()).start, std::vector<std::string>({"urgent"}));
  EXPECT_EQ(PickNext(queue, {}, {3}, absl::ZeroDuration()).start, std::vector<std::string>({"urgent", "a", "b"}));
  EXPECT_EQ(PickNext(queue, {2}, {3}, absl::ZeroDuration()).start, std::vector<std::string>({"urgent"}));
  EXPECT_TRUE(PickNext(queue, {1}, {1}, absl::ZeroDuration()).start.empty());
  EXPECT_TRUE(PickNext({}, {}, {1}, absl::ZeroDuration()).start.empty());
}

std::vector<std::string> IdsOf(const std::vector<QueuedJob>& queue) {
  std::vector<std::string> ids;
  for (const QueuedJob& job : queue) ids.push_back(job.id);
  return ids;
}

TEST(PolicyTest, PrincipalsTakeTurnsWithinAPriority) {
  const auto job = [](const char* id, std::int64_t number, const char* owner, std::int64_t priority = 0) {
    return QueuedJob{.id = id, .priority = priority, .submitted = number, .not_before = {}, .owner = owner};
  };
  const std::vector<QueuedJob> queue = {job("a1", 1, "ann"),       job("a2", 2, "ann"), job("a3", 3, "ann"),
                                        job("b1", 4, "bob"),       job("c1", 5, "cid"), job("b2", 6, "bob"),
                                        job("urgent", 7, "ann", 1)};
  EXPECT_EQ(IdsOf(Order(queue)), std::vector<std::string>({"urgent", "a1", "b1", "c1", "a2", "b2", "a3"}));

  std::vector<QueuedJob> started = queue;
  for (QueuedJob& one : started) {
    if (one.owner == "ann") one.principal_started = absl::FromUnixSeconds(20);
    if (one.owner == "bob") one.principal_started = absl::FromUnixSeconds(10);
  }
  EXPECT_EQ(IdsOf(Order(started)), std::vector<std::string>({"urgent", "c1", "b1", "a1", "b2", "a2", "a3"}))
      << "cid never started a job, and bob's last start is longer ago than ann's";

  std::vector<QueuedJob> tenants = {job("red1", 1, "ann"), job("red2", 2, "ann"), job("blue1", 3, "ann")};
  tenants[0].tenant = tenants[1].tenant = "red";
  tenants[2].tenant = "blue";
  EXPECT_EQ(IdsOf(Order(tenants)), std::vector<std::string>({"red1", "blue1", "red2"}))
      << "one name in two tenants is two principals";
}

TEST(PolicyTest, WaitingRaisesThePriority) {
  const absl::Time now = absl::FromUnixSeconds(100'000);
  const auto job = [&](const char* id, std::int64_t priority, absl::Duration waited, const char* owner = "") {
    return QueuedJob{
        .id = id, .priority = priority, .submitted = 1, .not_before = {}, .owner = owner, .queued = now - waited};
  };
  const std::vector<QueuedJob> fresh = {job("new", 0, absl::Minutes(59)), job("old", 0, absl::Minutes(60)),
                                        job("older", -1, absl::Hours(5)), job("future", 2, -absl::Hours(3))};
  const auto priorities = [](const std::vector<QueuedJob>& queue) {
    std::vector<std::int64_t> all;
    for (const QueuedJob& one : queue) all.push_back(one.priority);
    return all;
  };
  std::vector<QueuedJob> queue = fresh;
  Age(queue, now, absl::Hours(1));
  EXPECT_EQ(priorities(queue), std::vector<std::int64_t>({0, 1, 4, 2}));
  queue = fresh;
  Age(queue, now, absl::ZeroDuration());
  EXPECT_EQ(priorities(queue), std::vector<std::int64_t>({0, 0, -1, 2}));

  // Ann's jobs have waited for days, but one of hers was started half an hour ago.
  queue = {job("ann", 0, absl::Hours(48), "ann"), job("bob", 0, absl::Hours(2), "bob")};
  queue[0].principal_started = now - absl::Minutes(30);
  Age(queue, now, absl::Hours(1));
  EXPECT_EQ(priorities(queue), std::vector<std::int64_t>({0, 2}));
}

TEST(PolicyTest, JobInBackoffLetsOthersPass) {
  const std::vector<QueuedJob> queue = {{"waits", 9, 1, absl::Seconds(10)}, {"ready", 0, 2, {}}};
  EXPECT_EQ(PickNext(queue, {}, {2}, absl::Seconds(9)).start, std::vector<std::string>({"ready"}));
  EXPECT_EQ(PickNext(queue, {}, {2}, absl::Seconds(10)).start, std::vector<std::string>({"waits", "ready"}));
}

TEST(PolicyTest, PlannedMemoryLimitsConcurrentJobs) {
  const auto job = [](const char* id, std::int64_t number, std::int64_t bytes) {
    return QueuedJob{id, 0, number, {}, bytes};
  };
  const std::vector<QueuedJob> queue = {job("a", 1, 60), job("b", 2, 50), job("c", 3, 10)};
  const QueueLimits limits = {.max_running = 8, .memory_bytes = 100};
  using Ids = std::vector<std::string>;
  EXPECT_EQ(PickNext(queue, {}, limits, absl::ZeroDuration()).start, Ids({"a"})) << "c does not overtake b";
  EXPECT_EQ(PickNext(queue, {1, 40}, limits, absl::ZeroDuration()).start, Ids({"a"}));
  EXPECT_EQ(PickNext(queue, {1, 41}, limits, absl::ZeroDuration()).start, Ids());
  EXPECT_EQ(PickNext({job("b", 2, 50), job("c", 3, 50), job("d", 4, 1)}, {}, limits, absl::ZeroDuration()).start,
            Ids({"b", "c"}));
  EXPECT_EQ(PickNext(queue, {}, {.max_running = 8}, absl::ZeroDuration()).start, Ids({"a", "b", "c"})) << "no limit";
  EXPECT_EQ(PickNext({job("giant", 1, 500)}, {}, limits, absl::ZeroDuration()).start, Ids({"giant"}))
      << "a job above the limit can only run alone";
  EXPECT_EQ(PickNext({job("giant", 1, 500)}, {1, 1}, limits, absl::ZeroDuration()).start, Ids());

  // Loaded models leave 60 of the 100 bytes.
  QueueLimits beside = limits;
  beside.left_bytes = 60;
  EXPECT_EQ(PickNext({job("b", 2, 50), job("c", 3, 10), job("d", 4, 1)}, {}, beside, absl::ZeroDuration()).start,
            Ids({"b", "c"}));
  beside.left_bytes = 59;
  EXPECT_EQ(PickNext(queue, {}, beside, absl::ZeroDuration()).start, Ids())
      << "a waits for loaded models, and b does not overtake it";
  EXPECT_EQ(PickNext({job("giant", 1, 500)}, {}, beside, absl::ZeroDuration()).start, Ids({"giant"}))
      << "it does not fit even without models, so waiting for them is useless";
}

TEST(PolicyTest, PlannedDiskLimitsConcurrentJobs) {  // T10
  const auto job = [](const char* id, std::int64_t number, std::int64_t disk_bytes) {
    return QueuedJob{.id = id, .submitted = number, .not_before = {}, .disk_bytes = disk_bytes};
  };
  const std::vector<QueuedJob> queue = {job("a", 1, 60), job("b", 2, 50), job("c", 3, 10), job("d", 4, 0)};
  QueueLimits limits = {.max_running = 8, .disk_left_bytes = 100};
  using Ids = std::vector<std::string>;
  Picked picked = PickNext(queue, {}, limits, absl::ZeroDuration());
  EXPECT_EQ(picked.start, Ids({"a"})) << "neither c nor d overtakes b";
  ASSERT_EQ(picked.short_of_disk.size(), 1u);
  EXPECT_EQ(picked.short_of_disk[0].job.id, "b");
  EXPECT_EQ(picked.short_of_disk[0].left_bytes, 40);

  limits.disk_left_bytes = 49;
  picked = PickNext(queue, {}, limits, absl::ZeroDuration());
  EXPECT_EQ(picked.start, Ids({"c", "d"})) << "no running job will make room for a and b";
  EXPECT_EQ(picked.short_of_disk.size(), 2u);
  limits.making_disk_room = true;
  EXPECT_EQ(PickNext(queue, {}, limits, absl::ZeroDuration()).start, Ids());
  limits.making_disk_room = false;
  EXPECT_EQ(PickNext(queue, {.jobs = 1}, limits, absl::ZeroDuration()).start, Ids());
  limits.disk_left_bytes = 120;
  EXPECT_EQ(PickNext(queue, {.jobs = 1}, limits, absl::ZeroDuration()).start, Ids({"a", "b", "c", "d"}));
}

TEST(PolicyTest, BackoffDoublesFromTenSecondsToSixMinutes) {  // R2
  const RetryOptions options;
  const int wanted[] = {10, 20, 40, 80, 160, 320, 360, 360};
  for (int retry = 1; retry <= 8; ++retry)
    EXPECT_EQ(Backoff(retry, options), absl::Seconds(wanted[retry - 1])) << retry;
  EXPECT_EQ(Backoff(1'000'000, options), absl::Seconds(360));
  RetryOptions fast;
  fast.scale = 0.001;
  EXPECT_EQ(Backoff(2, fast), absl::Milliseconds(20));
}

Outcome Made(Outcome::Kind kind, int exit_code) {
  Outcome outcome;
  outcome.kind = kind;
  outcome.exit_code = exit_code;
  outcome.code = "INVALID_ARGUMENT";
  outcome.reason = "NO_TRAINABLE_TOKENS";
  return outcome;
}

// The table in docs/life_of_a_job.md, "How an attempt ends".
TEST(VerdictTest, ExitCodesAreJudgedByTheTable) {
  using E = TrainerEnd::Cause;
  using O = Outcome::Kind;
  using V = Verdict::Kind;
  const auto judge = [](E cause, int value, std::optional<Outcome> outcome = std::nullopt) {
    return Judge({.cause = cause, .value = value}, outcome);
  };
  EXPECT_EQ(judge(E::kExited, 0, Made(O::kOk, 0)).kind, V::kSucceeded);
  EXPECT_EQ(judge(E::kUnknown, 0, Made(O::kOk, 0)).kind, V::kSucceeded);
  EXPECT_EQ(judge(E::kSignaled, 11, Made(O::kOk, 0)).kind, V::kSucceeded);  // Crashed after its work was complete.
  EXPECT_EQ(judge(E::kExited, 0).kind, V::kRetry);
  EXPECT_EQ(judge(E::kExited, 0).reason, "NO_OUTCOME");
  EXPECT_EQ(judge(E::kExited, 42).kind, V::kFailed);
  EXPECT_EQ(judge(E::kExited, 42).reason, "TRAINER_REFUSED");
  EXPECT_EQ(judge(E::kExited, 42, Made(O::kFailed, 42)).reason, "NO_TRAINABLE_TOKENS");
  EXPECT_EQ(judge(E::kExited, 74).kind, V::kRetry);
  EXPECT_EQ(judge(E::kExited, 74).reason, "DISK_FULL");  // R8: no room even for the outcome
  EXPECT_EQ(judge(E::kExited, 73).kind, V::kRetryUncounted);
  EXPECT_EQ(judge(E::kExited, 73).reason, "ATTEMPT_CLAIMED");
  EXPECT_EQ(judge(E::kOutOfMemory, 0, Made(O::kFailed, 42)).kind, V::kRetry) << "as for any signal";
  for (const int code : {137, 139, 255}) EXPECT_EQ(judge(E::kExited, code).kind, V::kRetry) << code;
  EXPECT_EQ(judge(E::kExited, 75).kind, V::kRetryUncounted);
  EXPECT_EQ(judge(E::kExited, 75, Made(O::kPaused, 75)).kind, V::kStopped);
  EXPECT_EQ(judge(E::kExited, 0, Made(O::kCancelled, 0)).kind, V::kStopped);
  EXPECT_EQ(judge(E::kExited, 1).kind, V::kRetry);
  EXPECT_EQ(judge(E::kExited, 1, Made(O::kFailed, 1)).kind, V::kRetry);
  EXPECT_EQ(judge(E::kExited, 1, Made(O::kFailed, 1)).reason, "NO_TRAINABLE_TOKENS");
  EXPECT_EQ(judge(E::kSignaled, 9).kind, V::kRetry);
  EXPECT_EQ(judge(E::kSignaled, 9).reason, "TRAINER_SIGNAL");
  EXPECT_EQ(judge(E::kUnknown, 0).kind, V::kRetry);
  EXPECT_EQ(judge(E::kUnknown, 0).reason, "ATTEMPT_LOST");
  // If the exit status is unknown, the exit code in the outcome counts.
  EXPECT_EQ(judge(E::kUnknown, 0, Made(O::kFailed, 42)).kind, V::kFailed);
  EXPECT_EQ(judge(E::kUnknown, 0, Made(O::kFailed, 1)).kind, V::kRetry);
}

TEST(VerdictTest, EndsCausedByTheClusterDoNotCount) {
  using E = TrainerEnd::Cause;
  using O = Outcome::Kind;
  using V = Verdict::Kind;
  const std::map<E, std::string> reasons = {{E::kEvicted, "EVICTED"},
                                            {E::kPreempted, "PREEMPTED"},
                                            {E::kNodeLost, "NODE_LOST"},
                                            {E::kDeleted, "TRAINER_DELETED"}};
  for (const auto& [cause, reason] : reasons) {
    SCOPED_TRACE(reason);
    const Verdict verdict = Judge({.cause = cause, .detail = "low on memory"}, std::nullopt);
    EXPECT_EQ(verdict.kind, V::kRetryUncounted);
    EXPECT_EQ(verdict.code, "UNAVAILABLE");
    EXPECT_EQ(verdict.reason, reason);
    EXPECT_TRUE(verdict.message.ends_with(": low on memory")) << verdict.message;
    // An outcome that the trainer wrote before its end takes precedence.
    EXPECT_EQ(Judge({.cause = cause}, Made(O::kOk, 0)).kind, V::kSucceeded);
    const Verdict stopped = Judge({.cause = cause, .detail = "low on memory"}, Made(O::kPaused, 75));
    EXPECT_EQ(stopped.kind, V::kStopped);
    EXPECT_EQ(stopped.reason, reason) << "a trainer that saved its state does not hide why it had to";
    EXPECT_EQ(stopped.message, verdict.message);
    EXPECT_EQ(Judge({.cause = cause}, Made(O::kFailed, 42)).kind, V::kFailed);
  }
}

TEST(VerdictTest, AKillForMemoryAndAFailedStartCount) {
  using E = TrainerEnd::Cause;
  using V = Verdict::Kind;
  const Verdict killed = Judge({.cause = E::kOutOfMemory}, std::nullopt);
  EXPECT_EQ(killed.kind, V::kRetry);
  EXPECT_EQ(killed.code, "RESOURCE_EXHAUSTED");
  EXPECT_EQ(killed.reason, "OUT_OF_MEMORY");
  const auto start = [](absl::Status failure) {
    return Judge({.cause = E::kNotStarted, .failure = std::move(failure)}, std::nullopt);
  };
  EXPECT_EQ(start(absl::FailedPreconditionError("no such program")).kind, V::kRetry);
  EXPECT_EQ(start(absl::FailedPreconditionError("no such program")).reason, "START_FAILED");
  EXPECT_EQ(start(absl::FailedPreconditionError("no such program")).message, "no such program");
  EXPECT_EQ(start(absl::NotFoundError("no model")).kind, V::kFailed);
  const auto damaged = base::WithReason(absl::DataLossError("bad weights"), "ARTIFACT_CORRUPT", {{"name", "base"}});
  EXPECT_EQ(start(damaged).kind, V::kFailed);
  EXPECT_EQ(start(damaged).reason, "ARTIFACT_CORRUPT");
  const auto malformed = base::WithReason(absl::DataLossError("bad record"), "CORRUPT_ARTIFACT");
  EXPECT_EQ(start(malformed).kind, V::kFailed);
  EXPECT_EQ(start(malformed).reason, "ARTIFACT_CORRUPT");
}

}  // namespace
}  // namespace nibble::jobs
