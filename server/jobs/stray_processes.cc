#include "server/jobs/stray_processes.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>
#include <vector>

#include "server/base/files.h"
#include "server/base/log.h"
#include "server/base/strings.h"

namespace nibble::jobs {

namespace {

constexpr auto kWaitForDeath = std::chrono::seconds(1);

std::vector<pid_t> Processes() {
  std::vector<pid_t> all;
  const auto names = base::RealFileSystem().List("/proc");
  if (!names.ok()) return all;
  for (const std::string& name : *names) {
    if (name.find_first_not_of("0123456789") == std::string::npos)
      all.push_back(static_cast<pid_t>(std::atoi(name.c_str())));
  }
  return all;
}

pid_t ParentOf(pid_t pid) {
  const auto text = base::RealFileSystem().Read(base::StrCat("/proc/", pid, "/stat"), 4096);
  if (!text.ok()) return 0;
  // "pid (name) state parent": the name may hold anything.
  const std::size_t close = text->rfind(')');
  if (close == std::string::npos) return 0;
  std::istringstream fields(text->substr(close + 1));
  std::string state;
  pid_t parent = 0;
  fields >> state >> parent;
  return parent;
}

bool TakesOrphans() {
  int subreaper = 0;
  return ::getpid() == 1 || (::prctl(PR_GET_CHILD_SUBREAPER, &subreaper) == 0 && subreaper != 0);
}

// SIGKILL takes a moment; a process that hangs in the kernel is left for later.
void ReapKilled(pid_t pid) {
  const auto give_up = std::chrono::steady_clock::now() + kWaitForDeath;
  while (::waitpid(pid, nullptr, WNOHANG) == 0 && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

void KillHolders(const std::string& path) {
  for (const pid_t pid : Processes()) {
    if (pid == ::getpid()) continue;
    const std::string folder = base::StrCat("/proc/", pid, "/fd");
    std::error_code error;
    for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      std::error_code gone;
      if (std::filesystem::read_symlink(it->path(), gone).string() != path || gone) continue;
      base::LogWarning("killing a process that a trainer started", {{"pid", pid}});
      ::kill(pid, SIGKILL);
      break;
    }
  }
}

void EndStrayChildren(const std::set<pid_t>& known) {
  // A killed process leaves its own children to this one: repeat until none is left.
  for (bool found = true; found;) {
    found = false;
    for (const pid_t pid : Processes()) {
      if (known.contains(pid) || ParentOf(pid) != ::getpid()) continue;
      ::kill(pid, SIGKILL);
      ReapKilled(pid);
      if (ParentOf(pid) != ::getpid()) found = true;  // reaped; a process that hangs must not keep the loop going
    }
  }
}

void ReapStrayChildren(const std::set<pid_t>& known) {
  if (!TakesOrphans()) return;
  while (true) {
    siginfo_t info = {};
    // Look before reaping: a wait for any child could take a trainer's exit status.
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (known.contains(info.si_pid)) break;
    if (::waitpid(info.si_pid, nullptr, WNOHANG) != info.si_pid) return;
  }
  // waitid returns an ended trainer again and again until it is reaped, so the others are found in /proc.
  for (const pid_t pid : Processes()) {
    if (!known.contains(pid) && ParentOf(pid) == ::getpid()) ::waitpid(pid, nullptr, WNOHANG);
  }
}

}  // namespace nibble::jobs
