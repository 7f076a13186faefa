#include "server/jobs/verdict.h"

#include <utility>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::jobs {

using base::StrCat;
using Cause = TrainerEnd::Cause;
using Kind = Verdict::Kind;

namespace {

Verdict StartVerdict(const absl::Status& failure) {
  const std::string reason = base::Reason(failure);
  // The base model or the data is damaged (found by its manifest or by reading the artifact) or missing: a retry cannot
  // help.
  const bool damaged = reason == "ARTIFACT_CORRUPT" || reason == "CORRUPT_ARTIFACT",
             missing = absl::IsNotFound(failure);
  return {damaged || missing ? Kind::kFailed : Kind::kRetry, CodeName(failure.code()),
          damaged ? "ARTIFACT_CORRUPT" : (reason == "DISK_FULL" ? reason : "START_FAILED"),
          std::string(failure.message())};
}

// Why the cluster ended the trainer; without a reason if it did not.
Verdict DisruptionOf(const TrainerEnd& end) {
  const auto say = [&](const char* reason, std::string message) -> Verdict {
    if (!end.detail.empty()) message += StrCat(": ", end.detail);
    return {Kind::kRetryUncounted, "UNAVAILABLE", reason, std::move(message)};
  };
  switch (end.cause) {
    case Cause::kEvicted: return say("EVICTED", "the trainer's pod was evicted");
    case Cause::kPreempted: return say("PREEMPTED", "the trainer's quota was given to another job");
    case Cause::kNodeLost: return say("NODE_LOST", "the trainer's node does not answer");
    case Cause::kDeleted: return say("TRAINER_DELETED", "the trainer was deleted, but not by this server");
    default: return {};
  }
}

}  // namespace

Verdict Judge(const TrainerEnd& end, const std::optional<Outcome>& outcome) {
  // The outcome is the trainer's last act: if it is complete, it does not matter how the process ended afterwards.
  if (outcome.has_value() && outcome->kind == Outcome::Kind::kOk) return {Kind::kSucceeded, "", "", ""};
  if (outcome.has_value() && outcome->kind != Outcome::Kind::kFailed) {
    Verdict stopped = DisruptionOf(end);
    stopped.kind = Kind::kStopped;
    return stopped;
  }

  // With an outcome, an end other than an exit, a signal or the OOM killer counts as an exit with the outcome's code.
  TrainerEnd judged = end;
  const bool by_itself = end.cause == Cause::kExited || end.cause == Cause::kSignaled;
  if (!by_itself && end.cause != Cause::kOutOfMemory && outcome.has_value()) {
    judged = {Cause::kExited, outcome->exit_code};
  }
  Verdict verdict;
  if (outcome.has_value()) {
    verdict.code = outcome->code;
    verdict.reason = outcome->reason;
    verdict.message = outcome->message;
  }
  const auto say = [&](const char* code, const char* reason, std::string message) {
    if (outcome.has_value()) return;
    verdict.code = code;
    verdict.reason = reason;
    verdict.message = std::move(message);
  };
  switch (judged.cause) {
    case Cause::kUnknown:
      verdict.kind = Kind::kRetry;
      say("UNAVAILABLE", "ATTEMPT_LOST",
          judged.detail.empty() ? "the trainer no longer existed when the server restarted"
                                : StrCat("it is unknown how the trainer ended: ", judged.detail));
      return verdict;
    case Cause::kOutOfMemory:
      verdict.kind = Kind::kRetry;
      say("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY", "the kernel's OOM killer ended the trainer");
      return verdict;
    case Cause::kNotStarted: return StartVerdict(judged.failure);
    case Cause::kEvicted:
    case Cause::kPreempted:
    case Cause::kNodeLost:
    case Cause::kDeleted: return DisruptionOf(judged);  // without an outcome: see `judged`
    case Cause::kSignaled:
      verdict.kind = Kind::kRetry;
      say("INTERNAL", "TRAINER_SIGNAL", StrCat("the trainer was ended by signal ", judged.value));
      return verdict;
    case Cause::kExited: break;
  }
  switch (judged.value) {
    case kExitBadInput:
      verdict.kind = Kind::kFailed;
      say("INVALID_ARGUMENT", "TRAINER_REFUSED", "the trainer refused its input without a message; see trainer.log");
      return verdict;
    case kExitTempFail: verdict.kind = Kind::kRetryUncounted; return verdict;
    case kExitClaimed:
      verdict.kind = Kind::kRetryUncounted;
      say("UNAVAILABLE", "ATTEMPT_CLAIMED", "a second pod was started for the attempt, and wrote nothing");
      return verdict;
    case kExitOk:
      verdict.kind = Kind::kRetry;
      say("INTERNAL", "NO_OUTCOME", "the trainer exited with 0 but left no outcome");
      return verdict;
    case kExitDiskFull:
      verdict.kind = Kind::kRetry;
      say("RESOURCE_EXHAUSTED", "DISK_FULL", "there was no room on the disk");
      return verdict;
    default:
      verdict.kind = Kind::kRetry;
      say("INTERNAL", "TRAINER_EXIT", StrCat("the trainer exited with code ", judged.value, "; see trainer.log"));
      return verdict;
  }
}

}  // namespace nibble::jobs
