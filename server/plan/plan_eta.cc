#include "server/plan/plan_eta.h"

#include <cstdint>

#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/model/tensor_table.h"

namespace nibble::plan {
namespace {

// Number of weights that multiply each token: the linears and the head. nullopt if the model does not exist.
std::optional<double> WeightsOf(const std::string& base, registry::TextCache& texts) {
  const auto facts = texts.Facts(base);
  if (!facts.ok()) return std::nullopt;
  const model::ModelConfig& config = facts->config;
  double weights = static_cast<double>(config.vocab_size) * static_cast<double>(config.hidden_size);
  for (const model::TensorSpec& spec : model::RequiredTensors(config)) {
    if (spec.role != model::TensorRole::kLinear) continue;
    weights += static_cast<double>(spec.shape[0]) * static_cast<double>(spec.shape[1]);
  }
  return weights;
}

}  // namespace

absl::StatusOr<std::optional<PlanEta>> EtaOf(const jobs::JobSpec& spec, std::int64_t tokens, jobs::JobController& jobs,
                                             registry::TextCache& texts) {
  constexpr std::int64_t kLookedAt = 100;
  NIBBLE_ASSIGN_OR_RETURN(const auto measured,
                          jobs.List({.states = {jobs::JobState::kRunning, jobs::JobState::kSucceeded}}, kLookedAt));
  std::optional<PlanEta> rough;
  for (const jobs::StoredJob& job : measured.jobs) {
    if (job.spec.method != spec.method || job.spec.device != spec.device) continue;
    NIBBLE_ASSIGN_OR_RETURN(const double tokens_per_s, base::GetNumber(job.progress, "tokens_per_s", "progress", 0.0));
    if (!(tokens_per_s > 0)) continue;  // also skips NaN
    const double seconds = static_cast<double>(tokens) / tokens_per_s;
    if (job.spec.base_model == spec.base_model) return PlanEta{.seconds = seconds, .rough = false};
    if (rough.has_value()) continue;
    const std::optional<double> ours = WeightsOf(spec.base_model, texts),
                                theirs = WeightsOf(job.spec.base_model, texts);
    if (ours.has_value() && theirs.has_value()) rough = PlanEta{.seconds = seconds * *ours / *theirs, .rough = true};
  }
  return rough;
}

}  // namespace nibble::plan
