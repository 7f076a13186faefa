// How server and trainer meet: the files of one attempt's directory (store/layout.h). The server writes attempt.json before the
// start and control.json to say why it sends SIGTERM; the trainer writes outcome.json before it exits in good order.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/jobs/job_spec.h"

namespace nibble::jobs {

// Exit codes of a trainer (docs/life_of_a_job.md). Any other code, and any signal, is a failure that counts and is retried.
inline constexpr int kExitOk = 0;         // with an outcome "ok"
inline constexpr int kExitBadInput = 42;  // never retried; the outcome says why
inline constexpr int kExitDiskFull = 74;  // EX_IOERR; counts as any other, but even where there was no room to say why
inline constexpr int kExitTempFail = 75;  // checkpointed after SIGTERM: goes on later, does not count

// The order. All paths are absolute.
struct AttemptOrder {
  std::string job_id;
  std::int64_t attempt = 0;
  JobSpec spec;  // resolved
  std::string base_model_directory;
  std::string train_data_path;
  std::string eval_data_path;               // "": none
  std::string train_tokens_directory;       // of the data set's token files; "": none
  std::string eval_tokens_directory;
  std::string eval_format;                  // of that file, which may be another than spec.data.format; "": the same
  std::string base_cache_directory;         // store::BaseCache; "": none
  std::int64_t base_cache_bytes = 0;
  std::int64_t min_free_bytes = 0;          // with less free on the disk neither a base nor a token file is kept
  std::string resume_checkpoint_directory;  // "": from the start
  std::int64_t resume_step = 0;
  std::string output_directory;  // publish the trained model here (store::PendingDirectory)
  std::string report_address;    // of the server's report service; "": journal only
  std::string token;             // of this attempt; sent with every report
  std::int64_t threads = 1;
  std::string isa = "auto";  // auto | plain | avx2 | avx512
  std::string nibble_version;
  double show_alive_every_s = 10;  // seconds between signs of life
};

absl::Status WriteAttemptOrder(base::FileSystem& files, const std::string& attempt_directory, const AttemptOrder& order);
absl::StatusOr<AttemptOrder> ReadAttemptOrder(base::FileSystem& files, const std::string& attempt_directory);

// What SIGTERM means. Without control.json: checkpoint and exit 75 (the server stops, or the node is wanted back).
enum class Control {
  kPreempt,
  kCancel,  // exit soon, no checkpoint needed; outcome "cancelled"
  kCancelKeeping,  // checkpoint, outcome "cancelled"
  kPause,   // checkpoint, outcome "paused", exit 75
};
absl::Status WriteControl(base::FileSystem& files, const std::string& attempt_directory, Control control);
// kPreempt when there is no control.json.
absl::StatusOr<Control> ReadControl(base::FileSystem& files, const std::string& attempt_directory);

// A checkpoint is wanted after the current step; the trainer removes the request when there is one. A file and no signal: it
// outlives server, trainer and report stream.
absl::Status RequestCheckpoint(base::FileSystem& files, const std::string& attempt_directory);
bool CheckpointRequested(base::FileSystem& files, const std::string& attempt_directory);
absl::Status ClearCheckpointRequest(base::FileSystem& files, const std::string& attempt_directory);

// A trainer that writes no journal line for long (a large evaluation, a large step, a load) shows that it is alive: `count` is
// another number each time.
absl::Status ShowAlive(base::FileSystem& files, const std::string& attempt_directory, std::int64_t count);
// What was shown last; "" where nothing was, or where it cannot be read.
std::string LastAlive(base::FileSystem& files, const std::string& attempt_directory);

// The last word.
struct Outcome {
  enum class Kind { kOk, kFailed, kCancelled, kPaused };
  Kind kind = Kind::kFailed;
  // kFailed: a canonical code by name ("INVALID_ARGUMENT"), a reason of docs/errors.md ("NAN_LOSS"), words for people.
  std::string code;
  std::string reason;
  std::string message;
  // The exit code that follows: what a server that was restarted meanwhile cannot wait for.
  int exit_code = 1;
  std::string output_directory;             // kOk
  base::Json final = base::Json::object();  // kOk: figures to show ("eval_loss_int8", ...); merged into the job's progress
};

absl::Status WriteOutcome(base::FileSystem& files, const std::string& attempt_directory, const Outcome& outcome);
// NotFound when there is none; DataLoss when it cannot be read.
absl::StatusOr<Outcome> ReadOutcome(base::FileSystem& files, const std::string& attempt_directory);

// "INVALID_ARGUMENT" and back; unknown names are kUnknown.
std::string CodeName(absl::StatusCode code);
absl::StatusCode ParseCodeName(const std::string& name);

}  // namespace nibble::jobs
