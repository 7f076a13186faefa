// The paths below one state directory. With a database directory of its own (--database_dir), the files marked * are
// there instead.
//   nibble.db                                   * jobs, attempts, events, idempotency (SQLite, WAL)
//   nibble.db.backup-vN                         * copy of the database, made before an upgrade from schema version N
//   lock                                          held with flock by the one server; contains its pid; in both
//   database_pair                                 store/database_pair.h; in both directories
//   reserve                                     * room for cancels, ends and a start on a full disk (disk_reserve.h)
//   models/NAME/                                  one artifact (server/model/artifact.h) and manifest.json
//   datasets/NAME/                                data.jsonl, meta.json, manifest.json
//   bases/KEY/                                    a quantized base that qlora attempts share (base_cache.h), and
//                                                 manifest.json
//   tokens/NAME/KEY.tokens                        a dataset's rows as tokens (data/token_file.h): nibbled and trainers
//                                                 write and read these files; each may be removed at any time
//   operations/ID.json                            an operation (operations/stored_operation.h)
//   server.json                                   the addresses of the running server, and its pid
//   trainers.sock                               * Unix socket where trainers report, if the server uses TLS or tokens
//   uploads/ID/                                   the files of an upload, until it is used; emptied at every start
//   jobs/ID/attempts/N/                           the --job_dir of nibble-trainer; no other attempt writes here
//     attempt.json                                what to train: jobs/attempt.h, written by the server before the start
//     control.json                                {"command": "cancel" | "cancel_keeping" | "pause"}: read on SIGTERM
//     checkpoint.request                          if it exists, the trainer writes a checkpoint after the current step
//     lock                                        held with flock while a process of the attempt lives; contains the
//                                                 pid of the trainer
//     claim                                       jobs/attempt_claim.h: the one process that may write here
//     alive                                       jobs/attempt.h, shows progress while no journal line is written
//     journal.jsonl                               jobs/journal.h, appended and synced by the trainer
//     outcome.json                                jobs/attempt.h, the trainer's final result
//     trainer.log                                 its stdout and stderr
//     checkpoints/step-00000010/                  files and manifest.json
//     output/                                     the trained model and manifest.json, until it is published
//   jobs/ID/attempts/N.lost/                      the files of an attempt that was given up while its trainer could not
//                                                 be reached (LoseAttempt, checkpoints.h); N is then a plain file
//   jobs/ID/start/                                copy (hard links) of another job's checkpoint, from which the job
//                                                 starts, and manifest.json; removed when the job ends
//   jobs/ID/start.json                            jobs/job_start.h, what the server knows about it
// A directory is valid only if it matches its manifest.json (published_directory.h). Names made by base::TemporaryName
// are unfinished work.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::store {

class StatePaths {
 public:
  // `root` must be absolute: the paths end up in attempt.json. So must `database_root`, the directory of the database;
  // "": the root.
  explicit StatePaths(std::string root, std::string database_root = "");

  const std::string& root() const { return root_; }
  const std::string& database_root() const { return database_root_; }
  std::string database() const;
  std::string trainer_socket() const;
  std::string lock() const;
  std::string database_lock() const;
  std::string reserve() const;
  std::string models() const;
  std::string model(std::string_view name) const;
  std::string datasets() const;
  std::string dataset(std::string_view name) const;
  std::string bases() const;
  std::string tokens() const;
  std::string tokens(std::string_view dataset) const;
  std::string operations() const;
  std::string server_file() const;
  std::string uploads() const;
  std::string jobs() const;
  std::string job(std::string_view id) const;
  std::string start(std::string_view id) const;
  std::string start_file(std::string_view id) const;
  std::string attempts(std::string_view id) const;
  std::string attempt(std::string_view id, std::int64_t attempt) const;

 private:
  std::string root_, database_root_;
};

// Names within one attempt's directory.
inline constexpr char kAttemptFile[] = "attempt.json";
inline constexpr char kControlFile[] = "control.json";
inline constexpr char kCheckpointRequestFile[] = "checkpoint.request";
inline constexpr char kAliveFile[] = "alive";
inline constexpr char kAttemptLockFile[] = "lock";
inline constexpr char kAttemptClaimFile[] = "claim";
inline constexpr char kJournalFile[] = "journal.jsonl";
inline constexpr char kOutcomeFile[] = "outcome.json";
inline constexpr char kTrainerLogFile[] = "trainer.log";
inline constexpr char kCheckpointsDirectory[] = "checkpoints";
inline constexpr char kOutputDirectory[] = "output";

// Formats a name like "step-00000010", and parses it (nullopt if the name does not have that form).
std::string CheckpointName(std::int64_t step);
std::optional<std::int64_t> CheckpointStep(std::string_view name);

}  // namespace nibble::store
