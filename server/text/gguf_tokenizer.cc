#include "server/text/gguf_tokenizer.h"

#include <array>
#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/text/gguf_vocabulary.h"

namespace nibble::text {
namespace {

// U+2581, which stands for a blank in SentencePiece.
constexpr std::string_view kBlank = "\u2581";

// GPT-2, encoder.py. llama.cpp's pattern ends after the lookahead and keeps unmatched
// text as a piece; `|\s+` has the same effect.
constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+)"
                                   R"(|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                                     R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                                    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// One value of tokenizer.ggml.pre.
struct PreTokenizer {
  std::string_view name;
  // Each cuts the pieces of the one before; empty ones are unused.
  std::array<std::string_view, 4> patterns;
  bool ignore_merges = false;  // a word that is a token stays whole
  bool add_bos = false;
};

constexpr PreTokenizer kPreTokenizers[] = {
    {"default", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
    {"gpt-2", {kGpt2}},
    {"smollm", {R"(\p{N})", kGpt2}},
    {"llama-bpe", {kLlama3}, /*ignore_merges=*/true, /*add_bos=*/true},
    {"llama3", {kLlama3}, /*ignore_merges=*/true, /*add_bos=*/true},
    {"llama-v3", {kLlama3}, /*ignore_merges=*/true, /*add_bos=*/true},
    {"qwen2", {kQwen2}},
    {"deepseek-r1-qwen", {kQwen2}},
};

absl::StatusOr<PreTokenizer> FindPreTokenizer(std::string_view name) {
  std::string names;
  for (const PreTokenizer& known : kPreTokenizers) {
    if (known.name == (name.empty() ? "default" : name)) return known;
    names += base::StrCat(names.empty() ? "" : ", ", known.name);
  }
  return RefuseGguf("pre", base::StrCat("got \"", name, "\", supported: ", names));
}

std::string_view Bool(bool value) { return value ? "true" : "false"; }

std::string AddedTokensJson(const GgufVocabulary& vocabulary) {
  std::string json = "[";
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const GgufTokenType type = vocabulary.types[i];
    // llama.cpp searches a text for these three types first.
    if (type != GgufTokenType::kControl && type != GgufTokenType::kUnknown && type != GgufTokenType::kUserDefined) {
      continue;
    }
    json += base::StrCat(json.size() > 1 ? ",{\"id\":" : "{\"id\":", i, ",\"content\":", Quoted(vocabulary.tokens[i]),
                         ",\"single_word\":false,\"lstrip\":false,\"rstrip\":"
                         "false,\"normalized\":false,\"special\":",
                         Bool(type != GgufTokenType::kUserDefined), "}");
  }
  return json + "]";
}

std::string PostProcessorJson(const GgufVocabulary& vocabulary) {
  if (!vocabulary.add_bos && !vocabulary.add_eos) return "null";
  std::string single, pair, special;
  const auto add = [&](std::size_t id) {
    const std::string name = Quoted(vocabulary.tokens[id]);
    const std::string piece = base::StrCat("{\"SpecialToken\":{\"id\":", name, ",\"type_id\":0}}");
    const std::string_view comma = single.empty() ? "" : ",";
    single += base::StrCat(comma, piece);
    pair += base::StrCat(comma, piece);
    const std::string entry = base::StrCat(name, ":{\"id\":", name, ",\"ids\":[", id, "],\"tokens\":[", name, "]}");
    if (special.find(entry) == std::string::npos) {
      special += base::StrCat(special.empty() ? "" : ",", entry);
    }
  };
  if (vocabulary.add_bos) add(*vocabulary.bos);
  const std::string_view comma = single.empty() ? "" : ",";
  single += base::StrCat(comma, R"({"Sequence":{"id":"A","type_id":0}})");
  pair += base::StrCat(comma, R"({"Sequence":{"id":"A","type_id":0}})", R"(,{"Sequence":{"id":"B","type_id":0}})");
  if (vocabulary.add_eos) add(*vocabulary.eos);
  return base::StrCat(R"({"type":"TemplateProcessing","single":[)", single, R"(],"pair":[)", pair,
                      R"(],"special_tokens":{)", special, "}}");
}

// The last three parameters differ between byte-level BPE and SentencePiece.
std::string TokenizerJson(const GgufVocabulary& vocabulary, const GgufMerges& merges, std::string_view model_flags,
                          std::string_view normalizer_and_pre_tokenizer, std::string_view decoder) {
  std::string json =
      base::StrCat(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":)", AddedTokensJson(vocabulary),
                   ",", normalizer_and_pre_tokenizer, R"(,"post_processor":)", PostProcessorJson(vocabulary),
                   R"(,"decoder":)", decoder, R"(,"model":{"type":"BPE","dropout":null,)",
                   R"("continuing_subword_prefix":null,"end_of_word_suffix":null,)", model_flags, R"(,"vocab":{)");
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    if (i > 0) json += ',';
    base::AppendJsonString(vocabulary.tokens[i], &json);
    json += base::StrCat(":", i);
  }
  json += R"(},"merges":[)";
  for (std::size_t i = 0; i < merges.size(); ++i) {
    json += i == 0 ? "[" : ",[";
    base::AppendJsonString(merges[i].first, &json);
    json += ',';
    base::AppendJsonString(merges[i].second, &json);
    json += ']';
  }
  return json + "]}}";
}

