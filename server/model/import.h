// Other programs' models made into artifacts: a Hugging Face directory, or a GGUF file.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "server/base/files.h"
#include "server/model/artifact.h"
#include "server/model/text_assets.h"

namespace nibble::model {

struct ImportReport {
  ArtifactInfo info;
  ModelConfig config;
  std::int64_t num_parameters = 0;
  std::vector<std::string> ignored_tensors;  // known to carry nothing: stored rotary tables, a tied head's copy
};

// `source` is a directory (config.json, model.safetensors or its shards, tokenizer.json; tokenizer_config.json,
// chat_template.jinja and generation_config.json where they are; or one .gguf file alone), or a .gguf file. Weights become
// f32 or bf16, each value rounded once; those of transformers' "bitnet" (hf_bitnet.h) a ternary artifact, or master weights;
// GGUF's quantised blocks are dequantised as the format says. generation_config.json's eos_token_id, where given, is the
// model's. K and V are cached in `dtype`.
// On any error nothing is left at `target`. A tokenizer.json, or a GGUF's vocabulary made into one, of more than
// max_tokenizer_bytes is refused before it is parsed.
// Errors: NotFound (a file that must be there), InvalidArgument (config, shapes, values that are not finite; named), DataLoss
// (truncated or contradictory files), Unimplemented (what is not supported, by name), AlreadyExists (target), ResourceExhausted
// (UPLOAD_TOO_LARGE: tokenizer.json), those of `admit`: it is called once, before the first tensor is read, with the most bytes
// of memory that are held from there on, beside the pages of mapped files.
absl::StatusOr<ImportReport> ImportModel(base::FileSystem& files, const std::string& source, const std::string& target,
                                         kernels::DType dtype, std::uint64_t max_tokenizer_bytes = kMaxTokenizerBytes,
                                         const std::function<absl::Status(std::int64_t bytes)>& admit = {});

}  // namespace nibble::model
