#include "server/app.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "kernels/isa.h"
#include "kernels/launch_counter.h"
#include "kernels/thread_pool.h"
#include "server/app_flags.h"
#include "server/app_info.h"
#include "server/app_runner.h"
#include "server/base/clock.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/log.h"
#include "server/base/memory_budget.h"
#include "server/base/mutex.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/build_info.h"
#include "server/data/token_cache.h"
#include "server/drainer.h"
#include "server/grpc_server.h"
#include "server/http/http_server.h"
#include "server/jobs/controller.h"
#include "server/jobs/job_metrics.h"
#include "server/jobs/method.h"
#include "server/kserve/kserve_service.h"
#include "server/kube/last_exit.h"
#include "server/metered_files.h"
#include "server/openai_server.h"
#include "server/operations/operation_table.h"
#include "server/plan/checkpoint_source.h"
#include "server/plan/job_planner.h"
#include "server/registry/model_files.h"
#include "server/registry/model_library.h"
#include "server/registry/upload_table.h"
#include "server/report_flags.h"
#include "server/rpc/dataset_service.h"
#include "server/rpc/fine_tune_service.h"
#include "server/rpc/inference_service.h"
#include "server/rpc/methods.h"
#include "server/rpc/model_answers.h"
#include "server/rpc/model_service.h"
#include "server/rpc/operation_proto.h"
#include "server/rpc/operations_service.h"
#include "server/rpc/server_answers.h"
#include "server/rpc/server_service.h"
#include "server/rpc/sweeper.h"
#include "server/rpc/time.h"
#include "server/rpc/trainer_report_service.h"
#include "server/rpc/upload_service.h"
#include "server/serve/model_loads.h"
#include "server/serve/model_manager.h"
#include "server/serve/onednn_library.h"
#include "server/store/base_cache.h"
#include "server/store/disk_space.h"
#include "server/store/state_directory.h"
#include "server/telemetry/memory_cgroup.h"
#include "server/telemetry/metrics.h"

namespace nibble {

namespace {

constexpr std::chrono::seconds kSweepEvery(1);
constexpr absl::Duration kHung = absl::Minutes(10);  // a scheduler that has not moved for this long is hung

// For a flag whose 0 means no limit.
absl::Duration OrNone(double seconds) { return seconds > 0 ? absl::Seconds(seconds) : absl::InfiniteDuration(); }

std::optional<jobs::OomCount> CountOomKills() {
  const auto named = telemetry::ReadNamedOomKills({});
  return named.has_value() ? std::optional(jobs::OomCount{named->group, named->kills}) : std::nullopt;
}

// Memory of the listeners besides gRPC's.
std::int64_t ListenerMemoryBytes(const AppOptions& options) {
  const bool keeps_responses = !options.openai.address.empty() && options.openai.response_ttl_s > 0;
  return (options.report.address.empty() ? 0 : kReportMemoryBytes) +
         (keeps_responses ? options.openai.response_bytes : 0);
}

}  // namespace

// Declared in dependency order; destroyed in reverse.
struct App::State {
  explicit State(const AppOptions& given)
      : options(given),
        metrics({kVersion, BuiltFrom().commit, BuiltFrom().cuda, BuiltFrom().code_digest}, jobs::JobLabels()),
        files(given.files != nullptr ? *given.files : base::RealFileSystem(), metrics, base::RealClock()),
        pool(given.threads),
        library(serve::MakeOneDnnLibrary()),
        job_metrics(metrics, base::RealClock()) {}

  const AppOptions options;
  const absl::Time started = absl::Now();
  std::atomic<bool> ready{false};
  std::atomic<bool> draining{false};
  telemetry::Metrics metrics;
  MeteredFiles files;
  std::unique_ptr<http::HttpServer> http;

  kernels::ThreadPool pool;
  kernels::LaunchCounter serve_launches;
  kernels::LaunchCounter convert_launches;
  std::unique_ptr<kernels::DenseLibrary> library;
  kernels::Stream serve_stream;
  kernels::Stream convert_stream;

