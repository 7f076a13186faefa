#include "server/openai/response_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace nibble::openai {
namespace {

using ::testing::ElementsAre;

constexpr std::size_t kMaxBytes = 100'000;
constexpr char kAnn[] = "ann";
constexpr char kBob[] = "bob";

class ResponseStoreTest : public ::testing::Test {
 protected:
  // Adds a response of about `bytes` bytes that continues `previous`.
  bool Add(const std::string& owner, const std::string& id, std::size_t bytes = 10'000,
           const std::string& previous = "") {
    Turn turn;
    if (!previous.empty()) turn.previous = store_.Find(owner, previous)->turn;
    turn.input.push_back({.id = "in-" + id, .json = std::string(bytes, 'x')});
    turn.output.push_back({.id = "out-" + id, .json = "{}"});
    return store_.Add(owner, {.id = id, .head = "[", .tail = "]", .turn = nullptr}, std::move(turn));
  }
  std::vector<std::string> Kept(const std::string& owner, const std::vector<std::string>& ids) {
    std::vector<std::string> kept;
    for (const std::string& id : ids) {
      if (store_.Find(owner, id) != nullptr) kept.push_back(id);
    }
    return kept;
  }

  base::FakeClock clock_{absl::FromUnixSeconds(0)};
  ResponseStore store_{{.ttl = absl::Minutes(10), .max_bytes = kMaxBytes}, clock_};
};

TEST_F(ResponseStoreTest, ResponseIsItsHeadItsOutputAndItsTail) {
  ASSERT_TRUE(Add(kAnn, "a"));
  EXPECT_EQ(store_.Find(kAnn, "a")->Json(), "[{}]");
}

TEST_F(ResponseStoreTest, OtherOwnersFindAndEraseNothing) {
  ASSERT_TRUE(Add(kAnn, "a"));
  for (const char* other : {kBob, "", "tenant/ann"}) {
    EXPECT_EQ(store_.Find(other, "a"), nullptr);
    EXPECT_FALSE(store_.Erase(other, "a"));
  }
  EXPECT_TRUE(store_.Erase(kAnn, "a"));
  EXPECT_EQ(store_.Find(kAnn, "a"), nullptr);
  EXPECT_FALSE(store_.Erase(kAnn, "a"));
  EXPECT_EQ(store_.Now().bytes, 0);
}

TEST_F(ResponseStoreTest, ResponsesExpireByAge) {
  ASSERT_TRUE(Add(kAnn, "a"));
  clock_.Advance(absl::Minutes(6));
  ASSERT_TRUE(Add(kBob, "b"));
  clock_.Advance(absl::Minutes(4));
  EXPECT_EQ(store_.Now().responses, 1);
  EXPECT_EQ(store_.Find(kAnn, "a"), nullptr);
  EXPECT_NE(store_.Find(kBob, "b"), nullptr);
  clock_.Advance(absl::Minutes(6));
  EXPECT_EQ(store_.Now().responses, 0);
  EXPECT_EQ(store_.Now().bytes, 0);
}

TEST_F(ResponseStoreTest, OwnerWithTooManyBytesLosesItsOldestResponsesOnly) {
  ASSERT_TRUE(Add(kBob, "b"));
  for (const char* id : {"a0", "a1", "a2", "a3", "a4", "a5"}) ASSERT_TRUE(Add(kAnn, id));
  EXPECT_THAT(Kept(kAnn, {"a0", "a1", "a2", "a3", "a4", "a5"}), ElementsAre("a2", "a3", "a4", "a5"));
  EXPECT_NE(store_.Find(kBob, "b"), nullptr);
  EXPECT_LE(store_.Now().bytes, kMaxBytes / 2 + 12'000);
}

TEST_F(ResponseStoreTest, FullMemoryTakesFromTheOwnerWithTheMostBytes) {
  for (const char* id : {"a0", "a1", "a2", "a3"}) ASSERT_TRUE(Add(kAnn, id));
  for (const char* id : {"b0", "b1", "b2"}) ASSERT_TRUE(Add(kBob, id));
  ASSERT_TRUE(Add("eve", "e0"));
  ASSERT_TRUE(Add("eve", "e1"));
  EXPECT_THAT(Kept(kAnn, {"a0", "a1", "a2", "a3"}), ElementsAre("a1", "a2", "a3"));
  EXPECT_EQ(Kept(kBob, {"b0", "b1", "b2"}).size(), 3);
  EXPECT_EQ(Kept("eve", {"e0", "e1"}).size(), 2);
  EXPECT_LE(store_.Now().bytes, kMaxBytes);
}

TEST_F(ResponseStoreTest, CallersWithoutTokensMayUseAllBytes) {
  for (const char* id : {"a", "b", "c", "d", "e", "f", "g", "h"}) ASSERT_TRUE(Add("", id));
  EXPECT_EQ(store_.Now().responses, 8);
}

TEST_F(ResponseStoreTest, SmallResponsesAreBoundedToo) {
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(Add("", "r" + std::to_string(i), 1));
  EXPECT_LT(store_.Now().responses, kMaxBytes / 1024);
}

TEST_F(ResponseStoreTest, ContinuedTurnsAreSharedAndCountOnce) {
  ASSERT_TRUE(Add(kAnn, "a", 5'000));
  const std::size_t one = store_.Now().bytes;
  ASSERT_TRUE(Add(kAnn, "b", 5'000, "a"));
  ASSERT_TRUE(Add(kAnn, "c", 5'000, "a"));
  EXPECT_EQ(store_.Now().bytes, 3 * one);
  const auto b = store_.Find(kAnn, "b");
  EXPECT_EQ(b->turn->previous, store_.Find(kAnn, "a")->turn);
  EXPECT_EQ(b->turn->num_turns, 2);
  EXPECT_THAT(TurnsUpTo(b->turn.get()), ElementsAre(b->turn->previous.get(), b->turn.get()));
}

TEST_F(ResponseStoreTest, DeletedTurnLivesWhileALaterResponseNeedsIt) {
  ASSERT_TRUE(Add(kAnn, "a"));
  ASSERT_TRUE(Add(kAnn, "b", 10'000, "a"));
  ASSERT_TRUE(store_.Erase(kAnn, "a"));
  EXPECT_EQ(store_.Find(kAnn, "b")->turn->previous->input.front().id, "in-a");
  EXPECT_GT(store_.Now().bytes, 20'000);
  ASSERT_TRUE(store_.Erase(kAnn, "b"));
  EXPECT_EQ(store_.Now().bytes, 0);
}

// A request in progress holds the turns that it continues, even if their responses are deleted.
TEST_F(ResponseStoreTest, TurnsThatRequestsHoldCountAgainstTheirOwnerOnly) {
  ASSERT_TRUE(Add(kBob, "b", 30'000));
  std::vector<std::shared_ptr<const StoredResponse>> held;
  for (const char* id : {"a0", "a1", "a2", "a3"}) {
    ASSERT_TRUE(Add(kAnn, id));
    held.push_back(store_.Find(kAnn, id));
    ASSERT_TRUE(store_.Erase(kAnn, id));
  }
  EXPECT_FALSE(Add(kAnn, "more", 20'000));
  EXPECT_NE(store_.Find(kBob, "b"), nullptr);
  held.clear();
  EXPECT_TRUE(Add(kAnn, "more", 20'000));
  EXPECT_NE(store_.Find(kBob, "b"), nullptr);
}

TEST_F(ResponseStoreTest, ConversationThatCannotFitIsNotKept) {
  std::string previous;
  int kept = 0;
  while (Add(kAnn, "r" + std::to_string(kept), 9'000, previous)) previous = "r" + std::to_string(kept++);
  EXPECT_EQ(kept, 5);
  EXPECT_NE(store_.Find(kAnn, previous), nullptr);
  EXPECT_LE(store_.Now().bytes, kMaxBytes / 2);
  EXPECT_FALSE(Add(kAnn, "large", kMaxBytes));
}

TEST_F(ResponseStoreTest, LongConversationIsDestroyed) {
  ResponseStore store({.ttl = absl::Minutes(10), .max_bytes = 64 << 20}, clock_);
  std::shared_ptr<const Turn> previous;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = std::to_string(i);
    ASSERT_TRUE(store.Add("", {.id = id, .head = "", .tail = "", .turn = nullptr},
                          {.previous = std::move(previous), .input = {}, .output = {}}));
    previous = store.Find("", id)->turn;
    if (i > 0) {
      ASSERT_TRUE(store.Erase("", std::to_string(i - 1)));
    }
  }
  EXPECT_EQ(previous->num_turns, 1000);
  previous = nullptr;
  ASSERT_TRUE(store.Erase("", "999"));
  EXPECT_EQ(store.Now().bytes, 0);
}

TEST_F(ResponseStoreTest, KeepsNothingWithoutTime) {
  ResponseStore store({.ttl = absl::ZeroDuration()}, clock_);
  EXPECT_FALSE(store.keeps_any());
  EXPECT_FALSE(store.Add(kAnn, {.id = "a", .head = "", .tail = "", .turn = nullptr}, {}));
}

TEST_F(ResponseStoreTest, ThreadsShareIt) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const std::string owner = t % 2 == 0 ? kAnn : kBob;
      std::string previous;
      for (int i = 0; i < 200; ++i) {
        const std::string id = std::to_string(t) + "-" + std::to_string(i);
        const auto found = store_.Find(owner, previous);
        Turn turn{.previous = i % 4 == 0 || found == nullptr ? nullptr : found->turn, .input = {}, .output = {}};
        turn.output.push_back({.id = "out", .json = std::string(2'000, 'x')});
        ASSERT_TRUE(store_.Add(owner, {.id = id, .head = "", .tail = "", .turn = nullptr}, std::move(turn)));
        if (i % 3 == 0) store_.Erase(owner, id);
        previous = id;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(store_.Now().bytes, kMaxBytes);
  clock_.Advance(absl::Minutes(10));
  EXPECT_EQ(store_.Now().responses, 0);
  EXPECT_EQ(store_.Now().bytes, 0);
}

}  // namespace
}  // namespace nibble::openai
