// What work with whole models holds in memory at once, told before it begins. Estimates as those of a load: tensors count as they are
// stored; pages of mapped files that the system can take back do not count.
#pragma once
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "server/convert/convert.h"
#include "server/model/artifact.h"
#include "server/model/record.h"
#include "server/rpc/work_admission.h"

namespace nibble::rpc {

// The model loaded, and its record answered again.
WorkMemory ReplayMemory(const model::Artifact& model, const model::Record& record);

// Evaluation of a conversion.
struct EvaluationData {
  std::int64_t max_tokens = 0;   // that are evaluated, of a file that is mapped
  std::int64_t max_seq_len = 0;  // tokens of the longest example
};

// One tensor in the making; then the source and what was made of it, loaded one after the other for their losses and the record.
absl::StatusOr<WorkMemory> ConvertMemory(const model::Artifact& source, const convert::ConvertOptions& options,
                                         const std::optional<EvaluationData>& evaluation);

// An adapter, whose values have so many bytes in f32, and its base, which is quantised one tensor at a time unless it is nf4 already.
WorkMemory AdapterMemory(const model::Artifact& base, std::int64_t adapter_bytes);

// Master weights of a checkpoint: every tensor of `config` in f32.
WorkMemory MastersMemory(const model::ModelConfig& config);

}  // namespace nibble::rpc