  std::unique_ptr<store::StateDirectory> state;
  jobs::JobMetrics job_metrics;
  std::unique_ptr<jobs::Database> database;
  std::unique_ptr<jobs::Runner> runner;
  std::string trainer_namespace;  // TrainerRunner::name_space
  std::unique_ptr<registry::TextCache> texts;
  std::unique_ptr<data::TokenCache> tokens;
  std::unique_ptr<plan::JobPlanner> planner;
  std::unique_ptr<auth::CaFile> report_ca;  // null without --report_ca
  std::unique_ptr<jobs::JobController> controller;

  std::unique_ptr<auth::Authority> authority;
  std::unique_ptr<base::WorkerPool> workers;
  std::unique_ptr<rpc::CallEnvironment> call_environment;
  std::shared_ptr<base::MemoryBudget> serve_memory;  // of all loaded models
  std::unique_ptr<serve::ModelManager> manager;
  std::unique_ptr<serve::ModelLoads> loads;
  std::unique_ptr<registry::UploadTable> uploads;
  std::unique_ptr<registry::ModelLibrary> model_library;
  std::unique_ptr<rpc::ModelAnswers> model_answers;
  std::unique_ptr<operations::OperationTable> operations;
  std::unique_ptr<rpc::Sweeper> sweeper;  // drops old uploads and operations

  std::unique_ptr<rpc::DatasetService> dataset_service;
  std::unique_ptr<rpc::FineTuneService> fine_tune_service;
  std::unique_ptr<rpc::ModelService> model_service;
  std::unique_ptr<rpc::InferenceService> inference_service;
  std::unique_ptr<rpc::ServerService> server_service;
  std::unique_ptr<rpc::UploadService> upload_service;
  std::unique_ptr<rpc::OperationsService> operations_service;
  std::unique_ptr<rpc::TrainerReportService> report_service;
  std::unique_ptr<rpc::TrainerReportService> network_report_service;  // of --report_address
  std::unique_ptr<kserve::KServeService> kserve;                      // null without --kserve
  std::unique_ptr<Drainer> drainer;  // declared before `grpc`, because a call may begin a drain
  GrpcServer grpc;
  std::unique_ptr<OpenAiServer> openai;  // null without --openai_address

  absl::Status StartHttp();
  absl::Status OpenState();
  absl::Status OpenJobs();
  absl::Status OpenCalls();
  void OpenModels();
  absl::Status OpenOperations();
  absl::Status StartGrpc();
  absl::Status WriteServerFile();
  std::string GrpcAddress() const;  // with the actual port
  bool HasDatabaseVolume() const { return state->paths.database_root() != state->paths.root(); }
  jobs::ReportEndpoint Endpoint() const;
  absl::StatusOr<std::set<std::string>> NeededTokenFiles();
  void Collect(telemetry::Metrics& out);
  DrainSteps StepsOfDrain();
};

absl::Status App::State::StartHttp() {
  http::HttpHandlers handlers;
  handlers.metrics = [this] { return metrics.Scrape(); };
  handlers.live = [this] {
    if (!ready || draining) return absl::OkStatus();
    const absl::Duration since = controller->SinceRound();
    if (since < kHung) return absl::OkStatus();
    return absl::UnavailableError(base::StrCat("the scheduler has not moved for ", absl::FormatDuration(since)));
  };
  handlers.started = [this] { return ready ? absl::OkStatus() : absl::UnavailableError("starting"); };
  handlers.ready = [this] {
    if (draining) return absl::UnavailableError("shutting down");
    return ready ? absl::OkStatus() : absl::UnavailableError("starting");
  };
  NIBBLE_ASSIGN_OR_RETURN(http, http::HttpServer::Start(options.http_address, std::move(handlers)));
  return absl::OkStatus();
}

absl::Status App::State::OpenState() {
  store::UploadLimits limits;
  NIBBLE_RETURN_IF_ERROR(base::RealFileSystem().CreateDirectories(options.state_dir));
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t disk_bytes, store::TotalBytes(options.state_dir));
  limits.min_free_bytes = store::DefaultWatermark(disk_bytes);
  if (options.min_free_bytes >= 0) limits.min_free_bytes = static_cast<std::uint64_t>(options.min_free_bytes);
  metrics.SetDiskLimits("state", disk_bytes, limits.min_free_bytes);
  limits.max_file_bytes = limits.max_total_bytes = static_cast<std::uint64_t>(options.max_dataset_bytes);
  NIBBLE_ASSIGN_OR_RETURN(state, store::StateDirectory::Open(files, options.state_dir, limits, options.database_dir));
  if (HasDatabaseVolume()) {
    NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t bytes, store::TotalBytes(state->paths.database_root()));
    metrics.SetDiskLimits("database", bytes, store::DefaultWatermark(bytes));
    store::WarnBelowWatermark(files, state->paths.database_root(), store::DefaultWatermark(bytes),
                              "free disk space of the database is low: on a full disk, no job is created or ends");
  }
  texts = std::make_unique<registry::TextCache>(*state->models);
  return absl::OkStatus();
}

