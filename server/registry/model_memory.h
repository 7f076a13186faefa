// Estimates the peak memory of work on whole models before it begins. As in the estimate of a load, tensors count in
// their stored size, and pages of mapped files that the system can reclaim do not count.
#pragma once
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "server/convert/convert.h"
#include "server/model/artifact.h"
#include "server/model/record.h"
#include "server/registry/work_admission.h"

namespace nibble::registry {

// Loading the model and replaying its record.
WorkMemory ReplayMemory(const model::Artifact& model, const model::Record& record);

// Evaluation of a conversion.
struct EvaluationData {
  std::int64_t max_tokens = 0;   // evaluated tokens; their file is mapped
  std::int64_t max_seq_len = 0;  // tokens of the longest example
};

// Quantizing one tensor at a time, after taking the part of an initial adapter out of it; then loading the source and
// the new model, one after the other, for their losses and the record.
absl::StatusOr<WorkMemory> ConvertMemory(const model::Artifact& source, const convert::ConvertOptions& options,
                                         const std::optional<EvaluationData>& evaluation);

// An adapter of `adapter_bytes` in f32, and its base, which is quantized one tensor at a time with the options `nf4`
// unless it is nf4 or int8.
WorkMemory AdapterMemory(const model::Artifact& base, std::int64_t adapter_bytes, const model::Nf4Options& nf4);

// Master weights of a checkpoint: every tensor of `config` in f32.
WorkMemory MastersMemory(const model::ModelConfig& config);

}  // namespace nibble::registry
