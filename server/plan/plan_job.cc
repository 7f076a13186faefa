#include "server/plan/plan_job.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/data/loader.h"
#include "server/jobs/qlora_method.h"
#include "server/plan/disk_plan.h"
#include "server/plan/memory_plan.h"

namespace nibble::plan {
namespace {

using base::StrCat;

constexpr std::int64_t kFewSteps = 20;    // fewer steps than this hardly change a model
constexpr std::int64_t kManySteps = 100;  // more steps than this should not be lost in a crash
constexpr double kManyEpochs = 10;        // a model that sees its data more often than this learns it by heart

struct Epoch {
  std::int64_t rows = 0;
  std::int64_t micro_batches = 0;
};

// Maximum tokens of a micro-batch of any epoch: the shuffle may bring the longest rows together.
std::int64_t MostTokens(const jobs::JobSpec& spec, const data::Dataset& train) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < train.examples.size(); ++i) lengths.push_back(train.examples.num_tokens(i));
  std::sort(lengths.begin(), lengths.end());
  const auto count = static_cast<std::int64_t>(lengths.size());
  const bool packed = spec.data.packing != "none" && count > 1 && lengths[0] + lengths[1] <= spec.data.max_seq_len;
  if (packed) return std::min(spec.run.micro_batch * spec.data.max_seq_len, train.num_tokens);
  return std::accumulate(lengths.end() - std::min(spec.run.micro_batch, count), lengths.end(), std::int64_t{0});
}

// The first epoch as the trainer will draw it.
Epoch FirstEpoch(const jobs::JobSpec& spec, const data::Dataset& train) {
  const data::Loader loader(train.examples,
                            spec.data.packing == "none" ? data::Packing::kNone : data::Packing::kSegmented,
                            spec.data.max_seq_len, static_cast<std::uint64_t>(spec.data.shuffle_seed));
  const std::int64_t rows = loader.RowsInEpoch(0);
  return {rows,
          (rows + spec.run.micro_batch - 1) / spec.run.micro_batch};  // a micro-batch never crosses an epoch's end
}

void Warn(JobPlan& plan, std::string reason, std::string message) {
  plan.warnings.push_back({std::move(reason), std::move(message), {}});
}

// Number of passes through the data in all steps.
double Passes(const jobs::JobSpec& spec, const Epoch& epoch, const JobPlan& plan) {
  const std::int64_t micro_batches =
      jobs::NumMicroBatches(spec.run, epoch.rows).value_or(plan.max_steps * spec.run.grad_accum);
  return static_cast<double>(micro_batches) / static_cast<double>(epoch.micro_batches);
}

// "1 pass", "2.5 passes"
std::string PassesText(double epochs) {
  char text[64];
  std::snprintf(text, sizeof text, epochs < 1e6 ? "%.3g" : "%.0f", epochs);
  return StrCat(text, epochs == 1 ? " pass" : " passes");
}

// A spec may ask for more tokens than int64 holds: steps, batches and lengths have limits, but their product has none.
std::int64_t Whole(double tokens) {
  constexpr double kBound = 9223372036854775808.0;  // 2^63
  return tokens < kBound ? std::llround(tokens) : std::numeric_limits<std::int64_t>::max();
}

void AddRowWarnings(const jobs::JobSpec& spec, const data::Dataset& data, const std::string& set, JobPlan& plan) {
  for (data::RowWarning& warning : data::RowWarnings(data, spec.data.max_seq_len, set)) {
    plan.warnings.push_back({std::move(warning.reason), std::move(warning.message), std::move(warning.rows)});
  }
}

void AddWarnings(const jobs::JobSpec& spec, const CheckedData& data, JobPlan& plan) {
  AddRowWarnings(spec, data.train, "", plan);
  AddRowWarnings(spec, data.eval, data::EvaluationSet(spec.eval_dataset), plan);  // no rows without a set
  if (!spec.run.max_steps.has_value() && plan.max_steps < kFewSteps) {
    Warn(
        plan, "FEW_STEPS",
        StrCat(PassesText(plan.epochs), " over the data ", plan.epochs == 1 ? "takes" : "take", " only ",
               plan.max_steps, plan.max_steps == 1 ? " step" : " steps", ": set run.epochs or run.max_steps for more"));
  }
  if (plan.epochs > kManyEpochs) {
    Warn(plan, "MANY_EPOCHS", StrCat(plan.max_steps, " steps are ", PassesText(plan.epochs), " over the data"));
  }
  if (spec.run.save_every == 0 && plan.max_steps > kManySteps) {
    Warn(plan, "NO_CHECKPOINTS", "run.save_every is 0: after a crash of the trainer, training starts over");
  }
  if (!jobs::HasEvaluation(spec)) {
    Warn(plan, "NO_EVALUATION", "there is no eval_dataset and no eval_fraction: only the training loss will be known");
  }
  PlanOf(spec).AddWarnings(spec, plan.warnings);
}

}  // namespace

std::int64_t JobPlan::memory_bytes() const {
  std::int64_t sum = 0;
  for (const MemoryItem& item : memory) sum += item.bytes;
  return sum;
}

absl::StatusOr<JobPlan> PlanJob(const jobs::JobSpec& spec, const JobInputs& inputs) {
  NIBBLE_ASSIGN_OR_RETURN(const CheckedData data, CheckJob(spec, inputs));
  // Only the order of an epoch, the rows' lengths and the choice of held-out rows grow with the data here.
  const auto order_bytes = static_cast<std::int64_t>(2 * data.train.examples.size() * sizeof(std::int64_t) +
                                                     data.eval.examples.size() * sizeof(std::uint32_t));
  const auto order = inputs.memory != nullptr ? inputs.memory->TakeAnyway(order_bytes) : nullptr;
  const Epoch epoch = FirstEpoch(spec, data.train);
  JobPlan plan;
  plan.max_steps = jobs::NumSteps(spec.run, epoch.rows);
  NIBBLE_RETURN_IF_ERROR(jobs::CheckSteps(spec, plan.max_steps));
  // Micro-batches of an epoch are alike, so totals are proportional to the number of passes.
  plan.epochs = Passes(spec, epoch, plan);
  plan.tokens = Whole(plan.epochs * static_cast<double>(data.train.num_tokens));
  plan.trained_tokens = Whole(plan.epochs * static_cast<double>(data.train.num_trained));
  const model::ModelConfig config = TrainedConfig(spec, inputs.config);
  plan.trained_parameters = TrainedParameters(spec, config);
  const std::string& format = inputs.base_format;
  const std::int64_t base_bytes = format == "bf16" ? 2 : format == "f32" ? 4 : format == "int8" ? 1 : 0;
  jobs::JobSpec on_base = spec;
  if (format == "nf4") on_base.qlora = jobs::WithNf4Options(spec.qlora, inputs.base_nf4);
  plan.memory =
      PlanMemory(on_base, config, base_bytes,
                 {.tokens = MostTokens(spec, data.train),
                  .dataset_tokens = data.train.num_tokens + data.eval.num_tokens,
                  .examples = static_cast<std::int64_t>(data.train.examples.size() + data.eval.examples.size()),
                  .evaluation = data::SizeOfEvaluation(data.eval.examples)});
  plan.disk_bytes = PlanDisk(spec, config, base_bytes, inputs.companion_bytes, plan.max_steps);
  AddWarnings(spec, data, plan);
  return plan;
}

}  // namespace nibble::plan