absl::Status App::State::OpenJobs() {
  NIBBLE_ASSIGN_OR_RETURN(database,
                          jobs::Database::Open(state->paths.database(), [this] { return state->reserve->Release(); }));
  NIBBLE_ASSIGN_OR_RETURN(TrainerRunner made, MakeRunner(options));
  runner = std::move(made.runner);
  trainer_namespace = std::move(made.name_space);
  const bool trains_here = !runner->outlives_server();
  jobs::ControllerOptions control;
  control.queue.max_running = static_cast<int>(options.max_running_jobs);
  control.ageing = absl::Seconds(options.job_ageing_s);
  control.max_queued = options.max_queued_jobs;
  control.max_open_per_owner = options.max_jobs_per_principal;
  const std::int64_t own_bytes = ListenerMemoryBytes(options) + OwnMemoryBytes(options);
  // Trainers that run elsewhere are limited only by the flag.
  const std::int64_t train_bytes = trains_here
                                       ? MemoryBytes(options.train_memory_bytes, own_bytes, base::RealFileSystem())
                                       : options.train_memory_bytes;
  control.queue.memory_bytes = train_bytes;
  const std::int64_t serve_bytes = MemoryBytes(options.serve_memory_bytes, own_bytes, base::RealFileSystem());
  // Trainers, models and nibbled itself share one machine's memory. An operator's flag may allow more than that memory.
  const std::int64_t machine_bytes = MemoryBytes(0, /*own_bytes=*/0, base::RealFileSystem());
  const std::int64_t shared_bytes = MemoryBytes(0, own_bytes, base::RealFileSystem());
  const std::int64_t trained_bytes = trains_here ? train_bytes : 0;
  const auto memory =
      base::MemoryBudget::Make(shared_bytes == 0 ? 0 : std::max({shared_bytes, trained_bytes, serve_bytes}));
  if (trains_here) control.memory = memory;
  serve_memory = base::MemoryBudget::Make(serve_bytes, memory);
  if (trains_here) control.memory_limit_bytes = machine_bytes;
  if (trains_here) control.oom_count = CountOomKills;
  if (const auto pod = kube::PodAccessOf(options.environment); pod.has_value() && trains_here) {
    const auto reason = kube::ReadLastExitReason(*pod);
    control.container_out_of_memory = reason.ok() && *reason == kube::kOomKilled;
    if (!reason.ok()) {
      base::LogWarning(
          "cannot read from Kubernetes why the last container ended; if the OOM killer ended it, its attempts are "
          "reported as ATTEMPT_LOST",
          {{"why", std::string(reason.status().message())}});
    } else if (!reason->empty()) {
      base::LogInfo("the last container ended", {{"reason", *reason}});
    }
  }
  control.retry.max_retries = static_cast<int>(options.max_retries);
  control.retry.scale = options.retry_backoff_scale;
  control.no_progress_timeout = absl::Seconds(options.no_progress_timeout_s);
  control.no_progress_grace = absl::Seconds(options.no_progress_grace_s);
  control.cancel_grace = absl::Seconds(options.cancel_grace_s);
  control.pause_grace = absl::Seconds(options.pause_grace_s);
  control.retention.final_job_ttl = OrNone(options.final_job_ttl_s);
  control.retention.keep_step_events = options.keep_step_events;
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t disk_bytes, store::TotalBytes(options.state_dir));
  control.base_cache_bytes =
      options.base_cache_bytes >= 0 ? options.base_cache_bytes : static_cast<std::int64_t>(disk_bytes / 10);
  // Trims, because the limit may be lower than when the server last ran. Bases that a trainer still uses stay.
  store::BaseCache bases(
      files, state->paths.bases(),
      {.max_bytes = static_cast<std::uint64_t>(control.base_cache_bytes), .min_free_bytes = state->min_free_bytes});
  if (absl::Status trimmed = bases.Trim(); !trimmed.ok()) {
    base::LogWarning("cannot remove cached bases", {{"why", std::string(trimmed.message())}});
  }
  control.trainer_threads = options.trainer_threads > 0 ? options.trainer_threads : options.threads;
  control.isa = options.isa;
  control.default_device = plan::kDefaultDevice;
  control.nibble_version = kVersion;
  control.code_digest = BuiltFrom().code_digest;
  tokens = std::make_unique<data::TokenCache>(files, state->paths.tokens(), options.threads,
                                              data::TokenCacheOptions{.max_bytes = options.token_cache_bytes,
                                                                      .min_free_bytes = state->min_free_bytes,
                                                                      .memory = memory,
                                                                      .needed = [this] { return NeededTokenFiles(); }});
  planner = std::make_unique<plan::JobPlanner>(train_bytes, options.trainer_path, *state, *texts, *tokens, memory);
  tokens->Trim(
      [this](const std::string& dataset) { return !absl::IsNotFound(state->datasets->Get(dataset).status()); });
  control.check_without_rows = [this](const auto& spec) { return planner->CheckWithoutRows(spec); };
  control.plan_memory = [this](const auto& spec, const auto& cancel) { return planner->Memory(spec, cancel); };
  control.after_jobs = [this] { tokens->Trim(); };
  NIBBLE_ASSIGN_OR_RETURN(
      controller, jobs::JobController::Open(*state, *database, *runner, base::RealClock(), control, &job_metrics));
  return absl::OkStatus();
}

