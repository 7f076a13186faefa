#include "server/jobs/local_runner.h"

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
#include "server/jobs/stray_processes.h"
#include "server/jobs/trainer_handle.h"
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

std::string HandleOf(const ProcessId& id) { return id.pid == 0 ? "" : StrCat(id.pid, "/", id.start_ticks); }

ProcessId FromHandle(const std::string& handle) {
  char* end = nullptr;
  ProcessId id;
  id.pid = std::strtoll(handle.c_str(), &end, 10);
  if (*end == '/') id.start_ticks = std::strtoll(end + 1, nullptr, 10);
  return id;
}

TrainerEnd EndOf(const ExitStatus& status) {
  switch (status.kind) {
    case ExitStatus::Kind::kExited: return {TrainerEnd::Cause::kExited, status.value};
    case ExitStatus::Kind::kSignaled: return {TrainerEnd::Cause::kSignaled, status.value};
    case ExitStatus::Kind::kUnknown: return {};
  }
  return {};
}

class LocalRunner : public Runner {
 public:
  explicit LocalRunner(LocalRunnerOptions options) : options_(std::move(options)) {}

  void Start(const TrainerRequest& request) override {
    const std::string& directory = request.directory;
    Running running{.is_child = true};
    const absl::StatusOr<ProcessId> id = Launch(directory);
    if (id.ok()) running.id = *id;
    if (!id.ok()) running.end = TrainerEnd{.cause = TrainerEnd::Cause::kNotStarted, .failure = id.status()};
    running_.insert_or_assign(directory, std::move(running));
  }

  absl::StatusOr<bool> Adopt(const TrainerRequest& request, const std::string& recorded) override {
    const std::string& directory = request.directory;
    NIBBLE_ASSIGN_OR_RETURN(bool held, LockHeld(directory));
    if (!recorded.empty() && recorded.find_first_not_of("0123456789/") != std::string::npos) {
      return HandleOfOtherRunner(directory, recorded);
    }
    ProcessId id = FromHandle(recorded);
    if (held && id.start_ticks == 0) {
      // The server died before it recorded the process. The child writes its pid before it becomes the trainer.
      const SteadyTime give_up = std::chrono::steady_clock::now() + kWaitForPid;
      for (id.pid = 0; held; std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
        NIBBLE_ASSIGN_OR_RETURN(const std::string text, base::RealFileSystem().Read(LockPath(directory), 32));
        id.pid = std::strtoll(text.c_str(), nullptr, 10);
        if (id.pid > 1 || std::chrono::steady_clock::now() > give_up) break;
        NIBBLE_ASSIGN_OR_RETURN(held, LockHeld(directory));
      }
      if (held && id.pid <= 1) {
        KillHolders(LockPath(directory));  // The child could not write its pid, so it cannot be watched.
        held = false;
      }
      NIBBLE_ASSIGN_OR_RETURN(const auto ticks, StartTicks(static_cast<pid_t>(id.pid)));
      id.start_ticks = ticks.value_or(0);
    }
    if (held) running_.insert_or_assign(directory, Running{.id = id});
    return held;
  }

  TrainerState Poll(const std::string& directory) override {
    const auto it = running_.find(directory);
    if (it == running_.end()) return {.phase = TrainerState::Phase::kEnded};
    Running& running = it->second;
    if (!running.end.has_value()) Look(directory, running);
    TrainerState state{.phase = TrainerState::Phase::kRunning, .handle = HandleOf(running.id)};
    if (running.end.has_value()) {
      state.phase = TrainerState::Phase::kEnded;
      state.end = *running.end;
    }
    return state;
  }

  void Send(const std::string& directory, Signal signal) override {
    const auto it = running_.find(directory);
    if (it == running_.end() || it->second.end.has_value()) return;
    if (!it->second.is_child) {
      const auto alive = IsAlive(it->second);
      if (!alive.ok() || !*alive) return;
    }
    ::kill(-static_cast<pid_t>(it->second.id.pid), signal == Signal::kKill ? SIGKILL : SIGTERM);
  }

  void Forget(const std::string& directory) override {
    const auto it = running_.find(directory);
    if (it != running_.end() && it->second.end.has_value()) running_.erase(it);
  }

  void ReapStrays() override { ReapStrayChildren(Pids()); }

 private:
  struct Running {
    ProcessId id = {};
    bool is_child = false;
    std::optional<TrainerEnd> end = std::nullopt;
    std::optional<SteadyTime> gone_since = std::nullopt;
    bool complained = false;
  };

  absl::StatusOr<ProcessId> Launch(const std::string& directory) const {
    // The trainer holds this lock while it lives, so that a restarted server need not trust a pid.
    Descriptor lock(::open(LockPath(directory).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640));
    if (lock.get() < 0) return FromErrno("open the attempt's lock");
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      return absl::AlreadyExistsError(StrCat("a process of ", directory, " is running already"));
    }
    Descriptor log(
        ::open(JoinPath(directory, store::kTrainerLogFile).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
    if (log.get() < 0) return FromErrno("open trainer.log");
    Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (null.get() < 0) return FromErrno("open /dev/null");
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return FromErrno("pipe");
    Descriptor read_end(ends[0]), write_end(ends[1]);

    ChildPlan plan;
    plan.arguments = {options_.trainer_path, "--job_dir", directory};
    plan.environment = options_.environment;
    plan.standard_input = null.get();
    plan.standard_output = log.get();
    plan.inherited = lock.get();
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
      (void)Reap(pid, /*wait=*/true);
      return absl::FailedPreconditionError(StrCat("cannot start ", options_.trainer_path, ": ", std::strerror(error)));
    }
    const auto ticks = StartTicks(pid);
    return ProcessId{pid, ticks.ok() ? ticks->value_or(0) : 0};  // 0: Adopt reads the pid from the lock
  }

