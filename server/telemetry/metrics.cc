#include "server/telemetry/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

#include "server/base/json.h"
#include "server/base/log_writer.h"
#include "server/telemetry/families.h"
#include "server/telemetry/memory_cgroup.h"
#include "server/telemetry/process.h"

namespace nibble::telemetry {

std::string Text(std::string_view text) {
  std::string value(text);
  for (std::size_t nul = value.find('\0'); nul != std::string::npos; nul = value.find('\0', nul))
    value.replace(nul, 1, "\xef\xbf\xbd");
  if (std::ranges::all_of(value, [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return value;
  // Dump writes U+FFFD for parts that are not UTF-8.
  const auto mended = base::ParseJson(base::Dump(base::Json(std::move(value))));
  return mended.ok() ? mended->get<std::string>() : "?";
}

Metrics::Metrics(const BuildInfo& build, const KnownLabels& known) : families_(std::make_unique<Families>()) {
  Families& f = *families_;
  f.build_info
      .Add({{"version", build.version},
            {"revision", build.revision},
            {"code", build.code},
            {"cuda", build.cuda},
            {"torch", "none"}})
      .Set(1);
  for (const std::string& device : known.devices) {
    for (const char* phase : kPhases) {
      for (const char* kernel : kKnownKernels) {
        f.launches.Add({{"kernel", kernel}, {"device", device}, {"phase", phase}});
      }
    }
    f.peak_memory.Add({{"process", "server"}, {"device", device}});
    f.peak_memory.Add({{"process", "trainer"}, {"device", device}});
  }
  for (const std::string& method : known.job_methods) {
    const Labels of_method = {{"method", method}};
    f.train_rate.Add(of_method);
    f.train_tokens.Add(of_method);
    f.jobs_created.Add(of_method);
    f.job_steps.Add(of_method);
    f.job_attempts.Add({{"method", method}, {"reason", "start"}});
    for (const std::string& state : known.job_states) f.jobs.Add({{"method", method}, {"state", state}});
    for (const char* reason : kFailureReasons) f.job_failures.Add({{"method", method}, {"reason", reason}});
    for (const char* result : kJobResults) f.jobs_finished.Add({{"method", method}, {"result", result}});
  }
  f.queue_wait.Add({}, JobBuckets());
  f.checkpoint_seconds.Add({}, RequestBuckets());
  f.checkpoint_bytes.Add({}, ByteBuckets());
  f.checkpoint_time.Add({});
  f.verify_failures.Add({});
  for (const char* reason : {"QUEUE_FULL", "STREAMS_FULL", "DRAINING", "PROMPT_TOO_LONG"})
    f.rejected.Add({{"reason", reason}});
  for (const char* protocol : kProtocols) f.client_requests.Add({{"protocol", protocol}});
  for (const char* reason : {"TOKEN_MISSING", "TOKEN_INVALID", "ROLE"}) f.auth_failures.Add({{"reason", reason}});
  for (const char* format : {"int8", "nf4"}) f.convert_seconds.Add({{"format", format}}, JobBuckets());
  for (const char* operation :
       {"open", "append", "sync", "rename", "sync_directory", "create_directories", "remove", "read"}) {
    f.store_seconds.Add({{"op", operation}, {"backend", "file"}}, RpcBuckets());
  }
  f.store_errors.Add({{"backend", "file"}, {"reason", "DISK_FULL"}});
  f.checkpoint_failures.Add({{"reason", "CHECKPOINT_FAILED"}});
  f.oom_kills.Add({});
  f.oom_kills_at_start = ReadOomKills("/proc/self/cgroup", "/sys/fs/cgroup");
  for (const char* kind : {"model", "dataset"}) f.artifact_bytes.Add({{"kind", kind}});
}

Metrics::~Metrics() = default;

std::string Metrics::Scrape() {
  std::vector<std::function<void(Metrics&)>> collectors;
  {
    base::MutexLock lock(families_->mutex);
    collectors = families_->collectors;
  }
  for (const auto& collect : collectors) collect(*this);
  SetProcess();
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families_->registry.Collect());
  return out.str();
}

void Metrics::AddCollector(std::function<void(Metrics&)> collector) {
  base::MutexLock lock(families_->mutex);
  families_->collectors.push_back(std::move(collector));
}

void Metrics::ClearCollectors() {
  base::MutexLock lock(families_->mutex);
  families_->collectors.clear();
}

void Metrics::KeepModels(const std::set<std::string, std::less<>>& names) {
  Families& f = *families_;
  base::MutexLock lock(f.mutex);
  for (auto model = f.models.begin(); model != f.models.end();) {
    auto& [name, series] = *model;
    const bool was_known = std::exchange(series.is_known, names.contains(name));
    if (series.is_known || was_known) {
      ++model;
      continue;
    }
    for (const auto& [_, remove] : series.remove) remove();
    model = f.models.erase(model);
  }
}

void Metrics::SetProcess() {
  Families& f = *families_;
  const ProcessFigures figures = ReadProcess();
  f.Follow(f.process_cpu.Add({}), figures.cpu_seconds);
  f.process_start.Add({}).Set(figures.start_unix_seconds);
  f.process_rss.Add({}).Set(static_cast<double>(figures.resident_bytes));
  f.process_virtual.Add({}).Set(static_cast<double>(figures.virtual_bytes));
  f.process_open.Add({}).Set(static_cast<double>(figures.open_files));
  f.process_max.Add({}).Set(static_cast<double>(figures.max_files));
  f.Follow(f.log_dropped.Add({}), static_cast<double>(base::LogLinesDropped()));
  RaisePeakMemory("server", "cpu", figures.peak_resident_bytes);
  if (!f.oom_kills_at_start.has_value()) return;
  const std::uint64_t kills = ReadOomKills("/proc/self/cgroup", "/sys/fs/cgroup").value_or(*f.oom_kills_at_start);
  f.Follow(f.oom_kills.Add({}), static_cast<double>(kills) - static_cast<double>(*f.oom_kills_at_start));
}

namespace {

Labels RpcLabels(std::string_view type, std::string_view service, std::string_view method) {
  return {{"grpc_type", Text(type)}, {"grpc_service", Text(service)}, {"grpc_method", Text(method)}};
}

}  // namespace

void Metrics::RpcKnown(std::string_view type, std::string_view service, std::string_view method) {
  const Labels labels = RpcLabels(type, service, method);
  families_->rpc_started.Add(labels);
  Labels handled = labels;
  handled["grpc_code"] = "OK";
  families_->rpc_handled.Add(handled);
}

void Metrics::RpcStarted(std::string_view type, std::string_view service, std::string_view method) {
  const Labels labels = RpcLabels(type, service, method);
  families_->rpc_started.Add(labels).Increment();
  families_->rpc_seconds.Add(labels, RpcBuckets());
}

void Metrics::RpcHandled(std::string_view type, std::string_view service, std::string_view method,
                         std::string_view code, double seconds) {
  Labels labels = RpcLabels(type, service, method);
  families_->rpc_seconds.Add(labels, RpcBuckets()).Observe(seconds);
  labels["grpc_code"] = Text(code);
  families_->rpc_handled.Add(labels).Increment();
}

void Metrics::Rejected(std::string_view reason) { families_->rejected.Add({{"reason", Text(reason)}}).Increment(); }

void Metrics::ClientRequest(std::string_view protocol) {
  families_->client_requests.Add({{"protocol", Text(protocol)}}).Increment();
}

void Metrics::OpenAiRequests(std::string_view route, int requests) {
  families_->client_requests.Add({{"protocol", "openai"}}).Increment(requests);
  families_->openai_requests.Add({{"route", Text(route)}}).Increment(requests);
  if (requests == 0) families_->openai_answers.Add({{"route", Text(route)}, {"status", "200"}});
}

void Metrics::OpenAiAnswer(std::string_view route, unsigned status) {
  families_->openai_answers.Add({{"route", Text(route)}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::SetStoredResponses(std::size_t responses, std::size_t bytes) {
  families_->stored_responses.Add({}).Set(static_cast<double>(responses));
  families_->stored_response_bytes.Add({}).Set(static_cast<double>(bytes));
}

void Metrics::AuthFailed(std::string_view reason) {
  families_->auth_failures.Add({{"reason", Text(reason)}}).Increment();
}
void Metrics::SetCertificateExpiry(std::string_view file, double unix_seconds) {
  families_->certificate_expiry.Add({{"file", Text(file)}}).Set(unix_seconds);
}
void Metrics::SetTlsFilesOk(bool ok) { families_->tls_files_ok.Add({}).Set(ok ? 1 : 0); }
void Metrics::SetTokenFileOk(bool ok) { families_->token_file_ok.Add({}).Set(ok ? 1 : 0); }

void Metrics::SetKernelLaunches(std::string_view phase, std::string_view device,
                                const std::map<std::string, std::uint64_t>& counts) {
  for (const auto& [kernel, count] : counts) {
    families_->Follow(
        families_->launches.Add({{"kernel", Text(kernel)}, {"device", Text(device)}, {"phase", Text(phase)}}),
        static_cast<double>(count));
  }
}

void Metrics::AddKernelLaunches(std::string_view phase, std::string_view device, std::string_view kernel,
                                std::uint64_t launches) {
  families_->launches.Add({{"kernel", Text(kernel)}, {"device", Text(device)}, {"phase", Text(phase)}})
      .Increment(static_cast<double>(launches));
}

void Metrics::RaisePeakMemory(std::string_view process, std::string_view device, std::uint64_t bytes) {
  Gauge& gauge = families_->peak_memory.Add({{"process", Text(process)}, {"device", Text(device)}});
  base::MutexLock lock(families_->raise_mutex);
  if (static_cast<double>(bytes) > gauge.Value()) gauge.Set(static_cast<double>(bytes));
}

void Metrics::SetScheduler(std::string_view model, const SchedulerState& state) {
  Families& f = *families_;
  base::MutexLock lock(f.mutex);
  f.OfModel(f.waiting, model, {}).Set(static_cast<double>(state.waiting));
  f.OfModel(f.running, model, {}).Set(static_cast<double>(state.running));
  f.OfModel(f.kv_used, model, {}).Set(static_cast<double>(state.kv_blocks_used));
  f.OfModel(f.kv_blocks, model, {}).Set(static_cast<double>(state.kv_blocks));
  f.OfModel(f.generated_tokens, model, {});
  f.OfModel(f.prompt_tokens, model, {});
}

void Metrics::SetPreemptions(std::uint64_t count) {
  families_->Follow(families_->preemptions.Add({}), static_cast<double>(count));
}

void Metrics::TokensGenerated(std::string_view model, std::size_t tokens) {
  if (tokens == 0) return;
  base::MutexLock lock(families_->mutex);
  families_->OfModel(families_->generated_tokens, model, {}).Increment(static_cast<double>(tokens));
}

void Metrics::GenerateEnded(std::string_view model, std::string_view result, const GenerateSample& sample) {
  Families& f = *families_;
  base::MutexLock lock(f.mutex);
  f.OfModel(f.generate_requests, model, {{"result", Text(result)}}).Increment();
  f.OfModel(f.prompt_tokens, model, {}).Increment(static_cast<double>(sample.prompt_tokens));
  if (sample.ttft_seconds > 0) f.OfModel(f.ttft, model, {}, RequestBuckets()).Observe(sample.ttft_seconds);
  if (sample.completion_tokens > 1) {
    f.OfModel(f.tpot, model, {}, TokenBuckets())
        .Observe(sample.decode_seconds / static_cast<double>(sample.completion_tokens - 1));
  }
}

void Metrics::ModelLoaded(std::string_view model, double seconds) {
  base::MutexLock lock(families_->mutex);
  families_->OfModel(families_->load_seconds, model, {}, JobBuckets()).Observe(seconds);
}

void Metrics::SetTrainerDifference(std::string_view model, double nats) {
  base::MutexLock lock(families_->mutex);
  families_->OfModel(families_->trainer_difference, model, {}).Set(nats);
}

void Metrics::SetJobs(std::string_view method, std::string_view state, std::int64_t jobs) {
  families_->jobs.Add({{"method", Text(method)}, {"state", Text(state)}}).Set(static_cast<double>(jobs));
}

void Metrics::JobCreated(std::string_view method) {
  families_->AddJobSeries(Text(method));
  families_->jobs_created.Add({{"method", Text(method)}}).Increment();
}

void Metrics::JobFinished(std::string_view method, std::string_view result, double seconds) {
  const Labels labels = {{"method", Text(method)}, {"result", Text(result)}};
  families_->jobs_finished.Add(labels).Increment();
  families_->job_seconds.Add(labels, JobBuckets()).Observe(seconds);
}

void Metrics::JobAttempt(std::string_view method, std::string_view reason) {
  families_->AddJobSeries(Text(method));
  families_->job_attempts.Add({{"method", Text(method)}, {"reason", Text(reason)}}).Increment();
}

void Metrics::JobFailed(std::string_view method, std::string_view reason) {
  const bool known =
      std::find(std::begin(kFailureReasons), std::end(kFailureReasons), reason) != std::end(kFailureReasons);
  families_->job_failures.Add({{"method", Text(method)}, {"reason", known ? Text(reason) : "OTHER"}}).Increment();
}

void Metrics::JobQueueWait(double seconds) { families_->queue_wait.Add({}, JobBuckets()).Observe(seconds); }

void Metrics::TrainStep(std::string_view method, std::string_view job_id, const StepSample& sample) {
  const Labels labels = {{"method", Text(method)}};
  families_->job_steps.Add(labels).Increment();
  if (sample.tokens > 0) families_->train_tokens.Add(labels).Increment(static_cast<double>(sample.tokens));
  families_->step_seconds.Add(labels, RequestBuckets()).Observe(sample.seconds);
  base::MutexLock lock(families_->mutex);
  families_->train_rate.Add(labels).Set(sample.tokens_per_s);
  Families::TrainingJob& job = families_->training[Text(job_id)];
  job.method = Text(method);
  // Not "job": Prometheus itself gives every series a label of that name.
  if (job.loss == nullptr) job.loss = &families_->train_loss.Add({{"method", Text(method)}, {"job_id", Text(job_id)}});
  job.loss->Set(sample.loss);
}

void Metrics::TrainingEnded(std::string_view job_id) {
  base::MutexLock lock(families_->mutex);
  auto& training = families_->training;
  const auto found = training.find(Text(job_id));
  if (found == training.end()) return;
  const Families::TrainingJob ended = found->second;
  families_->train_loss.Remove(ended.loss);
  training.erase(found);
  const bool others_train = std::any_of(training.begin(), training.end(),
                                        [&](const auto& entry) { return entry.second.method == ended.method; });
  // A gauge would keep its last value, as if the method still trained.
  if (!others_train) families_->train_rate.Add({{"method", ended.method}}).Set(0);
}

void Metrics::CheckpointSaved(double seconds, std::int64_t bytes, double unix_seconds) {
  if (seconds > 0) families_->checkpoint_seconds.Add({}, RequestBuckets()).Observe(seconds);
  families_->checkpoint_bytes.Add({}, ByteBuckets()).Observe(static_cast<double>(bytes));
  families_->checkpoint_time.Add({}).Set(unix_seconds);
}

void Metrics::CheckpointFailed(std::string_view reason) {
  families_->checkpoint_failures.Add({{"reason", Text(reason)}}).Increment();
}

void Metrics::Converted(std::string_view format, double seconds) {
  families_->convert_seconds.Add({{"format", Text(format)}}, JobBuckets()).Observe(seconds);
}

void Metrics::SetArtifactBytes(std::string_view kind, std::int64_t bytes) {
  families_->artifact_bytes.Add({{"kind", Text(kind)}}).Set(static_cast<double>(bytes));
}

void Metrics::ArtifactVerifyFailed() { families_->verify_failures.Add({}).Increment(); }

void Metrics::StoreOperation(std::string_view operation, double seconds) {
  families_->store_seconds.Add({{"op", Text(operation)}, {"backend", "file"}}, RpcBuckets()).Observe(seconds);
}

void Metrics::StoreError(std::string_view reason) {
  families_->store_errors.Add({{"backend", "file"}, {"reason", Text(reason)}}).Increment();
}

void Metrics::SetDiskLimits(std::string_view volume, std::uint64_t size_bytes, std::uint64_t watermark_bytes) {
  families_->disk_size.Add({{"volume", Text(volume)}}).Set(static_cast<double>(size_bytes));
  families_->disk_watermark.Add({{"volume", Text(volume)}}).Set(static_cast<double>(watermark_bytes));
}

void Metrics::SetDiskFree(std::string_view volume, std::uint64_t bytes) {
  families_->disk_free.Add({{"volume", Text(volume)}}).Set(static_cast<double>(bytes));
}

}  // namespace nibble::telemetry