absl::StatusOr<std::set<std::string>> App::State::NeededTokenFiles() {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<jobs::StoredJob> jobs, database->ListAll(jobs::OpenStates()));
  std::set<std::string> needed;
  for (const jobs::StoredJob& job : jobs) {
    // If a job's model or data cannot be read now, its token files are of no use.
    const auto paths = planner->TokenFiles(job.spec);
    if (paths.ok()) needed.insert(paths->begin(), paths->end());
  }
  return needed;
}

absl::Status App::State::OpenCalls() {
  workers = std::make_unique<base::WorkerPool>(options.workers, /*max_waiting=*/256);
  call_environment = std::make_unique<rpc::CallEnvironment>(metrics, *workers, base::RealClock(), draining);
  call_environment->default_deadline = absl::Seconds(options.default_deadline_s);
  call_environment->max_stream_age = absl::Seconds(options.max_stream_age_s);
  call_environment->max_stream_messages = options.max_stream_messages;
  call_environment->stream_buffer = static_cast<std::size_t>(options.stream_buffer);
  call_environment->slow_reader = absl::Seconds(options.slow_reader_s);
  call_environment->min_read_rate = options.min_read_rate;
  call_environment->watches.set_max(static_cast<int>(options.max_watches),
                                    static_cast<int>(options.max_watches_per_principal));
  call_environment->downloads.set_max(static_cast<int>(options.max_downloads),
                                      static_cast<int>(options.max_downloads_per_principal));
  call_environment->plans.set_max(std::numeric_limits<int>::max(), static_cast<int>(options.max_plans_per_principal));
  call_environment->generate_deadline = OrNone(options.generate_deadline_s);
  call_environment->max_page_bytes =
      std::min(call_environment->max_page_bytes, static_cast<std::size_t>(options.max_send_bytes));
  call_environment->max_dataset_line_bytes = static_cast<std::size_t>(options.max_dataset_line_bytes);
  call_environment->max_prompt_bytes = static_cast<std::size_t>(options.max_prompt_bytes);
  call_environment->max_send_bytes = static_cast<std::size_t>(options.max_send_bytes);
  const SecurityOptions& security = options.security;
  NIBBLE_ASSIGN_OR_RETURN(
      authority,
      auth::Authority::Open(base::RealFileSystem(), base::RealClock(),
                            {.token_file = security.token_file,
                             .health_without_token = security.health_without_token,
                             .reflection_without_token = security.reflection_without_token,
                             .count_refusal = [this](std::string_view reason) { metrics.AuthFailed(reason); }}));
  authority->Watch();
  call_environment->authority = authority.get();
  return absl::OkStatus();
}

