#include "server/jobs/process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "server/base/files.h"
#include "server/base/strings.h"

namespace nibble::jobs {

namespace {

// Runs between fork and exec in a process with threads: makes only system calls and allocates no memory.
[[noreturn]] void RunChild(const ChildPlan& plan, char* const* arguments, char* const* environment) {
  ::setpgid(0, 0);
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);

  ::dup2(plan.standard_input, 0);
  ::dup2(plan.standard_output, 1);
  ::dup2(plan.standard_output, 2);
  // gRPC and others open sockets without close-on-exec. Linux before 5.11 cannot mark a range of descriptors: mark them
  // one by one, at most 65536, because the limit of descriptors may be a billion.
  if (::syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC) != 0) {
    const long end = std::min(::sysconf(_SC_OPEN_MAX), 65536L);
    for (int fd = 3; fd < end; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  ::fcntl(plan.inherited, F_SETFD, 0);

  const rlimit no_core = {0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  const int oom_score = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (oom_score >= 0) {
    (void)!::write(oom_score, "500", 3);  // of -1000 to 1000; 0 is the default
    ::close(oom_score);
  }

  char digits[24];  // the pid, last digit first: snprintf may allocate
  std::size_t at = sizeof digits;
  for (pid_t pid = ::getpid(); pid > 0; pid /= 10) digits[--at] = static_cast<char>('0' + pid % 10);
  (void)!::pwrite(plan.inherited, digits + at, sizeof digits - at, 0);

  ::execve(arguments[0], arguments, environment);
  const int error = errno;
  (void)!::write(plan.error_pipe, &error, sizeof error);
  ::_exit(127);
}

// The null-terminated array that execve takes. Points into `texts`.
std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<pid_t> Spawn(const ChildPlan& plan) {
  const std::vector<char*> arguments = Pointers(plan.arguments), environment = Pointers(plan.environment);
  const pid_t pid = ::fork();
  if (pid < 0) return absl::ResourceExhaustedError(base::StrCat("fork: ", std::strerror(errno)));
  if (pid == 0) RunChild(plan, arguments.data(), environment.data());
  ::setpgid(pid, pid);  // On both sides, so that the group exists before a signal is sent to it.
  return pid;
}

ExitStatus Reap(pid_t pid, bool wait) {
  int status = 0;
  pid_t got;
  do {
    got = ::waitpid(pid, &status, wait ? 0 : WNOHANG);
  } while (got < 0 && errno == EINTR);
  if (got != pid) return {ExitStatus::Kind::kUnknown, 0};
  if (WIFSIGNALED(status)) return {ExitStatus::Kind::kSignaled, WTERMSIG(status)};
  return {ExitStatus::Kind::kExited, WEXITSTATUS(status)};
}

absl::StatusOr<std::optional<std::int64_t>> StartTicks(pid_t pid) {
  constexpr std::optional<std::int64_t> kGone;
  if (pid <= 0) return kGone;
  const auto text = base::RealFileSystem().Read(base::StrCat("/proc/", pid, "/stat"), 4096);
  if (absl::IsNotFound(text.status())) return kGone;
  if (!text.ok()) return text.status();
  // The second field is the program's name in brackets, which may itself contain blanks and brackets.
  const std::size_t bracket = text->rfind(')');
  std::istringstream fields(bracket == std::string::npos ? "" : text->substr(bracket + 1));
  std::string field;
  for (int number = 3; fields >> field; ++number) {
    if (number == 3 && (field == "Z" || field == "X")) return kGone;
    if (number == 22) return std::optional<std::int64_t>(std::stoll(field));
  }
  return absl::InternalError(base::StrCat("/proc/", pid, "/stat has no field 22"));
}

}  // namespace nibble::jobs
