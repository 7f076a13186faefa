#include "server/telemetry/memory_cgroup.h"

#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "server/base/strings.h"

namespace nibble::telemetry {

namespace {

// Finds the line "oom_kill 3" in memory.events (version 2) or memory.oom_control (version 1) and returns the 3.
std::optional<std::uint64_t> OomKillLine(const std::string& path) {
  std::ifstream file(path);
  std::string key;
  std::uint64_t value = 0;
  while (file >> key >> value) {
    if (key == "oom_kill") return value;
  }
  return std::nullopt;
}

// Whether a list such as "cpu,memory" names the memory controller.
bool HasMemory(const std::string& controllers) {
  std::istringstream list(controllers);
  std::string name;
  while (std::getline(list, name, ',')) {
    if (name == "memory") return true;
  }
  return false;
}

// Files that may hold the count, best first.
std::vector<std::string> Candidates(const std::string& proc_cgroup, const std::string& mount) {
  std::ifstream groups(proc_cgroup);
  std::string line;
  std::vector<std::string> candidates;
  while (std::getline(groups, line)) {  // hierarchy:controllers:path
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    // A container sees its own group as the root of the mount, but this file may still give the host's path.
    if (HasMemory(controllers)) {
      candidates.insert(candidates.begin(), {base::StrCat(mount, "/memory", path, "/memory.oom_control"),
                                             base::StrCat(mount, "/memory/memory.oom_control")});
    } else if (controllers.empty()) {
      candidates.push_back(base::StrCat(mount, path, "/memory.events"));
      candidates.push_back(base::StrCat(mount, "/memory.events"));
    }
  }
  return candidates;
}

}  // namespace

std::optional<std::uint64_t> ReadOomKills(const std::string& proc_cgroup, const std::string& mount) {
  for (const std::string& candidate : Candidates(proc_cgroup, mount)) {
    if (const auto kills = OomKillLine(candidate); kills.has_value()) return kills;
  }
  return std::nullopt;
}

std::optional<NamedOomKills> ReadNamedOomKills(const OomPaths& paths) {
  std::ifstream boot_file(paths.boot_id);
  std::string boot;
  if (!std::getline(boot_file, boot)) return std::nullopt;  // A name without the boot id would outlive its count.
  for (const std::string& candidate : Candidates(paths.proc_cgroup, paths.mount)) {
    const auto kills = OomKillLine(candidate);
    // Within one boot, no later group reuses the inodes of a group's files.
    struct stat info = {};
    if (kills.has_value() && ::stat(candidate.c_str(), &info) == 0) {
      return NamedOomKills{base::StrCat(boot, " ", info.st_ino, " ", candidate), *kills};
    }
  }
  if (const auto kills = OomKillLine(paths.vmstat); kills.has_value()) return NamedOomKills{boot, *kills};
  return std::nullopt;
}

}  // namespace nibble::telemetry