void App::State::OpenModels() {
  const auto locate =
      [this](const std::string& name,
             const serve::ModelManager::Cancelled& cancelled) -> absl::StatusOr<serve::ModelManager::Artifact> {
    NIBBLE_ASSIGN_OR_RETURN(
        const auto pin,
        state->models->PinModel(
            name, base::StrCat("serving: the model is loaded; unload it with: nibble models unload ", name)));
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, registry::FindModel(*state->models, metrics, name));
    NIBBLE_RETURN_IF_ERROR(registry::CheckModelFiles(*state->models, metrics, name, cancelled));
    return serve::ModelManager::Artifact{stored.directory, pin};
  };
  const auto observe = [this](const serve::Resident& resident, bool loaded, absl::Duration took) {
    metrics.SetScheduler(resident.name, {});
    if (!loaded) return;
    metrics.ModelLoaded(resident.name, absl::ToDoubleSeconds(took));
    if (!resident.trainer_difference.has_value()) return;
    metrics.SetTrainerDifference(resident.name, *resident.trainer_difference);
    base::LogInfo("adapter loaded; largest logprob difference from the trainer",
                  {{"model", resident.name}, {"max_logprob_difference", *resident.trainer_difference}});
  };
  manager = std::make_unique<serve::ModelManager>(locate, options.engine, serve_memory, serve_stream, base::RealClock(),
                                                  observe);
  loads = std::make_unique<serve::ModelLoads>(*manager, *workers, base::RealClock(), [this](const std::string& name) {
    return registry::FindModel(*state->models, metrics, name).status();
  });
}

absl::Status App::State::OpenOperations() {
  registry::ModelLibraryOptions library_options;
  library_options.import_root = options.import_root;
  library_options.upload_limits.max_files = 1000;
  library_options.upload_limits.max_file_bytes = static_cast<std::uint64_t>(options.max_model_bytes);
  library_options.upload_limits.max_total_bytes = static_cast<std::uint64_t>(options.max_model_bytes);
  library_options.upload_limits.min_free_bytes = state->min_free_bytes;
  library_options.max_tokenizer_bytes = static_cast<std::uint64_t>(options.max_tokenizer_bytes);
  library_options.memory = serve_memory;
  library_options.eval_dataset_of_job = [this](const std::string& job) {
    return plan::EvalDatasetOf(*controller, job);
  };
  library_options.find_checkpoint = [this](const std::string& name, const std::string& tenant) {
    return plan::FindCheckpoint(*controller, name, tenant);
  };
  uploads = std::make_unique<registry::UploadTable>(
      base::RealClock(), registry::UploadTableOptions{.max_bytes_per_principal = options.max_upload_bytes_per_principal,
                                                      .kept = absl::Seconds(options.upload_kept_s)});
  model_library =
      std::make_unique<registry::ModelLibrary>(*state, *texts, *tokens, metrics, base::RealClock(), *uploads,
                                               convert_stream, serve_stream, std::move(library_options));
  model_answers = std::make_unique<rpc::ModelAnswers>(*model_library, *manager);
  NIBBLE_ASSIGN_OR_RETURN(
      operations,
      operations::OperationTable::Open(
          files, base::RealClock(), state->paths.operations(), OrNone(options.operation_deadline_s),
          [this](const auto& operation, const std::string& model) { return model_answers->Recover(operation, model); },
          rpc::ParseOperationV1));
  operations->set_max_of_owner(options.max_operations_per_principal);
  sweeper = std::make_unique<rpc::Sweeper>(kSweepEvery, [this] {
    uploads->DropOld();
    operations->DropOld();
  });
  return absl::OkStatus();
}

