#include "server/telemetry/memory_cgroup.h"

#include <fstream>
#include <sstream>
#include <vector>

#include "server/base/strings.h"

namespace nibble::telemetry {

namespace {

// "oom_kill 3" among the lines of memory.events (version 2) or memory.oom_control (version 1).
std::optional<std::uint64_t> OomKillLine(const std::string& path) {
  std::ifstream file(path);
  std::string key;
  std::uint64_t value = 0;
  while (file >> key >> value) {
    if (key == "oom_kill") return value;
  }
  return std::nullopt;
}

// Whether "cpu,memory" names the controller.
bool HasMemory(const std::string& controllers) {
  std::istringstream list(controllers);
  std::string name;
  while (std::getline(list, name, ',')) {
    if (name == "memory") return true;
  }
  return false;
}

}  // namespace

std::optional<std::uint64_t> ReadOomKills(const std::string& proc_cgroup, const std::string& mount) {
  std::ifstream groups(proc_cgroup);
  std::string line;
  std::vector<std::string> candidates;
  while (std::getline(groups, line)) {  // hierarchy:controllers:path
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    // A container sees its own group as the root of the mount, and sometimes the host's path here.
    if (HasMemory(controllers)) {
      candidates.insert(candidates.begin(), {base::StrCat(mount, "/memory", path, "/memory.oom_control"),
                                             base::StrCat(mount, "/memory/memory.oom_control")});
    } else if (controllers.empty()) {
      candidates.push_back(base::StrCat(mount, path, "/memory.events"));
      candidates.push_back(base::StrCat(mount, "/memory.events"));
    }
  }
  for (const std::string& candidate : candidates) {
    if (const auto kills = OomKillLine(candidate); kills.has_value()) return kills;
  }
  return std::nullopt;
}

}  // namespace nibble::telemetry
