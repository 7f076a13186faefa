// The server's limits. Each is a flag of nibbled with the same name; limits that are not flags: docs/adr/0008.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/files.h"

namespace CLI {
class App;
}
namespace grpc {
class ServerBuilder;
}

namespace nibble {

struct Limits {
  // Connections.
  int max_receive_bytes = 4 << 20;  // of one message, like max_send_bytes
  int max_send_bytes = 16 << 20;
  int max_concurrent_streams = 100;  // per connection
  int max_metadata_bytes = 8 << 10;  // per request
  int max_connections = 512;         // a warning at start if the limit of open files is too low for them
  std::int64_t rpc_memory_bytes = 256 << 20;
  int max_rpc_threads = 64;
  double handshake_timeout_s = 10;
  double keepalive_time_s = 60;  // time without data from the client before a ping
  double keepalive_timeout_s = 20;
  double min_ping_interval_s = 10;  // max_ping_strikes pings may come sooner; the next one closes the connection
  int max_ping_strikes = 2;
  double max_connection_age_s = 30 * 60;
  double max_connection_age_grace_s = 3600;  // then its calls are cut; by default as long as the longest upload
  double max_connection_idle_s = 15 * 60;

  // Calls.
  int workers = 4;                  // threads for calls that wait for the disk or a load
  double default_deadline_s = 30;   // maximum wait for a worker of a unary call without a client deadline
  double generate_deadline_s = 0;   // of Generate, Chat, Score and their streams without a client deadline; 0: none
  double operation_deadline_s = 0;  // of an operation, from its start; 0: none
  double max_stream_age_s = 3600;   // of an upload
  std::int64_t max_stream_messages = 10'000;
  int stream_buffer = 256;                  // messages that a slow reader may be behind
  double slow_reader_s = 30;                // time over which a reader that is behind must reach min_read_rate
  double min_read_rate = 1;                 // messages per second; a slower reader loses its request
  std::int64_t max_prompt_bytes = 1 << 20;  // of a text to encode, which takes up to 256 times as much memory
  std::int64_t max_watches = 256;           // open WatchJob, WatchJobLogs and WatchLoad streams
  std::int64_t max_downloads = 16;
  // Limits of one principal; 0: no separate limit. Without tokens they do not apply.
  std::int64_t max_watches_per_principal = 64;
  std::int64_t max_downloads_per_principal = 8;
  std::int64_t max_plans_per_principal = 8;        // PlanJob
  std::int64_t max_operations_per_principal = 16;  // that have not ended

  // The disk.
  std::int64_t max_dataset_bytes = std::int64_t{1} << 30;
  std::int64_t max_dataset_line_bytes = 1 << 20;
  std::int64_t max_model_bytes = std::int64_t{64} << 30;
  // All uploads of one principal that are in progress, interrupted or not yet imported; 0: no limit.
  std::int64_t max_upload_bytes_per_principal = std::int64_t{128} << 30;
  double upload_kept_s = 3600;                  // time for which an upload is kept after its stream was lost or ended
  std::int64_t max_tokenizer_bytes = 64 << 20;  // of an imported model's tokenizer.json; the flag cannot raise it
  std::int64_t base_cache_bytes = -1;  // bases that qlora attempts share; -1: a tenth of the file system; 0: none
  // Token files (data/token_cache.h). Those of open jobs are kept even above it; 0: only those are kept.
  std::int64_t token_cache_bytes = std::int64_t{8} << 30;
  std::int64_t min_free_bytes = -1;  // below this nothing new is accepted; -1: 5% of the file system, at least 1 GiB

  // Jobs.
  std::int64_t max_queued_jobs = 1000;
  std::int64_t max_running_jobs = 1;
  double job_ageing_s = 3600;                // a queued job's priority rises by one per interval; 0: never
  std::int64_t max_jobs_per_principal = 10;  // jobs that have not ended; 0: no limit
  // Planned memory of all trainers together; 0: what the machine (or its cgroup) has, minus OwnMemoryBytes and the
  // memory of loaded models.
  std::int64_t train_memory_bytes = 0;
  std::int64_t serve_memory_bytes = 0;     // planned, of all loaded models together; 0: likewise, minus trainers
  std::int64_t max_retries = 5;            // retries of one job; retries after mere interruptions do not count
  double retry_backoff_scale = 1.0;        // factor for the waits of 10 s, 20 s ... 360 s before a retry
  double no_progress_timeout_s = 30 * 60;  // a trainer without progress for this long is stopped; 0: never
  double no_progress_grace_s = 20;         // then SIGKILL
  double cancel_grace_s = 5;               // SIGTERM to SIGKILL
  double pause_grace_s = 60;               // must suffice for a checkpoint
  double final_job_ttl_s = 0;              // time from a job's end until it is deleted; 0: never
  std::int64_t keep_step_events = 0;       // kept of an ended job; 0: all
};

void AddLimitFlags(CLI::App& cli, Limits& limits);
// Sets the limits that gRPC itself enforces.
void ApplyLimits(const Limits& limits, grpc::ServerBuilder& builder);
// Memory reserved for nibbled itself: gRPC's buffers, the process, tokenizers, token files being written, and the texts
// that calls encode.
std::int64_t OwnMemoryBytes(const Limits& limits);
// The memory that trainers, or loaded models, may take: `flag`. If that is 0: MachineMemoryBytes, minus the smaller of
// `own_bytes` and a quarter of it; 0 if unknown.
std::int64_t MemoryBytes(std::int64_t flag, std::int64_t own_bytes, base::FileSystem& files);
// The smallest limit, in bytes, in proc/meminfo and the cgroup files (v2 or v1) below `root` ("/"): of the group at the
// root of sys/fs/cgroup, which in a container is the container's own, and of the groups from there to the process's own
// group.
absl::StatusOr<std::int64_t> MachineMemoryBytes(base::FileSystem& files, const std::string& root);

}  // namespace nibble