absl::Status App::State::StartGrpc() {
  dataset_service = std::make_unique<rpc::DatasetService>(*call_environment, *state, *texts, *uploads,
                                                          tokens->large_rows(), options.import_root);
  fine_tune_service =
      std::make_unique<rpc::FineTuneService>(*call_environment, *controller, *texts, *operations, *planner);
  model_service = std::make_unique<rpc::ModelService>(*call_environment, *model_library, *manager, *model_answers,
                                                      *loads, *operations);
  inference_service = std::make_unique<rpc::InferenceService>(*call_environment, *loads, *texts);
  const auto begin_drain = [this](std::optional<absl::Duration> deadline) {
    drainer->Begin(deadline.value_or(options.drain));
  };
  server_service = std::make_unique<rpc::ServerService>(
      *call_environment,
      [this] {
        return rpc::ToProto(GatherFacts(options, *call_environment, serve_stream.isa, started, trainer_namespace));
      },
      [this] { return rpc::LoadNow(*manager, *database, ready && !draining, draining); }, begin_drain);
  upload_service = std::make_unique<rpc::UploadService>(*call_environment, *uploads);
  operations_service = std::make_unique<rpc::OperationsService>(*call_environment, *operations);
  report_service = std::make_unique<rpc::TrainerReportService>(*call_environment, *controller);
  network_report_service =
      std::make_unique<rpc::TrainerReportService>(*call_environment, *controller, /*for_trainers=*/true);
  if (!options.report.ca.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(report_ca, auth::CaFile::Open("--report_ca", options.report.ca));
  }
  rpc::RegisterMethods(metrics);

  std::vector<grpc::Service*> services = {dataset_service.get(),    fine_tune_service.get(), model_service.get(),
                                          inference_service.get(),  server_service.get(),    upload_service.get(),
                                          operations_service.get(), report_service.get()};
  if (options.kserve) {
    kserve =
        std::make_unique<kserve::KServeService>(*call_environment, kVersion, [this] { return ready && !draining; });
    rpc::RegisterService(metrics, rpc::kKServeService);
    services.push_back(kserve.get());
  }
  NIBBLE_ASSIGN_OR_RETURN(
      grpc, StartGrpcServer(options, state->paths.trainer_socket(), *authority, services, *network_report_service));
  if (kserve == nullptr) return absl::OkStatus();
  grpc.more_services.emplace_back(rpc::kKServeService);
  grpc.SetHealth(true);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // the server limits its messages
  kserve->Connect(grpc.server->InProcessChannel(arguments));
  return absl::OkStatus();
}

std::string App::State::GrpcAddress() const {
  return base::StrCat(options.grpc_address.substr(0, options.grpc_address.rfind(':') + 1), grpc.port);
}

jobs::ReportEndpoint App::State::Endpoint() const {
  if (!runner->outlives_server()) return {grpc.trainer_address.empty() ? GrpcAddress() : grpc.trainer_address};
  // Trainers in pods can use neither loopback nor, on another node, a socket in the state directory.
  if (grpc.reports == nullptr) return {};
  jobs::ReportEndpoint endpoint{ReportTarget(options, grpc.report_port)};
  if (report_ca != nullptr) endpoint.read_ca = [ca = report_ca.get()] { return ca->Read(); };
  return endpoint;
}

