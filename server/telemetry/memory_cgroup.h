// The number of processes that the kernel's OOM killer ended in this process's control group. Trainers that are
// child processes belong to that group; those in pods of their own do not. Supports cgroup versions 1 and 2.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace nibble::telemetry {

// `proc_cgroup`: the path of /proc/self/cgroup. `mount`: the path of /sys/fs/cgroup. Nullopt if the system reports no
// count: no memory controller, or the root group.
std::optional<std::uint64_t> ReadOomKills(const std::string& proc_cgroup, const std::string& mount);

// The same count with a name for its group; a later group with the same path gets another name. Without a group, the
// count is that of the whole machine (`vmstat`: /proc/vmstat). `boot_id`: /proc/sys/kernel/random/boot_id.
struct NamedOomKills {
  std::string group;
  std::uint64_t kills = 0;
};
struct OomPaths {
  std::string proc_cgroup = "/proc/self/cgroup";
  std::string mount = "/sys/fs/cgroup";
  std::string vmstat = "/proc/vmstat";
  std::string boot_id = "/proc/sys/kernel/random/boot_id";
};
std::optional<NamedOomKills> ReadNamedOomKills(const OomPaths& paths);

}  // namespace nibble::telemetry
