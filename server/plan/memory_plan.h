// The trainer's memory by purpose. The formulas follow what server/trainer allocates; constants that no formula gives were measured
// (tests/e2e/test_plan.py holds plan against run). Included by server/plan/*.cc only.
#pragma once
#include <cstdint>
#include <vector>

#include "server/data/evaluate.h"
#include "server/jobs/job_spec.h"
#include "server/model/model_config.h"
#include "server/plan/plan_job.h"

namespace nibble::plan {

// What of the data memory depends on.
struct BatchShape {
  std::int64_t tokens = 0;       // of the largest micro-batch of any epoch
  std::int64_t dataset_tokens = 0;
  std::int64_t examples = 0;
  data::EvaluationSize evaluation = {};  // of the evaluation set
};

std::int64_t TrainedParameters(const jobs::JobSpec& spec, const model::ModelConfig& config);

// Of the model that the job serves (LoadedModel::resident_bytes), for data.max_seq_len positions.
std::int64_t ServedModelBytes(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes);
// Of the scratch memory (model::Arena) of a forward pass of it, each row with its logits.
std::int64_t ServedPassBytes(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t rows);

// The larger of training and publishing: what publishing takes beyond training is an item of its own. No item is more than a pebibyte,
// which no machine has: what limits permit together may be more than int64 holds, sums of items and jobs are not.
// `base_bytes`: of an element of the stored base (2: bf16; 4: f32; 0: nf4).
std::vector<MemoryItem> PlanMemory(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes,
                                   const BatchShape& batch);

}  // namespace nibble::plan
