#include "server/data/large_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "server/base/error.h"
#include "server/base/process_memory.h"
#include "server/data/token_cache.h"
#include "tests/server/data/token_source.h"

namespace nibble::data {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Measures the growth of resident bytes, at its peak, since construction.
class Growth {
 public:
  Growth()
      : before_(base::ResidentBytes()), thread_([this] {
          while (!stop_) {
            most_ = std::max(most_.load(), base::ResidentBytes());
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }) {}
  ~Growth() { Stop(); }
  std::int64_t Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return most_ > before_ ? static_cast<std::int64_t>(most_ - before_) : 0;
  }

 private:
  const std::uint64_t before_;
  std::atomic<std::uint64_t> most_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Resident memory without that of mapped files.
std::int64_t AnonymousBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  ADD_FAILURE() << "/proc/self/status has no RssAnon";
  return 0;
}

std::string Prose(std::size_t bytes) {
  constexpr const char* kWords[] = {"the", "keeper",  "of",    "light",   "walked", "down",
                                    "to",  "harbour", "every", "morning", "before"};
  std::string text;
  for (std::size_t i = 0; text.size() < bytes; ++i)
    text += std::string(kWords[(i * i + i / 7) % std::size(kWords)]) + " ";
  return text;
}

std::string TextRow(const std::string& text) { return "{\"text\": \"" + text + "\"}\n"; }

class LargeRowsTest : public TokenSourceTest {
 protected:
  // Writes `rows` to a new file for each call.
  TokenSource Rows(const std::string& rows) {
    TokenSource source = Source(RowFormat::kText, 0, rows);
    const std::string path = temp_ / ("rows" + std::to_string(++files_));
    std::filesystem::rename(source.data_path, path);
    source.data_path = path;
    return source;
  }
  int files_ = 0;
};

// T6 (docs/faults.md): a text of 16 MiB is one row. It was encoded at once, took gigabytes outside any budget and could
// not be cancelled.
TEST_F(LargeRowsTest, PlainTextOfSixteenMebibytesTakesLittleMemoryAndCanBeCancelled) {
  const TokenSource source = Rows(TextRow(Prose(16 * kMiB)));
  base::ReturnFreeMemory();
  Growth growth;
  const auto began = std::chrono::steady_clock::now();
  const absl::Status written = WriteTokenFile(base::RealFileSystem(), source, {.threads = kThreads});
  ASSERT_TRUE(written.ok()) << written;
  const auto took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const std::int64_t grown = growth.Stop();
  std::printf("16 MiB in one row: %.1f s, resident memory +%lld MiB\n", took, static_cast<long long>(grown / kMiB));
#if !defined(NIBBLE_ASAN) && !defined(NIBBLE_TSAN)
  EXPECT_LT(grown, 400 * kMiB);
#endif
  std::filesystem::remove(PathOf(source));
  int asked = 0;
  const absl::Status stopped =
      WriteTokenFile(base::RealFileSystem(), source, {.threads = kThreads, .cancelled = [&] { return ++asked == 20; }});
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
  EXPECT_EQ(asked, 20) << "cancelled within the row";
  EXPECT_TRUE(FilesOf(source).empty());
}

TEST_F(LargeRowsTest, TokensEqualThoseOfTheWholeRow) {
  const std::string prose = Prose(300'000), blob(100'000, 'x');
  const auto tokens = [&](RowFormat format, const std::string& line, const TokenizeOptions& options) {
    const auto row = ParseRow(line, format);
    EXPECT_TRUE(row.ok()) << row.status();
    const auto examples = Tokenize(*row, format, text_, {}, options);
    EXPECT_TRUE(examples.ok()) << examples.status();
    return examples.ok() && examples->size() == 1 ? examples->front() : Example();
  };
  const TokenizeOptions whole = {.max_seq_len = 10'000'000};
  for (const std::string& text : {prose, blob + prose, prose + blob}) {
    const std::vector<std::int32_t> want = *text_.tokenizer->Encode(text, false);
    EXPECT_EQ(tokens(RowFormat::kText, TextRow(text), whole).tokens, want);
    const std::string pair =
        "{\"prompt\": \"" + text.substr(0, 200'000) + "\", \"completion\": \"" + text.substr(200'000) + "\"}";
    const Example example = tokens(RowFormat::kPromptCompletion, pair, whole);
    EXPECT_EQ(example.tokens, want);
    // Trained from the token that covers the first byte of the completion.
    const auto with_spans = text_.tokenizer->EncodeWithSpans(text, false);
    ASSERT_TRUE(with_spans.ok());
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_EQ(example.trained[i] != 0, with_spans->tokens[i].end > 200'000) << i;
    const std::string chat = R"({"messages": [{"role": "user", "content": ")" + text +
                             R"("}, {"role": "assistant", "content": ")" + text + "\"}]}";
    EXPECT_EQ(tokens(RowFormat::kChat, chat, whole).tokens, *text_.tokenizer->Encode(text + text, false));
  }
}

TEST_F(LargeRowsTest, BytesDoNotDependOnTheNumberOfThreads) {
  std::string rows;
  for (int i = 0; i < 12; ++i) {
    for (int j = 0; j < 20; ++j) rows += TextRow("keeper " + std::to_string(i * 20 + j));
    rows += TextRow(Prose(i % 3 == 0 ? 300'000 : 50'000));
    if (i % 4 == 0) rows += TextRow(std::string(90'000, 'x'));
  }
  TokenSource source = Rows(rows);
  std::string first;
  for (const int threads : {1, 3, 8}) {
    ASSERT_TRUE(WriteTokenFile(base::RealFileSystem(), source, {.threads = threads, .window_bytes = 1 << 20}).ok());
    const std::string bytes = ReadBytes(PathOf(source));
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << threads;
  }
  const auto want = InMemory(source);
  const auto got = LoadTokens(base::RealFileSystem(), source, {.threads = kThreads});
  ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
  ExpectSame(*got, *want);
}

TEST_F(LargeRowsTest, OnlyOneCallHasATurn) {
  LargeRows rows;
  auto first = rows.Await({});
  ASSERT_TRUE(first.ok());
  int asked = 0;
  EXPECT_TRUE(absl::IsCancelled(rows.Await([&] { return ++asked == 2; }).status()));
  EXPECT_EQ(asked, 2) << "the call waited";
  std::atomic<bool> has_turn{false};
  std::thread second([&] { has_turn = rows.Await({}).ok(); });
  std::this_thread::yield();
  EXPECT_FALSE(has_turn);
  std::optional<LargeRows::Turn> held(*std::move(first));
  held.reset();
  second.join();
  EXPECT_TRUE(has_turn);
}

TEST_F(LargeRowsTest, LargeRowTakesItsMemoryFirstAndReleasesIt) {
  const std::string rows = TextRow("keeper") + TextRow(Prose(400'000));
  // 16 bytes per byte of the row, and 256 per byte of a piece of 32 KiB.
  const std::int64_t need =
      16 * static_cast<std::int64_t>(rows.size() - TextRow("keeper").size() - 1) + 256 * (32 << 10);
  const auto load = [&](std::int64_t limit, const std::string& text) {
    const auto memory = base::MemoryBudget::Make(limit);
    TokenCache cache(base::RealFileSystem(), temp_ / "tokens", kThreads, {.max_bytes = 100 * kMiB, .memory = memory});
    const TokenSource source = Rows(text);
    std::filesystem::remove(PathOf(source));
    const absl::Status status = cache.GetLengths(source, {}).status();
    EXPECT_EQ(memory->left(), limit) << "all memory is released";
    return status;
  };
  EXPECT_TRUE(load(need, rows).ok());
  const absl::Status refused = load(need - 1, rows);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(base::Reason(refused), "OUT_OF_DEVICE_MEMORY");
  EXPECT_EQ(base::ReasonMetadata(refused)["need"], std::to_string(need));
  EXPECT_EQ(base::ReasonMetadata(refused)["have"], std::to_string(need - 1));
  EXPECT_EQ(std::string(refused.message()).substr(0, 36), "line 2: encoding the row takes about") << refused;
  EXPECT_TRUE(load(1, TextRow(Prose(200'000))).ok()) << "the server's own reserve covers smaller rows";
  // A text without a blank cannot be cut into pieces.
  const std::string blob = TextRow(std::string(200'000, 'x'));
  EXPECT_EQ(base::Reason(load(256 * 200'000 - 1, blob)), "OUT_OF_DEVICE_MEMORY");
  EXPECT_TRUE(load(256 * 200'000, blob).ok());
}

// T6: if a plan read a long line before its turn, many plans that wait would hold gigabytes.
TEST_F(LargeRowsTest, LongLineIsNotReadBeforeItsTurn) {
  const TokenSource source = Rows(TextRow(std::string(64 * kMiB, 'x')));
  LargeRows rows;
  const auto turn_of_another = rows.Await({});
  ASSERT_TRUE(turn_of_another.ok());
  base::ReturnFreeMemory();
  const std::int64_t before = AnonymousBytes();
  std::int64_t most = 0;  // growth of the memory while the row waits
  int asked = 0;
  const auto cancelled = [&] {
    most = std::max(most, AnonymousBytes() - before);
    return ++asked == 5;
  };
  const absl::Status stopped = WriteTokenFile(base::RealFileSystem(), source,
                                              {.threads = kThreads, .cancelled = cancelled, .large_rows = &rows});
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
  EXPECT_EQ(asked, 5) << "the row waited";
#if !defined(NIBBLE_ASAN) && !defined(NIBBLE_TSAN)
  EXPECT_LT(most, 16 * kMiB);
#endif
}

// T6: while a token file is written, its cached words take 84 MiB per thread from the budget; if the budget has less,
// words are not cached.
TEST_F(LargeRowsTest, CachedWordsTakeTheirMemoryFirstAndReleaseIt) {
  const TokenSource source = Rows(TextRow(Prose(200'000)));
  std::string first;
  for (const std::int64_t limit : {2 * kWordCacheBytes, 2 * kWordCacheBytes - 1}) {
    const auto memory = base::MemoryBudget::Make(limit);
    std::int64_t least = limit;
    const auto look = [&] {
      least = std::min(least, memory->left());
      return false;
    };
    ASSERT_TRUE(
        WriteTokenFile(base::RealFileSystem(), source, {.threads = 2, .cancelled = look, .memory = memory}).ok());
    EXPECT_EQ(limit - least, limit == 2 * kWordCacheBytes ? limit : 0);
    EXPECT_EQ(memory->left(), limit);
    if (first.empty()) first = ReadBytes(PathOf(source));
    EXPECT_TRUE(ReadBytes(PathOf(source)) == first) << "the tokens are the same";
  }
}

// Without turns, the second call would find no memory.
TEST_F(LargeRowsTest, TwoCallsShareMemoryForOneRow) {
  const std::string rows = TextRow(Prose(3 * kMiB));
  const auto memory = base::MemoryBudget::Make(16 * static_cast<std::int64_t>(rows.size()) + 256 * (32 << 10));
  TokenCache cache(base::RealFileSystem(), temp_ / "tokens", kThreads, {.max_bytes = 100 * kMiB, .memory = memory});
  std::vector<std::thread> calls;
  std::atomic<int> made{0};
  for (int i = 0; i < 2; ++i) {
    TokenSource source = Rows(rows);
    source.data_sha256 = std::to_string(i);
    calls.emplace_back([&, source] { made += cache.GetLengths(source, {}).ok(); });
  }
  for (std::thread& call : calls) call.join();
  EXPECT_EQ(made, 2);
}

}  // namespace
}  // namespace nibble::data