absl::Status App::State::WriteServerFile() {
  base::Json json = base::Json::object();
  json["pid"] = getpid();
  json["grpc_address"] = GrpcAddress();
  json["http_address"] =
      base::StrCat(options.http_address.substr(0, options.http_address.rfind(':') + 1), http->port());
  if (grpc.reports != nullptr) json["report_address"] = ReportTarget(options, grpc.report_port);
  if (openai != nullptr) {
    const std::string& given = options.openai.address;
    json["openai_address"] = base::StrCat(given.substr(0, given.rfind(':') + 1), openai->port());
  }
  json["version"] = kVersion;
  base::FileSystem& real = base::RealFileSystem();
  const std::string path = state->paths.server_file();
  absl::Status written = base::WriteFileAtomically(real, path, base::Dump(json, 2) + "\n");
  if (base::Reason(written) != "DISK_FULL") return written;
  // Starts even on a full disk, because only a running server can delete models and jobs. The previous server's file
  // would show wrong addresses.
  base::LogWarning("cannot write server.json", {{"why", std::string(written.message())}});
  return real.RemoveAll(path);
}

void App::State::Collect(telemetry::Metrics& out) {
  out.SetKernelLaunches("serve", "cpu", serve_launches.Snapshot());
  out.SetKernelLaunches("convert", "cpu", convert_launches.Snapshot());
  for (const auto& resident : manager->residents()) {
    const serve::EngineLoad load = resident->engine->load();
    out.SetScheduler(resident->name, {.waiting = load.waiting,
                                      .running = load.running,
                                      .kv_blocks_used = load.used_pages,
                                      .kv_blocks = load.total_pages});
  }
  if (openai != nullptr) openai->Collect(out);
  out.SetPreemptions(manager->totals().preemptions);
  if (const auto counts = database->Counts(); counts.ok()) {
    for (const jobs::Method* method : jobs::Methods()) {
      for (int i = 0; i < jobs::kNumJobStates; ++i)
        out.SetJobs(method->name(), jobs::Name(static_cast<jobs::JobState>(i)), 0);
    }
    for (const auto& count : *counts) out.SetJobs(count.method, jobs::Name(count.state), count.count);
  }
  std::int64_t models = 0;
  std::set<std::string, std::less<>> names;
  for (const auto& model : state->models->List()) {
    models += static_cast<std::int64_t>(model.bytes);
    names.insert(model.name);
  }
  out.KeepModels(names);
  std::int64_t datasets = 0;
  for (const auto& dataset : state->datasets->List()) datasets += static_cast<std::int64_t>(dataset.bytes);
  out.SetArtifactBytes("model", models);
  out.SetArtifactBytes("dataset", datasets);
  if (const auto bytes = base::RealFileSystem().FreeBytes(state->paths.root()); bytes.ok())
    out.SetDiskFree("state", *bytes);
  if (HasDatabaseVolume()) {
    if (const auto bytes = base::RealFileSystem().FreeBytes(state->paths.database_root()); bytes.ok())
      out.SetDiskFree("database", *bytes);
  }
  if (authority->wants_tokens()) out.SetTokenFileOk(authority->FileIsOk());
  if (grpc.tls != nullptr) {
    const auth::TlsHealth tls = grpc.tls->Look();
    out.SetTlsFilesOk(tls.files.ok());
    out.SetCertificateExpiry("server", absl::ToDoubleSeconds(tls.cert_expiry - absl::UnixEpoch()));
    if (!options.security.tls_client_ca.empty()) {
      out.SetCertificateExpiry("client_ca", absl::ToDoubleSeconds(tls.client_ca_expiry - absl::UnixEpoch()));
    }
  }
}

