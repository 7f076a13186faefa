#include "server/data/token_writer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/thread_pool.h"
#include "server/base/error.h"
#include "server/base/free_space.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/data/token_format.h"
#include "server/model/forget_pages.h"

namespace nibble::data {
namespace {

using base::StrCat;

// More pieces than threads, so that a thread with slow lines delays the others less.
constexpr std::size_t kPiecesPerThread = 4;
constexpr std::size_t kMinPieceBytes = 1 << 10;
constexpr std::size_t kCopyBytes = std::size_t{4} << 20;

// Whole lines of the data file, and their examples.
struct Piece {
  std::string_view text;
  std::int64_t first_line = 1;
  std::vector<Example> examples;
  std::vector<std::int64_t> lines;  // of each example
  DataSummary summary;
  absl::Status status;
  bool waits = false;  // for the thread that reads the file, because a row needs a turn
};

// Cuts the text of a file into pieces of whole lines.
class PieceReader {
 public:
  explicit PieceReader(std::string_view text) : rest_(text) {}

  // Returns at least `min_bytes`, up to the end of a line; empty at the end of the text.
  Piece Next(std::size_t min_bytes) {
    const std::size_t end = rest_.find('\n', min_bytes - 1);
    Piece piece;
    piece.text = rest_.substr(0, end == std::string_view::npos ? end : end + 1);
    piece.first_line = next_line_;
    next_line_ += std::count(piece.text.begin(), piece.text.end(), '\n');
    rest_.remove_prefix(piece.text.size());
    return piece;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
  std::int64_t next_line_ = 1;
};

void TokenizePiece(const TokenSource& source, const base::Cancelled& cancelled, const AwaitTurn& await_turn,
                   Piece& piece) {
  std::string_view rest = piece.text;
  for (std::int64_t line = piece.first_line; !rest.empty() && piece.status.ok(); ++line) {
    const std::size_t end = rest.find('\n');
    piece.status = AddLine(line, rest.substr(0, end), source.format, source.text, source.config, source.options,
                           cancelled, await_turn, &piece.examples, &piece.summary);
    piece.lines.resize(piece.examples.size(), line);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
}

// Tokenizes the file window by window, and passes its pieces to `append` in order. Calls `before` before each window.
absl::Status TokenizeFile(const TokenSource& source, const WriteTokensOptions& options, kernels::ThreadPool& pool,
                          const std::function<absl::Status()>& before,
                          const std::function<absl::Status(const Piece&)>& append) {
  NIBBLE_ASSIGN_OR_RETURN(const auto file, base::MappedFile::Open(source.data_path));
  PieceReader reader(file->text());
  const std::size_t threads = static_cast<std::size_t>(pool.num_threads());
  const std::size_t piece_bytes = std::max(options.window_bytes / (threads * kPiecesPerThread), kMinPieceBytes);
  // options.cancelled may not be thread-safe: only this thread calls it, and the others read the result.
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> stop{false};
  const base::Cancelled cancelled = [&] {
    if (!stop && std::this_thread::get_id() == caller && options.cancelled && options.cancelled()) stop = true;
    return stop.load();
  };
  LargeRows alone;
  LargeRows& large_rows = options.large_rows != nullptr ? *options.large_rows : alone;
  const AwaitTurn await_turn = [&] { return large_rows.Await(cancelled); };
  const auto tokenize_small = [&](Piece& piece) {
    // Threads of the pool never wait for a turn: only this thread calls options.cancelled.
    TokenizePiece(
        source, cancelled,
        [&]() -> absl::StatusOr<LargeRows::Turn> {
          piece.waits = true;
          return absl::AbortedError("a large row");
        },
        piece);
  };
  while (true) {
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    NIBBLE_RETURN_IF_ERROR(before());
    std::vector<Piece> pieces;
    for (std::size_t bytes = 0; bytes < options.window_bytes;) {
      Piece piece = reader.Next(piece_bytes);
      if (piece.text.empty()) break;
      bytes += piece.text.size();
      pieces.push_back(std::move(piece));
    }
    if (pieces.empty()) return absl::OkStatus();
    pool.ParallelFor(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) tokenize_small(pieces[static_cast<std::size_t>(i)]);
    });
    for (Piece& piece : pieces) {
      if (piece.waits) {
        Piece again;
        again.text = piece.text;
        again.first_line = piece.first_line;
        piece = std::move(again);
        TokenizePiece(source, cancelled, await_turn, piece);
      }
      NIBBLE_RETURN_IF_ERROR(piece.status);
      NIBBLE_RETURN_IF_ERROR(append(piece));
      piece = {};
    }
    model::ForgetPages(file->bytes().first(file->text().size() - reader.rest().size()));
  }
}

// As TokenizeFile, with a tokenizer that caches words if there is memory for them. Each thread has its cache until it
// ends, so this runs on threads of its own.
absl::Status TokenizeOnOwnThreads(const TokenSource& source, const WriteTokensOptions& options,
                                  const std::function<absl::Status()>& before,
                                  const std::function<absl::Status(const Piece&)>& append) {
  TokenSource cached = source;
  const auto taken = options.memory == nullptr ? nullptr : options.memory->TryTake(options.threads * kWordCacheBytes);
  if (options.memory == nullptr || taken != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(cached.text.tokenizer, source.text.tokenizer->WithWordCache());
  }
  // std::async, because an exception of the thread must reach the caller.
  return std::async(std::launch::async,
                    [&] {
                      kernels::ThreadPool pool(options.threads);
                      return TokenizeFile(cached, options, pool, before, append);
                    })
      .get();
}

// The name of a temporary file, which the destructor removes unless Keep was called.
class Temporary {
 public:
  Temporary(base::FileSystem& files, const std::string& target) : files_(files), path_(base::TemporaryName(target)) {}
  ~Temporary() {
    if (!path_.empty()) files_.RemoveAll(path_).IgnoreError();
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const std::string& path() const { return path_; }
  void Keep() { path_.clear(); }

 private:
  base::FileSystem& files_;
  std::string path_;
};

class Writer {
 public:
  Writer(base::FileSystem& files, const TokenSource& source, const WriteTokensOptions& options)
      : files_(files),
        source_(source),
        options_(options),
        key_(TokenKey(source)),
        path_(TokenFilePath(source.tokens_directory, key_)),
        temporary_(files, path_),
        temporary_index_(files, path_) {}

