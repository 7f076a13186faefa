#include "server/limits.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <optional>

#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/data/token_cache.h"
#include "server/data/token_writer.h"
#include "server/rpc/text_cache.h"
#include "server/text/piece_encoder.h"
#include "server/text/prompt_length.h"

namespace nibble {

namespace {

constexpr std::uint64_t kMaxProcFile = 1 << 16;
// nibbled idle has 40 MiB; oneDNN's products take up to 48 MiB, the database and stacks of threads the rest.
constexpr std::int64_t kProcessBytes = 144 << 20;
// Of one token file that is being made: the text, its tokens with their places, and what tokenizers and templates take meanwhile. 119 to
// 162 MiB were measured with 1 to 8 threads, and a token for each byte. Large rows take theirs of what models and trainers share.
constexpr std::int64_t kTokenWriterBytes = 18 * static_cast<std::int64_t>(data::kTokeniseBytes);
// Calls encode one large text at a time, at once where it cannot be cut into pieces, and a small one on each worker.
std::int64_t EncoderBytes(const Limits& limits) {
  const auto small = static_cast<std::int64_t>(text::kLargeTextBytes);
  return text::kEncoderBytesPerByte * (limits.max_prompt_bytes + limits.workers * small);
}

void SetMs(grpc::ServerBuilder& builder, const char* name, double seconds) {
  builder.AddChannelArgument(name, static_cast<int>(std::min(seconds * 1e3, 2e9)));
}

// The first number of the text; nothing for "max".
std::optional<std::int64_t> FirstNumber(std::string_view text) {
  const std::size_t at = text.find_first_of("0123456789");
  std::int64_t number = 0;
  if (at == std::string_view::npos) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;  // cgroup v1 writes 2^63 - 4096 for "no limit"
}

}  // namespace

void AddLimitFlags(CLI::App& cli, Limits& l) {
  const CLI::Range seconds(0.0, 1e8);
  cli.add_option("--max_receive_bytes", l.max_receive_bytes, "Of one message")->check(CLI::PositiveNumber);
  cli.add_option("--max_send_bytes", l.max_send_bytes, "Of one message")->check(CLI::PositiveNumber);
  cli.add_option("--max_concurrent_streams", l.max_concurrent_streams, "A connection")->check(CLI::PositiveNumber);
  cli.add_option("--max_metadata_bytes", l.max_metadata_bytes, "A request")->check(CLI::PositiveNumber);
  cli.add_option("--max_connections", l.max_connections, "Checked against the limit of open files")->check(CLI::PositiveNumber);
  cli.add_option("--rpc_memory_bytes", l.rpc_memory_bytes, "Of gRPC's buffers")->check(CLI::PositiveNumber);
  cli.add_option("--max_rpc_threads", l.max_rpc_threads, "Of gRPC")->check(CLI::PositiveNumber);
  cli.add_option("--handshake_timeout_s", l.handshake_timeout_s, "A client that does not finish its handshake")->check(seconds);
  cli.add_option("--keepalive_time_s", l.keepalive_time_s, "A silent client is pinged after this")->check(seconds);
  cli.add_option("--keepalive_timeout_s", l.keepalive_timeout_s, "One that does not answer the ping is cut off")->check(seconds);
  cli.add_option("--min_ping_interval_s", l.min_ping_interval_s, "A client may ping as often as this")->check(seconds);
  cli.add_option("--max_ping_strikes", l.max_ping_strikes, "Pings too soon before a client is told to go")->check(CLI::Range(0, 1000));
  cli.add_option("--max_connection_age_s", l.max_connection_age_s, "Then the client is asked to connect anew")->check(seconds);
  cli.add_option("--max_connection_age_grace_s", l.max_connection_age_grace_s, "For its calls to end")->check(seconds);
  cli.add_option("--max_connection_idle_s", l.max_connection_idle_s, "Without a call")->check(seconds);
  cli.add_option("--workers", l.workers, "Threads for calls that wait for the disk or a load")->check(CLI::Range(1, 64));
  cli.add_option("--default_deadline_s", l.default_deadline_s,
                 "Longest wait for a worker of a unary call whose client gave no deadline; what has begun is not cut off. Generate, Chat and "
                 "Score have --generate_deadline_s instead")
      ->check(seconds);
  cli.add_option("--generate_deadline_s", l.generate_deadline_s,
                 "Of Generate, Chat and Score, streams too, whose client gave no deadline, from their arrival to their end; 0: none")
      ->check(seconds);
  cli.add_option("--operation_deadline_s", l.operation_deadline_s,
                 "Of an operation (an import, a conversion, a load, a plan and the like), from its beginning: then it is stopped; 0: none")
      ->check(seconds);
  cli.add_option("--max_stream_age_s", l.max_stream_age_s, "Of an upload")->check(seconds);
  cli.add_option("--max_stream_messages", l.max_stream_messages, "Of an upload, of less than 512 KiB each")->check(CLI::PositiveNumber);
  cli.add_option("--stream_buffer", l.stream_buffer, "Messages that a slow reader may be behind")->check(CLI::Range(128, 65536));
  cli.add_option("--slow_reader_s", l.slow_reader_s,
                 "A reader that is behind, and in so long takes fewer messages than --min_read_rate asks for, loses its request; a download "
                 "of which it takes no chunk of 256 KiB")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--min_read_rate", l.min_read_rate,
                 "Messages a second that the reader of an answer must take while it is behind; 0: one in --slow_reader_s")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--max_prompt_bytes", l.max_prompt_bytes,
                 "Of a prompt, or of a text to tokenise; each message of a chat counts 32 bytes more. 256 times as much memory is "
                 "reserved to encode it")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  cli.add_option("--max_watches", l.max_watches, "WatchJob and WatchLoad streams; further ones are refused")->check(CLI::Range(1, 100'000));
  cli.add_option("--max_downloads", l.max_downloads, "DownloadArtifact streams; further ones are refused")->check(CLI::Range(1, 1000));
  cli.add_option("--max_watches_per_principal", l.max_watches_per_principal, "Of one user who has a name; 0: no bound of its own")
      ->check(CLI::Range(0, 100'000));
  cli.add_option("--max_downloads_per_principal", l.max_downloads_per_principal, "Of one user who has a name; 0: no bound of its own")
      ->check(CLI::Range(0, 1000));
  cli.add_option("--max_plans_per_principal", l.max_plans_per_principal,
                 "Plans (PlanJob) of one user who has a name, running or waiting; 0: no bound of its own")
      ->check(CLI::Range(0, 1000));
  cli.add_option("--max_operations_per_principal", l.max_operations_per_principal,
                 "Operations of one user who has a name that have not ended; 0: no bound of its own")
      ->check(CLI::Range(0, 1000));
  cli.add_option("--max_dataset_bytes", l.max_dataset_bytes, "Of one dataset")->check(CLI::PositiveNumber);
  cli.add_option("--max_dataset_line_bytes", l.max_dataset_line_bytes,
                 "Of one line of an uploaded dataset; a plain text, which becomes one row, may have 64 MiB")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  cli.add_option("--max_model_bytes", l.max_model_bytes, "Of one uploaded model")->check(CLI::PositiveNumber);
  cli.add_option("--max_upload_bytes_per_principal", l.max_upload_bytes_per_principal,
                 "Of all uploads of one user that are under way, interrupted or not yet imported; 0: no bound")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--upload_kept_s", l.upload_kept_s,
                 "How long an upload is kept after its stream was lost, or has finished and nobody imported it")
      ->check(seconds);
  cli.add_option("--max_tokenizer_bytes", l.max_tokenizer_bytes,
                 "Of the tokenizer.json of a model that is imported; to load one takes about 15 times its bytes")
      ->check(CLI::Range(std::int64_t{1}, Limits().max_tokenizer_bytes));
  cli.add_option("--token_cache_bytes", l.token_cache_bytes,
                 "Of the token files of all data sets: plans and trainers share them, the least recently used are removed first; those that "
                 "open jobs need stay; 0: only those")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--min_free_bytes", l.min_free_bytes,
                 "With less free on the disk nothing new is taken in; -1: 5% of it, at least 1 GiB")
      ->check(CLI::Range(std::int64_t{-1}, std::int64_t{1} << 60));
  cli.add_option("--base_cache_bytes", l.base_cache_bytes,
                 "Disk for quantised bases that qlora attempts share, least recently used removed first; -1: a tenth of the disk; "
                 "0: none are kept")
      ->check(CLI::Range(std::int64_t{-1}, std::int64_t{1} << 60));
  cli.add_option("--max_queued_jobs", l.max_queued_jobs,
                 "Jobs that are PLANNING or QUEUED; further ones are refused")->check(CLI::PositiveNumber);
  cli.add_option("--max_running_jobs", l.max_running_jobs, "Trainers at a time")->check(CLI::Range(1, 64));
  cli.add_option("--job_ageing_s", l.job_ageing_s,
                 "A queued job rises by one step of priority for each such time that it, and its principal, has waited for a start; 0: never")
      ->check(seconds);
  cli.add_option("--max_jobs_per_principal", l.max_jobs_per_principal, "Not over yet, of one user who has a name; 0: no bound")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--train_memory_bytes", l.train_memory_bytes, "Planned memory of all trainers; 0: all that there is beside nibbled itself and loaded models")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--serve_memory_bytes", l.serve_memory_bytes, "Planned memory of all loaded models; 0: all that there is beside nibbled itself and trainers")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--max_retries", l.max_retries, "Of a job whose trainer fails")->check(CLI::Range(0, 1000));
  cli.add_option("--retry_backoff_scale", l.retry_backoff_scale, "Of the waits before a job is tried again")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--no_progress_timeout_s", l.no_progress_timeout_s, "A trainer silent for so long is ended; 0: never")->check(seconds);
  cli.add_option("--no_progress_grace_s", l.no_progress_grace_s, "The same, SIGTERM to SIGKILL")->check(seconds);
  cli.add_option("--cancel_grace_s", l.cancel_grace_s, "Of a trainer that is told to stop, before it is killed")->check(seconds);
  cli.add_option("--pause_grace_s", l.pause_grace_s, "The same, where it writes a checkpoint first")->check(seconds);
  cli.add_option("--final_job_ttl_s", l.final_job_ttl_s,
                 "A job that ended so long ago is deleted, with its events and checkpoints; its model stays; 0: never")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--keep_step_events", l.keep_step_events,
                 "Maximum number of step events kept of a job that is over, evenly spread over its log; other events stay; 0: all")
      ->check(CLI::NonNegativeNumber);
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
  if (!total_kib.has_value()) return absl::InternalError("/proc/meminfo names no MemTotal");
  std::int64_t bytes = *total_kib * 1024;
  for (const char* path : {"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    const auto text = files.Read(base::JoinPath(root, path), kMaxProcFile);
    const auto limit = text.ok() ? FirstNumber(*text) : std::nullopt;
    if (limit.has_value() && *limit > 0) bytes = std::min(bytes, *limit);
  }
  return bytes;
}

std::int64_t OwnMemoryBytes(const Limits& limits) {
  const std::int64_t tokenizers = rpc::TextCache::kTokenizerFactor * static_cast<std::int64_t>(rpc::TextCacheOptions().max_bytes);
  return limits.rpc_memory_bytes + kProcessBytes + data::TokenCache::kMaxWriters * kTokenWriterBytes + EncoderBytes(limits) + tokenizers;
}

std::int64_t MemoryBytes(std::int64_t flag, std::int64_t own_bytes, base::FileSystem& files) {
  if (flag > 0) return flag;
  const auto machine = MachineMemoryBytes(files, "/");
  if (machine.ok()) return *machine - std::min(own_bytes, *machine / 4);
  base::LogWarning("the machine's memory is not known: jobs are admitted by number alone, models always",
                   {{"why", std::string(machine.status().message())}});
  return 0;
}

}  // namespace nibble