  // Sets the trainer's end once no process of the attempt is left.
  void Look(const std::string& directory, Running& running) const {
    const absl::StatusOr<bool> over = Over(directory, running);
    if (!over.ok()) {
      if (!std::exchange(running.complained, true)) {
        base::LogWarning("cannot determine whether the trainer is alive",
                         {{"directory", directory}, {"why", std::string(over.status().message())}});
      }
      return;
    }
    if (!*over) return;
    // Also for an adopted process: it may be our child after all (a second controller in the same process).
    running.end = EndOf(Reap(static_cast<pid_t>(running.id.pid), running.is_child));
    EndStrayChildren(Pids());
  }

  // The pids of the trainers that are not reaped yet.
  std::set<pid_t> Pids() const {
    std::set<pid_t> pids;
    for (const auto& [directory, running] : running_) {
      if (!running.end.has_value()) pids.insert(static_cast<pid_t>(running.id.pid));
    }
    return pids;
  }

  static std::string LockPath(const std::string& directory) { return JoinPath(directory, store::kAttemptLockFile); }

  // True if no process of the attempt is left. Kills processes that outlive the trainer. Also true, with a warning, if
  // such a process does not end within kWaitForDescendants.
  static absl::StatusOr<bool> Over(const std::string& directory, Running& running) {
    const pid_t pid = static_cast<pid_t>(running.id.pid);
    if (running.is_child) {
      siginfo_t info = {};
      if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0)
        return false;
      // The trainer is not reaped yet, so no other process has its pid. Kill the processes that it left behind.
      ::kill(-pid, SIGKILL);
    } else {
      NIBBLE_ASSIGN_OR_RETURN(const auto ticks, StartTicks(pid));
      if (ticks == running.id.start_ticks) return false;
      NIBBLE_ASSIGN_OR_RETURN(const bool held, LockHeld(directory));
      // The pid is also the id of the trainer's process group: no new process can get it while the group has a member.
      // If a process has this pid now, it is unrelated and must not be killed.
      if (held && !ticks.has_value()) ::kill(-pid, SIGKILL);
    }
    NIBBLE_ASSIGN_OR_RETURN(const bool held, LockHeld(directory));
    if (!held) return true;
    const SteadyTime now = std::chrono::steady_clock::now();
    if (!running.gone_since.has_value()) running.gone_since = now;
    KillHolders(LockPath(directory));
    if (now - *running.gone_since < kWaitForDescendants) return false;
    base::LogWarning("a process that the trainer started does not end", {{"directory", directory}});
    return true;
  }

  // True if the adopted pid is alive and still the same process.
  static absl::StatusOr<bool> IsAlive(const Running& running) {
    NIBBLE_ASSIGN_OR_RETURN(const auto ticks, StartTicks(static_cast<pid_t>(running.id.pid)));
    return ticks == running.id.start_ticks;
  }

  static absl::StatusOr<bool> LockHeld(const std::string& directory) {
    Descriptor lock(::open(LockPath(directory).c_str(), O_RDWR | O_CLOEXEC));
    if (lock.get() < 0 && errno == ENOENT) return false;
    if (lock.get() < 0) return FromErrno("open the attempt's lock");
    if (::flock(lock.get(), LOCK_SH | LOCK_NB) == 0) return false;
    if (errno == EWOULDBLOCK) return true;
    return FromErrno("check the attempt's lock");
  }

  const LocalRunnerOptions options_;
  std::map<std::string, Running> running_;  // by attempt directory
};

}  // namespace

std::unique_ptr<Runner> MakeLocalRunner(LocalRunnerOptions options) {
  return std::make_unique<LocalRunner>(std::move(options));
}

std::vector<std::string> TrainerEnvironment(const std::vector<std::string>& environment) {
  static constexpr std::string_view kAllowed[] = {"PATH",
                                                  "HOME",
                                                  "TMPDIR",
                                                  "LANG",
                                                  "LC_ALL",
                                                  "TZ",
                                                  "CUDA_VISIBLE_DEVICES",
                                                  "NVIDIA_VISIBLE_DEVICES",
                                                  "NIBBLE_FAILPOINT"};
  std::vector<std::string> allowed;
  for (const std::string& entry : environment) {
    const std::string_view key = std::string_view(entry).substr(0, entry.find('='));
    for (const std::string_view name : kAllowed) {
      if (key == name && key.size() < entry.size()) allowed.push_back(entry);
    }
  }
  // libgomp spins for 300,000 rounds, which take milliseconds, if each of its own threads has a CPU, and for 1,000
  // otherwise. It does not know that a trainer shares its CPUs with this server and other trainers
  // (tests/bench/train_beside_serve.py).
  allowed.emplace_back("GOMP_SPINCOUNT=1000");
  return allowed;
}

}  // namespace nibble::jobs
