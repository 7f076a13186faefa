// nibbled: flags -> App -> wait for a signal -> drain.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "server/app.h"
#include "server/base/files.h"
#include "server/base/log.h"
#include "server/base/log_writer.h"
#include "server/base/nearest.h"
#include "server/base/process_memory.h"
#include "server/base/strings.h"
#include "server/build_info.h"
#include "server/library_log.h"

namespace {

using nibble::AppOptions;

int AvailableCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// libgomp, which oneDNN uses, reads its settings from the environment when it is loaded, so this program sets them and
// executes itself again. libgomp's threads must not spin beside ours, nor outnumber them.
void SetOpenMp(int threads, char** argv) {
  const std::string wanted = std::to_string(threads);
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  const char* number = std::getenv("OMP_NUM_THREADS");
  if (policy != nullptr && std::string(policy) == "passive" && number != nullptr && number == wanted) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  setenv("OMP_NUM_THREADS", wanted.c_str(), 1);
  execv("/proc/self/exe", argv);
  nibble::base::LogWarning("the OpenMP settings could not be applied", {});
}

std::string TrainerBesideMe() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return "";
  const std::string self(path, static_cast<std::size_t>(length));
  const std::string trainer = self.substr(0, self.rfind('/') + 1) + "nibble-trainer";
  return access(trainer.c_str(), X_OK) == 0 ? trainer : "";
}

// Refuses a --trainer that could not run: otherwise only the first job would report it.
void CheckTrainer(const AppOptions& options) {
  if (options.trainer_path.empty()) return;
  if (options.runner == "kubernetes") {
    throw CLI::ValidationError("--trainer",
                               "not with --runner kubernetes: trainers are in the images of --trainer_templates");
  }
  struct stat info;
  if (stat(options.trainer_path.c_str(), &info) != 0) {
    throw CLI::ValidationError("--trainer", nibble::base::StrCat(options.trainer_path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode) || access(options.trainer_path.c_str(), X_OK) != 0) {
    throw CLI::ValidationError("--trainer", options.trainer_path + " is not a file that this user may execute");
  }
}

// Durations as given by flags.
struct Seconds {
  double drain, job_grace;
};

void AddSecurityFlags(CLI::App& cli, nibble::SecurityOptions& security) {
  cli.add_option("--tls_cert", security.tls_cert,
                 "PEM file: the server's certificate and its chain; read again when it changes");
  cli.add_option("--tls_key", security.tls_key, "PEM file: the server's private key");
  cli.add_option("--tls_client_ca", security.tls_client_ca,
                 "PEM file: the CA that client certificates are checked against");
  cli.add_flag("--tls_require_client_cert", security.tls_require_client_cert, "Refuse clients without a certificate");
  cli.add_option("--token_file", security.token_file,
                 "Tokens of callers, one JSON object per line (SECURITY.md); read again when it changes");
  cli.add_flag("--insecure", security.insecure, "Allow an address that is not loopback without TLS or without tokens");
  cli.add_flag("--reflection", security.reflection, "Serve gRPC reflection");
  cli.add_flag("--health_without_token", security.health_without_token, "Answer grpc.health.v1.Health without a token");
  cli.add_flag("--reflection_without_token", security.reflection_without_token, "Answer reflection without a token");
}

void AddRunnerFlags(CLI::App& cli, AppOptions& options) {
  nibble::KubernetesOptions& kubernetes = options.kubernetes;
  cli.add_option("--runner", options.runner, "Where trainers run: local (child processes) or kubernetes (Jobs)")
      ->check(CLI::IsMember({"local", "kubernetes"}));
  cli.add_option(
      "--trainer_templates", kubernetes.templates,
      "JSON file with a Job for each device, {\"cpu\": JOB, \"cuda\": JOB}, from which trainers' Jobs are made");
  cli.add_option("--kubernetes_server_name", kubernetes.server_name,
                 "Label nibble.dev/server of this server's Jobs; no other server of the namespace may have it");
  cli.add_option("--kubernetes_queue", kubernetes.queue, "Kueue's LocalQueue for trainers; empty: without Kueue");
  cli.add_option("--kubernetes_namespace", kubernetes.cluster.name_space, "Namespace of Jobs; default: the pod's own");
  cli.add_option("--kubernetes_url", kubernetes.cluster.url, "https://HOST:PORT of the API server; default: the pod's");
  cli.add_option("--kubernetes_token_file", kubernetes.cluster.token_file,
                 "Token for the API server, read for each request; default: the pod's service account");
  cli.add_option("--kubernetes_ca_file", kubernetes.cluster.ca_file,
                 "PEM file: the CA of the API server; default: the pod's service account");
  cli.add_option("--start_timeout_s", kubernetes.start_timeout_s,
                 "A trainer whose image, configuration or rights are wrong for this long has failed to start")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--lost_node_timeout_s", kubernetes.lost_node_timeout_s,
                 "After this time the attempt of a trainer whose node does not answer is given up")
      ->check(CLI::NonNegativeNumber);
}

