#include "server/data/token_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/base/json.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/data/row_list_json.h"
#include "server/data/token_format.h"

namespace nibble::data {
namespace {

using base::Json;
using base::StrCat;

constexpr char kSuffix[] = ".tokens";
constexpr std::size_t kKeySize = 64;
constexpr std::size_t kHashedBytes = std::size_t{1} << 20;  // between two checks of `cancelled`
constexpr std::uint64_t kMaxSummaryBytes = std::uint64_t{1} << 20;

// The lists of a summary, by key.
constexpr std::pair<const char*, RowList DataSummary::*> kLists[] = {
    {"truncated", &DataSummary::truncated},
    {"dropped", &DataSummary::dropped},
    {"without_loss", &DataSummary::without_loss},
    {"boundary_merged", &DataSummary::boundary_merged},
    {"began_with_added", &DataSummary::began_with_added},
    {"unknown_roles", &DataSummary::unknown_roles},
    {"empty_answers", &DataSummary::empty_answers}};

absl::StatusOr<DataSummary> ParseSummary(const Json& json, const std::string& where) {
  DataSummary summary;
  NIBBLE_ASSIGN_OR_RETURN(summary.num_rows, base::GetInt(json, "num_rows", where));
  NIBBLE_ASSIGN_OR_RETURN(summary.num_tokens, base::GetInt(json, "num_tokens", where));
  NIBBLE_ASSIGN_OR_RETURN(summary.num_trained, base::GetInt(json, "num_trained", where));
  for (const auto& [name, list] : kLists) {
    NIBBLE_ASSIGN_OR_RETURN(summary.*list, ParseRowList(json, name, where));
  }
  return summary;
}

}  // namespace

Json SummaryJson(const DataSummary& summary) {
  Json json = {
      {"num_rows", summary.num_rows}, {"num_tokens", summary.num_tokens}, {"num_trained", summary.num_trained}};
  for (const auto& [name, list] : kLists) json[name] = RowListJson(summary.*list);
  return json;
}

std::string TokenKey(const TokenSource& source) {
  const TokenizeOptions& options = source.options;
  Json json = {{"version", kTokenFileVersion},
               {"data", source.data_sha256},
               {"text", source.text.digest},
               {"format", Name(source.format)},
               {"max_seq_len", options.max_seq_len},
               {"overlong", static_cast<int>(options.overlong.value_or(OverlongFor("", source.format, source.format)))},
               {"train_on_prompt", options.train_on_prompt},
               {"add_special_tokens", options.add_special_tokens.value_or(source.format != RowFormat::kChat)}};
  if (!source.config.eos_token_ids.empty()) json["eos"] = source.config.eos_token_ids.front();
  return base::Sha256Hex(base::DumpSorted(json));
}

std::string TokenFilePath(const std::string& directory, const std::string& key) {
  return base::JoinPath(directory, StrCat(key, kSuffix));
}

bool IsTokenFileName(const std::string& name) {
  return name.size() == kKeySize + sizeof(kSuffix) - 1 && name.ends_with(kSuffix) &&
         name.find_first_not_of("0123456789abcdef") == kKeySize;
}

absl::StatusOr<std::shared_ptr<const TokenFile>> TokenFile::Open(const std::string& path, const std::string& key) {
  std::shared_ptr<TokenFile> opened(new TokenFile());
  NIBBLE_ASSIGN_OR_RETURN(opened->file_, base::MappedFile::Open(path));
  const std::string_view bytes = opened->file_->text();
  const auto damaged = [&path](std::string_view what) {
    return absl::DataLossError(StrCat("token file ", path, " ", what));
  };
  TokenHeader header;
  TokenTrailer trailer;
  if (bytes.size() < sizeof(header) + sizeof(trailer)) return damaged("is truncated");
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::memcpy(&trailer, bytes.data() + bytes.size() - sizeof(trailer), sizeof(trailer));
  if (std::memcmp(header.magic, kTokenMagic, sizeof(header.magic)) != 0) return damaged("is not a token file");
  if (std::memcmp(trailer.magic, kTokenEndMagic, sizeof(trailer.magic)) != 0) return damaged("is truncated");
  if (header.version != kTokenFileVersion)
    return damaged(StrCat("has version ", header.version, ", wanted ", kTokenFileVersion));
  if (std::string_view(header.key, sizeof(header.key)) != key) return damaged("has another key");

  const std::uint64_t body = bytes.size() - sizeof(header) - sizeof(trailer);
  if (trailer.summary_bytes > std::min(body, kMaxSummaryBytes)) return damaged("has too long a summary");
  const std::string_view text = bytes.substr(sizeof(header) + body - trailer.summary_bytes, trailer.summary_bytes);
  if (base::Sha256Hex(text) != std::string_view(trailer.summary_sha256, sizeof(trailer.summary_sha256))) {
    return damaged("has a damaged summary");
  }
  const auto json = base::ParseJson(text);
  if (!json.ok() || !json->is_object()) return damaged("has no summary");
  auto summary = ParseSummary(*json, path);
  const auto num_examples = base::GetInt(*json, "num_examples", path);
  const auto tokens_sha256 = base::GetString(*json, "tokens_sha256", path);
  const auto index_sha256 = base::GetString(*json, "index_sha256", path);
  if (!summary.ok() || !num_examples.ok() || !tokens_sha256.ok() || !index_sha256.ok()) {
    return damaged("has an incomplete summary");
  }

  const auto tokens = static_cast<std::uint64_t>(summary->num_tokens),
             examples = static_cast<std::uint64_t>(*num_examples);
  const std::uint64_t room = body - trailer.summary_bytes;
  if (tokens > room / sizeof(std::uint32_t) || examples > room / sizeof(TokenIndexEntry) ||
      (tokens + tokens % 2) * sizeof(std::uint32_t) + examples * sizeof(TokenIndexEntry) != room) {
    return damaged("has a wrong size");
  }
  const char* const tokens_at = bytes.data() + sizeof(header);
  const char* const index_at = tokens_at + (tokens + tokens % 2) * sizeof(std::uint32_t);
  if (base::Sha256Hex({index_at, examples * sizeof(TokenIndexEntry)}) != *index_sha256) {
    return damaged("has a damaged index");
  }
  // Aligned: a mapping begins at a page, and every part is a multiple of 8 bytes.
  opened->tokens_ = {reinterpret_cast<const std::uint32_t*>(tokens_at), tokens};
  opened->index_ = {reinterpret_cast<const TokenIndexEntry*>(index_at), examples};
  std::uint64_t offset = 0;
  for (const TokenIndexEntry& entry : opened->index_) {
    if (entry.offset != offset || entry.num_tokens > tokens - offset || entry.num_trained > entry.num_tokens)
      return damaged("has a wrong index");
    offset += entry.num_tokens;
  }
  if (offset != tokens) return damaged("has a wrong index");
  opened->summary_ = *std::move(summary);
  opened->tokens_sha256_ = *tokens_sha256;
  return opened;
}

absl::Status TokenFile::VerifyTokens(const base::Cancelled& cancelled) const {
  base::Sha256 sha;
  const std::string_view all(reinterpret_cast<const char*>(tokens_.data()), tokens_.size_bytes());
  for (std::size_t at = 0; at < all.size(); at += kHashedBytes) {
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    sha.Update(all.substr(at, kHashedBytes));
  }
  return sha.HexDigest() == tokens_sha256_ ? absl::OkStatus() : absl::DataLossError("a token file has damaged tokens");
}

Example TokenFile::Get(std::size_t i) const {
  const TokenIndexEntry& entry = index_[i];
  Example example;
  example.tokens.reserve(entry.num_tokens);
  example.trained.reserve(entry.num_tokens);
  for (const std::uint32_t token : tokens_.subspan(entry.offset, entry.num_tokens)) {
    example.tokens.push_back(static_cast<std::int32_t>(token & ~kTrainedBit));
    example.trained.push_back(static_cast<std::uint8_t>((token & kTrainedBit) != 0 ? 1 : 0));
  }
  example.line = static_cast<std::int64_t>(entry.line);
  example.num_cut_off = (entry.flags & kTokensTruncated) != 0 ? 1 : 0;
  example.boundary_merged = (entry.flags & kTokensBoundaryMerged) != 0;
  example.began_with_added = (entry.flags & kTokensBeganWithAdded) != 0;
  return example;
}

Dataset DatasetOf(std::shared_ptr<const TokenFile> file) {
  Dataset dataset;
  static_cast<DataSummary&>(dataset) = file->summary();
  dataset.examples = ExampleList(std::move(file));
  return dataset;
}

}  // namespace nibble::data
