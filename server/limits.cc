#include "server/limits.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/data/token_cache.h"
#include "server/data/token_writer.h"
#include "server/registry/text_cache.h"
#include "server/text/piece_encoder.h"
#include "server/text/prompt_length.h"

namespace nibble {

namespace {

constexpr std::uint64_t kMaxProcFile = 1 << 16;  // bytes
// An idle nibbled uses 40 MiB; oneDNN's matrix products take up to 48 MiB, the database and thread stacks the rest.
constexpr std::int64_t kProcessBytes = 144 << 20;
// Memory to write one token file: the text, its tokens with their positions, and what tokenizers and templates use
// meanwhile. 18 times kTokenizeBytes are 144 MiB; measurements gave 119 to 162 MiB, with 1 to 8 threads and one token
// per byte. Large rows and cached words are not included: they use the memory that models and trainers share.
constexpr std::int64_t kTokenWriterBytes = 18 * static_cast<std::int64_t>(data::kTokenizeBytes);
// Calls encode one large text at a time, in one piece if it cannot be cut, and one small text on each worker.
std::int64_t EncoderBytes(const Limits& limits) {
  const auto small = static_cast<std::int64_t>(text::kLargeTextBytes);
  return text::kEncoderBytesPerByte * (limits.max_prompt_bytes + limits.workers * small);
}

void SetMs(grpc::ServerBuilder& builder, const char* name, double seconds) {
  builder.AddChannelArgument(name, static_cast<int>(std::min(seconds * 1e3, 2e9)));  // 2e9 fits an int
}

// The first number of the text; nothing for "max", which cgroup v2 writes for "no limit". cgroup v1 writes a number,
// 2^63 - 4096.
std::optional<std::int64_t> FirstNumber(std::string_view text) {
  const std::size_t at = text.find_first_of("0123456789");
  std::int64_t number = 0;
  if (at == std::string_view::npos) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

CLI::Range Seconds() { return CLI::Range(0.0, 1e8); }

void AddConnectionFlags(CLI::App& cli, Limits& l) {
  cli.add_option("--max_receive_bytes", l.max_receive_bytes, "Maximum size of a message from a client")
      ->check(CLI::PositiveNumber);
  cli.add_option("--max_send_bytes", l.max_send_bytes, "Maximum size of a message to a client")
      ->check(CLI::PositiveNumber);
  cli.add_option("--max_concurrent_streams", l.max_concurrent_streams, "Maximum number of streams per connection")
      ->check(CLI::PositiveNumber);
  cli.add_option("--max_metadata_bytes", l.max_metadata_bytes, "Maximum size of a request's metadata")
      ->check(CLI::PositiveNumber);
  cli.add_option("--max_connections", l.max_connections,
                 "Number of connections that the limit of open files should allow")
      ->check(CLI::PositiveNumber);
  cli.add_option("--rpc_memory_bytes", l.rpc_memory_bytes, "Memory for gRPC's buffers")->check(CLI::PositiveNumber);
  cli.add_option("--max_rpc_threads", l.max_rpc_threads, "Maximum number of gRPC's threads")
      ->check(CLI::PositiveNumber);
  cli.add_option("--handshake_timeout_s", l.handshake_timeout_s, "Time for a client to finish its handshake")
      ->check(Seconds());
  cli.add_option("--keepalive_time_s", l.keepalive_time_s, "Time without data from a client before it is pinged")
      ->check(Seconds());
  cli.add_option("--keepalive_timeout_s", l.keepalive_timeout_s,
                 "Time for a client to answer a keepalive ping before its connection is closed")
      ->check(Seconds());
  cli.add_option("--min_ping_interval_s", l.min_ping_interval_s, "Minimum time between a client's pings")
      ->check(Seconds());
  cli.add_option("--max_ping_strikes", l.max_ping_strikes,
                 "Pings that may come too soon before the connection is closed")
      ->check(CLI::Range(0, 1000));
  cli.add_option("--max_connection_age_s", l.max_connection_age_s, "Time before a client is asked to reconnect")
      ->check(Seconds());
  cli.add_option("--max_connection_age_grace_s", l.max_connection_age_grace_s,
                 "Time for a connection's calls to end after its client was asked to reconnect")
      ->check(Seconds());
  cli.add_option("--max_connection_idle_s", l.max_connection_idle_s,
                 "Time without a call before a connection is closed")
      ->check(Seconds());
}

void AddCallFlags(CLI::App& cli, Limits& l) {
  cli.add_option("--workers", l.workers, "Threads for calls that wait for the disk or a load")
      ->check(CLI::Range(1, 64));
  cli.add_option("--default_deadline_s", l.default_deadline_s,
                 "Maximum time that a unary call without a client deadline waits for a worker; a call that has begun "
                 "is not cut off. Generate, Chat and Score have --generate_deadline_s instead")
      ->check(Seconds());
  cli.add_option("--generate_deadline_s", l.generate_deadline_s,
                 "Deadline of Generate, Chat and Score, also as streams, if the client set none; counts from arrival "
                 "to end; 0: none")
      ->check(Seconds());
  cli.add_option("--operation_deadline_s", l.operation_deadline_s,
                 "Time after which an operation (an import, a conversion, a load, a plan and so on) is stopped; 0: "
                 "never")
      ->check(Seconds());
  cli.add_option("--max_stream_age_s", l.max_stream_age_s, "Maximum duration of an upload stream")->check(Seconds());
  cli.add_option("--max_stream_messages", l.max_stream_messages,
                 "Maximum number of messages of less than 512 KiB in an upload")
      ->check(CLI::PositiveNumber);
  cli.add_option("--stream_buffer", l.stream_buffer, "Messages that a slow reader may be behind")
      ->check(CLI::Range(128, 65536));
  cli.add_option("--slow_reader_s", l.slow_reader_s,
                 "A reader that is behind loses its request if it takes fewer messages in this time than "
                 "--min_read_rate requires")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--min_read_rate", l.min_read_rate,
                 "Messages per second that the reader of an answer must take while it is behind; in a download, 64 KiB "
                 "count as one message; 0: one message, or 256 KiB of a download, in --slow_reader_s")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--max_prompt_bytes", l.max_prompt_bytes,
                 "Maximum size of a prompt or of a text to tokenize; each message of a chat counts 32 bytes more. 256 "
                 "times as much memory is reserved to encode it")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  cli.add_option("--max_watches", l.max_watches,
                 "Maximum number of WatchJob, WatchJobLogs and WatchLoad streams; further ones are refused")
      ->check(CLI::Range(1, 100'000));
  cli.add_option("--max_downloads", l.max_downloads,
                 "Maximum number of DownloadArtifact streams; further ones are refused")
      ->check(CLI::Range(1, 1000));
  cli.add_option("--max_watches_per_principal", l.max_watches_per_principal,
                 "Maximum number of watches of one principal; 0: no separate limit")
      ->check(CLI::Range(0, 100'000));
  cli.add_option("--max_downloads_per_principal", l.max_downloads_per_principal,
                 "Maximum number of downloads of one principal; 0: no separate limit")
      ->check(CLI::Range(0, 1000));
  cli.add_option("--max_plans_per_principal", l.max_plans_per_principal,
                 "Maximum number of plans (PlanJob) of one principal, running or waiting; 0: no separate limit")
      ->check(CLI::Range(0, 1000));
  cli.add_option("--max_operations_per_principal", l.max_operations_per_principal,
                 "Maximum number of operations of one principal that have not ended; 0: no separate limit")
      ->check(CLI::Range(0, 1000));
}

void AddStorageFlags(CLI::App& cli, Limits& l) {
  cli.add_option("--max_dataset_bytes", l.max_dataset_bytes, "Maximum size of a dataset")->check(CLI::PositiveNumber);
  cli.add_option("--max_dataset_line_bytes", l.max_dataset_line_bytes,
                 "Maximum size of a line of an uploaded dataset; a plain text, which becomes one row, may have 64 MiB")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  cli.add_option("--max_model_bytes", l.max_model_bytes, "Maximum size of an uploaded model")
      ->check(CLI::PositiveNumber);
  cli.add_option("--max_upload_bytes_per_principal", l.max_upload_bytes_per_principal,
                 "Maximum size of all uploads of one principal that are in progress, interrupted or not yet imported; "
                 "0: no limit")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--upload_kept_s", l.upload_kept_s,
                 "Time that an upload is kept after its stream was lost, or after it finished without an import")
      ->check(Seconds());
  cli.add_option("--max_tokenizer_bytes", l.max_tokenizer_bytes,
                 "Maximum size of an imported model's tokenizer.json; loading it takes about 15 times as much memory")
      ->check(CLI::Range(std::int64_t{1}, Limits().max_tokenizer_bytes));
  cli.add_option("--token_cache_bytes", l.token_cache_bytes,
                 "Disk space for the token files of all datasets, which plans and trainers share; the least recently "
                 "used are removed first, but not those that open jobs need; 0: only those are kept")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--min_free_bytes", l.min_free_bytes,
                 "Free disk space below which nothing new is accepted; -1: 5% of the disk, at least 1 GiB")
      ->check(CLI::Range(std::int64_t{-1}, std::int64_t{1} << 60));
  cli.add_option("--base_cache_bytes", l.base_cache_bytes,
                 "Disk space for quantized bases that qlora attempts share; the least recently used are removed "
                 "first; -1: a tenth of the disk; 0: none are kept")
      ->check(CLI::Range(std::int64_t{-1}, std::int64_t{1} << 60));
}

void AddJobFlags(CLI::App& cli, Limits& l) {
  cli.add_option("--max_queued_jobs", l.max_queued_jobs,
                 "Maximum number of jobs that are PLANNING or QUEUED; further ones are refused")
      ->check(CLI::PositiveNumber);
  cli.add_option("--max_running_jobs", l.max_running_jobs, "Maximum number of trainers at a time")
      ->check(CLI::Range(1, 64));
  cli.add_option("--job_ageing_s", l.job_ageing_s,
                 "A queued job's priority rises by one each time this interval has passed since it was queued or its "
                 "principal last started a job, whichever is later; 0: never")
      ->check(Seconds());
  cli.add_option("--max_jobs_per_principal", l.max_jobs_per_principal,
                 "Maximum number of jobs of one principal that have not ended; 0: no limit")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--train_memory_bytes", l.train_memory_bytes,
                 "Maximum planned memory of all trainers; 0: all memory that nibbled itself and loaded models leave")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--serve_memory_bytes", l.serve_memory_bytes,
                 "Maximum planned memory of all loaded models; 0: all memory that nibbled itself and trainers leave")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--max_retries", l.max_retries, "Maximum number of retries of a job whose trainer fails")
      ->check(CLI::Range(0, 1000));
  cli.add_option("--retry_backoff_scale", l.retry_backoff_scale, "Factor for the waits before a job is retried")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--no_progress_timeout_s", l.no_progress_timeout_s,
                 "Time without progress before a trainer is stopped; 0: never")
      ->check(Seconds());
  cli.add_option("--no_progress_grace_s", l.no_progress_grace_s, "Time from SIGTERM to SIGKILL for such a trainer")
      ->check(Seconds());
  cli.add_option("--cancel_grace_s", l.cancel_grace_s, "Time from SIGTERM to SIGKILL when a job is cancelled")
      ->check(Seconds());
  cli.add_option("--pause_grace_s", l.pause_grace_s,
                 "Time from SIGTERM to SIGKILL when the trainer writes a checkpoint first")
      ->check(Seconds());
  cli.add_option("--final_job_ttl_s", l.final_job_ttl_s,
                 "Time from a job's end until it is deleted, with events and checkpoints; its model stays; 0: never")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--keep_step_events", l.keep_step_events,
                 "Maximum number of step events kept of an ended job, evenly spread over its log; other events stay; "
                 "0: all")
      ->check(CLI::NonNegativeNumber);
}

}  // namespace

