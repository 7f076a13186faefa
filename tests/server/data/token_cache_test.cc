#include "server/data/token_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <limits>
#include <optional>
#include <thread>

#include "server/base/error.h"
#include "server/base/hooked_files.h"
#include "tests/server/data/token_source.h"
#include "tests/server/data/tokenizing_threads.h"

namespace nibble::data {
namespace {

// Hooks of a file system: `made` counts the finished token files; while `held` is set, every open blocks and sets
// `waiting`.
struct TokenFileHooks {
  TokenFileHooks(std::atomic<int>* made, std::atomic<bool>* held, std::atomic<bool>* waiting)
      : made(made), held(held), waiting(waiting) {}
  template <typename Work>
  auto Around(const char* operation, const std::string& path, Work work) -> decltype(work()) {
    if (std::string_view(operation) == "rename" && path.ends_with(".tokens")) ++*made;
    if (std::string_view(operation) == "open") {
      while (*held) {
        *waiting = true;
        std::this_thread::yield();
      }
    }
    return work();
  }
  template <typename Write>
  absl::Status Append(const std::string&, std::string_view bytes, Write write) {
    return write(bytes);
  }
  std::atomic<int>* const made;
  std::atomic<bool>* const held;
  std::atomic<bool>* const waiting;
};

class TokenCacheTest : public TokenSourceTest {
 protected:
  TokenCache Cache(std::int64_t max_bytes) {
    return TokenCache(files_, temp_ / "tokens", kThreads,
                      {.max_bytes = max_bytes, .needed = [this] { return needed_; }});
  }
  // Makes the token file of another dataset, last used `age` ago. Returns its source.
  TokenSource Made(TokenCache& cache, const std::string& dataset, std::chrono::minutes age) {
    TokenSource source = Source(RowFormat::kText, 20);
    source.tokens_directory = temp_ / ("tokens/" + dataset);
    const auto made = cache.Get(source, {});
    EXPECT_TRUE(made.ok()) << made.status();
    std::error_code ignored;
    std::filesystem::last_write_time(PathOf(source), std::filesystem::file_time_type::clock::now() - age, ignored);
    return source;
  }
  static bool Exists(const TokenSource& source) { return std::filesystem::exists(PathOf(source)); }

  std::atomic<int> made_{0};
  std::atomic<bool> held_{false};
  std::atomic<bool> waiting_{false};
  base::HookedFiles<TokenFileHooks> files_{base::RealFileSystem(), &made_, &held_, &waiting_};
  absl::StatusOr<std::set<std::string>> needed_ = std::set<std::string>();
};

constexpr std::int64_t kAmpleBytes = std::int64_t{1} << 40;

TEST_F(TokenCacheTest, TokenizesOnItsThreads) {
  TokenCache cache = Cache(kAmpleBytes);
  TokenizingThreads threads;
  ASSERT_TRUE(cache.Get(Source(RowFormat::kText, 5000), threads.Cancelled()).ok());
  EXPECT_TRUE(threads.others_worked());
}

TEST_F(TokenCacheTest, CallsForTheSameFileWriteItOnce) {
  TokenCache cache = Cache(kAmpleBytes);
  const TokenSource source = Source(RowFormat::kPromptCompletion, 100);
  const auto want = InMemory(source);
  ASSERT_TRUE(want.ok());
  std::vector<std::thread> threads;
  std::atomic<int> same{0};
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      const auto got = cache.Get(source, {});
      if (got.ok() && got->num_tokens == want->num_tokens) ++same;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, 6);
  EXPECT_EQ(made_, 1);
  EXPECT_EQ(FilesOf(source).size(), 1u);
}

TEST_F(TokenCacheTest, CallThatWaitsForAnotherCanBeCancelled) {
  TokenCache cache = Cache(kAmpleBytes);
  const TokenSource source = Source(RowFormat::kText, 20);
  held_ = true;
  std::thread first([&] { EXPECT_TRUE(cache.Get(source, {}).ok()); });
  while (!waiting_) std::this_thread::yield();
  const auto second = cache.Get(source, [] { return true; });
  EXPECT_TRUE(absl::IsCancelled(second.status())) << second.status();
  EXPECT_EQ(made_, 0);
  held_ = false;
  first.join();
  EXPECT_EQ(made_, 1);
}

TEST_F(TokenCacheTest, RemovesLeastRecentlyUsedFilesThatNoJobNeeds) {
  TokenCache roomy = Cache(kAmpleBytes);
  const TokenSource oldest = Made(roomy, "a", std::chrono::minutes(40));
  const TokenSource old = Made(roomy, "b", std::chrono::minutes(30));
  const TokenSource used = Made(roomy, "c", std::chrono::minutes(50));
  const TokenSource young = Made(roomy, "d", std::chrono::minutes(10));
  ASSERT_TRUE(roomy.Get(used, {}).ok());  // now the most recently used
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(PathOf(old)));
  needed_ = std::set<std::string>{PathOf(oldest)};
  Cache(3 * bytes).Trim();
  EXPECT_TRUE(Exists(oldest));
  EXPECT_FALSE(Exists(old));
  EXPECT_TRUE(Exists(used) && Exists(young));
  needed_ = absl::InternalError("the database cannot be read");
  Cache(0).Trim();
  EXPECT_TRUE(Exists(oldest) && Exists(used) && Exists(young))
      << "no file is removed while it is unknown which are needed";
  needed_ = std::set<std::string>{PathOf(oldest)};
  Cache(0).Trim();
  EXPECT_TRUE(Exists(oldest));
  EXPECT_FALSE(Exists(used) || Exists(young));
}

