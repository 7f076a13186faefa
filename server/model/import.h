// Makes artifacts from models of other programs (a Hugging Face directory, or a GGUF file), and of random weights.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/stream.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/model/artifact.h"
#include "server/model/text_assets.h"

namespace nibble::model {

struct ImportReport {
  ArtifactInfo info;
  ModelConfig config;
  std::int64_t num_parameters = 0;
  std::vector<std::string> ignored_tensors;  // redundant: stored rotary tables, a tied head's copy
};

struct TrainedTokenizer {
  std::string json;       // of tokenizer.json
  std::string eos_token;  // ends a text
  std::int32_t eos_token_id = 0;
};

// How to draw the weights of a model whose directory has none.
struct RandomInit {
  std::uint64_t seed = 0;
  kernels::Stream stream = {};  // draws the weights
  // Called once with the checked config.json, if set; then the directory must have no tokenizer.json.
  std::function<absl::StatusOr<TrainedTokenizer>(const ModelConfig&)> train_tokenizer = {};
};

struct ImportOptions {
  std::uint64_t max_tokenizer_bytes = kMaxTokenizerBytes;
  // Called once, before the first tensor is read, with the peak memory in bytes from then on, without mapped pages.
  std::function<absl::Status(std::int64_t bytes)> admit = {};
  base::Json provenance = base::Json::object();  // added to ArtifactInfo::provenance
  // Draws the weights instead of reading them: `source` is a directory without weights.
  std::optional<RandomInit> random = std::nullopt;
};

// `source` is a .gguf file or a directory. A directory holds config.json, model.safetensors or its shards,
// tokenizer.json and optionally tokenizer_config.json, chat_template.jinja and generation_config.json; or it holds one
// .gguf file and no config.json. Weights become f32 or bf16, each value rounded once. Weights of transformers' "bitnet"
// (hf_bitnet.h) become a ternary artifact, or master weights. GGUF's quantized blocks are dequantized as the format
// defines. An eos_token_id in generation_config.json overrides that of config.json. K and V are cached in `dtype`.
// Random weights: matrices have mean 0 and standard deviation 0.02, norms are 1 and biases 0.
// On any error but AlreadyExists, nothing is left at `target`. A tokenizer.json, or one made from a GGUF's vocabulary,
// of more than max_tokenizer_bytes is refused before it is parsed.
// Errors: NotFound (a required file), InvalidArgument (config, shapes, values that are not finite; named), DataLoss
// (truncated or contradictory files), Unimplemented (an unsupported feature, by name), AlreadyExists (target),
// FailedPrecondition (RAW_MASTERS), ResourceExhausted (UPLOAD_TOO_LARGE: tokenizer.json; MALFORMED_FILE: beyond a
// limit of safetensors.h), those of the options' functions.
absl::StatusOr<ImportReport> ImportModel(base::FileSystem& files, const std::string& source, const std::string& target,
                                         kernels::DType dtype, const ImportOptions& options = {});

}  // namespace nibble::model
