// The kernel's count of processes that it killed for their memory in this process's control group: trainers are in it, as
// children. Versions 1 and 2.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace nibble::telemetry {

// `proc_cgroup` is /proc/self/cgroup's path, `mount` /sys/fs/cgroup's. Nothing where the system does not tell: no memory
// controller, or the root group.
std::optional<std::uint64_t> ReadOomKills(const std::string& proc_cgroup, const std::string& mount);

// The same count with the name of what it counts: the group, which a later group of the same path does not share. Where there is no
// group, that of the whole machine (`vmstat`: /proc/vmstat). `boot_id`: /proc/sys/kernel/random/boot_id.
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
