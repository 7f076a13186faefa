// A LoRA adapter as PEFT writes it: adapter_config.json, and tensors
// base_model.model.<module path>.lora_A.weight [r, in] and .lora_B.weight [out, r]; AdapterTensors lists the others.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/model/module_pattern.h"
#include "server/model/nf4_options.h"
#include "server/model/safetensors_writer.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

inline constexpr char kAdapterWeightsFile[] = "adapter_model.safetensors";
inline constexpr char kAdapterConfigFile[] = "adapter_config.json";
// Key of AdapterConfig::base_digest in the metadata of an exported kAdapterWeightsFile, which PEFT does not read. PEFT
// warns of an unknown key in kAdapterConfigFile, where earlier builds wrote it.
inline constexpr char kBaseDigestKey[] = "nibble_base_digest";
// Key of AdapterConfig::base_nf4 in the same metadata.
inline constexpr char kBaseNf4Key[] = "nibble_base_nf4";
inline constexpr std::int64_t kMaxLoraRank = 4096;
// Maximum alpha of an import and of a job (server/jobs/lora_method.cc). Far above any value in use; keeps scaled
// weights far below f32's maximum.
inline constexpr double kMaxLoraAlpha = 1e6;
inline constexpr std::size_t kMaxPatterns = 64;  // of ranks, and of alphas; also of modules_to_save

// The adapter of one linear.
struct LinearAdapter {
  std::int64_t rank = 0;
  double scaling = 0;  // the factor of B(A(x)): alpha / r, or alpha / sqrt(r) for rsLoRA
};

struct AdapterConfig {
  std::int64_t rank = 8;
  double alpha = 8.0;
  double dropout = 0.0;
  bool rslora = false;
  std::vector<LinearKind> targets;  // in the order of LinearKind, no duplicates
  // For programs that load the export: the base's SourceName, or its name on this server. Never followed here.
  std::string base_model_name_or_path;
  // Only from an export (kBaseDigestKey): ArtifactInfo::weights_digest of the adapter's base. "": unknown.
  std::string base_digest;
  Nf4Options base_nf4 = {};  // how the base of a qlora job was quantized
  bool dora = false;         // a trained magnitude for each output (dora.h)
  // Targets instead of `targets`: the linears whose path it matches.
  std::optional<ModulePattern> target_pattern = std::nullopt;
  // Ranks and alphas of linears whose path has an end that the pattern matches. The first pattern that matches counts.
  std::vector<std::pair<ModulePattern, std::int64_t>> rank_pattern = {};
  std::vector<std::pair<ModulePattern, double>> alpha_pattern = {};
  // Ends of the paths of modules whose trained copies belong to the adapter (saved_modules.h).
  std::vector<std::string> modules_to_save = {};
  // The copy of the embedding of a tied model is also its head.
  bool ensure_weight_tying = false;

  // Nothing unless `path` is the ModulePath of a target. Other modules than linears of the decoder are no targets.
  std::optional<LinearAdapter> On(const std::string& path) const;
  // Whether modules_to_save matches the path of a module, by PEFT's rule: the path ends with one of the texts.
  bool Saves(const std::string& path) const;
};

// The result does not contain base_digest and base_nf4, which exports write elsewhere (kBaseDigestKey, kBaseNf4Key).
base::Json ToPeftConfig(const AdapterConfig& config);

// Accepts LoRA on linears of a causal decoder. Unimplemented (UNSUPPORTED_ADAPTER) names anything else (bias, an
// initialization that changes the base, an unknown option in use); InvalidArgument names a bad field. Options are those
// of PEFT 0.21 (peft/tuners/lora/config.py).
absl::StatusOr<AdapterConfig> ParsePeftConfig(const base::Json& json);

// InvalidArgument, naming the file, unless the text is a SHA-256 of lower-case hex digits, or empty.
absl::Status CheckBaseDigest(const std::string& digest, const char* file);

// The name of an adapter's tensor is LoraModule(path) and one of the suffixes.
inline constexpr char kLoraASuffix[] = ".lora_A.weight";
inline constexpr char kLoraBSuffix[] = ".lora_B.weight";
inline constexpr char kMagnitudeSuffix[] = ".lora_magnitude_vector";  // [N], of DoRA
std::string LoraModule(const std::string& path);                      // path: a ModulePath
std::string LoraAName(std::int64_t layer, LinearKind kind);
std::string LoraBName(std::int64_t layer, LinearKind kind);

// The adapter's tensors in f32: the copies of saved modules (SavedTensors), then by layer and LinearKind A, B, and with
// DoRA the magnitudes.
std::vector<TensorPlan> AdapterTensors(const ModelConfig& model, const AdapterConfig& adapter);

}  // namespace nibble::model
