// What the server bounds. Every one is a flag of nibbled of the same name; bounds that are none: docs/adr/0008.
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
  int max_receive_bytes = 4 << 20;  // of one message
  int max_send_bytes = 16 << 20;
  int max_concurrent_streams = 100;  // a connection
  int max_metadata_bytes = 8 << 10;  // a request
  int max_connections = 512;         // told at the start when the limit of open files is too low for them
  std::int64_t rpc_memory_bytes = 256 << 20;
  int max_rpc_threads = 64;
  double handshake_timeout_s = 10;
  double keepalive_time_s = 60;  // without a word from the client: a ping
  double keepalive_timeout_s = 20;
  double min_ping_interval_s = 10;  // a client that pings more often is told to go, after max_ping_strikes
  int max_ping_strikes = 2;
  double max_connection_age_s = 30 * 60;
  double max_connection_age_grace_s = 3600;  // then its calls are cut: an upload has the time that max_stream_age_s gives it
  double max_connection_idle_s = 15 * 60;

  // Calls.
  int workers = 4;               // threads for what waits for the disk or a load
  double default_deadline_s = 30;  // that a unary call whose client gave none waits for a worker; not those that may take long
  double generate_deadline_s = 0;  // of Generate, Chat, Score and their streams, whose client gave none; 0: none
  double operation_deadline_s = 0;  // of an operation, from its beginning; 0: none
  double max_stream_age_s = 3600;  // of an upload
  std::int64_t max_stream_messages = 10'000;
  int stream_buffer = 256;         // messages that a slow reader may be behind
  double slow_reader_s = 30;       // a reader that is behind is judged by what it takes in so long
  double min_read_rate = 1;        // messages a second that it must take; less: it loses its request
  std::int64_t max_prompt_bytes = 1 << 20;  // of a text that is encoded for a call, which takes up to 256 times as much memory
  std::int64_t max_watches = 256;  // WatchJob and WatchLoad streams that are open
  std::int64_t max_downloads = 16;
  // Of one principal; 0: no bound of its own. Where there are no tokens, there are no principals.
  std::int64_t max_watches_per_principal = 64;
  std::int64_t max_downloads_per_principal = 8;
  std::int64_t max_plans_per_principal = 8;        // PlanJob
  std::int64_t max_operations_per_principal = 16;  // that have not ended

  // The disk.
  std::int64_t max_dataset_bytes = std::int64_t{1} << 30;
  std::int64_t max_dataset_line_bytes = 1 << 20;
  std::int64_t max_model_bytes = std::int64_t{64} << 30;
  // Of all uploads of one principal that are under way, interrupted or not yet imported; 0: no bound.
  std::int64_t max_upload_bytes_per_principal = std::int64_t{128} << 30;
  double upload_kept_s = 3600;  // an upload whose stream was lost, or has finished
  std::int64_t max_tokenizer_bytes = 64 << 20;  // of the tokenizer.json of a model that is imported; no more than this default
  std::int64_t base_cache_bytes = -1;  // of quantised bases that qlora attempts share; -1: a tenth of the file system; 0: none are kept
  // Of token files (data/token_cache.h); those of open jobs stay beyond it, and with 0 only those.
  std::int64_t token_cache_bytes = std::int64_t{8} << 30;
  std::int64_t min_free_bytes = -1;  // below, nothing new is taken in; -1: 5% of the file system, at least 1 GiB

  // Jobs.
  std::int64_t max_queued_jobs = 1000;
  std::int64_t max_running_jobs = 1;
  double job_ageing_s = 3600;           // a queued job rises by one step of priority in each; 0: never
  std::int64_t max_jobs_per_principal = 10;  // not over yet; 0: no bound
  // Of all trainers together, as planned; 0: what the machine (or its cgroup) has, less OwnMemoryBytes and what loaded models take.
  std::int64_t train_memory_bytes = 0;
  std::int64_t serve_memory_bytes = 0;  // of all models in memory together, as planned; 0: as above, less trainers
  std::int64_t max_retries = 5;         // exits that count, of one job
  double retry_backoff_scale = 1.0;     // of the waits of 10 s, 20 s ... 360 s before a retry
  double no_progress_timeout_s = 30 * 60;  // a trainer that tells of nothing for so long is ended; 0: never
  double no_progress_grace_s = 20;         // then SIGKILL
  double cancel_grace_s = 5;            // SIGTERM to SIGKILL
  double pause_grace_s = 60;            // a checkpoint has to fit in
  double final_job_ttl_s = 0;           // a job that ended so long ago is deleted; 0: never
  std::int64_t keep_step_events = 0;    // of a job that is over; 0: all
};

void AddLimitFlags(CLI::App& cli, Limits& limits);
// Those that gRPC itself keeps.
void ApplyLimits(const Limits& limits, grpc::ServerBuilder& builder);
// Memory reserved for nibbled itself: gRPC's buffers, the process, tokenizers, token files being written, and the texts that calls encode.
std::int64_t OwnMemoryBytes(const Limits& limits);
// What trainers, and what models in memory may take: the flag, or where that is 0 all that this process may (cgroup v2 or v1, or
// the machine) less `own_bytes`, of which a small machine reserves no more than a quarter; 0 where that is not known.
std::int64_t MemoryBytes(std::int64_t flag, std::int64_t own_bytes, base::FileSystem& files);
// The smallest bound, in bytes, that /proc/meminfo and the cgroup files below `root` ("/") name.
absl::StatusOr<std::int64_t> MachineMemoryBytes(base::FileSystem& files, const std::string& root);

}  // namespace nibble
