// A training method for the planner: which bases it takes, what it trains, and how many bytes that takes. A method is
// one implementation of MethodPlan and a row of the table in method_plan.cc. The trainer's table is in
// trainer/recipe.cc.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/jobs/job_spec.h"
#include "server/model/artifact.h"
#include "server/model/model_config.h"
#include "server/plan/check_job.h"

namespace nibble::plan {

struct PlanWarning {
  std::string reason;  // "ROWS_TRUNCATED"
  std::string message;
  // Line numbers, from 1, in the set that the message names, or in the training set; the first data::kMaxNamedRows.
  std::vector<std::int64_t> rows;
};

// Bytes that training holds beside the optimizer's moments, activations and data.
struct TrainingBytes {
  std::int64_t weights = 0;    // the base or the masters, and what is kept beside them
  std::int64_t adapter = 0;    // 0: the method trains none
  std::int64_t workspace = 0;  // the largest buffers of a step
};

// Bytes that matter while the trained model is converted to the served form and evaluated.
struct PublishingBytes {
  std::int64_t stored_element = 0;  // of an element of the weights that are converted
  std::int64_t converting = 0;      // beside the weights of training, during conversion
  std::int64_t kept = 0;            // beside the served form, until the end
};

// Stateless; every call may come from every thread.
class MethodPlan {
 public:
  virtual ~MethodPlan() = default;

  virtual const char* name() const = 0;
  // InvalidArgument (FIELD_VIOLATION) if the method does not take this base.
  virtual absl::Status CheckBase(const JobInputs& inputs) const = 0;
  // Whether it trains an adapter on the base, and not the weights themselves.
  virtual bool trains_adapter() const = 0;
  // The architecture that is trained on a base.
  virtual model::ModelConfig TrainedConfig(const jobs::JobSpec& spec, const model::ModelConfig& base) const = 0;
  // The form in which the trained model is evaluated and served: its format, and for ternary its activations.
  virtual model::ArtifactInfo ServedForm(const jobs::JobSpec& spec) const = 0;

  // `config` is TrainedConfig's result in all of these; `base_bytes` is per element of the stored base (2: bf16; 4:
  // f32; 0: nf4).
  virtual std::int64_t TrainedParameters(const jobs::JobSpec& spec, const model::ModelConfig& config) const = 0;
  // Bytes that one token keeps in one layer until its backward pass.
  virtual std::int64_t TokenBytes(const jobs::JobSpec& spec, const model::ModelConfig& config) const = 0;
  // `tokens`: of the largest micro-batch.
  virtual TrainingBytes Training(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes,
                                 std::int64_t tokens) const = 0;
  // `weights`: TrainingBytes::weights.
  virtual PublishingBytes Publishing(const jobs::JobSpec& spec, const model::ModelConfig& config,
                                     std::int64_t base_bytes, std::int64_t weights) const = 0;
  // Bytes of the embedding's elements in the served form.
  virtual std::int64_t ServedEmbeddingElement(const model::ModelConfig& config, std::int64_t base_bytes) const = 0;
  // Bytes of the weight files that the job writes, without checkpoints.
  virtual double WeightFileBytes(const jobs::JobSpec& spec, const model::ModelConfig& config,
                                 std::int64_t base_bytes) const = 0;
  // Warnings about the method's own fields.
  virtual void AddWarnings(const jobs::JobSpec& /*spec*/, std::vector<PlanWarning>& /*warnings*/) const {}
};

// The method of a validated spec.
const MethodPlan& PlanOf(const jobs::JobSpec& spec);

// The rows of the table.
const MethodPlan& QLoraPlan();
const MethodPlan& BitNetQatPlan();

}  // namespace nibble::plan
