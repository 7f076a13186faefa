// What a job needs, told from the server's own models and data before it is queued.
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
#include "server/limits.h"
#include "server/plan/check_job.h"
#include "server/plan/plan_job.h"
#include "server/rpc/fine_tune_service.h"
#include "server/rpc/text_cache.h"
#include "server/store/state_directory.h"

namespace nibble {

inline constexpr char kDefaultDevice[] = "cpu";  // what "auto" stands for

// Thread-safe. All is borrowed. A plan reads all data and tokenises what is not in the cache: minutes for a GiB of it, unless it is
// cancelled. It keeps nothing in memory.
class JobPlanner {
 public:
  // `memory`: of models and trainers together.
  JobPlanner(const Limits& limits, const std::string& trainer_path, const store::StateDirectory& state, rpc::TextCache& texts,
             data::TokenCache& tokens, std::shared_ptr<base::MemoryBudget> memory)
      : limits_(limits), trainer_path_(trainer_path), state_(state), texts_(texts), tokens_(tokens), memory_(std::move(memory)) {}

  // Errors: those of a job that is refused; Unimplemented without a trainer.
  absl::StatusOr<rpc::PlannedJob> Plan(const jobs::JobSpec& spec, const base::CancelToken& cancel) const;
  // What Plan refuses without reading rows or a tokenizer; milliseconds.
  absl::Status Check(const jobs::JobSpec& spec) const;
  // Of a resolved spec. Checks the job as well.
  absl::StatusOr<jobs::PlannedMemory> Memory(const jobs::JobSpec& spec, const base::CancelToken& cancel) const;
  // Of a resolved spec. What can be refused without reading rows or a tokenizer; milliseconds.
  absl::Status CheckWithoutRows(const jobs::JobSpec& spec) const;
  // Of a resolved spec: the token files that its trainer reads. Reads no tokenizer; a millisecond.
  absl::StatusOr<std::vector<std::string>> TokenFiles(const jobs::JobSpec& spec) const;

 private:
  // What the user left open is chosen. Errors: of Validate.
  static absl::StatusOr<jobs::JobSpec> Resolved(const jobs::JobSpec& spec, const plan::JobInputs& inputs);
  // The data sets that the spec names.
  absl::Status AddData(const jobs::JobSpec& spec, plan::JobInputs& inputs) const;
  // Without a tokenizer, which takes up to seconds to load, for checks that read no rows.
  absl::StatusOr<plan::JobInputs> InputsOf(const jobs::JobSpec& spec, const base::CancelToken& cancel) const;
  absl::StatusOr<plan::JobInputs> InputsWithRows(const jobs::JobSpec& spec, const base::CancelToken& cancel) const;
  absl::StatusOr<plan::JobPlan> PlanOf(const jobs::JobSpec& spec, const plan::JobInputs& inputs) const;

  const Limits& limits_;
  const std::string& trainer_path_;
  const store::StateDirectory& state_;
  rpc::TextCache& texts_;
  data::TokenCache& tokens_;
  const std::shared_ptr<base::MemoryBudget> memory_;
};

}  // namespace nibble
