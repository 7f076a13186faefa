// What a job needs, told from the server's own models and data before it is queued.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/jobs/controller_options.h"
#include "server/jobs/job_spec.h"
#include "server/limits.h"
#include "server/plan/check_job.h"
#include "server/rpc/fine_tune_service.h"
#include "server/rpc/text_cache.h"
#include "server/store/state_directory.h"

namespace nibble {

inline constexpr char kDefaultDevice[] = "cpu";  // what "auto" stands for

// Thread-safe. All is borrowed. A plan reads and tokenises all data: minutes for a GiB of it, unless it is cancelled.
class JobPlanner {
 public:
  JobPlanner(const Limits& limits, const std::string& trainer_path, const store::StateDirectory& state, rpc::TextCache& texts)
      : limits_(limits), trainer_path_(trainer_path), state_(state), texts_(texts) {}

  // Errors: those of a job that is refused; Unimplemented without a trainer.
  absl::StatusOr<rpc::PlannedJob> Plan(const jobs::JobSpec& spec, const base::CancelToken& cancel) const;
  // Of a resolved spec. Checks the job as well.
  absl::StatusOr<jobs::PlannedMemory> Memory(const jobs::JobSpec& spec, const base::CancelToken& cancel) const;

 private:
  absl::StatusOr<plan::JobInputs> InputsOf(const jobs::JobSpec& spec, const base::CancelToken& cancel) const;

  const Limits& limits_;
  const std::string& trainer_path_;
  const store::StateDirectory& state_;
  rpc::TextCache& texts_;
};

}  // namespace nibble