App::App(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<App>> App::Start(const AppOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckFlags(options));
  NIBBLE_ASSIGN_OR_RETURN(const kernels::Isa isa, PickIsa(options.isa));
  RaiseOpenFiles(options);
  auto state = std::make_unique<State>(options);
  State& s = *state;
  s.serve_stream = {.isa = isa, .pool = &s.pool, .launches = &s.serve_launches, .library = s.library.get()};
  s.convert_stream = {.isa = isa, .pool = &s.pool, .launches = &s.convert_launches, .library = s.library.get()};
  NIBBLE_RETURN_IF_ERROR(s.OpenState());  // first: a second server then fails on the lock, not on the ports
  NIBBLE_RETURN_IF_ERROR(s.StartHttp());
  NIBBLE_RETURN_IF_ERROR(s.OpenJobs());
  // After OpenJobs, which trims the caches.
  store::WarnBelowWatermark(s.files, s.state->paths.root(), s.state->min_free_bytes,
                            "free disk space is below the watermark: new jobs, models and datasets are refused");
  NIBBLE_RETURN_IF_ERROR(s.OpenCalls());
  s.OpenModels();
  NIBBLE_RETURN_IF_ERROR(s.OpenOperations());
  s.drainer = std::make_unique<Drainer>(s.StepsOfDrain(), base::RealClock());
  NIBBLE_RETURN_IF_ERROR(s.StartGrpc());
  if (!options.openai.address.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(s.openai, OpenAiServer::Start(options, s.grpc, *s.authority, s.metrics));
  }
  s.metrics.AddCollector([&s](telemetry::Metrics& out) { s.Collect(out); });
  s.controller->Run(s.Endpoint());
  NIBBLE_RETURN_IF_ERROR(s.WriteServerFile());
  s.ready = true;
  base::LogInfo("ready", {{"grpc_port", s.grpc.port},
                          {"http_port", s.http->port()},
                          {"isa", kernels::Name(isa)},
                          {"openai_port", s.openai == nullptr ? 0 : s.openai->port()},
                          {"report_port", s.grpc.report_port},
                          {"threads", options.threads},
                          {"trainer", options.trainer_path}});
  return std::unique_ptr<App>(new App(std::move(state)));
}

DrainSteps App::State::StepsOfDrain() {
  return {.refuse =
              [this] {
                draining = true;
                grpc.SetHealth(false);
              },
          .stop_jobs = [this] { controller->Shutdown(options.job_grace); },
          .live_calls = [this] { return call_environment->live_calls.count(); },
          .cut_calls = [this] { call_environment->live_calls.CancelAll(); },
          .end_watches = [this] { call_environment->drain.Fire(); }};
}

void App::Reload() {
  state_->authority->Reload();
  if (state_->grpc.tls != nullptr) state_->grpc.tls->Look();
}

void App::Drain() {
  State& s = *state_;
  s.drainer->Begin(s.options.drain);
  s.drainer->Wait();
  s.openai.reset();
  // Before the others end, because the streams of trainers that continue do not end by themselves.
  if (s.grpc.reports != nullptr) s.grpc.reports->Shutdown(std::chrono::system_clock::now());
  s.grpc.server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
}

App::~App() {
  State& s = *state_;
  s.drainer->Wait();
  s.draining = true;
  s.metrics.ClearCollectors();
  s.http.reset();
  s.openai.reset();
  if (s.grpc.server != nullptr) {
    s.call_environment->drain.Fire();
    if (s.grpc.reports != nullptr) {
      s.grpc.reports->Shutdown(std::chrono::system_clock::now());
      s.grpc.reports->Wait();
    }
    s.grpc.server->Shutdown(std::chrono::system_clock::now());
    s.grpc.server->Wait();
  }
  s.sweeper.reset();
  s.operations.reset();  // waits for running operations
  s.loads->Stop();       // waits for running loads
  // gRPC may finish with a cancelled stream before its worker does, and the worker may still use its model or engine.
  s.workers->AwaitIdle();
  s.call_environment->text_workers.AwaitIdle();
  s.call_environment->watch_workers.AwaitIdle();
  for (const auto& resident : s.manager->residents()) s.manager->Unload(resident->name).IgnoreError();
  // Cancelled requests end with their engine's next step; until then they use the workers.
  while (s.call_environment->live_answers > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  s.workers.reset();
  s.loads.reset();
  base::RealFileSystem().RemoveAll(s.state->paths.server_file()).IgnoreError();
}

int App::grpc_port() const { return state_->grpc.port; }
int App::http_port() const { return state_->http->port(); }
int App::report_port() const { return state_->grpc.report_port; }
int App::openai_port() const { return state_->openai == nullptr ? 0 : state_->openai->port(); }

}  // namespace nibble
