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

}  // namespace nibble::telemetry
