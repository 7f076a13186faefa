// A training method in nibbled: which bases it takes, what it trains, how many bytes that takes, and how its
// checkpoints become models. A method is one implementation of MethodPlan: a row of the table in method_plan.cc, or
// registered by RegisterMethod. The trainer's table has a row of the same name (trainer/methods.cc; docs/adr/0014).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/jobs/job_spec.h"
#include "server/jobs/method.h"
#include "server/model/artifact.h"
#include "server/model/model_config.h"
#include "server/plan/check_job.h"
#include "server/registry/checkpoint_source.h"
#include "server/registry/work_admission.h"

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

// A verified checkpoint and the model that is made of it; all borrowed.
struct CheckpointToPublish {
  const jobs::JobSpec& spec;
  const std::string& directory;  // of the checkpoint
  const registry::CheckpointTarget& target;
};

// Stateless; every call may come from every thread.
class MethodPlan {
 public:
  virtual ~MethodPlan() = default;

  // Name, defaults and checks of the method's own fields.
  virtual const jobs::Method& method() const = 0;
  const char* name() const { return method().name(); }
  // InvalidArgument (FIELD_VIOLATION) if the method does not take this base; Unimplemented if that is planned.
  virtual absl::Status CheckBase(const jobs::JobSpec& spec, const JobInputs& inputs) const = 0;
  // InvalidArgument (FIELD_VIOLATION) if a field of the method does not fit the base's architecture.
  virtual absl::Status CheckFields(const jobs::JobSpec& /*spec*/, const model::ModelConfig& /*base*/) const {
    return absl::OkStatus();
  }
  // The options of the adapter that it trains on the base, within the spec. Null if it trains the weights themselves.
  virtual const jobs::LoraMethod* AdapterOptions(const jobs::JobSpec& /*spec*/) const { return nullptr; }
  // The architecture that is trained on a base.
  virtual model::ModelConfig TrainedConfig(const jobs::JobSpec& spec, const model::ModelConfig& base) const = 0;
  // The form in which the trained model is evaluated and served: its format, and for int8 and ternary how linears read
  // activations (act_outliers, weight_only; act_bits).
  virtual model::ArtifactInfo ServedForm(const jobs::JobSpec& spec) const = 0;

  // `config` is TrainedConfig's result in all of these; `base_bytes` is per element of the stored base's linears (2:
  // bf16; 4: f32; 1: int8; 0: nf4).
  virtual std::int64_t TrainedParameters(const jobs::JobSpec& spec, const model::ModelConfig& config) const = 0;
  // Bytes of the trained values in a checkpoint, without the optimizer's moments.
  virtual std::int64_t CheckpointValueBytes(const jobs::JobSpec& spec, const model::ModelConfig& config) const {
    return TrainedParameters(spec, config) * 4;
  }
  // Bytes that one token keeps in one layer until its backward pass.
  virtual std::int64_t TokenBytes(const jobs::JobSpec& spec, const model::ModelConfig& config,
                                  std::int64_t base_bytes) const = 0;
  // `tokens`: of the largest micro-batch.
  virtual TrainingBytes Training(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes,
                                 std::int64_t tokens) const = 0;
  // Type of K and V in evaluations while the job trains.
  virtual kernels::DType EvaluationKvDtype(std::int64_t /*base_bytes*/) const { return kernels::DType::kBF16; }
  // Bytes of the weights that exist only for evaluations while the job trains.
  virtual std::int64_t EvaluationWeights(const model::ModelConfig& /*config*/) const { return 0; }
  // `weights`: TrainingBytes::weights.
  virtual PublishingBytes Publishing(const jobs::JobSpec& spec, const model::ModelConfig& config,
                                     std::int64_t base_bytes, std::int64_t weights) const = 0;
  // Bytes of the embedding's elements in the served form.
  virtual std::int64_t ServedEmbeddingElement(const jobs::JobSpec& spec, const model::ModelConfig& config,
                                              std::int64_t base_bytes) const = 0;
  // Bytes of the weight files that the job writes, without checkpoints.
  virtual double WeightFileBytes(const jobs::JobSpec& spec, const model::ModelConfig& config,
                                 std::int64_t base_bytes) const = 0;
  // Warnings about the method's own fields.
  virtual void AddWarnings(const jobs::JobSpec& /*spec*/, std::vector<PlanWarning>& /*warnings*/) const {}

  // Peak memory of MakeCheckpointModel. `checkpoint_bytes`: of the checkpoint's files.
  virtual registry::WorkMemory CheckpointMemory(const jobs::JobSpec& spec, const model::Artifact& base,
                                                std::int64_t checkpoint_bytes) const = 0;
  // Publishes a checkpoint: makes the model that the trainer would have written after that step. On an error nothing is
  // left at the target. Errors: those of convert/checkpoint_model.h.
  virtual absl::StatusOr<model::ArtifactInfo> MakeCheckpointModel(base::FileSystem& files,
                                                                  const CheckpointToPublish& source,
                                                                  const kernels::Stream& stream) const = 0;
};

// All methods: the rows of the table, then those of RegisterMethod. Thread-safe, here and below.
std::vector<const MethodPlan*> MethodPlans();
// The method of a validated spec.
const MethodPlan& PlanOf(const jobs::JobSpec& spec);

// Adds a method to this table and to the one in jobs/method.h: from then on, specs may name it. It must have a new name
// and live until the process ends. Call it before the first job is read.
void RegisterMethod(const MethodPlan& method);

// The rows of the table.
const MethodPlan& QLoraPlan();
const MethodPlan& BitNetQatPlan();
const MethodPlan& FullPlan();
const MethodPlan& Int8MixedPlan();
const MethodPlan& Int8QtPlan();
const MethodPlan& LoraPlan();

}  // namespace nibble::plan
