// The interface between server and trainer: the files in an attempt's directory (store/layout.h). The server
// writes attempt.json before it starts the trainer, and control.json to say why it sends SIGTERM. The trainer writes
// outcome.json before it exits normally.
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

// Exit codes of a trainer (docs/life_of_a_job.md). Any other code or any signal is a failure: it is retried, and the
// retry counts.
inline constexpr int kExitOk = 0;         // the outcome is "ok" or "cancelled"
inline constexpr int kExitBadInput = 42;  // not retried; the outcome says why
inline constexpr int kExitClaimed = 73;   // EX_CANTCREAT; the attempt belongs to another process, nothing was written
inline constexpr int kExitDiskFull = 74;  // EX_IOERR; a failure that counts. The disk may lack room for an outcome
inline constexpr int kExitTempFail = 75;  // wrote a checkpoint after SIGTERM: resumed later, does not count

// The initial state of an attempt whose job has no checkpoint of its own yet.
struct StartOrder {
  enum class Kind {
    kBase,     // the base and the method's initial values
    kResume,   // a checkpoint of another job: everything but the run's settings
    kWeights,  // the weights of a checkpoint of another job
    kAdapter,  // the weights of an adapter's model
  };
  Kind kind = Kind::kBase;
  std::string name;        // "JOB/STEP", or the name of the model
  std::string directory;   // of the checkpoint or of the model
  bool same_rows = false;  // kResume; as in JobStart
  bool same_eval = false;
};

// The contents of attempt.json: what the trainer must do. All paths are absolute.
struct AttemptOrder {
  std::string job_id;
  std::int64_t attempt = 0;
  JobSpec spec;  // resolved
  std::string base_model_directory;
  std::string train_data_path;
  std::string eval_data_path;          // "": none
  std::string train_tokens_directory;  // token files of the training set; "": none
  std::string eval_tokens_directory;
  std::string eval_format;           // of eval_data_path, may differ from spec.data.format; "": the same
  std::string base_cache_directory;  // store::BaseCache; "": none
  std::int64_t base_cache_bytes = 0;
  std::int64_t min_free_bytes = 0;          // with less free disk space, bases and token files are not kept
  std::string resume_checkpoint_directory;  // of the job itself; "": from `start`
  std::int64_t resume_step = 0;
  StartOrder start;              // ignored with a resume_checkpoint_directory
  std::string output_directory;  // publish the trained model here (store::PendingDirectory)
  std::string report_address;    // address of the server's report service; "": journal only
  std::string report_ca;         // PEM bundle to check the server's certificate with; "": without TLS
  std::string token;             // token of this attempt, sent with every report
  std::int64_t threads = 1;
  std::string isa = "auto";  // auto | plain | avx2 | avx512
  std::string nibble_version;
  double show_alive_every_s = 10;  // seconds between signs of life
};

absl::Status WriteAttemptOrder(base::FileSystem& files, const std::string& attempt_directory,
                               const AttemptOrder& order);
absl::StatusOr<AttemptOrder> ReadAttemptOrder(base::FileSystem& files, const std::string& attempt_directory);

// The meaning of SIGTERM.
enum class Control {
  // There is no control.json: the server stops, the node is reclaimed or the trainer makes no progress. The trainer
  // does the same as for kPause.
  kPreempt,
  kCancel,         // exit soon, no checkpoint needed; outcome "cancelled"
  kCancelKeeping,  // checkpoint, outcome "cancelled"
  kPause,          // checkpoint, outcome "paused", exit 75
};
absl::Status WriteControl(base::FileSystem& files, const std::string& attempt_directory, Control control);
// kPreempt when there is no control.json.
absl::StatusOr<Control> ReadControl(base::FileSystem& files, const std::string& attempt_directory);

// Asks the trainer for a checkpoint after the current step; the trainer removes the request afterwards. The request is
// a file, not a signal, so it outlives the server, the trainer and the report stream. `id` tells it from other requests
// of the attempt: the report stream carries it too, and the trainer serves each id once.
absl::Status RequestCheckpoint(base::FileSystem& files, const std::string& attempt_directory, const std::string& id);
// The id of the request, if there is one. "" if the file has no id, because an earlier server wrote it, or cannot be
// read.
std::optional<std::string> CheckpointRequest(base::FileSystem& files, const std::string& attempt_directory);
absl::Status ClearCheckpointRequest(base::FileSystem& files, const std::string& attempt_directory);

// Shows that a trainer is alive while it writes no journal line for long (a large evaluation, a large step, a load).
// `count` must be different in every call.
absl::Status ShowAlive(base::FileSystem& files, const std::string& attempt_directory, std::int64_t count);
// The last sign of life; "" if there is none or it cannot be read.
std::string LastAlive(base::FileSystem& files, const std::string& attempt_directory);

// The contents of outcome.json: how the attempt ended.
struct Outcome {
  enum class Kind { kOk, kFailed, kCancelled, kPaused };
  Kind kind = Kind::kFailed;
  // kFailed: canonical code name ("INVALID_ARGUMENT"), reason from docs/errors.md ("NAN_LOSS"), message for people.
  std::string code;
  std::string reason;
  std::string message;
  // The exit code that follows. A server that restarted meanwhile cannot wait for the process and reads the code here.
  int exit_code = 1;
  std::string output_directory;  // kOk
  base::Json final =
      base::Json::object();  // kOk: figures to show ("eval_loss_int8", ...); merged into the job's progress
};

absl::Status WriteOutcome(base::FileSystem& files, const std::string& attempt_directory, const Outcome& outcome);
// NotFound if there is none; DataLoss if it is damaged.
absl::StatusOr<Outcome> ReadOutcome(base::FileSystem& files, const std::string& attempt_directory);

// Convert between a code and its name ("INVALID_ARGUMENT"). An unknown name becomes kUnknown.
std::string CodeName(absl::StatusCode code);
absl::StatusCode ParseCodeName(const std::string& name);

}  // namespace nibble::jobs