void AddLimitFlags(CLI::App& cli, Limits& limits) {
  AddConnectionFlags(cli, limits);
  AddCallFlags(cli, limits);
  AddStorageFlags(cli, limits);
  AddJobFlags(cli, limits);
}

void ApplyLimits(const Limits& l, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(l.max_receive_bytes);
  builder.SetMaxSendMessageSize(l.max_send_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, l.max_concurrent_streams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, l.max_metadata_bytes);
  SetMs(builder, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, l.handshake_timeout_s);
  SetMs(builder, GRPC_ARG_KEEPALIVE_TIME_MS, l.keepalive_time_s);
  SetMs(builder, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, l.keepalive_timeout_s);
  SetMs(builder, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, l.min_ping_interval_s);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, l.max_ping_strikes);
  SetMs(builder, GRPC_ARG_MAX_CONNECTION_AGE_MS, l.max_connection_age_s);
  SetMs(builder, GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, l.max_connection_age_grace_s);
  SetMs(builder, GRPC_ARG_MAX_CONNECTION_IDLE_MS, l.max_connection_idle_s);
  grpc::ResourceQuota quota("nibbled");
  quota.Resize(static_cast<std::size_t>(l.rpc_memory_bytes)).SetMaxThreads(l.max_rpc_threads);
  builder.SetResourceQuota(quota);
}

