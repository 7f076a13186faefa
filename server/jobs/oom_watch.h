// Which trainers the kernel's OOM killer ended.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace nibble::jobs {

// Processes that the OOM killer has ended so far in one control group.
struct OomCount {
  std::string group;  // names the group for as long as it exists: another one, or another boot, has another name
  std::uint64_t kills = 0;
};
using ReadOomCount = std::function<std::optional<OomCount>()>;  // nothing where the system does not tell

// A kill shows in the count before its process is gone, so each end of a trainer by SIGKILL may claim one. The count does not name
// the process: a kill that nobody claims within 10 s was another one's, and is forgotten. One thread.
class OomWatch {
 public:
  explicit OomWatch(ReadOomCount read);  // null: never knows of any

  // Takes in the kills since the last look.
  void Look(absl::Duration now);
  // Whether one of them may be that of a trainer whose end was seen just now.
  bool Claim(absl::Duration now);
  // The count as of the last look.
  const std::optional<OomCount>& count() const { return count_; }

 private:
  const ReadOomCount read_;
  std::optional<OomCount> count_;
  std::uint64_t unclaimed_ = 0;
  absl::Duration seen_;  // the last of them
};

}  // namespace nibble::jobs
