// A file with the tokens of a dataset, which planner and trainer map (docs/formats.md). Written once for each
// combination of data, tokenizer, template and options.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/data/example.h"

namespace nibble::data {

// Increment this when the format changes, or when Tokenize gives a row other tokens or marks. Older files are then
// rewritten.
inline constexpr std::uint32_t kTokenFileVersion = 4;

// Input of a token file.
struct TokenSource {
  std::string data_path;
  std::string data_sha256;
  std::string tokens_directory;  // of the token files of the dataset; "": none
  RowFormat format = RowFormat::kText;
  model::TextAssets text;
  model::ModelConfig config;
  TokenizeOptions options;
};

// 64 lower-case hex digits: the SHA-256 of everything that the tokens depend on.
std::string TokenKey(const TokenSource& source);
// Path of the file with that key in `directory`.
std::string TokenFilePath(const std::string& directory, const std::string& key);
bool IsTokenFileName(const std::string& name);

// One example of a file, in the fixed-width layout of the file.
struct TokenIndexEntry {
  std::uint64_t offset = 0;  // of its first token, in tokens
  std::uint64_t line = 0;    // of the data file, from 1
  std::uint32_t num_tokens = 0;
  std::uint32_t num_trained = 0;  // Example::num_trained
  std::uint32_t flags = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(TokenIndexEntry) == 32);
inline constexpr std::uint32_t kTokensTruncated = 1;       // Example::num_cut_off > 0
inline constexpr std::uint32_t kTokensBoundaryMerged = 2;  // Example::boundary_merged
inline constexpr std::uint32_t kTokensBeganWithAdded = 4;  // Example::began_with_added

// Thread-safe.
class TokenFile {
 public:
  // Reads index and summary, no tokens. Errors: NotFound; DataLoss if the file is damaged, or has another version or
  // key.
  static absl::StatusOr<std::shared_ptr<const TokenFile>> Open(const std::string& path, const std::string& key);
  // Reads all tokens. Errors: DataLoss if their digest does not match; Cancelled.
  absl::Status VerifyTokens(const base::Cancelled& cancelled) const;

  const DataSummary& summary() const { return summary_; }
  std::size_t size() const { return index_.size(); }
  const TokenIndexEntry& entry(std::size_t i) const { return index_[i]; }
  std::int64_t num_tokens(std::size_t i) const { return index_[i].num_tokens; }
  std::int64_t num_trained(std::size_t i) const { return index_[i].num_trained; }
  // num_cut_off is 1 if anything was cut off; the file does not store how much.
  Example Get(std::size_t i) const;

 private:
  TokenFile() = default;
  std::shared_ptr<const base::MappedFile> file_;
  std::span<const std::uint32_t> tokens_;
  std::span<const TokenIndexEntry> index_;
  DataSummary summary_;
  std::string tokens_sha256_;
};

Dataset DatasetOf(std::shared_ptr<const TokenFile> file);

}  // namespace nibble::data
