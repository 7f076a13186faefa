#include "server/jobs/verdict.h"

#include "server/base/strings.h"

namespace nibble::jobs {

using base::StrCat;
using Kind = Verdict::Kind;

Verdict Judge(const ExitStatus& exit, const std::optional<Outcome>& outcome) {
  // The outcome is the trainer's last act: if it is complete, it does not matter how the process ended afterwards.
  if (outcome.has_value() && outcome->kind == Outcome::Kind::kOk) return {Kind::kSucceeded, "", "", ""};
  if (outcome.has_value() && outcome->kind != Outcome::Kind::kFailed) return {Kind::kStopped, "", "", ""};

  ExitStatus judged = exit;
  if (exit.kind == ExitStatus::Kind::kUnknown && outcome.has_value()) {
    judged = {ExitStatus::Kind::kExited, outcome->exit_code};
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
  switch (judged.kind) {
    case ExitStatus::Kind::kUnknown:
      verdict.kind = Kind::kRetry;
      say("UNAVAILABLE", "ATTEMPT_LOST", "the trainer no longer existed when the server restarted");
      return verdict;
    case ExitStatus::Kind::kSignaled:
      verdict.kind = Kind::kRetry;
      say("INTERNAL", "TRAINER_SIGNAL", StrCat("the trainer was ended by signal ", judged.value));
      return verdict;
    case ExitStatus::Kind::kExited: break;
  }
  switch (judged.value) {
    case kExitBadInput:
      verdict.kind = Kind::kFailed;
      say("INVALID_ARGUMENT", "TRAINER_REFUSED", "the trainer refused its input without a message; see trainer.log");
      return verdict;
    case kExitTempFail: verdict.kind = Kind::kRetryUncounted; return verdict;
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