TEST_F(TokenCacheTest, CountsUnfinishedFilesAndRemovesThoseOfKilledWriters) {
  TokenCache cache = Cache(kAmpleBytes);
  const TokenSource finished = Made(cache, "a", std::chrono::minutes(10));
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(PathOf(finished)));
  const auto unfinished = [&](const char* id, std::chrono::minutes age) {
    const std::string path = PathOf(finished) + ".tmp.w-" + id;
    std::ofstream(path) << std::string(static_cast<std::size_t>(bytes), 'x');
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - age);
    return path;
  };
  const std::string leftover = unfinished("0123456789abcdef", std::chrono::hours(2)),
                    live = unfinished("0123456789abcdee", {});
  cache.Trim();
  EXPECT_FALSE(std::filesystem::exists(leftover)) << "its writer is dead";
  EXPECT_TRUE(std::filesystem::exists(live)) << "its writer wrote just now";
  EXPECT_TRUE(Exists(finished));
  Cache(2 * bytes).Trim();
  EXPECT_TRUE(Exists(finished));
  Cache(2 * bytes - 1).Trim();
  EXPECT_FALSE(Exists(finished)) << "both files together exceed the limit";
  EXPECT_TRUE(std::filesystem::exists(live));
}

// T7 (docs/faults.md)
TEST_F(TokenCacheTest, NeverHoldsTheTokensInMemory) {
  // No disk has that many free bytes, so no file can be written.
  TokenCache cache(files_, temp_ / "tokens", kThreads,
                   {.max_bytes = kAmpleBytes, .min_free_bytes = std::numeric_limits<std::uint64_t>::max()});
  const TokenSource source = Source(RowFormat::kText, 20);
  const auto want = InMemory(source);
  ASSERT_TRUE(want.ok());
  EXPECT_EQ(base::Reason(cache.Get(source, {}).status()), "DISK_FULL");
  const auto lengths = cache.GetLengths(source, {});
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  EXPECT_FALSE(lengths->examples.has_tokens());
  EXPECT_EQ(lengths->num_tokens, want->num_tokens);
  TokenCache roomy = Cache(kAmpleBytes);
  const auto file = roomy.GetLengths(source, {});
  ASSERT_TRUE(file.ok()) << file.status();
  ExpectSame(*file, *want);
  EXPECT_TRUE(cache.Get(source, {}).ok()) << "reading an existing file needs no free space";
}

TEST_F(TokenCacheTest, LimitHoldsAfterEachFileAndRemovedTokensStayReadable) {
  TokenCache cache = Cache(0);
  const TokenSource source = Source(RowFormat::kText, 20);
  const auto got = cache.Get(source, {});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_FALSE(Exists(source));
  ExpectSame(*got, *InMemory(source));
}

TEST_F(TokenCacheTest, StartRemovesFilesOfDeletedDatasetsAndUnfinishedFiles) {
  TokenCache cache = Cache(kAmpleBytes);
  const TokenSource kept = Made(cache, "kept", {}), gone = Made(cache, "gone", {});
  const std::string leftover = PathOf(kept) + ".tmp.w-0123456789abcdef";
  std::ofstream(leftover) << "half";
  cache.Trim();
  EXPECT_TRUE(Exists(gone));
  EXPECT_TRUE(std::filesystem::exists(leftover)) << "another call may be writing it";
  cache.Trim([](const std::string& dataset) { return dataset == "kept"; });
  EXPECT_TRUE(Exists(kept));
  EXPECT_FALSE(std::filesystem::exists(gone.tokens_directory));
  EXPECT_FALSE(std::filesystem::exists(leftover));
}

}  // namespace
}  // namespace nibble::data
