// The trainer's memory by purpose. The formulas follow what server/trainer allocates; constants that no formula gives
// were measured (tests/e2e/test_plan.py compares plan and run). Private to server/plan and its tests.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "server/data/evaluate.h"
#include "server/jobs/job_spec.h"
#include "server/model/model_config.h"
#include "server/plan/plan_job.h"

namespace nibble::plan {

// Properties of the data that memory depends on.
struct BatchShape {
  std::int64_t tokens = 0;  // of the largest micro-batch of any epoch
  std::int64_t dataset_tokens = 0;
  std::int64_t examples = 0;
  data::EvaluationSize evaluation = {};  // of the evaluation set
};

// Bytes of an element of a type in a spec (compute_dtype, master_dtype, param_dtype): "bf16" or "fp32".
inline std::int64_t ElementBytes(const std::string& dtype) { return dtype == "bf16" ? 2 : 4; }

std::int64_t TrainedParameters(const jobs::JobSpec& spec, const model::ModelConfig& config);
// Bytes of the optimizer's moments for this number of trained parameters.
std::int64_t MomentBytes(const jobs::JobSpec& spec, std::int64_t parameters);

// Bytes of the model that the job serves (LoadedModel::resident_bytes), for data.max_seq_len positions.
std::int64_t ServedModelBytes(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes);
// Bytes of scratch memory (model::Arena) for a forward pass of that model, with logits for each row.
std::int64_t ServedPassBytes(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t rows);

// The maximum of training and publishing: what publishing takes beyond training is a separate item. Each item is capped
// at one pebibyte, more than any machine has, so that sums over items and jobs fit in int64: the limits of a spec
// together permit more bytes than int64 holds.
//
// `base_bytes`: as in MethodPlan.
std::vector<MemoryItem> PlanMemory(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes,
                                   const BatchShape& batch);

}  // namespace nibble::plan
