// A LoRA adapter as PEFT writes it: adapter_config.json, and tensors
// base_model.model.<module path>.lora_A.weight [r, in] and .lora_B.weight [out, r].
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/model/safetensors_writer.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

inline constexpr char kAdapterWeightsFile[] = "adapter_model.safetensors";
inline constexpr char kAdapterConfigFile[] = "adapter_config.json";
inline constexpr std::int64_t kMaxLoraRank = 4096;
// Of an import and, in server/jobs/job_spec.cc, of a job. Far above any in use; keeps scaled weights far below f32's maximum.
inline constexpr double kMaxLoraAlpha = 1e6;

struct AdapterConfig {
  std::int64_t rank = 8;
  double alpha = 8.0;
  double dropout = 0.0;
  bool rslora = false;
  std::vector<LinearKind> targets;      // in the order of LinearKind, no doubles
  std::string base_model_name_or_path;  // for people; never followed
  // "nibble_base_digest", which export writes: ArtifactInfo::weights_digest of the nf4 base that it was trained on. "": unknown.
  std::string base_digest;

  // What B(A(x)) is multiplied with: alpha / r, or alpha / sqrt(r) for rsLoRA.
  double scaling() const;
  bool has_target(LinearKind kind) const;
};

base::Json ToPeftConfig(const AdapterConfig& config);

// Unimplemented (UNSUPPORTED_ADAPTER) names what is not plain LoRA on linears of a causal decoder (DoRA, bias, modules_to_save,
// patterns, an initialisation that changes the base, any option in use that is not known); InvalidArgument names a bad field.
// Options are those of PEFT 0.21 (peft/tuners/lora/config.py).
absl::StatusOr<AdapterConfig> ParsePeftConfig(const base::Json& json);

std::string LoraAName(std::int64_t layer, LinearKind kind);
std::string LoraBName(std::int64_t layer, LinearKind kind);

// The adapter's tensors in f32, by layer and then by LinearKind, A before B.
std::vector<TensorPlan> AdapterTensors(const ModelConfig& model, const AdapterConfig& adapter);

}  // namespace nibble::model
