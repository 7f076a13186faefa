// nibble-trainer --job_dir DIR runs one attempt of a job, from DIR/attempt.json to DIR/outcome.json.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "kernels/isa.h"
#include "server/base/clock.h"
#include "server/base/error.h"
#include "server/base/failpoint_files.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/jobs/attempt.h"
#include "server/jobs/attempt_claim.h"
#include "server/library_log.h"
#include "server/store/layout.h"
#include "server/trainer/attempt_run.h"
#include "server/trainer/torch_runtime.h"

namespace {

volatile std::sig_atomic_t g_terminated = 0;

void OnTerminate(int) { g_terminated = 1; }

// Appends this process's output to a file. Used in a pod, whose printed output is lost when the pod is deleted; the
// local runner redirects the output before it starts the trainer.
void WriteLogTo(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  if (fd < 0) return;
  ::dup2(fd, STDOUT_FILENO);
  ::dup2(fd, STDERR_FILENO);
  ::close(fd);
}

int Run(const std::string& directory) {
  using namespace nibble;  // in main.cc only
  std::unique_ptr<base::FileSystem> failing;
  if (const char* failpoint = std::getenv("NIBBLE_FAILPOINT"); failpoint != nullptr) {
    auto made = base::MakeFailpointFiles(base::RealFileSystem(), failpoint);
    if (!made.ok()) {
      base::LogError("invalid NIBBLE_FAILPOINT", {{"error", std::string(made.status().message())}});
      return 1;
    }
    base::LogWarning("this trainer will fail on purpose", {{"failpoint", failpoint}});
    failing = *std::move(made);
  }
  base::FileSystem& files = failing != nullptr ? *failing : base::RealFileSystem();
  const auto order = jobs::ReadAttemptOrder(files, directory);
  if (!order.ok()) {
    base::LogError("cannot read the attempt's order", {{"error", std::string(order.status().message())}});
    return jobs::kExitBadInput;
  }
  kernels::Isa isa = kernels::DetectIsa();
  if (order->isa != "auto") {
    const auto forced = kernels::ParseIsa(order->isa);
    if (!forced.has_value() || *forced > isa) {
      base::LogError("instruction set not supported on this machine", {{"isa", order->isa}});
      return jobs::kExitBadInput;
    }
    isa = *forced;
  }
  static kernels::LaunchCounter launches;  // torch's operators are counted until the process ends
  trainer::InitTorch(static_cast<int>(order->threads), &launches);
  const auto pool = trainer::MakeTorchThreadPool();
  const auto library = trainer::MakeTorchLibrary();
  const char* pod = std::getenv("NIBBLE_POD_UID");
  const auto claim = jobs::AttemptClaim::Take(directory, pod != nullptr ? pod : base::NewId("trainer"));
  if (!claim.ok()) {
    base::LogError("cannot claim the attempt", {{"error", std::string(claim.status().message())}});
    if (absl::IsAlreadyExists(claim.status())) return jobs::kExitClaimed;
    return base::Reason(claim.status()) == "DISK_FULL" ? jobs::kExitDiskFull : 1;
  }
  if (pod != nullptr) WriteLogTo(base::JoinPath(directory, store::kTrainerLogFile));
  auto journal = jobs::JournalWriter::Open(files, base::RealClock(), directory);
  if (!journal.ok()) {
    base::LogError("cannot open the journal", {{"error", std::string(journal.status().message())}});
    return base::Reason(journal.status()) == "DISK_FULL" ? jobs::kExitDiskFull : 1;
  }
  trainer::Reporter reporter({.address = order->report_address,
                              .job_id = order->job_id,
                              .attempt = order->attempt,
                              .token = order->token,
                              .ca = order->report_ca});
  const std::function<bool()> terminated = [&reporter] { return g_terminated != 0 || reporter.stop().has_value(); };
  const jobs::Outcome outcome =
      trainer::RunAttempt({directory,
                           *order,
                           *claim,
                           files,
                           **journal,
                           reporter,
                           {.isa = isa, .pool = pool.get(), .launches = &launches, .library = library.get()},
                           terminated});
  reporter.Flush(absl::Seconds(5));
  if (reporter.fenced() || !claim->held()) return 1;  // the attempt is over and another may run: write nothing more
  if (const absl::Status written = jobs::WriteOutcome(files, directory, outcome); !written.ok()) {
    base::LogError("cannot write the outcome", {{"error", std::string(written.message())}});
    // A full disk cannot store the reason, but the exit code can report it.
    return base::Reason(written) == "DISK_FULL" ? jobs::kExitDiskFull : 1;
  }
  if (outcome.kind == jobs::Outcome::Kind::kFailed) {
    base::LogError("attempt failed",
                   {{"code", outcome.code}, {"reason", outcome.reason}, {"message", outcome.message}});
  }
  return outcome.exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  // MKL reads this variable at its first use and chooses its code path by it. Without the variable, results may depend
  // on the machine's instruction sets in ways that the job's identity does not record.
  ::setenv("MKL_CBWR", "AUTO,STRICT", /*overwrite=*/1);
  CLI::App app("Runs one attempt of a Nibble training job; started by nibbled.");
  std::string directory;
  app.add_option("--job_dir", directory, "attempt directory under the state directory")->required();
  CLI11_PARSE(app, argc, argv);
  nibble::LogLibraries();
  struct sigaction action = {};
  action.sa_handler = OnTerminate;
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
  const int code = Run(std::filesystem::absolute(directory).lexically_normal().string());
  // Skips destructors: torch destroys its thread pools in an unsafe order, and everything that matters is on disk.
  std::cout.flush();
  std::_Exit(code);
}
