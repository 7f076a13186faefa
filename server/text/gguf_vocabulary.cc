#include "server/text/gguf_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::text {
namespace {

// Every split of a SentencePiece token is looked up, which takes time quadratic in its
// length. The longest real tokens are runs of blanks, below 200 bytes.
constexpr std::size_t kMaxTokenBytes = 1024;
constexpr std::size_t kMaxTokens = std::size_t{1} << 21;

absl::Status ReadTokens(const GgufTokenizer& gguf, GgufVocabulary* vocabulary) {
  const std::size_t count = gguf.tokens.size();
  if (count == 0 || count > kMaxTokens) {
    return RefuseGguf("tokens", base::StrCat("got ", count, " tokens, wanted 1 to ", kMaxTokens));
  }
  if (!gguf.token_types.empty() && gguf.token_types.size() != count) {
    return RefuseGguf("token_type", base::StrCat("got ", gguf.token_types.size(), " for ", count, " tokens"));
  }
  vocabulary->tokens = gguf.tokens;
  vocabulary->types.assign(count, GgufTokenType::kNormal);
  vocabulary->ids.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::string& token = vocabulary->tokens[i];
    if (token.empty()) token = base::StrCat("[EMPTY_", i, "]");
    if (token.size() > kMaxTokenBytes || !base::IsValidUtf8(token)) {
      return RefuseGguf("tokens", base::StrCat("token ", i, " is not UTF-8 of at most ", kMaxTokenBytes, " bytes"));
    }
    const auto [place, is_new] = vocabulary->ids.emplace(token, i);
    if (!is_new) {
      return RefuseGguf("tokens", base::StrCat("tokens ", place->second, " and ", i, " are both ", Quoted(token)));
    }
    if (gguf.token_types.empty()) continue;
    const std::int32_t type = gguf.token_types[i];
    if (type < 1 || type > 6) {
      return RefuseGguf("token_type", base::StrCat("token ", i, ": got ", type, ", wanted 1 to 6"));
    }
    vocabulary->types[i] = static_cast<GgufTokenType>(type);
  }
  return absl::OkStatus();
}

absl::Status ReadId(std::string_view key, std::optional<std::int64_t> id, std::optional<std::int64_t> absent,
                    std::size_t count, std::optional<std::size_t>* out) {
  if (!id) id = absent;
  if (!id) return absl::OkStatus();
  if (*id < 0 || static_cast<std::uint64_t>(*id) >= count) {
    return RefuseGguf(key, base::StrCat("got ", *id, " for ", count, " tokens"));
  }
  *out = static_cast<std::size_t>(*id);
  return absl::OkStatus();
}

}  // namespace

absl::Status RefuseGguf(std::string_view key, std::string_view reason) {
  return absl::InvalidArgumentError(base::StrCat("tokenizer.ggml.", key, ": ", reason));
}

std::string Quoted(std::string_view value) {
  std::string json;
  base::AppendJsonString(value, &json);
  return json;
}

absl::StatusOr<GgufVocabulary> ReadGgufVocabulary(const GgufTokenizer& gguf, bool add_bos) {
  GgufVocabulary vocabulary;
  NIBBLE_RETURN_IF_ERROR(ReadTokens(gguf, &vocabulary));
  const bool sentence_piece = gguf.model == "llama";
  const auto absent = [&](std::int64_t id) { return sentence_piece ? std::optional(id) : std::nullopt; };
  const std::size_t count = gguf.tokens.size();
  NIBBLE_RETURN_IF_ERROR(ReadId("bos_token_id", gguf.bos_id, absent(1), count, &vocabulary.bos));
  NIBBLE_RETURN_IF_ERROR(ReadId("eos_token_id", gguf.eos_id, absent(2), count, &vocabulary.eos));
  NIBBLE_RETURN_IF_ERROR(ReadId("unknown_token_id", gguf.unk_id, absent(0), count, &vocabulary.unk));
  NIBBLE_RETURN_IF_ERROR(ReadId("padding_token_id", gguf.pad_id, std::nullopt, count, &vocabulary.pad));
  vocabulary.add_bos = gguf.add_bos.value_or(add_bos);
  vocabulary.add_eos = gguf.add_eos.value_or(false);
  if (vocabulary.add_bos && !vocabulary.bos) {
    return RefuseGguf("bos_token_id", "absent, but add_bos_token is true");
  }
  if (vocabulary.add_eos && !vocabulary.eos) {
    return RefuseGguf("eos_token_id", "absent, but add_eos_token is true");
  }
  return vocabulary;
}

absl::StatusOr<GgufMerges> ReadGgufMerges(const GgufTokenizer& gguf, const GgufVocabulary& vocabulary) {
  GgufMerges merges;
  merges.reserve(gguf.merges.size());
  for (std::size_t i = 0; i < gguf.merges.size(); ++i) {
    const std::string_view merge = gguf.merges[i];
    const std::size_t blank = merge.find(' ', 1);
    if (blank == std::string_view::npos || !base::IsValidUtf8(merge)) {
      return RefuseGguf("merges", base::StrCat("merge ", i, " is not two tokens separated by a blank"));
    }
    const std::pair pair = {merge.substr(0, blank), merge.substr(blank + 1)};
    const std::string merged = base::StrCat(pair.first, pair.second);
    for (const std::string_view part : {pair.first, pair.second, std::string_view(merged)}) {
      if (!vocabulary.ids.contains(part)) {
        return RefuseGguf("merges", base::StrCat("merge ", i, ": ", Quoted(part), " is not a token"));
      }
    }
    merges.push_back(pair);
  }
  return merges;
}

absl::StatusOr<GgufMerges> GgufMergesFromScores(const GgufTokenizer& gguf, const GgufVocabulary& vocabulary) {
  if (gguf.scores.size() != gguf.tokens.size()) {
    return RefuseGguf("scores", base::StrCat("got ", gguf.scores.size(), " for ", gguf.tokens.size(), " tokens"));
  }
  struct Ranked {
    float score;
    std::size_t token, left, right;
    std::size_t cut;  // bytes of the left part
  };
  std::vector<Ranked> ranked;
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string_view token = vocabulary.tokens[i];
    if (std::isnan(gguf.scores[i])) {
      return RefuseGguf("scores", base::StrCat("token ", i, " has a NaN"));
    }
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = vocabulary.ids.find(token.substr(0, cut));
      if (left == vocabulary.ids.end()) continue;
      const auto right = vocabulary.ids.find(token.substr(cut));
      if (right == vocabulary.ids.end()) continue;
      ranked.push_back({gguf.scores[i], i, left->second, right->second, cut});
    }
  }
  std::sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    return std::tuple(-a.score, a.token, a.left, a.right) < std::tuple(-b.score, b.token, b.left, b.right);
  });
  GgufMerges merges;
  merges.reserve(ranked.size());
  for (const Ranked& r : ranked) {
    const std::string_view token = vocabulary.tokens[r.token];
    merges.emplace_back(token.substr(0, r.cut), token.substr(r.cut));
  }
  return merges;
}

}  // namespace nibble::text
