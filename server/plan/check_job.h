// Checks whether a job can be trained: its spec against its model and data, before anything is queued.
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
#include "server/model/nf4_options.h"
#include "server/model/text_assets.h"

namespace nibble::plan {

// A file of rows.
struct DataFile {
  std::string path;         // "": none
  std::string format = "";  // "text"; "" for an evaluation set: the format of the training set
  std::string sha256 = "";  // identifies its token file; used only by the token cache, as is tokens_directory
  std::string tokens_directory = "";
};

// The model and the data that a spec names.
struct JobInputs {
  model::ModelConfig config;
  model::TextAssets text;
  std::string base_format;           // "bf16"
  model::Nf4Options base_nf4 = {};   // of a base in nf4
  bool base_int8_head = false;       // ArtifactInfo::int8_head
  bool base_is_masters = false;      // master weights of a BitNet model, from which ternary codes are made
  std::int64_t companion_bytes = 0;  // of the tokenizer and other small files; each form that the job writes has a copy
  DataFile train;
  DataFile eval;
  // Gets the tokens of a dataset (data::TokenCache). If empty, the data is tokenized in memory.
  std::function<absl::StatusOr<data::Dataset>(const data::TokenSource&, const base::Cancelled&)> load;
  // Budget for the memory of planning that grows with the data; null: no budget.
  std::shared_ptr<base::MemoryBudget> memory;
  std::vector<std::string> devices;  // available ones: "cpu", "cuda:0"
  base::CancelToken cancel;          // cancels reading the data
};

// How the job tokenizes data of this format.
data::TokenizeOptions OptionsOf(const jobs::JobSpec& spec, data::RowFormat format);

// Token sources of the training set and, if there is one, the evaluation set. InvalidArgument for an unknown format.
absl::StatusOr<std::vector<data::TokenSource>> TokenSourcesOf(const jobs::JobSpec& spec, const JobInputs& inputs);

// The data of a job.
struct CheckedData {
  data::Dataset train;
  data::Dataset eval;  // the evaluation set or, with eval_fraction, the rows held out of `train`; else empty
};

// The part of CheckJob that reads no rows; `inputs` needs neither data nor a tokenizer. Errors: as CheckJob, except
// those of the data.
absl::Status CheckWithoutRows(const jobs::JobSpec& spec, const JobInputs& inputs);

// `spec` must be resolved. Tokenizes all data, or gets it from JobInputs::load. Errors: InvalidArgument
// (FIELD_VIOLATION: max_seq_len above the model's limit, unavailable device, base format, master weights for a method
// other than bitnet_qat, a field of the method that does not fit the base, more input features than the served form
// allows; NO_TRAINABLE_TOKENS; TEMPLATE_ERROR, also for chat rows if the model has no template), Unimplemented (a base
// that the method does not take yet), Cancelled, those of JobInputs::load.
absl::StatusOr<CheckedData> CheckJob(const jobs::JobSpec& spec, const JobInputs& inputs);

// The architecture that a job trains: the base's, or what the method's preset makes of it.
model::ModelConfig TrainedConfig(const jobs::JobSpec& spec, const model::ModelConfig& base);

}  // namespace nibble::plan
