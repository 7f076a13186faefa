// Everything that a run needs to continue as if it had never stopped: parameters, moments, step, data cursor, and the
// conditions that must be equal for equal bits.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/data/loader.h"
#include "server/model/adapter.h"
#include "server/store/checkpoints.h"
#include "server/trainer/adamw.h"
#include "server/trainer/training_model.h"

namespace nibble::trainer {

struct TrainingProgress {
  std::int64_t step = 0;           // optimizer steps done
  std::int64_t micro_batches = 0;  // drawn so far: numbers the dropout masks
  std::int64_t tokens = 0;
  std::int64_t trained_tokens = 0;
  data::Cursor cursor;
  std::int64_t evaluated_step = -1;                                 // the step after which the last evaluation was made
  double best_eval_loss = std::numeric_limits<double>::infinity();  // of the model as it is trained
  std::map<std::string, double> metrics;  // of the last step, for users: "loss", "eval_loss" if evaluated
  // After a resume: what has changed in the machine or the program ("threads was 1, is 2").
  std::vector<std::string> differences;
};

// What determines the bits besides the state itself. A resume with another spec, base or data is refused: it would be
// another job. Another machine or version is only reported here: a job must be able to continue after an upgrade;
// the training loop refuses it if run.allow_inexact_resume is false.
struct RunIdentity {
  std::string spec_digest;  // of the resolved spec
  std::string base_digest;
  std::string data_digest;
  std::string isa;
  std::int64_t threads = 0;
  std::string version;
};

// Every tensor is saved in its own type. `adapter` is saved too, so that the checkpoint can be served directly
// (convert/checkpoint_model.h); null if the method trains no adapter. Here and below, `cancelled` is called before
// every tensor and every MiB that is hashed.
absl::StatusOr<store::CheckpointInfo> SaveCheckpoint(base::FileSystem& files, const std::string& attempt_directory,
                                                     const TrainingProgress& progress, const RunIdentity& identity,
                                                     const std::vector<Parameter>& parameters,
                                                     const std::vector<Moments>& moments,
                                                     const model::AdapterConfig* adapter,
                                                     const base::Cancelled& cancelled = {});

// Whose checkpoint is loaded.
enum class CheckpointOf {
  kThisJob,
  kOtherJob,  // its spec and its data may differ: the server compared them (jobs/job_start.h)
};

// Fills parameters and moments; Cancelled leaves them partly filled. Errors: DataLoss if a tensor is missing or has
// another size, type or block; FailedPrecondition names the digest that differs (kOtherJob: BASE_MISMATCH, for the
// base alone); those of store::Verify and of files.
absl::StatusOr<TrainingProgress> LoadCheckpoint(base::FileSystem& files, const std::string& directory,
                                                const RunIdentity& identity, std::vector<Parameter>& parameters,
                                                std::vector<Moments>& moments, const base::Cancelled& cancelled = {},
                                                CheckpointOf whose = CheckpointOf::kThisJob);

// Fills the values of the parameters from a checkpoint of another job on the base with this digest. Errors: DataLoss as
// above, FailedPrecondition (BASE_MISMATCH).
absl::Status LoadWeights(base::FileSystem& files, const std::string& directory, const std::string& base_digest,
                         std::vector<Parameter>& parameters, const base::Cancelled& cancelled = {});
// The same from an adapter's model.
absl::Status LoadAdapterWeights(base::FileSystem& files, const std::string& directory, const std::string& base_digest,
                                std::vector<Parameter>& parameters, const base::Cancelled& cancelled = {});

}  // namespace nibble::trainer
