// nibbled: flags -> App -> wait for a signal -> drain.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "server/app.h"
#include "server/base/files.h"
#include "server/base/log.h"
#include "server/base/log_writer.h"
#include "server/base/process_memory.h"
#include "server/base/strings.h"
#include "server/build_info.h"

namespace {

using nibble::AppOptions;

int AvailableCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// libgomp, behind oneDNN, reads its settings when it is loaded: they must be in the environment before this program is. Its
// threads must not spin beside ours, nor be more than ours.
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

// Durations as people give them.
struct Seconds {
  double drain, job_grace;
};

void AddSecurityFlags(CLI::App& cli, nibble::SecurityOptions& security) {
  cli.add_option("--tls_cert", security.tls_cert, "PEM file: the server's certificate and its chain; read again when it changes");
  cli.add_option("--tls_key", security.tls_key, "PEM file: its private key");
  cli.add_option("--tls_client_ca", security.tls_client_ca, "PEM file: who signs the certificates that clients may show");
  cli.add_flag("--tls_require_client_cert", security.tls_require_client_cert, "Refuse clients without a certificate");
  cli.add_option("--token_file", security.token_file, "Who may call, one JSON object a line (SECURITY.md); read again when it changes");
  cli.add_flag("--insecure", security.insecure, "Allow an address that is not loopback without TLS or without tokens");
  cli.add_flag("--reflection", security.reflection, "Serve gRPC reflection");
  cli.add_flag("--health_without_token", security.health_without_token, "Answer grpc.health.v1.Health without a token");
  cli.add_flag("--reflection_without_token", security.reflection_without_token, "Answer reflection without a token");
}

void AddFlags(CLI::App& cli, AppOptions& options, Seconds& seconds) {
  cli.option_defaults()->always_capture_default();  // --help tells them
  cli.add_option("--state_dir", options.state_dir, "Where models, datasets and jobs are kept")->required();
  cli.add_option("--grpc_address", options.grpc_address, "HOST:PORT of the API; port 0 picks one. Not loopback: wants TLS and tokens");
  cli.add_option("--http_address", options.http_address, "HOST:PORT of metrics and probes; port 0 picks one");
  AddSecurityFlags(cli, options.security);
  cli.add_option("--threads", options.threads, "Threads of the kernels")->check(CLI::Range(1, 1024));
  cli.add_option("--device", options.device, "auto or cpu");
  cli.add_option("--isa", options.isa, "auto, plain, avx2 or avx512");
  cli.add_option("--import_root", options.import_root, "Directory below which clients may name files of this machine");
  cli.add_option("--trainer", options.trainer_path, "The trainer's program; default: beside this one");
  cli.add_option("--max_waiting_requests", options.engine.max_waiting, "A model")->check(CLI::Range(0, 1'000'000));
  cli.add_option("--max_running_requests", options.engine.max_running, "A model")->check(CLI::Range(1, 4096));
  cli.add_option("--max_waiting_tokens", options.engine.max_waiting_tokens, "Prompt tokens that may wait, a model")
      ->check(CLI::PositiveNumber);
  cli.add_option("--max_context", options.engine.max_context, "Tokens of a request, prompt and completion")->check(CLI::PositiveNumber);
  cli.add_option("--kv_tokens", options.engine.kv_tokens, "Capacity of a model's KV cache")->check(CLI::PositiveNumber);
  nibble::serve::PrincipalOptions& own = options.engine.of_principal;
  cli.add_option("--max_waiting_requests_per_principal", own.max_waiting,
                 "A model, of one user who has a name; 0: a quarter of --max_waiting_requests")
      ->check(CLI::Range(0, 1'000'000));
  cli.add_option("--max_running_requests_per_principal", own.max_running, "Likewise; 0: three quarters of --max_running_requests")
      ->check(CLI::Range(0, 4096));
  cli.add_option("--kv_tokens_per_principal", own.kv_tokens,
                 "Tokens that the running requests of one user who has a name may come to, a model; 0: three quarters of --kv_tokens; "
                 "at least --max_context")
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--prefill_chunk", options.engine.prefill_chunk, "Prompt tokens a step")->check(CLI::PositiveNumber);
  nibble::AddLimitFlags(cli, options);
  cli.add_option("--drain_s", seconds.drain, "At shutdown: for requests that run")->check(CLI::NonNegativeNumber);
  cli.add_option("--job_grace_s", seconds.job_grace, "At shutdown: for trainers to write a checkpoint")->check(CLI::NonNegativeNumber);
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): out of memory before the server stands ends it.
int main(int argc, char** argv) {
  AppOptions options;
  options.threads = AvailableCpus();
  Seconds seconds = {absl::ToDoubleSeconds(options.drain), absl::ToDoubleSeconds(options.job_grace)};
  CLI::App cli{"The Nibble server: fine-tunes language models in low precision and serves them"};
  cli.footer("SIGTERM and SIGINT drain and end the server; SIGHUP reads the files of --tls_* and --token_file at once.");
  const nibble::BuildSource source = nibble::BuiltFrom();
  const std::string commit = *source.commit == '\0' ? "unknown" : source.commit;
  cli.set_version_flag("--version", nibble::base::StrCat("nibbled ", nibble::kVersion, "\ncommit ", commit, "\ncode ",
                                                         source.code_digest, "\ncuda ", source.cuda),
                       "Print what this program was built from");
  AddFlags(cli, options, seconds);
  CLI11_PARSE(cli, argc, argv);
  options.drain = absl::Seconds(seconds.drain);
  options.job_grace = absl::Seconds(seconds.job_grace);
  if (options.trainer_path.empty()) options.trainer_path = TrainerBesideMe();
  SetOpenMp(options.threads, argv);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) options.environment.emplace_back(*entry);

  nibble::base::LimitArenas(std::max(4, AvailableCpus()));

  ::umask(027);  // trainers inherit it
  std::signal(SIGPIPE, SIG_IGN);
  // What a trainer leaves behind comes to us and is ended (server/jobs/stray_processes.h).
  prctl(PR_SET_NAME, "nibbled");  // SetOpenMp has made it "exe", which nobody looks for
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // No core files: they would hold prompts and weights.
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  // Blocked before any thread is made, so that all inherit it and only sigwait sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const nibble::base::LogWriter log_writer;  // to the end of main: a reader of our log that stalls must hold up nothing
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
