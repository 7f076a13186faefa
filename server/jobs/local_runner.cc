#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "server/base/files.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/process.h"
#include "server/jobs/runner.h"
#include "server/jobs/stray_processes.h"
#include "server/store/layout.h"

namespace nibble::jobs {

using base::JoinPath;
using base::StrCat;

namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
constexpr auto kWaitForDescendants = std::chrono::seconds(5);
constexpr auto kWaitForPid = std::chrono::seconds(1);

absl::Status FromErrno(std::string_view what) {
  return absl::InternalError(StrCat("local runner: ", what, ": ", std::strerror(errno)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

class LocalRunner : public Runner {
 public:
  explicit LocalRunner(LocalRunnerOptions options) : options_(std::move(options)) {}

  absl::StatusOr<ProcessId> Start(const std::string& directory) override {
    // Held by the trainer as long as it lives: tells a server that comes back, without trusting a pid.
    Descriptor lock(::open(LockPath(directory).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640));
    if (lock.get() < 0) return FromErrno("open the attempt's lock");
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      return absl::AlreadyExistsError(StrCat("a process of ", directory, " is running already"));
    }
    Descriptor log(::open(JoinPath(directory, store::kTrainerLogFile).c_str(),
                          O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
    if (log.get() < 0) return FromErrno("open trainer.log");
    Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (null.get() < 0) return FromErrno("open /dev/null");
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return FromErrno("pipe");
    Descriptor read_end(ends[0]), write_end(ends[1]);

    ChildPlan plan;
    plan.program = options_.trainer_path;
    plan.arguments = {options_.trainer_path, "--job_dir", directory};
    plan.environment = options_.environment;
    plan.standard_input = null.get();
    plan.standard_output = log.get();
    plan.kept = lock.get();
    plan.error_pipe = write_end.get();
    NIBBLE_ASSIGN_OR_RETURN(const pid_t pid, Spawn(plan));
    write_end.Close();
    lock.Close();

    int error = 0;
    ssize_t n;
    do {
      n = ::read(read_end.get(), &error, sizeof error);
    } while (n < 0 && errno == EINTR);
    if (n == static_cast<ssize_t>(sizeof error)) {
      (void)Reap(pid, true);
      return absl::FailedPreconditionError(StrCat("cannot start ", options_.trainer_path, ": ", std::strerror(error)));
    }
    const ProcessId id{pid, StartTicks(pid).value_or(0)};
    running_[directory] = {id, true, {}};
    return id;
  }

  absl::StatusOr<ProcessId> Adopt(const std::string& directory, std::optional<ProcessId> recorded) override {
    if (!LockHeld(directory)) return absl::NotFoundError(StrCat("no process of ", directory, " is alive"));
    ProcessId id = recorded.value_or(ProcessId{});
    if (!recorded.has_value()) {
      // The server died between the start and the record. The child writes its pid before it becomes the trainer.
      const SteadyTime give_up = std::chrono::steady_clock::now() + kWaitForPid;
      while (id.pid == 0 && LockHeld(directory)) {
        const auto text = base::RealFileSystem().Read(LockPath(directory), 32);
        if (text.ok() && !text->empty()) id.pid = std::strtoll(text->c_str(), nullptr, 10);
        if (id.pid != 0 || std::chrono::steady_clock::now() > give_up) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      if (id.pid <= 1) return absl::NotFoundError(StrCat("no process of ", directory, " could be found"));
      id.start_ticks = StartTicks(static_cast<pid_t>(id.pid)).value_or(0);
    }
    running_[directory] = {id, false, {}};
    return id;
  }

  std::optional<ExitStatus> Poll(const std::string& directory) override {
    const auto it = running_.find(directory);
    if (it == running_.end()) return ExitStatus{};
    Running& running = it->second;
    const pid_t pid = static_cast<pid_t>(running.id.pid);
    if (running.is_child) {
      siginfo_t info = {};
      if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0) {
        return std::nullopt;
      }
      // Not reaped yet, so the number is still its own: end what it left behind.
      ::kill(-pid, SIGKILL);
    } else if (Leader(running)) {
      return std::nullopt;
    } else if (LockHeld(directory) && !StartTicks(pid).has_value()) {
      // The group's number stays taken as long as it has a member; if the pid is in use, it is a stranger's.
      ::kill(-pid, SIGKILL);
    }
    if (LockHeld(directory)) {
      const SteadyTime now = std::chrono::steady_clock::now();
      if (!running.gone_since.has_value()) running.gone_since = now;
      KillHolders(LockPath(directory));
      if (now - *running.gone_since < kWaitForDescendants) return std::nullopt;
      base::LogWarning("a process that the trainer started does not end", {{"attempt", directory}});
    }
    // Also for the adopted: it may be our child after all (a controller made anew in the same process).
    const ExitStatus status = Reap(pid, running.is_child);
    running_.erase(it);
    std::set<pid_t> known;
    for (const auto& [other, process] : running_) known.insert(static_cast<pid_t>(process.id.pid));
    EndStrayChildren(known);
    return status;
  }

  void Send(const std::string& directory, Signal signal) override {
    const auto it = running_.find(directory);
    if (it == running_.end()) return;
    if (!it->second.is_child && !Leader(it->second)) return;
    ::kill(-static_cast<pid_t>(it->second.id.pid), signal == Signal::kKill ? SIGKILL : SIGTERM);
  }

 private:
  struct Running {
    ProcessId id;
    bool is_child = false;
    std::optional<SteadyTime> gone_since;
  };

  static std::string LockPath(const std::string& directory) { return JoinPath(directory, store::kAttemptLockFile); }

  // True when the adopted pid is alive and still the process that it was.
  static bool Leader(const Running& running) {
    const auto ticks = StartTicks(static_cast<pid_t>(running.id.pid));
    return ticks.has_value() && *ticks == running.id.start_ticks;
  }

  static bool LockHeld(const std::string& directory) {
    Descriptor lock(::open(LockPath(directory).c_str(), O_RDWR | O_CLOEXEC));
    if (lock.get() < 0) return false;
    return ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  }

  const LocalRunnerOptions options_;
  std::map<std::string, Running> running_;  // by attempt directory
};

}  // namespace

std::unique_ptr<Runner> MakeLocalRunner(LocalRunnerOptions options) {
  return std::make_unique<LocalRunner>(std::move(options));
}

std::vector<std::string> AllowedEnvironment(const std::vector<std::string>& environment) {
  static constexpr std::string_view kAllowed[] = {"PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "TZ", "CUDA_VISIBLE_DEVICES",
                                                  "NVIDIA_VISIBLE_DEVICES", "NIBBLE_FAILPOINT"};
  std::vector<std::string> allowed;
  for (const std::string& entry : environment) {
    const std::string_view key = std::string_view(entry).substr(0, entry.find('='));
    for (const std::string_view name : kAllowed) {
      if (key == name && key.size() < entry.size()) allowed.push_back(entry);
    }
  }
  return allowed;
}

}  // namespace nibble::jobs