  absl::Status Write() {
    if (absl::Status made = files_.CreateDirectories(source_.tokens_directory); !made.ok()) {
      // InvalidArgument would mean that the data is wrong.
      return absl::IsInvalidArgument(made) ? absl::FailedPreconditionError(made.message()) : made;
    }
    NIBBLE_ASSIGN_OR_RETURN(file_, files_.Create(temporary_.path()));
    NIBBLE_ASSIGN_OR_RETURN(index_file_, files_.Create(temporary_index_.path()));
    TokenHeader header = {};
    std::memcpy(header.magic, kTokenMagic, sizeof(header.magic));
    std::memcpy(header.key, key_.data(), sizeof(header.key));
    header.version = kTokenFileVersion;
    NIBBLE_RETURN_IF_ERROR(file_->Append({reinterpret_cast<const char*>(&header), sizeof(header)}));
    NIBBLE_RETURN_IF_ERROR(TokenizeOnOwnThreads(
        source_, options_, [this] { return CheckRoom(); }, [this](const Piece& piece) { return Append(piece); }));
    NIBBLE_RETURN_IF_ERROR(CheckTrainable(summary_));
    NIBBLE_RETURN_IF_ERROR(WriteIndexAndSummary());
    NIBBLE_RETURN_IF_ERROR(file_->Sync());
    NIBBLE_RETURN_IF_ERROR(file_->Close());
    NIBBLE_RETURN_IF_ERROR(files_.Rename(temporary_.path(), path_));
    temporary_.Keep();
    return files_.SyncDirectory(source_.tokens_directory);
  }

 private:
  absl::Status Append(const Piece& piece) {
    std::vector<std::uint32_t> tokens;
    tokens.reserve(static_cast<std::size_t>(piece.summary.num_tokens));
    std::vector<TokenIndexEntry> index;
    index.reserve(piece.examples.size());
    for (std::size_t i = 0; i < piece.examples.size(); ++i) {
      const Example& example = piece.examples[i];
      TokenIndexEntry entry;
      entry.offset = num_tokens_ + tokens.size();
      entry.line = static_cast<std::uint64_t>(example.line);
      entry.num_tokens = static_cast<std::uint32_t>(example.tokens.size());
      entry.num_trained = static_cast<std::uint32_t>(example.num_trained());
      entry.flags = (example.num_cut_off > 0 ? kTokensTruncated : 0) |
                    (example.boundary_merged ? kTokensBoundaryMerged : 0) |
                    (example.began_with_added ? kTokensBeganWithAdded : 0);
      index.push_back(entry);
      for (std::size_t t = 0; t < example.tokens.size(); ++t) {
        tokens.push_back(static_cast<std::uint32_t>(example.tokens[t]) | (example.trained[t] != 0 ? kTrainedBit : 0));
      }
    }
    num_tokens_ += tokens.size();
    num_examples_ += index.size();
    summary_.Append(piece.summary);
    const std::string_view token_bytes(reinterpret_cast<const char*>(tokens.data()),
                                       tokens.size() * sizeof(std::uint32_t));
    const std::string_view index_bytes(reinterpret_cast<const char*>(index.data()),
                                       index.size() * sizeof(TokenIndexEntry));
    tokens_sha_.Update(token_bytes);
    index_sha_.Update(index_bytes);
    NIBBLE_RETURN_IF_ERROR(file_->Append(token_bytes));
    return index_file_->Append(index_bytes);
  }