std::string ByteLevelJson(const PreTokenizer& pre, const GgufVocabulary& vocabulary, const GgufMerges& merges) {
  std::string steps;
  for (const std::string_view pattern : pre.patterns) {
    if (pattern.empty()) continue;
    steps += base::StrCat(R"({"type":"Split","pattern":{"Regex":)", Quoted(pattern),
                          R"(},"behavior":"Isolated","invert":false},)");
  }
  return TokenizerJson(
      vocabulary, merges,
      base::StrCat(R"("unk_token":null,"fuse_unk":false,"byte_fallback":false)", R"(,"ignore_merges":)",
                   Bool(pre.ignore_merges)),
      base::StrCat(R"("normalizer":null,"pre_tokenizer":{"type":"Sequence",)", R"("pretokenizers":[)", steps,
                   R"({"type":"ByteLevel","add_prefix_space":false,)", R"("trim_offsets":false,"use_regex":false}]})"),
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,)"
      R"("use_regex":false})");
}

std::string SentencePieceJson(bool add_space_prefix, const GgufVocabulary& vocabulary, const GgufMerges& merges) {
  const std::string_view blank = kBlank;
  return TokenizerJson(
      vocabulary, merges,
      base::StrCat(R"("unk_token":)", Quoted(vocabulary.tokens[*vocabulary.unk]),
                   R"(,"fuse_unk":true,"byte_fallback":true)", R"(,"ignore_merges":false)"),
      base::StrCat(R"("normalizer":{"type":"Sequence","normalizers":[)",
                   add_space_prefix ? base::StrCat(R"({"type":"Prepend","prepend":")", blank, "\"},") : "",
                   R"({"type":"Replace","pattern":{"String":" "},"content":")", blank, R"("}]},"pre_tokenizer":null)"),
      base::StrCat(R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":)", R"({"String":")", blank,
                   R"("},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"})",
                   add_space_prefix ? R"(,{"type":"Strip","content":" ","start":1,"stop":0})" : "", "]}"));
}

std::string ConfigJson(const GgufTokenizer& gguf, const GgufVocabulary& vocabulary) {
  std::string json =
      base::StrCat(R"({"tokenizer_class":"PreTrainedTokenizerFast","add_bos_token":)", Bool(vocabulary.add_bos),
                   R"(,"add_eos_token":)", Bool(vocabulary.add_eos), R"(,"clean_up_tokenization_spaces":false)");
  const auto add = [&](std::string_view name, std::string_view value) {
    json += base::StrCat(",\"", name, "\":", Quoted(value));
  };
  const auto token = [&](std::string_view name, std::optional<std::size_t> id) {
    if (id) add(name, vocabulary.tokens[*id]);
  };
  token("bos_token", vocabulary.bos);
  token("eos_token", vocabulary.eos);
  token("unk_token", vocabulary.unk);
  token("pad_token", vocabulary.pad);
  if (!gguf.chat_template.empty()) add("chat_template", gguf.chat_template);
  return json + "}";
}

}  // namespace

absl::StatusOr<TokenizerFiles> TokenizerFilesFromGguf(const GgufTokenizer& gguf) {
  if (!base::IsValidUtf8(gguf.chat_template)) {
    return absl::InvalidArgumentError("tokenizer.chat_template: not UTF-8");
  }
  TokenizerFiles files;
  if (gguf.model == "gpt2") {
    NIBBLE_ASSIGN_OR_RETURN(const PreTokenizer pre, FindPreTokenizer(gguf.pre));
    if (gguf.add_space_prefix.value_or(false)) {
      return RefuseGguf("add_space_prefix", "true is not supported for model gpt2");
    }
    NIBBLE_ASSIGN_OR_RETURN(const GgufVocabulary vocabulary, ReadGgufVocabulary(gguf, pre.add_bos));
    NIBBLE_ASSIGN_OR_RETURN(const GgufMerges merges, ReadGgufMerges(gguf, vocabulary));
    files.tokenizer_json = ByteLevelJson(pre, vocabulary, merges);
    files.tokenizer_config_json = ConfigJson(gguf, vocabulary);
    return files;
  }
  if (gguf.model != "llama") {
    return RefuseGguf("model", base::StrCat("got \"", gguf.model, "\", supported: gpt2, llama"));
  }
  if (!gguf.pre.empty() && gguf.pre != "default") {
    return RefuseGguf("pre", base::StrCat("got \"", gguf.pre, "\", model llama supports only default"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const GgufVocabulary vocabulary, ReadGgufVocabulary(gguf, /*add_bos=*/true));
  NIBBLE_ASSIGN_OR_RETURN(const GgufMerges merges, GgufMergesFromScores(gguf, vocabulary));
  files.tokenizer_json = SentencePieceJson(gguf.add_space_prefix.value_or(true), vocabulary, merges);
  files.tokenizer_config_json = ConfigJson(gguf, vocabulary);
  return files;
}

}  // namespace nibble::text
