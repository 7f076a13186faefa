#include "server/telemetry/process.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "server/base/process_memory.h"

namespace nibble::telemetry {

namespace {

std::int64_t CountOpenFiles() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  std::int64_t count = -3;  // ".", ".." and the descriptor of the directory itself
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// Seconds since the epoch: the machine's boot time plus field 22 of /proc/self/stat.
double StartTime() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  const auto end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return 0;
  std::istringstream fields(text.substr(end_of_name + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;  // field 2 is the name
  std::ifstream machine("/proc/stat");
  const std::string boot_time = "btime ";
  std::string line;
  while (std::getline(machine, line)) {
    if (!line.starts_with(boot_time)) continue;
    return std::strtod(line.c_str() + boot_time.size(), nullptr) +
           std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  return 0;
}

}  // namespace

ProcessFigures ReadProcess() {
  static const double start = StartTime();
  ProcessFigures figures;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  figures.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  figures.start_unix_seconds = start;
  figures.resident_bytes = base::ResidentBytes();
  figures.peak_resident_bytes = base::PeakResidentBytes();
  figures.virtual_bytes = base::VirtualBytes();
  figures.open_files = CountOpenFiles();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) figures.max_files = static_cast<std::int64_t>(limit.rlim_cur);
  return figures;
}

}  // namespace nibble::telemetry
