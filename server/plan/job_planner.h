// Plans what a job needs, from the server's own models and data, before the job is queued.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/memory_budget.h"
#include "server/data/token_cache.h"
#include "server/jobs/controller_options.h"
#include "server/jobs/job_spec.h"
#include "server/plan/check_job.h"
#include "server/plan/plan_job.h"
#include "server/registry/text_cache.h"
#include "server/store/state_directory.h"

namespace nibble::plan {

inline constexpr char kDefaultDevice[] = "cpu";  // the device that "auto" means

// A plan and its resolved spec.
struct PlannedJob {
  jobs::JobSpec spec;
  JobPlan plan;
  std::int64_t available_bytes = 0;    // memory that all trainers together may use; 0: unknown
  std::uint64_t spare_disk_bytes = 0;  // store::PlannableBytes
};

// Thread-safe. All arguments but `memory` are borrowed. A plan reads all data and tokenizes what is not in the cache,
// which takes minutes for a GiB of text and can be cancelled. Nothing of the data stays in memory after a plan.
class JobPlanner {
 public:
  // `train_bytes`: memory that all trainers together may use; 0: unknown. `memory`: shared by models and trainers.
  JobPlanner(std::int64_t train_bytes, const std::string& trainer_path, const store::StateDirectory& state,
             registry::TextCache& texts, data::TokenCache& tokens, std::shared_ptr<base::MemoryBudget> memory)
      : train_bytes_(train_bytes),
        trainer_path_(trainer_path),
        state_(state),
        texts_(texts),
        tokens_(tokens),
        memory_(std::move(memory)) {}

  // Errors: the reasons to refuse the job, except that the adapter of warm_start_from does not fit (Check);
  // Unimplemented without a trainer.
  absl::StatusOr<PlannedJob> Plan(const jobs::JobSpec& spec, const base::CancelToken& cancel) const;
  // The checks that read neither rows nor a tokenizer; takes milliseconds. Call it before Plan, which does not check
  // the adapter of warm_start_from. Returns the resolved spec.
  absl::StatusOr<jobs::JobSpec> Check(const jobs::JobSpec& spec) const;
  // `spec` must be resolved. Also checks the job.
  absl::StatusOr<jobs::PlannedMemory> Memory(const jobs::JobSpec& spec, const base::CancelToken& cancel) const;
  // `spec` must be resolved. Checks what needs neither rows nor a tokenizer; takes milliseconds.
  absl::Status CheckWithoutRows(const jobs::JobSpec& spec) const;
  // The token files that the job's trainer reads. `spec` must be resolved. Reads no tokenizer; takes a millisecond.
  absl::StatusOr<std::vector<std::string>> TokenFiles(const jobs::JobSpec& spec) const;

 private:
  // Fills in the fields that the user left unset. Errors: those of Validate.
  static absl::StatusOr<jobs::JobSpec> Resolved(const jobs::JobSpec& spec, const JobInputs& inputs);
  // Adds the datasets that the spec names.
  absl::Status AddData(const jobs::JobSpec& spec, JobInputs& inputs) const;
  // For checks that read no rows: without a tokenizer, which takes up to seconds to load.
  absl::StatusOr<JobInputs> InputsOf(const jobs::JobSpec& spec, const base::CancelToken& cancel) const;
  absl::StatusOr<JobInputs> InputsWithRows(const jobs::JobSpec& spec, const base::CancelToken& cancel) const;
  absl::StatusOr<JobPlan> PlanOf(const jobs::JobSpec& spec, const JobInputs& inputs) const;

  const std::int64_t train_bytes_;
  const std::string& trainer_path_;
  const store::StateDirectory& state_;
  registry::TextCache& texts_;
  data::TokenCache& tokens_;
  const std::shared_ptr<base::MemoryBudget> memory_;
};

}  // namespace nibble::plan
