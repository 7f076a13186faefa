#include "server/data/token_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "server/base/error.h"
#include "server/data/loader.h"
#include "tests/server/data/token_source.h"
#include "tests/server/data/tokenizing_threads.h"
#include "tests/support/allocated_bytes.h"

namespace nibble::data {
namespace {

constexpr std::size_t kWindow = 16 << 10;  // pieces of 1 KiB on four threads
constexpr RowFormat kFormats[] = {RowFormat::kText, RowFormat::kPromptCompletion, RowFormat::kChat};

class TokenFileTest : public TokenSourceTest {
 protected:
  absl::StatusOr<Dataset> Load(const TokenSource& source, const base::Cancelled& cancelled = {}) {
    return LoadTokens(base::RealFileSystem(), source,
                      {.threads = kThreads, .window_bytes = kWindow, .verify = true, .cancelled = cancelled});
  }
};

// T7 (docs/faults.md): planner, job and each attempt tokenized the data again.
TEST_F(TokenFileTest, HoldsTheExamplesAndRowsOfLoadDataset) {
  for (const RowFormat format : kFormats) {
    for (const Overlong overlong : {Overlong::kTruncate, Overlong::kDrop, Overlong::kSplit}) {
      if (overlong == Overlong::kSplit && format != RowFormat::kText) continue;
      SCOPED_TRACE(std::string(Name(format)) + " " + std::to_string(static_cast<int>(overlong)));
      TokenSource source = Source(format, 60);
      source.options.overlong = overlong;
      const auto want = InMemory(source);
      ASSERT_TRUE(want.ok()) << want.status();
      const auto made = Load(source);
      ASSERT_TRUE(made.ok()) << made.status();
      ExpectSame(*made, *want);
      EXPECT_TRUE(std::filesystem::exists(PathOf(source)));
      // The second load has no tokenizer, so it cannot tokenize.
      source.text.tokenizer = nullptr;
      const auto read = Load(source);
      ASSERT_TRUE(read.ok()) << read.status();
      ExpectSame(*read, *want);
      ASSERT_EQ(RowWarnings(*read, 40).size(), RowWarnings(*want, 40).size());
      for (std::size_t i = 0; i < RowWarnings(*want, 40).size(); ++i) {
        EXPECT_EQ(RowWarnings(*read, 40)[i].message, RowWarnings(*want, 40)[i].message);
        EXPECT_EQ(RowWarnings(*read, 40)[i].rows, RowWarnings(*want, 40)[i].rows);
      }
    }
  }
}

TEST_F(TokenFileTest, NamesTheLineOfEachExample) {
  const TokenSource source = Source(RowFormat::kPromptCompletion, 3);
  ASSERT_TRUE(Load(source).ok());
  const auto file = TokenFile::Open(PathOf(source), TokenKey(source));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_GE((*file)->size(), 4u);
  EXPECT_EQ((*file)->entry(0).line, 1u);
  EXPECT_EQ((*file)->entry(0).flags, kTokensBoundaryMerged);
  EXPECT_EQ((*file)->entry(1).line, 3u) << "a blank line is between them";
  EXPECT_EQ((*file)->entry(2).line, 4u);
}

TEST_F(TokenFileTest, BytesDoNotDependOnTheNumberOfThreads) {
  // Many windows, and lines that are longer than a window.
  const std::string long_line = "{\"text\": \"" + std::string(60'000, 'y') + "\"}\n";
  const TokenSource source = Source(RowFormat::kText, 700, long_line + long_line + "{\"text\": \"no line end\"}");
  std::string first;
  for (const int threads : {1, 2, 3, 8}) {
    ASSERT_TRUE(WriteTokenFile(base::RealFileSystem(), source, {.threads = threads, .window_bytes = kWindow}).ok());
    const std::string bytes = ReadBytes(PathOf(source));
    EXPECT_GT(bytes.size(), 100'000u);
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << threads;
    EXPECT_EQ(FilesOf(source).size(), 1u) << "no temporary file is left";
  }
  const auto want = InMemory(source), got = Load(source);
  ASSERT_TRUE(want.ok() && got.ok());
  ExpectSame(*got, *want);
}

TEST_F(TokenFileTest, OtherThreadsTokenizeBesideTheCaller) {
  const TokenSource source = Source(RowFormat::kText, 5000);
  TokenizingThreads threads;
  ASSERT_TRUE(
      WriteTokenFile(base::RealFileSystem(), source, {.threads = kThreads, .cancelled = threads.Cancelled()}).ok());
  // They worked while the caller was held at its first line. How many lines they take after that is up to the system.
  EXPECT_TRUE(threads.others_worked());
}

TEST_F(TokenFileTest, BatchesEqualThoseOfExamplesInMemory) {
  const TokenSource source = Source(RowFormat::kPromptCompletion, 50);
  const auto memory = InMemory(source), file = Load(source);
  ASSERT_TRUE(memory.ok() && file.ok());
  for (const Packing packing : {Packing::kNone, Packing::kSegmented}) {
    Loader a(memory->examples, packing, 40, 7), b(file->examples, packing, 40, 7);
    std::int64_t rows = 0, examples = 0, tokens = 0, trained = 0;  // of the epoch
    EXPECT_EQ(a.RowsInEpoch(0), b.RowsInEpoch(0));
    EXPECT_EQ(a.RowsInEpoch(1), b.RowsInEpoch(1));
    while (a.cursor().epoch < 3) {
      const MicroBatch want = a.Next(3), got = b.Next(3);
      ASSERT_EQ(got.tokens, want.tokens);
      ASSERT_EQ(got.targets, want.targets);
      ASSERT_EQ(got.segments, want.segments);
      ASSERT_EQ(got.rows, want.rows);
      ASSERT_EQ(got.num_trained, want.num_trained);
      rows += want.num_rows;
      examples += static_cast<std::int64_t>(want.segments.size()) - 1;
      tokens += static_cast<std::int64_t>(want.tokens.size());
      trained += want.num_trained;
      if (a.cursor().taken < static_cast<std::int64_t>(memory->examples.size())) continue;
      // What a plan computes for an epoch, without making batches.
      ASSERT_EQ(file->num_tokens, tokens);
      ASSERT_EQ(file->num_trained, trained);
      ASSERT_EQ(static_cast<std::int64_t>(file->examples.size()), examples);
      ASSERT_EQ(b.RowsInEpoch(a.cursor().epoch), rows);
      rows = examples = tokens = trained = 0;
    }
  }
}

TEST_F(TokenFileTest, ErrorsEqualThoseOfLoadDatasetAndLeaveNoFile) {
  TokenSource too_long = Source(RowFormat::kPromptCompletion, 500);
  too_long.options.overlong = Overlong::kError;
  TokenSource untrained = Source(RowFormat::kText, 0, "{\"text\": \"\"}\n");
  untrained.config.eos_token_ids.clear();
  const TokenSource bad_line = Source(RowFormat::kChat, 400, "{\"messages\": 1}\n{\"messages\": 2}\n");
  for (const TokenSource& source : {too_long, untrained, bad_line}) {
    const absl::Status want = InMemory(source).status(), got = Load(source).status();
    EXPECT_TRUE(absl::IsInvalidArgument(want)) << want;
    EXPECT_EQ(got, want);
    EXPECT_EQ(base::Reason(got), base::Reason(want));
    EXPECT_TRUE(FilesOf(source).empty());
  }
}

TEST_F(TokenFileTest, CancelIsCheckedOnOneThreadAndLeavesNoFile) {
  const TokenSource source = Source(RowFormat::kText, 2000);
  for (const int after : {0, 1, 15}) {
    int asked = 0;
    std::set<std::thread::id> threads;
    const auto stopped = Load(source, [&] {
      threads.insert(std::this_thread::get_id());
      return asked++ >= after;
    });
    EXPECT_EQ(threads.size(), 1u);
    EXPECT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
    EXPECT_EQ(asked, after + 1) << "work stops at that line";
    EXPECT_TRUE(FilesOf(source).empty());
  }
}

TEST_F(TokenFileTest, DamagedFileIsDetectedAndRewritten) {
  const TokenSource source = Source(RowFormat::kPromptCompletion, 20);
  ASSERT_TRUE(Load(source).ok());
  const std::string whole = ReadBytes(PathOf(source));
  const auto want = InMemory(source);
  ASSERT_TRUE(want.ok());
  const auto token_bytes = static_cast<std::size_t>(want->num_tokens) * 4;
  // The header has 80 bytes, the tokens follow. Besides the files that are cut or longer, there is a file for each
  // altered byte: each byte of the header, each of about the last 600 bytes, and every 37th byte between them.
  std::vector<std::string> damaged = {"", whole.substr(0, 79), whole.substr(0, whole.size() - 1), whole + "x"};
  for (std::size_t at = 0; at < whole.size(); at += at < 80 || at + 600 > whole.size() ? 1 : 37) {
    if (at >= 12 && at < 16) continue;  // reserved
    damaged.push_back(whole);
    damaged.back()[at] = static_cast<char>(damaged.back()[at] ^ 0x11);
  }
  const std::size_t padding = token_bytes % 8;  // 0 or 4 bytes: after the tokens, the file continues at a multiple of 8
  for (std::size_t i = 0; i < damaged.size(); ++i) {
    std::ofstream(PathOf(source), std::ios::binary) << damaged[i];
    const auto file = TokenFile::Open(PathOf(source), TokenKey(source));
    if (file.ok()) {
      const absl::Status tokens = (*file)->VerifyTokens({});
      const auto differs =
          static_cast<std::size_t>(std::mismatch(whole.begin(), whole.end(), damaged[i].begin()).first - whole.begin());
      const bool is_padding = differs >= 80 + token_bytes && differs < 80 + token_bytes + padding;
      EXPECT_EQ(tokens.code(), is_padding ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss)
          << i << " at " << differs;
    } else {
      EXPECT_TRUE(absl::IsDataLoss(file.status()) || damaged[i].empty()) << file.status();
    }
  }
  std::ofstream(PathOf(source), std::ios::binary) << whole.substr(0, 100);
  const auto again = Load(source);
  ASSERT_TRUE(again.ok()) << again.status();
  ExpectSame(*again, *want);
  EXPECT_TRUE(ReadBytes(PathOf(source)) == whole);
}

TEST_F(TokenFileTest, KeyChangesWithEverythingThatTokensDependOn) {
  std::set<std::string> keys;
  const auto add = [&](TokenSource source) { EXPECT_TRUE(keys.insert(TokenKey(source)).second) << keys.size(); };
  const TokenSource source = Source(RowFormat::kPromptCompletion, 1);
  add(source);
  TokenSource other = source;
  other.data_sha256 = base::Sha256Hex("other");
  add(other);
  other = source;
  ASSERT_EQ(other.text.digest.size(), 64u);
  other.text.digest = base::Sha256Hex("other");
  add(other);
  other = source;
  other.config.eos_token_ids = {2};
  add(other);
  other.config.eos_token_ids.clear();
  add(other);
  other = source;
  other.format = RowFormat::kText;
  add(other);
  other = source;
  other.options.max_seq_len = 41;
  add(other);
  other = source;
  other.options.overlong = Overlong::kDrop;
  add(other);
  other = source;
  other.options.train_on_prompt = true;
  add(other);
  other = source;
  other.options.add_special_tokens = false;
  add(other);
  // Neither the path of the data nor an explicit default changes the key.
  other = source;
  other.data_path = "/elsewhere";
  other.options.overlong = Overlong::kTruncate;
  other.options.add_special_tokens = true;
  EXPECT_FALSE(keys.insert(TokenKey(other)).second);
}

#if !defined(NIBBLE_ASAN) && !defined(NIBBLE_TSAN)
// T6 (docs/faults.md)
TEST_F(TokenFileTest, MemoryDoesNotGrowWithTheData) {
  const std::string rows = ReadBytes(Source(RowFormat::kText, 200).data_path);
  const auto repeated = [&](int times) {
    TokenSource source = Source(RowFormat::kText, 0);
    source.data_path = temp_ / std::to_string(times);
    source.data_sha256 = std::to_string(times);
    std::ofstream out(source.data_path, std::ios::binary);
    for (int i = 0; i < times; ++i) out << rows;
    return source;
  };
  // Peak of allocated bytes at any line.
  const auto peak = [&](const TokenSource& source) {
    const std::int64_t before = ::nibble::testing::AllocatedBytes();
    std::int64_t most = 0, asked = 0;
    const auto look = [&] {
      if (++asked % 16 == 0) most = std::max(most, ::nibble::testing::AllocatedBytes() - before);
      return false;
    };
    EXPECT_TRUE(
        WriteTokenFile(base::RealFileSystem(), source, {.threads = 1, .window_bytes = kWindow, .cancelled = look})
            .ok());
    return most;
  };
  const TokenSource large = repeated(40);
  const std::int64_t small_peak = peak(repeated(4)), large_peak = peak(large);
  const std::int64_t before = ::nibble::testing::AllocatedBytes();
  const auto memory = InMemory(large);
  ASSERT_TRUE(memory.ok());
  const std::int64_t in_memory = ::nibble::testing::AllocatedBytes() - before;
  ASSERT_GE(in_memory, 5 * memory->num_tokens) << "mallinfo2 does not see what is allocated";
  EXPECT_LT(large_peak, small_peak + in_memory / 10);
  // A mapped file has only its summary in allocated memory.
  const std::int64_t without = ::nibble::testing::AllocatedBytes();
  const auto mapped = Load(large);
  ASSERT_TRUE(mapped.ok());
  EXPECT_LT(::nibble::testing::AllocatedBytes() - without, in_memory / 10);
}
#endif

// T7 (docs/faults.md): if the disk had no room for the tokens, a plan held all of them in the server's memory.
TEST_F(TokenFileTest, FullDiskLeavesOnlyLengthsIfNoTokensAreNeeded) {
  for (const RowFormat format : kFormats) {
    const TokenSource source = Source(format, 20);
    WriteTokensOptions options = {
        .threads = kThreads, .min_free_bytes = std::numeric_limits<std::uint64_t>::max(), .window_bytes = kWindow};
    options.without_file = WithoutFile::kError;
    EXPECT_EQ(base::Reason(LoadTokens(base::RealFileSystem(), source, options).status()), "DISK_FULL");
    options.without_file = WithoutFile::kLengthsAlone;
    const auto counted = LoadTokens(base::RealFileSystem(), source, options);
    const auto want = InMemory(source);
    ASSERT_TRUE(counted.ok() && want.ok()) << counted.status();
    EXPECT_FALSE(counted->examples.has_tokens());
    EXPECT_TRUE(want->examples.has_tokens());
    ASSERT_EQ(counted->examples.size(), want->examples.size());
    for (std::size_t i = 0; i < want->examples.size(); ++i) {
      EXPECT_EQ(counted->examples.num_tokens(i), want->examples.num_tokens(i));
      EXPECT_EQ(counted->examples.num_trained(i), want->examples.num_trained(i));
    }
    EXPECT_EQ(counted->num_rows, want->num_rows);
    EXPECT_EQ(counted->num_tokens, want->num_tokens);
    EXPECT_EQ(counted->num_trained, want->num_trained);
    ExpectSame(counted->truncated, want->truncated);
    ExpectSame(counted->without_loss, want->without_loss);
    EXPECT_TRUE(FilesOf(source).empty());
    options.max_counted = want->examples.size() - 1;
    EXPECT_EQ(base::Reason(LoadTokens(base::RealFileSystem(), source, options).status()), "DISK_FULL")
        << "too many to keep";
    // A plan needs the number of rows in an epoch.
    Loader a(counted->examples, Packing::kSegmented, 40, 7), b(want->examples, Packing::kSegmented, 40, 7);
    EXPECT_EQ(a.RowsInEpoch(0), b.RowsInEpoch(0));
  }
}

TEST_F(TokenFileTest, FullDiskLeavesTheTokensInMemory) {
  const TokenSource source = Source(RowFormat::kText, 20);
  const WriteTokensOptions options = {.threads = kThreads, .min_free_bytes = std::numeric_limits<std::uint64_t>::max()};
  const absl::Status refused = WriteTokenFile(base::RealFileSystem(), source, options);
  EXPECT_EQ(base::Reason(refused), "DISK_FULL");
  EXPECT_EQ(base::ReasonMetadata(refused)["wanted_bytes"], std::to_string(options.min_free_bytes));
  EXPECT_GT(std::stoull(base::ReasonMetadata(refused)["free_bytes"]), 0u);
  const auto loaded = LoadTokens(base::RealFileSystem(), source, options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectSame(*loaded, *InMemory(source));
  EXPECT_TRUE(FilesOf(source).empty());
}

}  // namespace
}  // namespace nibble::data
