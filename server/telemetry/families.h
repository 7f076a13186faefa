// The families behind Metrics: every name and its help text. Private to metrics.cc.
#pragma once
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/base/mutex.h"
#include "server/telemetry/metrics.h"

namespace nibble::telemetry {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;
using Labels = prometheus::Labels;

inline Buckets Doubling(double first, int count) {
  Buckets buckets;
  for (int i = 0; i < count; ++i, first *= 2) buckets.push_back(first);
  return buckets;
}

// Boundaries in seconds, from the OpenTelemetry GenAI conventions.
inline const Buckets& RequestBuckets() {
  static const auto* buckets = new Buckets(Doubling(0.01, 14));
  return *buckets;
}
inline const Buckets& TokenBuckets() {
  static const auto* buckets =
      new Buckets{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5};
  return *buckets;
}
inline const Buckets& RpcBuckets() {
  static const auto* buckets =
      new Buckets{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
  return *buckets;
}
// Boundaries of Kueue: 1, 2.5, 5 ... 40960 s.
inline const Buckets& JobBuckets() {
  static const auto* buckets = [] {
    auto* made = new Buckets(Doubling(2.5, 15));
    made->insert(made->begin(), 1);
    return made;
  }();
  return *buckets;
}
inline const Buckets& ByteBuckets() {
  static const auto* buckets = new Buckets(Doubling(1 << 20, 16));
  return *buckets;
}

// Kernels whose launch counters exist with 0 before the first launch. For example, while serving
// quantizes no weight, the counter of quantize_int8 with phase "serve" shows 0 instead of being absent.
inline constexpr const char* kKnownKernels[] = {"attention",
                                                "matmul_dense",
                                                "matmul_int8",
                                                "matmul_int8_weight",
                                                "matmul_nf4",
                                                "matmul_ternary",
                                                "quantize_activations",
                                                "quantize_int8",
                                                "quantize_nf4",
                                                "double_quantize",
                                                "ternarise",
                                                "rms_norm",
                                                "rms_norm_quantize"};
// Failure reasons with a label value of their own (docs/errors.md); all other reasons count as "OTHER".
inline constexpr const char* kFailureReasons[] = {
    "NAN_LOSS",    "DISK_FULL",      "OUT_OF_DEVICE_MEMORY", "OUT_OF_MEMORY",  "TRAINER_SIGNAL", "TRAINER_EXIT",
    "NO_PROGRESS", "DATASET_FORMAT", "NO_TRAINABLE_TOKENS",  "TEMPLATE_ERROR", "OTHER"};
// States of attempts that ended early, as the jobs' database spells them.
inline constexpr const char* kEarlyEnds[] = {"CANCELLED", "FAILED", "LOST", "PAUSED", "PREEMPTED"};
inline constexpr const char* kJobResults[] = {"SUCCEEDED", "FAILED", "CANCELLED"};
inline constexpr const char* kProtocols[] = {"grpc", "kserve", "openai"};
inline constexpr const char* kPhases[] = {"train", "serve", "convert"};

// Makes a valid label value. Prometheus refuses the whole scrape for one value that is not UTF-8 or contains a NUL (its
// lexer's end of input, promlex.l), so invalid parts become U+FFFD.
std::string Text(std::string_view text);

struct Metrics::Families {
  prometheus::Registry registry;
  base::Mutex mutex;
  std::vector<std::function<void(Metrics&)>> collectors ABSL_GUARDED_BY(mutex);

  // The series of one model. Hold `mutex` while using one of them, because KeepModels deletes series.
  struct ModelSeries {
    std::map<const void*, std::function<void()>> remove;  // series -> deletes it from its family
    bool is_known = true;                                 // at the last call of KeepModels
  };
  std::map<std::string, ModelSeries, std::less<>> models ABSL_GUARDED_BY(mutex);
  struct TrainingJob {
    std::string method;
    Gauge* loss = nullptr;  // series of train_loss
  };
  // By the label value of the job, until its attempt ends.
  std::map<std::string, TrainingJob> training ABSL_GUARDED_BY(mutex);
  base::Mutex raise_mutex;  // guards counters and peaks that are set to an absolute value

  prometheus::Family<Counter>& Count(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  prometheus::Family<Gauge>& Level(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  }
  prometheus::Family<Histogram>& Spread(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  }

#define NIBBLE_FAMILY(kind, field, make, name, help) prometheus::Family<kind>& field = make(name, help)
  NIBBLE_FAMILY(Gauge, build_info, Level, "nibble_build_info", "Always 1; the labels describe the build");
  NIBBLE_FAMILY(Counter, rpc_started, Count, "grpc_server_started_total", "RPCs started");
  NIBBLE_FAMILY(Counter, rpc_handled, Count, "grpc_server_handled_total", "RPCs completed, by code");
  NIBBLE_FAMILY(Histogram, rpc_seconds, Spread, "grpc_server_handling_seconds",
                "Time from the start to the end of an RPC");
  NIBBLE_FAMILY(Counter, rejected, Count, "nibble_rejected_total", "Requests refused before any work, by reason");
  NIBBLE_FAMILY(Counter, client_requests, Count, "nibble_client_requests_total",
                "Requests of clients, by protocol (grpc, kserve, openai); calls inside the process do not count");
  NIBBLE_FAMILY(Counter, openai_requests, Count, "nibble_openai_requests_total",
                "Requests to the listener of OpenAI's API, by endpoint; the gRPC calls that they cause are in "
                "grpc_server_started_total");
  NIBBLE_FAMILY(Counter, openai_answers, Count, "nibble_openai_answers_total",
                "Answers of the listener of OpenAI's API, by endpoint and HTTP status; a stream that fails after its "
                "first bytes has the status 200");
  NIBBLE_FAMILY(Gauge, stored_responses, Level, "nibble_openai_stored_responses",
                "Responses that /v1/responses keeps for its clients; absent without --openai_address");
  NIBBLE_FAMILY(Gauge, stored_response_bytes, Level, "nibble_openai_stored_response_bytes",
                "Bytes of these responses and of the conversations that they continue");
  NIBBLE_FAMILY(Counter, auth_failures, Count, "nibble_auth_failures_total",
                "Calls refused by authentication or authorization, by reason");
  NIBBLE_FAMILY(Gauge, certificate_expiry, Level, "nibble_tls_certificate_expiry_timestamp_seconds",
                "Earliest expiry of the certificates in use, by file (server, client_ca); absent without that file");
  NIBBLE_FAMILY(Gauge, tls_files_ok, Level, "nibble_tls_files_ok",
                "1: the TLS files are usable; 0: not, and new connections use the last good ones; absent without TLS");
  NIBBLE_FAMILY(Gauge, token_file_ok, Level, "nibble_token_file_ok",
                "1: the token file is usable; 0: not, and the last good one stays in use; absent without --token_file");
  NIBBLE_FAMILY(Counter, launches, Count, "nibble_kernel_launches_total",
                "Kernel calls on the CPU, grid launches on CUDA; torch's own operators appear as torch:<op>");
  NIBBLE_FAMILY(Gauge, peak_memory, Level, "nibble_peak_memory_bytes",
                "Peak memory: VmHWM on the CPU, the allocators' own peak on CUDA");
  NIBBLE_FAMILY(Gauge, train_rate, Level, "nibble_train_tokens_per_second",
                "Training throughput of the last reported step; 0 while no job of the method trains");
  NIBBLE_FAMILY(Counter, train_tokens, Count, "nibble_train_tokens_total", "Tokens trained on, without padding");
  NIBBLE_FAMILY(Counter, generated_tokens, Count, "nibble_generated_tokens_total", "Tokens generated");
  NIBBLE_FAMILY(Counter, prompt_tokens, Count, "nibble_prompt_tokens_total", "Prompt tokens computed");
  NIBBLE_FAMILY(Gauge, kv_used, Level, "nibble_kv_cache_used_blocks", "Blocks of the paged KV cache in use");
  NIBBLE_FAMILY(Gauge, kv_blocks, Level, "nibble_kv_cache_blocks", "Blocks of the paged KV cache");
  NIBBLE_FAMILY(Gauge, waiting, Level, "nibble_requests_waiting", "Requests that wait for a slot");
  NIBBLE_FAMILY(Gauge, running, Level, "nibble_requests_running", "Requests in the batch");
  NIBBLE_FAMILY(Counter, preemptions, Count, "nibble_preemptions_total",
                "Requests that gave their KV cache to older requests and were computed again: --kv_tokens is small "
                "for the load");
  NIBBLE_FAMILY(Counter, generate_requests, Count, "nibble_generate_requests_total",
                "Completed Generate, Chat and Score requests, by result");
  NIBBLE_FAMILY(Histogram, ttft, Spread, "nibble_generate_time_to_first_token_seconds",
                "Time from arrival to the first token");
  NIBBLE_FAMILY(Histogram, tpot, Spread, "nibble_generate_time_per_output_token_seconds",
                "Decode time per token after the first");
  NIBBLE_FAMILY(Histogram, load_seconds, Spread, "nibble_model_load_duration_seconds",
                "Time to make a model ready to serve");
  NIBBLE_FAMILY(Gauge, trainer_difference, Level, "nibble_train_serve_logprob_max_abs_difference",
                "Adapter on its base, when loaded: largest logprob difference from its trainer, in nats");
  NIBBLE_FAMILY(Gauge, jobs, Level, "nibble_jobs", "Jobs by method and state");
  NIBBLE_FAMILY(Counter, jobs_created, Count, "nibble_jobs_created_total", "Jobs accepted");
  NIBBLE_FAMILY(Counter, jobs_finished, Count, "nibble_jobs_finished_total",
                "Jobs that reached a final state, by result");
  NIBBLE_FAMILY(Counter, job_attempts, Count, "nibble_job_attempts_total",
                "Trainer starts (reason start) and attempts that ended early, by reason");
  NIBBLE_FAMILY(Counter, job_failures, Count, "nibble_job_failures_total", "Jobs that failed, by reason");
  NIBBLE_FAMILY(Histogram, queue_wait, Spread, "nibble_job_queue_wait_seconds",
                "Time from the creation of a job to its first start");
  NIBBLE_FAMILY(Histogram, job_seconds, Spread, "nibble_job_duration_seconds",
                "Time from the creation of a job to its final state, by result");
  NIBBLE_FAMILY(Counter, job_steps, Count, "nibble_job_steps_total", "Optimizer steps");
  NIBBLE_FAMILY(Histogram, step_seconds, Spread, "nibble_train_step_duration_seconds", "Time of an optimizer step");
  NIBBLE_FAMILY(Gauge, train_loss, Level, "nibble_train_loss",
                "Loss of the last reported step of each job that trains now, in nats");
  NIBBLE_FAMILY(Histogram, checkpoint_seconds, Spread, "nibble_checkpoint_duration_seconds",
                "Time to write a checkpoint");
  NIBBLE_FAMILY(Histogram, checkpoint_bytes, Spread, "nibble_checkpoint_bytes", "Size of a checkpoint");
  NIBBLE_FAMILY(Counter, checkpoint_failures, Count, "nibble_checkpoint_failures_total",
                "Checkpoints that could not be written, by reason");
  NIBBLE_FAMILY(Gauge, checkpoint_time, Level, "nibble_checkpoint_last_success_timestamp_seconds",
                "When the last checkpoint was committed");
  NIBBLE_FAMILY(Histogram, convert_seconds, Spread, "nibble_convert_duration_seconds",
                "Time of a conversion, by target format");
  NIBBLE_FAMILY(Gauge, artifact_bytes, Level, "nibble_artifact_bytes", "Bytes on disk, by kind");
  NIBBLE_FAMILY(Counter, verify_failures, Count, "nibble_artifact_verify_failures_total",
                "Artifacts whose bytes or logits differ from the recorded ones");
  NIBBLE_FAMILY(Histogram, store_seconds, Spread, "nibble_store_op_duration_seconds", "Time of a store operation");
  NIBBLE_FAMILY(Counter, store_errors, Count, "nibble_store_errors_total", "Failed store operations");
  NIBBLE_FAMILY(Gauge, disk_free, Level, "nibble_disk_free_bytes", "Free bytes of a volume");
  NIBBLE_FAMILY(Gauge, disk_size, Level, "nibble_disk_size_bytes", "Size of a volume");
  NIBBLE_FAMILY(Gauge, disk_watermark, Level, "nibble_disk_low_watermark_bytes",
                "Free bytes below which uploads and jobs are refused");
  NIBBLE_FAMILY(Counter, oom_kills, Count, "nibble_worker_oom_kills_total",
                "Processes in the server's control group that the kernel killed for memory since the server started");
  NIBBLE_FAMILY(Counter, log_dropped, Count, "nibble_log_lines_dropped_total",
                "Log lines dropped because stderr was not read");
  NIBBLE_FAMILY(Counter, process_cpu, Count, "process_cpu_seconds_total", "User and system CPU time");
  NIBBLE_FAMILY(Gauge, process_start, Level, "process_start_time_seconds",
                "Start time of the process, in seconds since the epoch");
  NIBBLE_FAMILY(Gauge, process_rss, Level, "process_resident_memory_bytes", "Resident memory");
  NIBBLE_FAMILY(Gauge, process_virtual, Level, "process_virtual_memory_bytes", "Virtual memory");
  NIBBLE_FAMILY(Gauge, process_open, Level, "process_open_fds", "Open file descriptors");
  NIBBLE_FAMILY(Gauge, process_max, Level, "process_max_fds", "Limit of open file descriptors");
#undef NIBBLE_FAMILY

  // Adds the histograms of a method's jobs, and the counters of attempts that ended early, with 0. Called before a job
  // of the method can take a step or end, because a counter that begins with 1 has no increase. A method without jobs
  // has none of these series: histograms are most of a scrape's series.
  void AddJobSeries(const std::string& method) {
    for (const char* reason : kEarlyEnds) job_attempts.Add({{"method", method}, {"reason", reason}});
    step_seconds.Add({{"method", method}}, RequestBuckets());
    for (const char* result : kJobResults) job_seconds.Add({{"method", method}, {"result", result}}, JobBuckets());
  }

  // A series of the model: `labels` and the model's name, or "other" beyond kMaxModelLabels.
  template <typename Metric, typename... Boundaries>
  Metric& OfModel(prometheus::Family<Metric>& family, std::string_view model, Labels labels,
                  const Boundaries&... boundaries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    auto found = models.find(model);
    if (found == models.end() && models.size() >= kMaxModelLabels) {
      labels.emplace("model", "other");
      return family.Add(labels, boundaries...);
    }
    if (found == models.end()) found = models.try_emplace(std::string(model)).first;
    labels.emplace("model", Text(model));
    Metric& series = family.Add(labels, boundaries...);
    found->second.remove.try_emplace(&series, [&family, &series] { family.Remove(&series); });
    return series;
  }

  // Raises a counter to a value that is counted elsewhere. The counter never falls.
  void Follow(Counter& counter, double value) {
    base::MutexLock lock(raise_mutex);
    if (const double more = value - counter.Value(); more > 0) counter.Increment(more);
  }

  std::optional<std::uint64_t> oom_kills_at_start;  // nullopt: the system does not report it
};

}  // namespace nibble::telemetry
