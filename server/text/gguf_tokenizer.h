// The tokenizer inside a GGUF file as the two files that a Hugging Face directory
// would hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::text {

// The values of tokenizer.ggml.token_type (llama.h, llama_token_type).
enum class GgufTokenType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// The keys under tokenizer. of a GGUF file; the name of each is given where it
// differs.
struct GgufTokenizer {
  std::string model;  // "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE)
  std::string pre;    // which pre-tokenizer; empty where the key is absent
  std::vector<std::string> tokens;
  std::vector<std::int32_t> token_types;  // token_type; empty: all normal
  std::vector<std::string> merges;        // "left right", by falling priority
  std::vector<float> scores;              // for "llama"
  // *_token_id. Absent: none, but for "llama" bos 1, eos 2 and unk 0.
  std::optional<std::int64_t> bos_id;
  std::optional<std::int64_t> eos_id;
  std::optional<std::int64_t> unk_id;
  std::optional<std::int64_t> pad_id;
  // add_*. Absent: what llama.cpp does for that model and pre.
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
  std::string chat_template;  // empty: none
};

struct TokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};

// Token ids of the result are llama.cpp's: `pre` is obeyed (transformers ignores
// it), no normalisation is added, an absent pre of a gpt2 model means "default".
// Pure: nothing is read or kept.
// Errors: InvalidArgument (a model or pre that is not known, by name; lists whose
// lengths differ; ids out of range; a token twice; text that is not UTF-8).
// Source: llama.cpp src/llama-vocab.cpp (llm_tokenizer_bpe, llama_vocab::load).
absl::StatusOr<TokenizerFiles> TokenizerFilesFromGguf(
    const GgufTokenizer& gguf);

}  // namespace nibble::text
