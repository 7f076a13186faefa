// Recognizes trainers that the kernel's OOM killer ended.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace nibble::jobs {

// Processes that the OOM killer has ended so far in one control group.
struct OomCount {
  std::string group;  // unique: another group, or the same after a reboot, has another name
  std::uint64_t kills = 0;
};
using ReadOomCount = std::function<std::optional<OomCount>()>;  // nothing if the system does not report it

// A kill is counted before its process is gone, so each trainer that ended by SIGKILL may claim one. The count does not
// name the process: a kill that is not claimed within 10 s was another process's and is forgotten. One thread.
class OomWatch {
 public:
  explicit OomWatch(ReadOomCount read);  // null: no kill is ever seen

  // Reads the kills since the last look.
  void Look(absl::Duration now);
  // Claims a kill for a trainer whose end was just seen. False if there is none to claim.
  bool Claim(absl::Duration now);
  // The count as of the last look.
  const std::optional<OomCount>& count() const { return count_; }

 private:
  const ReadOomCount read_;
  std::optional<OomCount> count_;
  std::uint64_t unclaimed_ = 0;
  absl::Duration seen_;  // time of the last kill
};

}  // namespace nibble::jobs