void AddReportFlags(CLI::App& cli, nibble::ReportOptions& report) {
  cli.add_option("--report_address", report.address,
                 "HOST:PORT for the reports of trainers with --runner kubernetes; port 0 picks a free one; empty: the "
                 "server only reads their journals. Other than loopback: requires TLS");
  cli.add_option("--report_target", report.target,
                 "HOST:PORT that trainers dial for --report_address, such as the name of a Service; default: "
                 "--report_address");
  cli.add_option("--report_ca", report.ca,
                 "PEM file with which trainers check the server's certificate; read again for each attempt. Required "
                 "with TLS and --report_address");
}

void AddOpenAiFlags(CLI::App& cli, nibble::OpenAiOptions& openai) {
  cli.add_option("--openai_address", openai.address,
                 "HOST:PORT of the endpoints of OpenAI's API (docs/clients.md); port 0 picks a free one; empty: none. "
                 "Other than loopback: requires TLS and tokens, which are those of --grpc_address");
  cli.add_option(
         "--openai_cors_origins", openai.cors_origins,
         "Origins of web pages that may call these endpoints, such as https://example.org, separated by commas; "
         "*: all; empty: none")
      ->delimiter(',');
  cli.add_option("--openai_response_ttl_s", openai.response_ttl_s,
                 "Time for which /v1/responses keeps a response, which clients may read again or continue; 0: it keeps "
                 "none")
      ->check(CLI::Range(0.0, 1e8));
  cli.add_option("--openai_response_bytes", openai.response_bytes,
                 "Memory for the responses that /v1/responses keeps; the oldest are dropped above it. One principal "
                 "may use half")
      ->check(CLI::Range(std::int64_t{1} << 20, std::int64_t{1} << 40));
}

void AddFlags(CLI::App& cli, AppOptions& options, Seconds& seconds) {
  cli.option_defaults()->always_capture_default();  // shown by --help
  cli.add_option("--state_dir", options.state_dir, "Directory of models, datasets and jobs")->required();
  cli.add_option("--database_dir", options.database_dir,
                 "Directory of the database, on a disk of this machine if the state directory is on a network file "
                 "system; default: the state directory");
  cli.add_option("--grpc_address", options.grpc_address,
                 "HOST:PORT of the API; port 0 picks a free one. Other than loopback: requires TLS and tokens");
  cli.add_option("--http_address", options.http_address, "HOST:PORT of metrics and probes; port 0 picks a free one");
  AddSecurityFlags(cli, options.security);
  AddReportFlags(cli, options.report);
  AddOpenAiFlags(cli, options.openai);
  cli.add_flag("--kserve", options.kserve,
               "Serve KServe's V2 inference protocol, for Triton's clients, on --grpc_address too (docs/clients.md)");
  cli.add_option("--threads", options.threads, "Number of threads of the compute kernels")->check(CLI::Range(1, 1024));
  cli.add_option("--trainer_threads", options.trainer_threads,
                 "Number of threads of each trainer, and of CPUs that its pod requests; 0: --threads")
      ->check(CLI::Range(0, 1024));
  cli.add_option("--device", options.device, "auto or cpu");
  cli.add_option("--isa", options.isa, "auto, plain, avx2 or avx512");
  cli.add_option("--import_root", options.import_root, "Directory whose files clients may import by path");
  cli.add_option("--trainer", options.trainer_path,
                 "Path of nibble-trainer, with --runner local; default: next to this program");
  AddRunnerFlags(cli, options);
  cli.add_option("--max_waiting_requests", options.engine.max_waiting, "Maximum number of waiting requests per model")
      ->check(CLI::Range(0, 1'000'000));
  cli.add_option("--max_running_requests", options.engine.max_running,
                 "Maximum number of outputs in the batch per model; a request has one or more (n)")
      ->check(CLI::Range(1, 4096));
  cli.add_option("--max_waiting_tokens", options.engine.max_waiting_tokens,
                 "Maximum number of waiting prompt tokens per model")
      ->check(CLI::PositiveNumber);
  cli.add_option("--max_context", options.engine.max_context,
                 "Maximum number of tokens of a request, prompt and completion")
      ->check(CLI::PositiveNumber);
  cli.add_option("--kv_tokens", options.engine.kv_tokens, "Capacity of a model's KV cache, in tokens")
      ->check(CLI::PositiveNumber);
  nibble::serve::PrincipalOptions& own = options.engine.of_principal;
  cli.add_option("--max_waiting_requests_per_principal", own.max_waiting,
                 "Maximum number of one principal's waiting requests per model; 0: a quarter of --max_waiting_requests")
      ->check(CLI::Range(0, 1'000'000));
  cli.add_option("--max_running_requests_per_principal", own.max_running,
                 "Maximum number of one principal's outputs in the batch per model; 0: three quarters of "
                 "--max_running_requests")
      ->check(CLI::Range(0, 4096));
  cli.add_option("--kv_tokens_per_principal", own.kv_tokens,
                 "Maximum number of tokens of one principal's running requests per model; 0: three quarters of "
                 "--kv_tokens; at least --max_context")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--prefill_chunk", options.engine.prefill_chunk, "Maximum number of prompt tokens per step")
      ->check(CLI::PositiveNumber);
  nibble::AddLimitFlags(cli, options);
  cli.add_option("--drain_s", seconds.drain, "Time at shutdown for running requests to end")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--job_grace_s", seconds.job_grace, "Time at shutdown for trainers to write a checkpoint")
      ->check(CLI::NonNegativeNumber);
}