absl::StatusOr<std::int64_t> MachineMemoryBytes(base::FileSystem& files, const std::string& root) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string meminfo, files.Read(base::JoinPath(root, "proc/meminfo"), kMaxProcFile));
  const std::size_t at = meminfo.find("MemTotal:");
  const auto total_kib = FirstNumber(at == std::string::npos ? "" : std::string_view(meminfo).substr(at));
  if (!total_kib.has_value()) return absl::InternalError("/proc/meminfo has no MemTotal");
  std::int64_t bytes = *total_kib * 1024;
  const auto apply = [&](const std::string& path) {
    const auto text = files.Read(base::JoinPath(root, path), kMaxProcFile);
    const auto limit = text.ok() ? FirstNumber(*text) : std::nullopt;
    if (limit.has_value() && *limit > 0) bytes = std::min(bytes, *limit);
  };
  apply("sys/fs/cgroup/memory.max");
  apply("sys/fs/cgroup/memory/memory.limit_in_bytes");
  // Lines of the form hierarchy:controllers:path. The limits of all groups on the path to the process's own group
  // apply. In a container the path may be the host's, which the mount does not have: then the group at the root of the
  // mount, read above, is the container's.
  const auto groups = files.Read(base::JoinPath(root, "proc/self/cgroup"), kMaxProcFile);
  const std::vector<std::string> lines = absl::StrSplit(groups.value_or(""), '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    const bool v2 = parts[1].empty();
    if (!v2 && std::find(controllers.begin(), controllers.end(), "memory") == controllers.end()) continue;
    std::string group = v2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory";
    const std::vector<std::string> names = absl::StrSplit(parts[2], '/', absl::SkipEmpty());
    for (const std::string& name : names) {
      if (name == "..") break;  // a group outside the mount
      group = base::JoinPath(group, name);
      apply(base::JoinPath(group, v2 ? "memory.max" : "memory.limit_in_bytes"));
    }
  }
  return bytes;
}

std::int64_t OwnMemoryBytes(const Limits& limits) {
  const std::int64_t tokenizers =
      registry::TextCache::kTokenizerFactor * static_cast<std::int64_t>(registry::TextCacheOptions().max_bytes);
  return limits.rpc_memory_bytes + kProcessBytes + data::TokenCache::kMaxWriters * kTokenWriterBytes +
         EncoderBytes(limits) + tokenizers;
}

std::int64_t MemoryBytes(std::int64_t flag, std::int64_t own_bytes, base::FileSystem& files) {
  if (flag > 0) return flag;
  const auto machine = MachineMemoryBytes(files, "/");
  if (machine.ok()) return *machine - std::min(own_bytes, *machine / 4);
  base::LogWarning("cannot determine the machine's memory: it limits neither jobs nor models",
                   {{"why", std::string(machine.status().message())}});
  return 0;
}

}  // namespace nibble
