#include "server/plan/disk_plan.h"

#include <algorithm>

#include "server/plan/memory_plan.h"
#include "server/plan/method_plan.h"

namespace nibble::plan {
namespace {

constexpr std::int64_t kLogBytes = std::int64_t{8} << 20;  // journal, log and the files of an attempt
constexpr int kForms = 3;  // forms of the model, each with its tokenizer: base, trained and served
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;  // more than a disk has

}  // namespace

std::int64_t PlanDisk(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes,
                      std::int64_t companion_bytes, std::int64_t max_steps) {
  const std::int64_t trained = TrainedParameters(spec, config);
  const auto checkpoint =
      static_cast<double>(PlanOf(spec).CheckpointValueBytes(spec, config) + MomentBytes(spec, trained));
  // A new checkpoint is complete before the oldest is removed.
  const std::int64_t saved = spec.run.save_every > 0 ? max_steps / spec.run.save_every + 1 : 1;
  const auto checkpoints = static_cast<double>(std::min(std::max<std::int64_t>(1, spec.run.keep_last) + 1, saved));
  double bytes = static_cast<double>(kLogBytes + kForms * companion_bytes) + checkpoints * checkpoint;
  bytes += PlanOf(spec).WeightFileBytes(spec, config, base_bytes);
  return static_cast<std::int64_t>(std::min(bytes, static_cast<double>(kMostBytes)));
}

}  // namespace nibble::plan
