#include "server/registry/text_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/store/state_directory.h"
#include "tests/server/model/files.h"

namespace nibble::registry {
namespace {

class TextCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto state = store::StateDirectory::Open(base::RealFileSystem(), directory_.Path("state"));
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    tokenizer_bytes_ = std::filesystem::file_size(model::Golden("hf_tied_bf16/tokenizer.json"));
  }
  // Publishes a model without weights. `more`: the content of a file that no tokenizer reads.
  void Publish(const std::string& name, const std::string& chat_template, const std::string& more = "") {
    auto pending = state_->models->Begin(name);
    ASSERT_TRUE(pending.ok()) << pending.status();
    for (const char* file : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
      std::filesystem::copy(model::Golden("hf_tied_bf16/") + file, (*pending)->directory() + "/" + file);
    }
    if (!chat_template.empty()) model::WriteBytes((*pending)->directory() + "/chat_template.jinja", chat_template);
    if (!more.empty()) model::WriteBytes((*pending)->directory() + "/more", more);
    ASSERT_TRUE((*pending)->Commit().ok());
  }
  void PublishSeveral(int count) {
    for (int i = 0; i < count; ++i) Publish(base::StrCat("m", i), base::StrCat("{# ", i, " #}"));
  }
  // Options that count reads.
  TextCacheOptions Counting(std::uint64_t max_bytes) {
    return {.max_bytes = max_bytes, .read = [this](const std::string& directory) {
              ++reads_;
              return model::LoadTextAssets(directory);
            }};
  }
  void GetSeveral(TextCache& texts, int count) {
    for (int i = 0; i < count; ++i) EXPECT_TRUE(texts.Get(base::StrCat("m", i)).ok());
  }

  model::TempDirectory directory_;
  std::unique_ptr<store::StateDirectory> state_;
  std::uint64_t tokenizer_bytes_ = 0;
  std::atomic<int> reads_{0};
};

TEST_F(TextCacheTest, CallsForTheSameTextReadItOnce) {
  constexpr int kCalls = 8;
  Publish("m", "{# #}");
  std::atomic<int> begun{0}, reads{0}, answered{0};
  TextCacheOptions options;
  options.read = [&](const std::string& directory) {
    ++reads;
    while (begun < kCalls) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // lets the other calls arrive
    return model::LoadTextAssets(directory);
  };
  TextCache texts(*state_->models, options);
  std::vector<std::thread> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.emplace_back([&] {
      ++begun;
      const auto got = texts.Get("m");
      answered += got.ok() && (*got)->assets.tokenizer != nullptr;
    });
  }
  for (std::thread& call : calls) call.join();
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(answered, kCalls);
}

TEST_F(TextCacheTest, ModelsWithTheSameFilesShareATokenizer) {
  Publish("base", "{# #}", "base");
  Publish("tuned", "{# #}", "tuned");
  TextCache texts(*state_->models, Counting(0));
  const auto base = texts.Get("base"), tuned = texts.Get("tuned");
  ASSERT_TRUE(base.ok() && tuned.ok()) << base.status() << tuned.status();
  EXPECT_EQ((*base)->assets.tokenizer, (*tuned)->assets.tokenizer);
  EXPECT_EQ(reads_, 1);
}

// The bytes that are read do not have the digest in the manifest, so no other model gets them.
TEST_F(TextCacheTest, AlteredFilesServeNoOtherModel) {
  Publish("altered", "{# 1 #}", "altered");
  Publish("other", "{# 1 #}", "other");
  TextCache texts(*state_->models);
  model::WriteBytes(state_->models->Get("altered")->directory + "/chat_template.jinja", "{# 2 #}");
  EXPECT_EQ(base::Reason(texts.Get("altered").status()), "ARTIFACT_CORRUPT") << texts.Get("altered").status();
  EXPECT_TRUE(texts.Get("other").ok()) << texts.Get("other").status();
}

TEST_F(TextCacheTest, WaitingCallsShareAFailureAndTheNextReadsAgain) {
  constexpr int kCalls = 4;
  Publish("m", "{# #}");
  std::atomic<int> begun{0}, reads{0};
  TextCacheOptions options;
  options.read = [&](const std::string&) -> absl::StatusOr<model::TextAssets> {
    ++reads;
    while (begun < kCalls) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return absl::InvalidArgumentError("no tokenizer");
  };
  TextCache texts(*state_->models, options);
  std::vector<std::thread> calls;
  std::atomic<int> failed{0};
  for (int i = 0; i < kCalls; ++i) {
    calls.emplace_back([&] {
      ++begun;
      failed += absl::IsInvalidArgument(texts.Get("m").status());
    });
  }
  for (std::thread& call : calls) call.join();
  EXPECT_EQ(failed, kCalls);
  EXPECT_LT(reads, kCalls);
  const int before = reads;
  EXPECT_FALSE(texts.Get("m").ok());
  EXPECT_EQ(reads, before + 1);
}

TEST_F(TextCacheTest, AlternatingModelsAreReadOnceEach) {
  PublishSeveral(5);
  TextCache texts(*state_->models, Counting(TextCacheOptions().max_bytes));
  for (int round = 0; round < 3; ++round) GetSeveral(texts, 5);
  EXPECT_EQ(reads_, 5);
}

TEST_F(TextCacheTest, KeepsAsManyAsFitAndAlwaysTheLast) {
  PublishSeveral(3);
  TextCache two(*state_->models, Counting(2 * tokenizer_bytes_));
  GetSeveral(two, 3);
  EXPECT_EQ(reads_, 3);
  GetSeveral(two, 1);  // the oldest was dropped
  EXPECT_EQ(reads_, 4);
  EXPECT_TRUE(two.Get("m2").ok());
  EXPECT_EQ(reads_, 4);
  reads_ = 0;
  TextCache none(*state_->models, Counting(0));
  GetSeveral(none, 1);
  GetSeveral(none, 1);
  EXPECT_EQ(reads_, 1);
}

TEST_F(TextCacheTest, FactsReadNoTokenizerAndNameTheSameDigest) {
  Publish("with", "{{ messages[0]['content'] }}");
  Publish("without", "");
  TextCacheOptions options;
  options.read = [](const std::string&) -> absl::StatusOr<model::TextAssets> {
    return absl::InternalError("was read");
  };
  TextCache facts(*state_->models, options), texts(*state_->models);
  for (const char* name : {"with", "without"}) {
    const auto fact = facts.Facts(name);
    const auto text = texts.Get(name);
    ASSERT_TRUE(fact.ok() && text.ok()) << fact.status() << text.status();
    EXPECT_EQ(fact->digest, (*text)->assets.digest) << name;
    EXPECT_EQ(fact->config.eos_token_ids, (*text)->config.eos_token_ids);
    EXPECT_EQ(fact->config.vocab_size, (*text)->config.vocab_size);
  }
  EXPECT_NE(facts.Facts("with")->digest, facts.Facts("without")->digest);
  EXPECT_EQ(base::Reason(facts.Facts("none").status()), "MODEL");
}

}  // namespace
}  // namespace nibble::registry
