// Whether a job can be trained: the spec beside its model and its data, before anything is queued.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/cancel_token.h"
#include "server/base/cancelled.h"
#include "server/base/memory_budget.h"
#include "server/data/example.h"
#include "server/data/token_file.h"
#include "server/jobs/job_spec.h"
#include "server/model/model_config.h"
#include "server/model/text_assets.h"

namespace nibble::plan {

// A file of rows.
struct DataFile {
  std::string path;              // "": none
  std::string format = "";       // "text"; "" of an evaluation set: that of the training set
  std::string sha256 = "";       // read by JobInputs::load alone, as is the next
  std::string tokens_directory = "";
};

// The model and the data that a spec names.
struct JobInputs {
  model::ModelConfig config;
  model::TextAssets text;
  std::string base_format;                     // "bf16"
  bool base_is_masters = false;                // a BitNet model's, from which ternary codes are made
  std::int64_t companion_bytes = 0;            // of its tokenizer and the other small files that every form of it has
  DataFile train;
  DataFile eval;
  // Gets the tokens of a data set (data::TokenCache); empty: they are made in memory.
  std::function<absl::StatusOr<data::Dataset>(const data::TokenSource&, const base::Cancelled&)> load;
  // Where planning takes the memory that grows with the data, as long as it needs it; null: nowhere.
  std::shared_ptr<base::MemoryBudget> memory;
  std::vector<std::string> devices;            // that there are: "cpu", "cuda:0"
  base::CancelToken cancel;                    // ends the reading of the data with Cancelled
};

// Of data of that format.
data::TokeniseOptions OptionsOf(const jobs::JobSpec& spec, data::Format format);

// The data that the job's training and, where there is an evaluation set, its evaluation are made of. InvalidArgument: a format.
absl::StatusOr<std::vector<data::TokenSource>> TokenSourcesOf(const jobs::JobSpec& spec, const JobInputs& inputs);

// The data of a job.
struct CheckedData {
  data::Dataset train;
  data::Dataset eval;  // empty without an evaluation set
};

// The part of CheckJob that reads no rows; `inputs` needs neither data nor a tokenizer. Errors: those of CheckJob but for the data's.
absl::Status CheckWithoutRows(const jobs::JobSpec& spec, const JobInputs& inputs);

// Of a resolved spec. Tokenises all data, or has JobInputs::load get it. Errors:
// InvalidArgument (FIELD_VIOLATION: sequence longer than the model, unknown device, base format, master weights for qlora, more
// input features than what is made can be served with; NO_TRAINABLE_TOKENS; TEMPLATE_ERROR, without a template too).
absl::StatusOr<CheckedData> CheckJob(const jobs::JobSpec& spec, const JobInputs& inputs);

// The architecture that a job trains: the base's, or what the method's preset makes of it.
model::ModelConfig TrainedConfig(const jobs::JobSpec& spec, const model::ModelConfig& base);

}  // namespace nibble::plan
