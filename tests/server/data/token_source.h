// Data with rows of every kind, and its token source, for tests of token files.
#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "server/base/files.h"
#include "server/base/sha256.h"
#include "server/data/token_writer.h"
#include "tests/support/temp_directory.h"

namespace nibble::data {

inline std::string ReadBytes(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

class TokenSourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto assets = model::LoadTextAssets(NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16");
    ASSERT_TRUE(assets.ok()) << assets.status();
    text_ = *std::move(assets);
    // The model's own template writes line ends, which this vocabulary does not have.
    auto bare = text::ChatTemplate::Compile("{% for m in messages %}{{ m['content'] }}{% endfor %}", {});
    ASSERT_TRUE(bare.ok()) << bare.status();
    text_.chat_template = *std::move(bare);
  }

  // Rows that fit, are too long, are blank, have a token that crosses the end of the prompt, or have no loss. They are
  // repeated `times` times and followed by `last`.
  TokenSource Source(RowFormat format, int times, const std::string& last = "") {
    std::string all;
    for (int i = 0; i < times; ++i) {
      const std::string word = "keeper " + std::to_string(i);
      const std::string longer = std::string(static_cast<std::size_t>(10 + i % 7 * 30), 'x') + word;
      switch (format) {
        case RowFormat::kText:
          all += "{\"text\": \"" + word + "\"}\n\n{\"text\": \"the light " + longer + "\"}\n";
          break;
        case RowFormat::kPromptCompletion:
          all += "{\"prompt\": \"walk t\", \"completion\": \"he " + word + "\"}\n  \n";
          all += "{\"prompt\": \"" + longer + "\", \"completion\": \" " + word + "\"}\n";
          break;
        case RowFormat::kChat:
          all += R"({"messages": [{"role": "user", "content": ")" + word + R"("}, {"role": "assistant", "content": ")" +
                 longer + "\"}]}\n";
          break;
      }
    }
    all += last;
    TokenSource source;
    source.data_path = temp_ / (std::string(Name(format)) + ".jsonl");
    std::ofstream(source.data_path, std::ios::binary) << all;
    source.data_sha256 = base::Sha256Hex(all);
    source.tokens_directory = temp_ / "tokens/set";
    source.format = format;
    source.text = text_;
    source.config.eos_token_ids = {1};
    source.options.max_seq_len = 40;
    return source;
  }

  static absl::StatusOr<Dataset> InMemory(const TokenSource& source, const base::Cancelled& cancelled = {}) {
    return LoadDataset(source.data_path, source.format, source.text, source.config, source.options, cancelled);
  }
  static std::string PathOf(const TokenSource& source) {
    return TokenFilePath(source.tokens_directory, TokenKey(source));
  }
  static std::vector<std::string> FilesOf(const TokenSource& source) {
    return base::RealFileSystem().List(source.tokens_directory).value_or(std::vector<std::string>());
  }

  static void ExpectSame(const RowList& got, const RowList& want) {
    EXPECT_EQ(got.count, want.count);
    EXPECT_EQ(got.lines, want.lines);
  }
  static void ExpectSame(const Dataset& got, const Dataset& want) {
    EXPECT_EQ(got.num_rows, want.num_rows);
    EXPECT_EQ(got.num_tokens, want.num_tokens);
    EXPECT_EQ(got.num_trained, want.num_trained);
    ExpectSame(got.truncated, want.truncated);
    ExpectSame(got.dropped, want.dropped);
    ExpectSame(got.without_loss, want.without_loss);
    ExpectSame(got.boundary_merged, want.boundary_merged);
    ExpectSame(got.began_with_added, want.began_with_added);
    ExpectSame(got.unknown_roles, want.unknown_roles);
    ExpectSame(got.empty_answers, want.empty_answers);
    ASSERT_EQ(got.examples.size(), want.examples.size());
    for (std::size_t i = 0; i < want.examples.size(); ++i) {
      const Example a = got.examples[i], b = want.examples[i];
      ASSERT_EQ(a.tokens, b.tokens) << i;
      ASSERT_EQ(a.trained, b.trained) << i;
      EXPECT_EQ(a.num_cut_off > 0, b.num_cut_off > 0) << i;
      EXPECT_EQ(a.boundary_merged, b.boundary_merged) << i;
      EXPECT_EQ(a.began_with_added, b.began_with_added) << i;
      EXPECT_EQ(got.examples.num_tokens(i), static_cast<std::int64_t>(b.tokens.size()));
      EXPECT_EQ(got.examples.num_trained(i), b.num_trained());
    }
  }

  testing::TempDirectory temp_;
  model::TextAssets text_;
  static constexpr int kThreads = 4;
};

}  // namespace nibble::data