constexpr int kUsageExitCode = 2;  // the program nibble has the same

// Prints what is wrong with the flags, and returns the exit code: 0 after --help and --version. CLI11 reports a missing
// flag before an unknown one. This reports the unknown one: it is usually the missing flag, misspelt.
int UsageError(const CLI::App& cli, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = cli.remaining();
  const auto flag =
      std::find_if(unknown.begin(), unknown.end(), [](const auto& word) { return word.starts_with("-"); });
  if (error.get_exit_code() == 0 || flag == unknown.end()) return cli.exit(error) == 0 ? 0 : kUsageExitCode;
  std::vector<std::string> flags;
  for (const CLI::Option* option : cli.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  const std::string name = flag->substr(0, flag->find('='));
  std::fprintf(stderr, "unknown flag %s%s\nRun with --help for more information.\n", name.c_str(),
               nibble::base::DidYouMean(name, flags).c_str());
  return kUsageExitCode;
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): without memory to start the server, the program ends.
int main(int argc, char** argv) {
  AppOptions options;
  options.threads = AvailableCpus();
  Seconds seconds = {absl::ToDoubleSeconds(options.drain), absl::ToDoubleSeconds(options.job_grace)};
  CLI::App cli{"The Nibble server: fine-tunes language models in low precision and serves them"};
  cli.footer(
      "SIGTERM and SIGINT drain and end the server; SIGHUP reads the files of --tls_* and --token_file again at once.");
  const nibble::BuildSource source = nibble::BuiltFrom();
  const std::string commit = *source.commit == '\0' ? "unknown" : source.commit;
  cli.set_version_flag("--version",
                       nibble::base::StrCat("nibbled ", nibble::kVersion, "\ncommit ", commit, "\ncode ",
                                            source.code_digest, "\ncuda ", source.cuda),
                       "Print what this program was built from");
  AddFlags(cli, options, seconds);
  try {
    cli.parse(argc, argv);
    CheckTrainer(options);
  } catch (const CLI::ParseError& error) {
    return UsageError(cli, error);
  }
  options.drain = absl::Seconds(seconds.drain);
  options.job_grace = absl::Seconds(seconds.job_grace);
  if (options.trainer_path.empty()) options.trainer_path = TrainerBesideMe();
  if (options.runner == "kubernetes") options.trainer_path = "nibble-trainer";  // in the image of the templates
  SetOpenMp(options.threads, argv);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) options.environment.emplace_back(*entry);

  nibble::base::LimitArenas(std::max(4, AvailableCpus()));

  ::umask(027);  // trainers inherit it
  std::signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_NAME, "nibbled");  // the execv of SetOpenMp has named it "exe"
  // Orphans of trainers become our children and are killed (server/jobs/stray_processes.h).
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // No core files, because they would contain prompts and weights.
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  // Blocked before any thread is created, so that all threads inherit the mask and only sigwait receives the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const nibble::base::LogWriter log_writer;  // to the end of main: a stalled reader of the log must not block us
  nibble::LogLibraries();
  auto app = nibble::App::Start(options);
  if (!app.ok()) {
    std::fprintf(stderr, "nibbled: %s\n", std::string(app.status().message()).c_str());
    return 1;
  }
  int signal = 0;
  while (sigwait(&signals, &signal) == 0 && signal == SIGHUP) {
    nibble::base::LogInfo("reading TLS and token files again", {{"signal", "SIGHUP"}});
    (*app)->Reload();
  }
  nibble::base::LogInfo("stopping", {{"signal", signal == SIGTERM ? "SIGTERM" : "SIGINT"}});
  (*app)->Drain();
  app->reset();
  nibble::base::LogInfo("stopped", {});
  return 0;
}
