// The checked tokenizer data of a GGUF file. Included by server/text/*.cc only.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/text/gguf_tokenizer.h"

namespace nibble::text {

// Where the file lacks a value, this holds llama.cpp's default. Move-only, because ids points into tokens.
struct GgufVocabulary {
  GgufVocabulary() = default;
  GgufVocabulary(GgufVocabulary&&) = default;
  GgufVocabulary& operator=(GgufVocabulary&&) = default;

  std::vector<std::string> tokens;
  std::unordered_map<std::string_view, std::size_t> ids;
  std::vector<GgufTokenType> types;
  std::optional<std::size_t> bos, eos, unk, pad;
  bool add_bos = false;
  bool add_eos = false;
};

// The two halves of each merge, highest priority first. They point into the vocabulary
// or the GgufTokenizer.
using GgufMerges = std::vector<std::pair<std::string_view, std::string_view>>;

// add_bos: the default if the file does not set it.
absl::StatusOr<GgufVocabulary> ReadGgufVocabulary(const GgufTokenizer& gguf, bool add_bos);

absl::StatusOr<GgufMerges> ReadGgufMerges(const GgufTokenizer& gguf, const GgufVocabulary& vocabulary);

// SentencePiece joins the two neighbours whose joint token has the highest score, so
// this lists all pairs that form a token, highest score first.
absl::StatusOr<GgufMerges> GgufMergesFromScores(const GgufTokenizer& gguf, const GgufVocabulary& vocabulary);

// InvalidArgument that names tokenizer.ggml.<key>.
absl::Status RefuseGguf(std::string_view key, std::string_view reason);

// `value` as a JSON string.
std::string Quoted(std::string_view value);

}  // namespace nibble::text