  absl::Status WriteIndexAndSummary() {
    if (num_tokens_ % 2 != 0) NIBBLE_RETURN_IF_ERROR(file_->Append(std::string(sizeof(std::uint32_t), '\0')));
    NIBBLE_RETURN_IF_ERROR(index_file_->Close());
    {
      NIBBLE_ASSIGN_OR_RETURN(const auto index, base::MappedFile::Open(temporary_index_.path()));
      for (std::size_t at = 0; at < index->text().size(); at += kCopyBytes) {
        NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(options_.cancelled));
        NIBBLE_RETURN_IF_ERROR(CheckRoom());
        NIBBLE_RETURN_IF_ERROR(file_->Append(index->text().substr(at, kCopyBytes)));
      }
    }
    base::Json json = SummaryJson(summary_);
    json["num_examples"] = num_examples_;
    json["tokens_sha256"] = tokens_sha_.HexDigest();
    json["index_sha256"] = index_sha_.HexDigest();
    const std::string text = base::Dump(json);
    TokenTrailer trailer = {};
    trailer.summary_bytes = text.size();
    std::memcpy(trailer.summary_sha256, base::Sha256Hex(text).data(), sizeof(trailer.summary_sha256));
    std::memcpy(trailer.magic, kTokenEndMagic, sizeof(trailer.magic));
    NIBBLE_RETURN_IF_ERROR(file_->Append(text));
    return file_->Append({reinterpret_cast<const char*>(&trailer), sizeof(trailer)});
  }

  // Users' data has priority over tokens, which can be made again.
  absl::Status CheckRoom() {
    if (options_.min_free_bytes == 0) return absl::OkStatus();
    return base::CheckSpace(files_, source_.tokens_directory, options_.min_free_bytes);
  }

  base::FileSystem& files_;
  const TokenSource& source_;
  const WriteTokensOptions& options_;
  const std::string key_;
  const std::string path_;
  Temporary temporary_;
  Temporary temporary_index_;
  std::unique_ptr<base::WritableFile> file_;
  std::unique_ptr<base::WritableFile> index_file_;
  base::Sha256 tokens_sha_;
  base::Sha256 index_sha_;
  std::uint64_t num_tokens_ = 0;
  std::uint64_t num_examples_ = 0;
  DataSummary summary_;
};

absl::StatusOr<Dataset> Open(const TokenSource& source, bool verify, const base::Cancelled& cancelled) {
  const std::string key = TokenKey(source);
  NIBBLE_ASSIGN_OR_RETURN(auto file, TokenFile::Open(TokenFilePath(source.tokens_directory, key), key));
  if (verify) NIBBLE_RETURN_IF_ERROR(file->VerifyTokens(cancelled));
  return DatasetOf(std::move(file));
}

// Only the lengths of the examples, which suffice for a plan: 16 bytes per example. Returns `not_written` if there are
// too many.
absl::StatusOr<Dataset> CountLengths(const TokenSource& source, const WriteTokensOptions& options,
                                     const absl::Status& not_written) {
  Dataset dataset;
  std::vector<ExampleLength> lengths;
  NIBBLE_RETURN_IF_ERROR(TokenizeOnOwnThreads(
      source, options, [] { return absl::OkStatus(); },
      [&](const Piece& piece) {
        if (lengths.size() + piece.examples.size() > options.max_counted) return not_written;
        for (const Example& example : piece.examples) {
          lengths.push_back({static_cast<std::uint32_t>(example.tokens.size()),
                             static_cast<std::uint32_t>(example.num_trained()), example.line});
        }
        dataset.Append(piece.summary);
        return absl::OkStatus();
      }));
  NIBBLE_RETURN_IF_ERROR(CheckTrainable(dataset));
  dataset.examples = ExampleList(std::move(lengths));
  return dataset;
}

}  // namespace

absl::Status WriteTokenFile(base::FileSystem& files, const TokenSource& source, const WriteTokensOptions& options) {
  return Writer(files, source, options).Write();
}

absl::StatusOr<Dataset> LoadTokens(base::FileSystem& files, const TokenSource& source,
                                   const WriteTokensOptions& options) {
  absl::StatusOr<Dataset> found = absl::FailedPreconditionError("the dataset has no directory for token files");
  if (!source.tokens_directory.empty()) {
    found = Open(source, options.verify, options.cancelled);
    if (found.ok() || absl::IsCancelled(found.status())) return found;
    if (!absl::IsNotFound(found.status())) {
      base::LogWarning("cannot use a token file, rewriting it", {{"why", std::string(found.status().message())}});
    }
    const absl::Status written = WriteTokenFile(files, source, options);
    if (absl::IsInvalidArgument(written) || absl::IsCancelled(written) ||
        base::Reason(written) == "OUT_OF_DEVICE_MEMORY")
      return written;
    found = written.ok() ? Open(source, /*verify=*/false, options.cancelled) : absl::StatusOr<Dataset>(written);
    if (found.ok() || options.without_file == WithoutFile::kError) return found;
    const bool in_memory = options.without_file == WithoutFile::kInMemory;
    base::LogWarning(in_memory ? "cannot write a token file, keeping the tokens in memory"
                               : "cannot write a token file, only counting the tokens",
                     {{"why", std::string(found.status().message())}});
  }
  if (options.without_file == WithoutFile::kLengthsAlone) return CountLengths(source, options, found.status());
  return LoadDataset(source.data_path, source.format, source.text, source.config, source.options, options.cancelled);
}

}  // namespace nibble::data
