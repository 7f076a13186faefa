// Converts the tokenizer inside a GGUF file to the two files that a Hugging Face
// directory would hold.
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

// Values of the keys tokenizer.* of a GGUF file. A comment names the key where the field's
// name differs.
struct GgufTokenizer {
  std::string model;  // "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE)
  std::string pre;    // pre-tokenizer; empty if the key is absent
  std::vector<std::string> tokens;
  std::vector<std::int32_t> token_types;  // token_type; empty: all normal
  std::vector<std::string> merges;        // "left right", highest priority first
  std::vector<float> scores;              // for "llama"
  // bos_token_id, eos_token_id, unknown_token_id, padding_token_id. Absent: no such token, except for "llama": bos 1,
  // eos 2 and unk 0.
  std::optional<std::int64_t> bos_id;
  std::optional<std::int64_t> eos_id;
  std::optional<std::int64_t> unk_id;
  std::optional<std::int64_t> pad_id;
  // add_bos_token, add_eos_token, add_space_prefix. Absent: llama.cpp's default for that model and pre.
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
  std::string chat_template;  // empty: none
};

struct TokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};

// The result gives the same token ids as llama.cpp: it follows `pre` (transformers
// ignores it), adds no Unicode normalization, and treats an absent pre of a gpt2 model as
// "default". Pure: reads no files and keeps no state.
// Errors: InvalidArgument (an unknown model or pre, by name; lists of different
// lengths; no tokens or more than 2^21; a token of more than 1024 bytes; ids or types out
// of range; a duplicate token; a merge whose parts or result are not tokens; a NaN score;
// BOS or EOS to add, but without an id; add_space_prefix with gpt2; text that is not UTF-8).
// Source: llama.cpp src/llama-vocab.cpp (llm_tokenizer_bpe, llama_vocab::load).
absl::StatusOr<TokenizerFiles> TokenizerFilesFromGguf(const GgufTokenizer& gguf);

}  // namespace nibble::text
