#include "server/jobs/disk_admission.h"

#include <algorithm>
#include <utility>

#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/store/base_cache.h"
#include "server/store/disk_space.h"
#include "server/store/job_space.h"

namespace nibble::jobs {

namespace {

constexpr absl::Duration kMeasureEvery = absl::Seconds(5);
// Interval between two attempts to remove cached bases for the same queued jobs. The second attempt may succeed where
// the first did not: the trainer that used the base may have ended.
constexpr absl::Duration kMakeRoomEvery = absl::Seconds(10);
// Maximum number of queued jobs measured in one call: each takes up to some milliseconds. The others count with their
// whole plans until a later call.
constexpr int kMostMeasured = 4;

std::int64_t NotYetWritten(std::int64_t planned, std::int64_t written) {
  return std::max<std::int64_t>(0, planned - written);
}

}  // namespace

absl::StatusOr<Picked> DiskAdmission::Pick(std::vector<QueuedJob> queue, const RunningLoad& load,
                                           const QueueLimits& limits,
                                           const std::map<std::string, std::int64_t>& running, absl::Duration now) {
  SubtractWritten(queue);
  std::int64_t reserved = 0;
  for (const auto& [id, planned] : running) reserved += planned;
  NIBBLE_ASSIGN_OR_RETURN(Picked picked, PickWith(queue, load, limits, reserved, now));
  if (picked.short_of_disk.empty()) return picked;
  if (reserved > 0) {
    if (now - measured_ < kMeasureEvery) {
      picked.short_of_disk.clear();
      return picked;
    }
    measured_ = now;
    reserved = 0;
    for (const auto& [id, planned] : running) {
      reserved += NotYetWritten(planned, static_cast<std::int64_t>(store::AttemptsBytes(state_.paths, id)));
    }
    // PickWith reads the free space after the bytes of the attempts. Bytes written between the two readings thus count
    // twice; in the other order they would not count.
    NIBBLE_ASSIGN_OR_RETURN(picked, PickWith(queue, load, limits, reserved, now));
    if (picked.short_of_disk.empty()) return picked;
  }
  if (!making_room() && !MakeRoom(picked.short_of_disk, reserved, now)) return picked;
  NIBBLE_ASSIGN_OR_RETURN(picked, PickWith(queue, load, limits, reserved, now));
  picked.short_of_disk.clear();
  return picked;
}

absl::StatusOr<Picked> DiskAdmission::PickWith(const std::vector<QueuedJob>& queue, const RunningLoad& load,
                                               QueueLimits limits, std::int64_t reserved_bytes,
                                               absl::Duration now) const {
  // Read before the free space: if the bases are removed between the two readings, their space counts as still being
  // made. In the other order a later job could take the space that was made for an earlier one.
  limits.making_disk_room = making_room();
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t spare,
                          store::SpareBytes(state_.files, state_.paths.root(), state_.min_free_bytes));
  limits.disk_left_bytes = NotYetWritten(static_cast<std::int64_t>(spare), reserved_bytes);
  return PickNext(queue, load, limits, now);
}

void DiskAdmission::SubtractWritten(std::vector<QueuedJob>& queue) {
  std::map<std::string, Written> kept;
  int num_measured = 0;
  for (QueuedJob& job : queue) {
    if (job.attempt == 0 || job.disk_bytes == 0) continue;
    const auto known = written_.find(job.id);
    Written written;
    if (known != written_.end() && known->second.attempt == job.attempt) {
      written = known->second;
    } else if (num_measured++ < kMostMeasured) {
      written = {job.attempt, static_cast<std::int64_t>(store::AttemptsBytes(state_.paths, job.id))};
    } else {
      continue;
    }
    job.disk_bytes = NotYetWritten(job.disk_bytes, written.bytes);
    kept.emplace(job.id, written);
  }
  written_ = std::move(kept);
}

bool DiskAdmission::MakeRoom(const std::vector<Picked::ShortOfDisk>& short_of_disk, std::int64_t reserved_bytes,
                             absl::Duration now) {
  if (room_ != nullptr && !room_->value().ok()) {
    base::LogWarning("cannot remove cached bases for a job", {{"why", std::string(room_->value().status().message())}});
  }
  room_ = nullptr;
  std::vector<std::string> ids;
  std::vector<std::uint64_t> needs;
  for (const Picked::ShortOfDisk& one : short_of_disk) {
    ids.push_back(one.job.id);
    needs.push_back(static_cast<std::uint64_t>(one.job.disk_bytes) + static_cast<std::uint64_t>(reserved_bytes));
  }
  if (ids == room_tried_for_ && now - room_tried_ < kMakeRoomEvery) return false;
  room_tried_for_ = std::move(ids);
  room_tried_ = now;
  room_ = worker_.Start<absl::StatusOr<bool>>(
      [&state = state_, needs = std::move(needs)](const base::Cancelled&) -> absl::StatusOr<bool> {
        store::BaseCache bases(state.files, state.paths.bases(), {.min_free_bytes = state.min_free_bytes});
        for (const std::uint64_t need : needs) {
          NIBBLE_ASSIGN_OR_RETURN(const bool made, bases.MakeRoom(need));
          if (made) return true;
        }
        return false;
      });
  return true;
}

}  // namespace nibble::jobs
